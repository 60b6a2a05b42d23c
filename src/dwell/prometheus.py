"""Metrics in the form of Prometheus that several parts have."""

from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily

from dwell.histogram import Histogram


def histogram_family(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    """Return a histogram; a bucket has the values of those before it, too."""
    ends = [*map(str, histogram.bounds), "+Inf"]
    buckets = list(zip(ends, accumulate(histogram.counts), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum)
