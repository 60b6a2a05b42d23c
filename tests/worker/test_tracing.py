"""Spans and metrics: a handler's span leads back to the put, also of an attempt that failed."""

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import dwell
from dwell.errors import InvalidInput
from dwell.store.memory import MemoryStore
from dwell.tracing import TracedQueue, Tracing
from dwell.worker import Bury, Worker


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def providers(spans, reader):
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    return {"tracer_provider": tracers, "meter_provider": MeterProvider([reader])}


@pytest.fixture
async def queue():
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        yield queue


def named(spans, name):
    return [span for span in spans.get_finished_spans() if span.name == name]


def links(span):
    return {link.context.span_id for link in span.links}


async def test_a_handler_is_linked_to_the_put(queue, spans, providers):
    traced, seen = TracedQueue(queue, **providers), []
    worker = Worker(queue, middleware=[Tracing(**providers)])

    @worker.on("t", retry="1h")
    def handle(message):
        seen.append(trace.get_current_span().get_span_context().span_id)
        if message.id == "bad":
            raise ValueError("no")

    await traced.put("t", b"x", id="good", headers={"own": "1"})
    await traced.put_many("t", [b"x", b"y"], ids=["bad", "other"])
    await worker.serve(burst=True)
    one, many = named(spans, "send t")
    assert (one.kind, one.attributes["messaging.message.id"]) == (SpanKind.PRODUCER, "good")
    assert many.attributes["messaging.batch.message_count"] == 2
    handled = {s.attributes["messaging.message.id"]: s for s in named(spans, "process t")}
    assert links(handled["good"]) == {one.context.span_id}
    assert links(handled["bad"]) == links(handled["other"]) == {many.context.span_id}
    assert {span.context.span_id for span in handled.values()} == set(seen)
    assert handled["bad"].status.status_code is StatusCode.ERROR
    assert handled["bad"].attributes["error.type"] == "ValueError"
    # Headers of its own stay, and a span without an end would never be sent.
    assert not worker._around._middleware[0]._open


async def test_takes_are_linked_to_what_was_put(queue, spans, providers):
    traced = TracedQueue(queue, **providers)
    for body in (b"1", b"2"):
        await traced.put("t", body)
    await queue.put("t", b"of nobody", headers={"traceparent": "broken"})
    assert len(await traced.take("u")) == 0
    with providers["tracer_provider"].get_tracer("own").start_as_current_span("outer"):
        assert len(await traced.take("t", 10)) == 3
    (received,) = named(spans, "receive t")
    assert links(received) == {span.context.span_id for span in named(spans, "send t")}
    assert len(links(received)) == 2
    assert (await traced.stats()).topics["t"].leased == 3


@pytest.mark.parametrize(
    "headers", [{f"h{at}": "x" for at in range(256)}, {"a": "x" * (16 * 1024 - 1)}]
)
async def test_a_message_without_room_for_a_trace_goes_without_one(headers, queue, providers):
    traced = TracedQueue(queue, **providers)
    await traced.put("t", b"", headers=headers)
    await traced.put_many("t", [b"", b""], headers=[headers, {}])
    first, second, third = await queue.take("t", 3)
    assert first.headers == second.headers == headers
    assert "traceparent" in third.headers


async def test_a_put_that_fails_is_told(queue, spans, reader, providers):
    traced = TracedQueue(queue, **providers)
    with pytest.raises(InvalidInput):
        await traced.put("t", b"", delay="soon")
    (span,) = named(spans, "send t")
    assert span.status.status_code is StatusCode.ERROR
    (sent,) = metrics(reader)["messaging.client.sent.messages"]
    assert sent.attributes["error.type"] == "InvalidTime"


async def test_what_hangs_or_is_refused_ends_its_span(queue, spans, reader, providers):
    free = asyncio.Event()
    worker = Worker(queue, middleware=[Tracing(**providers)])

    @worker.on("t", timeout="100ms", retry="1h", concurrency=2)
    async def handle(message):
        if message.body == b"bury":
            raise Bury("no")
        while not free.is_set():
            try:
                await asyncio.wait_for(free.wait(), 1)
            except (TimeoutError, asyncio.CancelledError):
                continue

    await queue.put_many("t", [b"hangs", b"bury"])
    try:
        await worker.serve(burst=True)
    finally:
        free.set()
    kinds = {span.attributes["error.type"] for span in named(spans, "process t")}
    assert kinds == {"Expired", "Bury"}
    points = metrics(reader)["messaging.process.duration"]
    assert sum(point.count for point in points) == 2


def metrics(reader):
    """Return the points of each metric by its name."""
    scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
    return {one.name: list(one.data.data_points) for scope in scopes for one in scope.metrics}
