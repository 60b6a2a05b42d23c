"""Push: taken messages as server-sent events, as many as the reader has given credit for."""

import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from dwell.batch.batch import Batch
from dwell.errors import Forbidden, ServerBusy, Unauthorized
from dwell.given import values
from dwell.server.http.answer import Answer, Refusal
from dwell.server.http.call import Call
from dwell.server.http.encoding import Rows, is_small, size_of
from dwell.server.http.media import Media
from dwell.server.http.rows import message_rows
from dwell.server.http.schemas.answers import CreditAnswer
from dwell.server.http.schemas.requests import CreditRequest, PushRequest
from dwell.server.http.takes import check_waiting_topics
from dwell.server.http.waits import Stream

#: How many messages one event carries at most.
_MOST_AT_ONCE = 1000

#: How long a stream is silent before it says that it is still there.
_SILENCE_S = 15


async def push(call: Call) -> Answer:
    """Send taken messages as server-sent events, at most as many as ``credit`` says.

    The first event, ``stream``, names the stream; ``POST /v1/push/{stream}/credit`` adds credit.
    Each event ``messages`` holds some messages with their receipts. Sent messages are leased until
    they are acked or the lease ends. When the reader leaves, unsent messages are released.
    """
    ask = call.body(PushRequest)
    topics, owner = values.topics(ask.topics), values.owner(ask.owner)
    check_waiting_topics(topics)
    call.allow(topics)
    call.check_waiting(len(call.waits) + len(call.waits.streams))
    with call.stream(), call.keeping_topics(len(topics)):
        pass
    name, stream = secrets.token_hex(16), Stream(ask.credit)
    lease = values.Millis(ask.lease_ms) if ask.lease_ms else None
    take = partial(call.queue.take, topics, lease=lease, owner=owner, wait=_SILENCE_S)
    answer = Answer(b"", "text/event-stream; charset=utf-8")
    answer.headers["cache-control"] = "no-store"
    # nginx would buffer the events until a buffer is full.
    answer.headers["x-accel-buffering"] = "no"
    events = _events(call, topics, take, name, stream)
    answer.parts = counted(call, events, len(topics))
    return answer


async def counted(
    call: Call, events: AsyncGenerator[bytes], topics: int = 0
) -> AsyncIterator[bytes]:
    """Yield events, and count their stream among the waiting streams of the caller's token.

    ``topics`` is how many topics it waits on. If other streams have reached a limit since the
    request was admitted, there are no events.
    """
    kept = call.keeping_topics(topics)
    with contextlib.suppress(ServerBusy), call.stream(), call.streaming(), kept:
        async with contextlib.aclosing(events):
            async for event in events:
                yield event
                del event


async def _events(
    call: Call,
    topics: Sequence[str],
    take: Callable[..., Coroutine[Any, Any, Batch]],
    name: str,
    stream: Stream,
) -> AsyncGenerator[bytes]:
    streams = call.waits.streams
    streams[name] = stream
    try:
        yield event_of("stream", {"stream": name, "credit": stream.credit})
        while not call.waits.is_over and not call.delivery.is_ended:
            # The rights may have been changed since the stream began.
            call.allow(topics)
            batch = await _next(call, take, stream, partial(call.allow, topics))
            if batch is None:
                yield b": still here\n\n"
                continue
            call.note_taken(batch)
            yield await _messages_event(call, stream, batch)
            call.deliver()
            call.release_answer()
    except (Forbidden, Unauthorized):
        return
    finally:
        del streams[name]
        call.give_back()
        call.release_answer()


async def _messages_event(call: Call, stream: Stream, batch: Batch) -> bytes:
    """Return messages as an event; messages that do not fit are released."""
    if is_small(batch):
        stream.credit -= len(batch)
        return event_of("messages", {"messages": message_rows(batch), "credit": stream.credit})
    await call.reserve_answer(2 * size_of(batch), is_held=True)
    rows = await Rows.of(batch, Media.JSON)
    call.give_back_from(rows.count)
    stream.credit -= rows.count
    answer = call.made_answer(rows.answer(credit=stream.credit))
    return b"event: messages\ndata: " + answer.data + b"\n\n"


async def _next(
    call: Call,
    take: Callable[..., Coroutine[Any, Any, Batch]],
    stream: Stream,
    check: Callable[[], None],
) -> Batch | None:
    """Return the next messages, or None after a silence or when credit was added."""
    if not stream.credit:
        await call.waits.wait(call.delivery, stream.wait(_SILENCE_S), check)
        return None
    work = take(limit=min(stream.credit, _MOST_AT_ONCE))
    batch = await call.waits.wait(call.delivery, work, check)
    return batch if batch is not None and len(batch) else None


def event_of(kind: str, data: object) -> bytes:
    """Return a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))


async def credit(call: Call) -> Answer:
    """Add to the number of messages that a stream may send."""
    ask = call.body(CreditRequest)
    stream = call.waits.streams.get(call.path["stream"])
    if stream is None:
        raise Refusal(404, "stream: there is no stream of that name")
    stream.add(ask.credit)
    return call.answer(CreditAnswer(stream.credit))
