"""Metrics in the text format of Prometheus.

Messages that wait for their due are ``parked``; what is ready and not taken shows in
``dwell_oldest_ready_seconds``. The two are never one figure.
"""

import contextlib
from collections.abc import Iterable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from dwell.batch.stats import Stats
from dwell.errors import StoreError
from dwell.histogram import Histogram
from dwell.queue import Queue
from dwell.server.service import Service

CONTENT_TYPE = CONTENT_TYPE_LATEST

_STATES = ("delayed", "ready", "leased", "dead")


async def exposition(service: Service, waiting: int) -> bytes:
    """Return all figures of a service."""
    stats = await service.queue.stats()
    oldest = await _oldest_ready(service.queue)
    condition: dict[str, int | str] = {}
    with contextlib.suppress(StoreError):
        condition = await service.queue.store.condition()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(service, stats, oldest, waiting, condition))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


async def _oldest_ready(queue: Queue) -> dict[str, float]:
    """Return for how many seconds the message that waits longest for a taker has been due."""
    now_ms = queue.clock.now_ms()
    # A store that has failed says less; what it still says is wanted all the more.
    with contextlib.suppress(StoreError):
        oldest_ms = await queue.oldest_ready()
        return {topic: max(now_ms - due_ms, 0) / 1000 for topic, due_ms in oldest_ms.items()}
    return {}


class _Figures(Collector):
    """What one scrape shows."""

    def __init__(
        self,
        service: Service,
        stats: Stats,
        oldest: dict[str, float],
        waiting: int,
        condition: dict[str, int | str],
    ) -> None:
        self._service = service
        self._stats = stats
        self._oldest = oldest
        self._waiting = waiting
        self._condition = condition

    def collect(self) -> Iterable[Metric]:
        """Yield the figures."""
        yield from self._messages()
        yield from self._takers()
        yield from self._server()
        yield from self._store()
        yield _histogram(
            "dwell_lateness_seconds",
            "From a message's due, or its put if that was later, to its first take.",
            self._service.lateness,
        )
        for name, timing in self._service.queue.store.timings.items():
            yield _histogram(f"dwell_journal_{name}_seconds", f"One {name} of the journal.", timing)

    def _messages(self) -> Iterable[Metric]:
        messages = GaugeMetricFamily(
            "dwell_messages",
            "Messages by topic and state. Delayed ones are parked until they are due.",
            labels=("topic", "state"),
        )
        for topic, counts in self._stats.topics.items():
            for state in _STATES:
                messages.add_metric((topic, state), getattr(counts, state))
        yield messages
        oldest = GaugeMetricFamily(
            "dwell_oldest_ready_seconds",
            "For how long the message that waits longest for a taker has been due.",
            labels=("topic",),
        )
        for topic, age in self._oldest.items():
            oldest.add_metric((topic,), age)
        yield oldest
        events = CounterMetricFamily(
            "dwell_events", "What has happened to messages, by kind.", labels=("kind",)
        )
        for kind, count in self._stats.totals.items():
            events.add_metric((kind,), count)
        yield events

    def _takers(self) -> Iterable[Metric]:
        takers = GaugeMetricFamily(
            "dwell_waiting_takers", "Takers that wait for a message, by topic.", labels=("topic",)
        )
        for topic, count in self._service.queue.waiting.items():
            takers.add_metric((topic,), count)
        yield takers

    def _server(self) -> Iterable[Metric]:
        in_flight = self._service.in_flight
        for name, text, value in (
            ("dwell_requests_under_way", "Requests that are being done.", in_flight.requests),
            ("dwell_request_bytes_under_way", "Bytes of them.", in_flight.size_bytes),
            ("dwell_waiting_requests", "Requests that wait for messages.", self._waiting),
            ("dwell_draining", "1 when no new messages are taken.", self._service.is_draining),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))
        yield CounterMetricFamily(
            "dwell_refused_requests", "Requests refused as too many.", value=in_flight.refused
        )

    def _store(self) -> Iterable[Metric]:
        is_ready = float(self._service.problem() is None)
        text = "1 while new messages are taken; /readyz and /v1/health say why they are not."
        yield GaugeMetricFamily("dwell_ready", text, value=is_ready)
        for name, value in self._condition.items():
            if isinstance(value, int):
                text = f"{name} of the store, as /v1/health has it."
                yield GaugeMetricFamily(f"dwell_store_{name}", text, value=float(value))


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    total, buckets = 0, []
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum)
