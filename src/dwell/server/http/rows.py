"""Rows in and out: messages as objects, as the queue takes them and as callers read them."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dwell import columns, values
from dwell.errors import InvalidBody, InvalidId, InvalidInput, InvalidTime
from dwell.message import DEFAULT_PRIORITY, Message
from dwell.server.http.call import Call
from dwell.server.http.schemas import EventRow, NewMessage, PackedMessage
from dwell.store.base import Event, Put
from dwell.values import Due
from dwell.wire.rows import body_of, due_of, message_object, span_of

_decoder = msgspec.json.Decoder(NewMessage)


def lines_of(data: bytes) -> list[NewMessage]:
    """Return the messages of NDJSON; raises InvalidInput naming the line."""
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(_decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidInput(f"line {number}: {error}") from None
    return rows


async def put_rows(
    call: Call, topic: str, rows: Sequence[NewMessage], on_conflict: str
) -> Sequence[Put]:
    """Put messages that came as objects: all of them or none."""
    queue = call.queue
    bodies = [values.body(_body(row, at), f"messages[{at}].body") for at, row in enumerate(rows)]
    for body in bodies:
        call.service.check_body(len(body))
    if len(rows) == 1:
        return await _put_one(call, topic, rows[0], bodies[0], on_conflict)
    named = [row.id is not None for row in rows]
    if any(named) and not all(named):
        raise InvalidId(
            f"ids: {named.count(False)} messages of {len(rows)} have none, expected all or none"
        )
    now_ms, their_ms = queue.clock.now_ms(), call.their_ms
    levels_ms: Sequence[int] = ()
    if any(row.delay_level is not None for row in rows):
        levels_ms = (await queue.settings(topic)).delay_levels_ms
    return await queue.put_many(
        topic,
        bodies,
        ids=[row.id or "" for row in rows] if any(named) else None,
        due=[_due_ms(row, now_ms, their_ms, levels_ms) for row in rows],
        priority=[DEFAULT_PRIORITY if row.priority is None else row.priority for row in rows],
        lease=[_lease(row) for row in rows] if any(map(_lease, rows)) else None,
        max_attempts=_or_none([row.max_attempts for row in rows]),
        expires=_or_none([_expires_ms(row, now_ms) for row in rows]),
        key=_or_none([row.key for row in rows]),
        headers=_or_none([row.headers for row in rows]),
        on_conflict=on_conflict,
    )


async def _put_one(
    call: Call, topic: str, row: NewMessage, body: bytes, on_conflict: str
) -> Sequence[Put]:
    """Put one message; those of many callers are one batch."""
    put = await call.queue.put(
        topic,
        body,
        delay=span_of(row.delay),
        due=_due(row, call.queue.clock.now_ms(), call.their_ms),
        delay_level=row.delay_level,
        id=row.id,
        priority=DEFAULT_PRIORITY if row.priority is None else row.priority,
        lease=_lease(row),
        max_attempts=row.max_attempts,
        expires=row.expires_ms,
        ttl=span_of(row.ttl),
        key=row.key,
        headers=row.headers,
        on_conflict=on_conflict,
    )
    return [put]


def _due(row: NewMessage, now_ms: int, their_ms: int) -> Due | None:
    """Return when a message falls due, if it says so as a moment: now if theirs has reached it."""
    if row.due is not None and row.due_ms is not None:
        raise InvalidTime("due: got due and due_ms together, expected one of them")
    when = reached(row.due_ms if row.due is None else due_of(row.due), now_ms, their_ms)
    # Without a time it is due now by the clock of the store, which can be another than ours.
    is_now = when == now_ms and their_ms and row.delay is None and row.delay_level is None
    return None if is_now else when


def reached(due: Due | None, now_ms: int, their_ms: int) -> Due | None:
    """Return a moment, and for one that has come by the caller's clock, if not by ours, now."""
    if due is None or not their_ms:
        return due
    due_ms = values.due_ms(due, now_ms)
    return now_ms if now_ms < due_ms <= their_ms else due_ms


def _or_none(column: list[Any]) -> list[Any] | None:
    return column if any(value is not None for value in column) else None


def _body(row: NewMessage, at: int) -> object:
    try:
        if isinstance(row, PackedMessage) and row.body_base64 is None and bytes(row.body):
            return msgspec.msgpack.decode(row.body)
        return body_of(row)
    except InvalidInput as error:
        raise type(error)(f"messages[{at}]: {error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBody(f"messages[{at}].body: {error}") from None


def _due_ms(row: NewMessage, now_ms: int, their_ms: int, levels_ms: Sequence[int]) -> int:
    due = _due(row, now_ms, their_ms)
    found = columns.dues(
        None if row.delay is None else [span_of(row.delay)],
        None if due is None else [due],
        None if row.delay_level is None else [row.delay_level],
        1,
        now_ms,
        levels_ms,
    )
    return int(found[0])


def _lease(row: NewMessage) -> str | float | None:
    if row.lease is not None and row.lease_ms is not None:
        raise InvalidInput("lease: got lease and lease_ms together, expected one of them")
    return f"{row.lease_ms}ms" if row.lease_ms is not None else span_of(row.lease)  # type: ignore[return-value]


def _expires_ms(row: NewMessage, now_ms: int) -> int | None:
    if row.ttl is not None and row.expires_ms is not None:
        raise InvalidTime("ttl: got ttl and expires_ms together, expected one of them")
    if row.ttl is None:
        return row.expires_ms
    return int(now_ms + columns.dues([span_of(row.ttl)], None, None, 1, 0)[0])


# --- out --------------------------------------------------------------------------------------


def message_rows(batch: Iterable[Message], *, packed: bool = False) -> list[dict[str, Any]]:
    """Return messages as objects; ``packed`` keeps bodies as binary data."""
    if packed:
        return [{**message_object(message), "body": message.body} for message in batch]
    return list(map(message_object, batch))


def event_rows(events: Iterable[Event]) -> list[EventRow]:
    """Return events as objects."""
    return [
        EventRow(e.position, e.time_ms, str(e.kind), e.topic, e.id, e.due_ms, e.attempt)
        for e in events
    ]


def as_lines(rows: Iterable[object]) -> bytes:
    """Return objects as NDJSON."""
    return msgspec.json.Encoder().encode_lines(rows)
