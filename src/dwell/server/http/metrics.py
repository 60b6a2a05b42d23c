"""Metrics in the text format of Prometheus.

Messages that wait for their due are ``parked``. The age of ready messages that are not taken is
``dwell_oldest_ready_seconds``. The two are never one figure.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from itertools import chain, repeat

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from dwell.batch.stats import TopicStats
from dwell.errors import StoreError
from dwell.prometheus import histogram_family
from dwell.queue import Queue
from dwell.server.largest import largest
from dwell.server.parts import in_turns
from dwell.server.service import Service

CONTENT_TYPE = CONTENT_TYPE_LATEST

#: How many topics are shown by name, largest first, and the name for all others, which no topic can
#: have.
MOST_TOPICS = 1000
OTHERS = "(others)"
#: How many lines are written before other tasks run.
_LINES = 500

_STATES = ("delayed", "ready", "leased", "dead")


async def exposition(service: Service, waiting: int) -> bytes:
    """Return all figures of a service; of very many topics the largest by name.

    The text is written figure by figure; other connections are served in between.
    """
    stats = await service.queue.stats()
    # The age of the oldest of all others is the next one.
    oldest, _ = await largest(await _oldest_ready(service.queue), MOST_TOPICS + 1)
    if len(oldest) > MOST_TOPICS:
        oldest[OTHERS] = oldest.popitem()[1]
    condition: dict[str, int | str] = {}
    with contextlib.suppress(StoreError):
        condition = await service.queue.store.condition()
    topics = await _shown(stats.topics)
    takers, others = await largest(service.queue.waiting, MOST_TOPICS)
    takers |= {OTHERS: others} if others else {}
    figures = _Figures(service, topics, stats.totals, oldest, takers, waiting, condition)
    parts = list[bytes]()
    for metric in chain(figures.collect(), ProcessCollector(registry=None).collect()):
        parts += [part async for part in _written(metric)]
    return b"".join(parts)


async def _written(metric: Metric) -> AsyncIterator[bytes]:
    """Yield the text of a figure, some lines at a time; what it is stands before the first."""
    samples = metric.samples
    for at in range(0, max(len(samples), 1), _LINES):
        metric.samples = samples[at : at + _LINES]
        text = generate_latest(_Alone(metric))
        yield text.split(b"\n", 2)[2] if at else text
        await asyncio.sleep(0)


async def _shown(topics: dict[str, TopicStats]) -> dict[str, TopicStats]:
    """Return the topics with most messages, and the sums of the others, if there are more."""
    if len(topics) <= MOST_TOPICS:
        return topics
    sizes = dict[str, int]()
    async for name, one in in_turns(topics.items(), repeat(0)):
        sizes[name] = one.delayed + one.ready + one.leased + one.dead
    shown = {name: topics[name] for name in (await largest(sizes, MOST_TOPICS))[0]}
    others = shown[OTHERS] = TopicStats()
    async for name, one in in_turns(topics.items(), repeat(0)):
        if name not in shown:
            others.delayed, others.ready = others.delayed + one.delayed, others.ready + one.ready
            others.leased, others.dead = others.leased + one.leased, others.dead + one.dead
    return shown


class _Alone(Collector):
    """A figure without labels, written on its own line."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """Yield it."""
        yield self._metric


async def _oldest_ready(queue: Queue) -> dict[str, float]:
    """Return for how many seconds the message that waits longest for a taker has been due."""
    now_ms = queue.clock.now_ms()
    # A store that has failed has fewer figures, but these are needed all the more.
    with contextlib.suppress(StoreError):
        oldest_ms = await queue.oldest_ready()
        return {topic: max(now_ms - due_ms, 0) / 1000 for topic, due_ms in oldest_ms.items()}
    return {}


class _Figures(Collector):
    """The figures of one scrape."""

    def __init__(
        self,
        service: Service,
        topics: dict[str, TopicStats],
        totals: dict[str, int],
        oldest: dict[str, float],
        takers: dict[str, int],
        waiting: int,
        condition: dict[str, int | str],
    ) -> None:
        self._service = service
        self._topics = topics
        self._totals = totals
        self._oldest = oldest
        self._waiting_takers = takers
        self._waiting = waiting
        self._condition = condition

    def collect(self) -> Iterable[Metric]:
        """Yield the figures."""
        yield from self._messages()
        yield from self._takers()
        yield from self._server()
        yield from self._store()
        yield histogram_family(
            "dwell_lateness_seconds",
            "From a message's due, or its put if that was later, to its first take.",
            self._service.lateness,
        )
        for name, timing in self._service.queue.store.timings.items():
            yield histogram_family(
                f"dwell_journal_{name}_seconds", f"One {name} of the journal.", timing
            )

    def _messages(self) -> Iterable[Metric]:
        messages = GaugeMetricFamily(
            "dwell_messages",
            "Messages by topic and state. Delayed ones are parked until they are due.",
            labels=("topic", "state"),
        )
        for topic, counts in self._topics.items():
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
        for kind, count in self._totals.items():
            events.add_metric((kind,), count)
        yield events

    def _takers(self) -> Iterable[Metric]:
        takers = GaugeMetricFamily(
            "dwell_waiting_takers", "Takers that wait for a message, by topic.", labels=("topic",)
        )
        for topic, count in self._waiting_takers.items():
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
        dropped = CounterMetricFamily(
            "dwell_log_dropped_lines",
            "Lines of a log that came faster than they could be written.",
            labels=("log",),
        )
        for log in filter(None, (self._service.access, self._service.audit)):
            dropped.add_metric((log.name,), log.dropped)
        yield dropped
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
