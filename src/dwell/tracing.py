"""OpenTelemetry: spans and metrics of puts, takes and handlers, linked by a message's headers.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging (1.38). A put
adds ``traceparent`` to the headers; a take and a handler have a span of their own, linked to the
put, which may be months ago. Code that does not use this module pays nothing for it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from dwell.batch.batch import Batch
from dwell.batch.puts import Put, PutAnswer
from dwell.errors import InvalidHeaders
from dwell.given import values
from dwell.message import Message
from dwell.queue import Queue
from dwell.worker import Middleware

_SYSTEM = {"messaging.system": "dwell"}
_NAME = "dwell"


class _Meters:
    """The counters and histograms of the conventions."""

    def __init__(self, provider: metrics.MeterProvider | None) -> None:
        meter = (provider or metrics.get_meter_provider()).get_meter(_NAME)
        self.sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self.consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self.seconds = meter.create_histogram("messaging.client.operation.duration", "s")
        self.process_seconds = meter.create_histogram("messaging.process.duration", "s")


class TracedQueue:
    """An open queue whose puts and takes are traced; every other verb is the queue's own."""

    def __init__(
        self,
        queue: Queue,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._queue = queue
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._meters = _Meters(meter_provider)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def put(self, topic: str, body: object, **options: Any) -> Put:
        """Put one message, as :meth:`dwell.Queue.put` does."""
        with self._sending(topic, 1) as span:
            options["headers"] = _injected(options.get("headers"))
            put = await self._queue.put(topic, body, **options)
            span.set_attribute("messaging.message.id", put.id)
        return put

    async def put_many(self, topic: str, bodies: Sequence[object], **options: Any) -> PutAnswer:
        """Put many messages, as :meth:`dwell.Queue.put_many` does; they have one span."""
        with self._sending(topic, len(bodies)):
            given = options.get("headers")
            if given is None or isinstance(given, Mapping):
                options["headers"] = _injected(given)
            else:
                options["headers"] = list(map(_injected, given))
            return await self._queue.put_many(topic, bodies, **options)

    async def take(self, topics: str | Sequence[str], limit: int = 1, **options: Any) -> Batch:
        """Take messages, as :meth:`dwell.Queue.take` does; a take of nothing has no span."""
        start_ns, start_s = time.time_ns(), time.perf_counter()
        batch = await self._queue.take(topics, limit, **options)
        if len(batch):
            attributes = _attributes(batch.topics[0], "receive", len(batch))
            span = self._tracer.start_span(
                f"receive {batch.topics[0]}",
                kind=SpanKind.CLIENT,
                links=_links(batch),
                attributes=attributes,
                start_time=start_ns,
            )
            span.end()
            self._meters.consumed.add(len(batch), attributes)
            self._meters.seconds.record(time.perf_counter() - start_s, attributes)
        return batch

    def _sending(self, topic: str, count: int) -> "_Sending":
        return _Sending(self._tracer, self._meters, topic, count)


class _Sending:
    """The span of a put, and its metrics."""

    def __init__(self, tracer: trace.Tracer, meters: _Meters, topic: str, count: int) -> None:
        self._attributes = _attributes(topic, "send", count)
        self._meters, self._count, self._start_s = meters, count, time.perf_counter()
        self._span = tracer.start_as_current_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=self._attributes
        )

    def __enter__(self) -> Span:
        return self._span.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
        attributes = self._attributes | ({} if kind is None else {"error.type": kind.__name__})
        self._meters.sent.add(self._count, attributes)
        self._meters.seconds.record(time.perf_counter() - self._start_s, attributes)
        self._span.__exit__(kind, error, traceback)


class _Open(NamedTuple):
    """A span that has not ended, and what belongs to it."""

    span: Span
    token: Any
    task: "asyncio.Task[Any] | None"
    attributes: dict[str, Any]
    start_s: float


class Tracing(Middleware):
    """Middleware of a worker: a span for each call of a handler, current while that runs.

    The span is linked to those that put the messages.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._meters = _Meters(meter_provider)
        self._open: dict[int, _Open] = {}

    def before(self, what: Message | Batch) -> None:
        """Start the span."""
        messages = [what] if isinstance(what, Message) else what
        topic = messages[0].topic
        attributes = _attributes(topic, "process", len(messages))
        own = {"messaging.message.id": what.id} if isinstance(what, Message) else {}
        span = self._tracer.start_span(
            f"process {topic}",
            kind=SpanKind.CONSUMER,
            links=_links(messages),
            attributes=attributes | own,
        )
        token = context.attach(trace.set_span_in_context(span))
        task = asyncio.current_task()
        self._open[id(what)] = _Open(span, token, task, attributes, time.perf_counter())

    def after(self, what: Message | Batch) -> None:
        """End the span."""
        self._end(what, None)

    def on_failure(self, what: Message | Batch, error: BaseException) -> None:
        """End the span with the error."""
        self._end(what, error)

    def _end(self, what: Message | Batch, error: BaseException | None) -> None:
        begun = self._open.pop(id(what), None)
        if begun is None:
            # A middleware in front of this one has failed.
            return
        span, attributes = begun.span, begun.attributes
        if error is not None:
            kind = type(error).__name__
            span.record_exception(error)
            span.set_attribute("error.type", kind)
            span.set_status(Status(StatusCode.ERROR, str(error)[:200]))
            attributes = attributes | {"error.type": kind}
        span.end()
        if asyncio.current_task() is begun.task:
            # A handler that was left alone is told of by another task.
            context.detach(begun.token)
        self._meters.process_seconds.record(time.perf_counter() - begun.start_s, attributes)


def _injected(headers: Mapping[str, str] | None) -> dict[str, str]:
    found = dict(headers or {})
    propagate.inject(found)
    try:
        return values.headers(found) or {}
    except InvalidHeaders:
        # Without room for the trace the message goes without it; the put says what else is wrong.
        return dict(headers or {})


def _links(messages: Sequence[Message] | Batch) -> list[Link]:
    """Return links to the spans that the messages name."""
    found = {}
    for message in messages:
        headers = message.headers
        # To extract from no headers takes as long as from many.
        if headers:
            span = trace.get_current_span(propagate.extract(headers)).get_span_context()
            found[span.trace_id, span.span_id] = span
    return [Link(span) for span in found.values() if span.is_valid]


@lru_cache(maxsize=1024)
def _attributes(topic: str, operation: str, count: int) -> dict[str, Any]:
    """Return attributes that are shared, so that callers must not change them."""
    attributes: dict[str, Any] = {
        **_SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    return attributes if count == 1 else attributes | {"messaging.batch.message_count": count}
