"""What a relay tells those who watch it: ``/metrics``, ``/healthz`` and ``/readyz``."""

from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dwell.errors import InvalidUrl
from dwell.relay.tally import LATE_MS, Tally


class _Numbers(Collector):
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
        yield GaugeMetricFamily("dwell_relay_lanes", "Lanes that are this relay's.", tally.lanes)
        yield _late(tally)


def _counter(name: str, about: str, value: int) -> Metric:
    return CounterMetricFamily(f"dwell_relay_{name}", about, value)


def _late(tally: Tally) -> Metric:
    total, buckets = 0, []
    for end, count in zip((*LATE_MS, None), tally.late, strict=True):
        total += count
        buckets.append(("+Inf" if end is None else str(end / 1000), total))
    return HistogramMetricFamily(
        "dwell_relay_late_seconds",
        "How long after their due records left.",
        buckets=buckets,
        sum_value=tally.late_ms / 1000,
    )


class Status:
    """A small server beside a relay; ``is_ready`` says whether it does its work."""

    def __init__(self, address: str, tally: Tally, is_ready: Callable[[], str | None]) -> None:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65_535:
            raise InvalidUrl(f"--http: got {address!r:.80}, expected HOST:PORT")
        self._host, self._port = host.strip("[]"), int(port)
        self._registry = CollectorRegistry()
        self._registry.register(_Numbers(tally))
        self._is_ready = is_ready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; raises InvalidUrl where that cannot be."""
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", _healthy)
        app.router.add_get("/readyz", self._ready)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise InvalidUrl(
                f"--http: cannot listen on {self._host}:{self._port}: {error.strerror}"
            ) from None

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _ready(self, _request: web.Request) -> web.Response:
        why = self._is_ready()
        return web.Response(text=f"{why or 'ready'}\n", status=200 if why is None else 503)


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")
