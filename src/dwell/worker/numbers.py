"""The counts of a worker, in the form of Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from dwell.prometheus import histogram_family
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
        text = "How long calls of handlers took."
        yield histogram_family("dwell_worker_seconds", text, tally.seconds)
