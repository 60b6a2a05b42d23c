"""The counts of a relay, as Prometheus reads them."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dwell.prometheus import histogram_family
from dwell.relay.tally import Tally


class Numbers(Collector):
    """The counts of a relay."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        """Yield the counts of a relay."""
        tally = self._tally
        yield _counter("read", "Records read from the source.", tally.read)
        yield _counter("sent", "Records that the sink has.", tally.sent)
        yield _counter("repeated", "Messages that a relay before had sent.", tally.repeated)
        yield _counter("lost", "Events that were gone before they were sent.", tally.lost)
        held = CounterMetricFamily(
            "dwell_relay_held", "What the queue said of records.", labels=["result"]
        )
        for result, count in sorted(tally.held.items()):
            held.add_metric([result.replace(" ", "_")], count)
        yield held
        dead = CounterMetricFamily("dwell_relay_dead", "Dead letters.", labels=["by"])
        for by in ("source", "sink"):
            dead.add_metric([by], tally.dead[by])
        yield dead
        yield _counter("dropped", "Dead letters that are kept nowhere.", tally.dropped)
        yield _counter("unkept", "Records left in the source, as no letter fits.", tally.unkept)
        yield GaugeMetricFamily("dwell_relay_lanes", "Lanes that are this relay's.", tally.lanes)
        text = "How long after their due records left."
        yield histogram_family("dwell_relay_late_seconds", text, tally.late)


def _counter(name: str, about: str, value: int) -> Metric:
    return CounterMetricFamily(f"dwell_relay_{name}", about, value)
