"""The counts of a worker, in the form of Prometheus."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dwell.worker.tally import Tally


class Numbers(Collector):
    """The counts of a worker."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        """Yield the counts."""
        tally = self._tally
        calls = CounterMetricFamily(
            "dwell_worker_calls", "Calls of handlers that ended.", labels=["topic", "result"]
        )
        for (topic, result), count in sorted(tally.calls.items()):
            calls.add_metric([topic, result], count)
        yield calls
        timeouts = CounterMetricFamily(
            "dwell_worker_timeouts", "Calls that ran longer than they may.", labels=["topic"]
        )
        for topic, count in sorted(tally.timeouts.items()):
            timeouts.add_metric([topic], count)
        yield timeouts
        seconds = tally.seconds
        ends = [*map(str, seconds.bounds), "+Inf"]
        yield HistogramMetricFamily(
            "dwell_worker_seconds",
            "How long calls of handlers took.",
            buckets=list(zip(ends, accumulate(seconds.counts), strict=True)),
            sum_value=seconds.sum,
        )
