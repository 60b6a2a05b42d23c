"""Messages to be put that came as objects: read column by column, or one by one."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, cast

from dwell.batch.puts import Put, Puts, Row
from dwell.errors import InvalidId, InvalidInput, InvalidTime
from dwell.given import columns, values
from dwell.given.rows import row_of
from dwell.given.values import Due, Millis
from dwell.message import MAX_BODY_BYTES
from dwell.queue.bulk import puts_of
from dwell.server.http.bodies import body_of_row, check_written
from dwell.server.http.call import Call
from dwell.server.http.messageheaders import unpacked
from dwell.server.http.schemas.requests import NewMessage, PackedMessage
from dwell.server.http.spans import span
from dwell.server.parts import in_turns
from dwell.wire.rows import span_of


async def put_rows(
    call: Call, topic: str, rows: Sequence[NewMessage], on_conflict: str
) -> Sequence[Put]:
    """Put messages that came as objects: all of them or none."""
    if not rows:
        return ()
    queue = call.queue
    bodies = await bodies_of(rows)
    call.service.check_body(max(map(len, bodies)))
    levels_ms: Sequence[int] = ()
    if [row.delay_level for row in rows].count(None) < len(rows):
        levels_ms = (await queue.settings(topic)).delay_levels_ms
        call.check_again()
    times = Times(queue.clock.now_ms(), levels_ms)
    if len(rows) == 1:
        row = alone(rows[0], bodies[0], times)
        if call.service.quotas.has(call.token):
            return await call.put_puts(Puts.of_rows(topic, [row]), on_conflict)
        return await queue.put_rows(topic, [row], on_conflict)
    columns.bodies(bodies)
    check_ids(rows)
    puts = in_columns(topic, rows, bodies, times)
    if puts is None:
        puts = await one_by_one(topic, rows, bodies, times)
    return await call.put_puts(puts, on_conflict)


async def row_alone(call: Call, topic: str, row: NewMessage) -> Row:
    """Return the checked fields of a message that came alone; raises InvalidInput."""
    (body,) = await bodies_of([row])
    call.service.check_body(len(body))
    levels_ms: Sequence[int] = ()
    if row.delay_level is not None:
        levels_ms = (await call.queue.settings(topic)).delay_levels_ms
        call.check_again()
    return alone(row, body, Times(call.queue.clock.now_ms(), levels_ms))


class Times(NamedTuple):
    """The data that times of messages are read with: our clock, and the topic's levels."""

    now_ms: int
    levels_ms: Sequence[int]


#: Of how many messages the bodies are copied at a time.
_AT_ONCE = 500
#: How many times as long as another byte one of the headers takes: each is unpacked and checked.
_HEADER_COST = 4

_FIELDS = (
    *("id", "key", "delay", "delay_ms", "due", "due_ms", "delay_level", "priority", "lease"),
    *("lease_ms", "max_attempts", "expires", "expires_ms", "ttl", "ttl_ms", "headers"),
)
#: Which fields say the same in two ways, the second in milliseconds.
_SPANS, _MOMENTS = ("delay", "lease", "ttl"), ("due", "expires")


def in_columns(
    topic: str, rows: Sequence[NewMessage], bodies: Sequence[bytes], times: Times
) -> Puts | None:
    """Return the fields of messages as columns; None if messages must be read one by one.

    They must be if they have headers, if they state a time in different ways, or if a value is not
    valid: reading them one by one names the message at fault.
    """
    said = ((name, list(map(attrgetter(name), rows))) for name in _FIELDS)
    given: dict[str, Any] = {
        name: column for name, column in said if column.count(None) < len(column)
    }
    if any(given.pop("headers", ())):
        return None
    for name in (*_SPANS, *_MOMENTS):
        if (ms := given.pop(f"{name}_ms", None)) is not None:
            if name in given:
                return None
            given[name] = list(map(Millis, ms)) if name in _SPANS else ms
        elif name in given and name in _SPANS:
            read = {span: span_of(span) for span in set(given[name])}
            given[name] = [read[span] for span in given[name]]
    try:
        ids = given.pop("id", None)
        return puts_of(topic, bodies, times.now_ms, times.levels_ms, ids=ids, **given)
    except InvalidInput:
        return None


#: Names of the columns, for fields of a message whose column has another name.
_NAMES = {
    **{name: name + "[{at}]" for name in ("priority", "max_attempts", "key", "headers")},
    "id": "ids[{at}]",
}


def _named(at: int, name: str) -> str:
    """Return the name of a message's field for an error."""
    return _NAMES.get(name, f"messages[{{at}}].{name}").format(at=at)


async def one_by_one(
    topic: str, rows: Sequence[NewMessage], bodies: Sequence[bytes], times: Times
) -> Puts:
    """Return the checked fields of messages; raises InvalidInput naming the first bad message."""
    made: list[Row] = []
    sizes = (
        _HEADER_COST * len(memoryview(row.headers))  # type: ignore[arg-type]
        for row in rows
    )
    async for row, body in in_turns(zip(rows, bodies, strict=True), sizes):
        try:
            made.append(alone(row, body, times))
        except InvalidInput:
            # Names are made only for an error.
            alone(row, body, times, partial(_named, len(made)))
            raise
    return Puts.of_rows(topic, made)


def alone(row: NewMessage, body: bytes, times: Times, named: Callable[[str], str] = str) -> Row:
    """Return the checked fields of a message; raises InvalidInput."""
    return row_of(
        body,
        times.now_ms,
        times.levels_ms,
        named,
        delay=span(row, "delay"),
        due=_moment(row, "due"),
        delay_level=row.delay_level,
        id=row.id,
        priority=row.priority,
        lease=span(row, "lease"),
        max_attempts=row.max_attempts,
        expires=_moment(row, "expires"),
        ttl=span(row, "ttl"),
        key=row.key,
        headers=headers_of(row, named) if row.headers else None,
    )


def headers_of(row: NewMessage, named: Callable[[str], str]) -> dict[str, str] | None:
    """Return the headers of a message, if they are not too long."""
    packed = isinstance(row, PackedMessage)
    return unpacked(row.headers, named("headers"), packed=packed)  # type: ignore[arg-type]


def check_ids(rows: Sequence[NewMessage]) -> None:
    """Refuse ids of some; raises InvalidId."""
    missing = [row.id for row in rows].count(None)
    if 0 < missing < len(rows):
        raise InvalidId(f"ids: {missing} messages of {len(rows)} have none, expected all or none")


def _moment(row: NewMessage, name: str) -> Due | None:
    """Return the field ``name`` or ``name_ms`` of a message; None if it has neither."""
    said: Due | None = getattr(row, name)
    ms: int | None = getattr(row, f"{name}_ms")
    if said is not None and ms is not None:
        raise InvalidTime(f"{name}: got {name} and {name}_ms together, expected one of them")
    return ms if said is None else said


async def bodies_of(rows: Sequence[NewMessage]) -> list[bytes]:
    """Return the bodies of messages; raises InvalidBody and BatchTooLarge.

    Most bodies are texts without a backslash, and are copied as read. Others are decoded in several
    turns of the event loop, up to the limit of a batch.
    """

    def slowly(at: int) -> bytes:
        return values.body(body_of_row(rows[at], at), f"messages[{at}].body")

    if isinstance(rows[0], PackedMessage):
        read: list[bytes | None] = [None] * len(rows)
    else:
        for at, row in enumerate(rows):
            check_written(row.body, f"messages[{at}].body")
        read = []
        for at in range(0, len(rows), _AT_ONCE):
            part = rows[at : at + _AT_ONCE]
            written = [b"" if row.body_base64 is not None else bytes(row.body) for row in part]
            # Bodies that must be unpacked are copied one at a time, not all at once.
            read += [
                raw[1:-1]
                if raw[:1] == b'"' and b"\\" not in raw and len(raw) <= MAX_BODY_BYTES
                else None
                for raw in written
            ]
    if None in read:
        size_bytes = sum(len(body) for body in read if body is not None)
        others = [at for at, body in enumerate(read) if body is None]
        async for at in in_turns(others, (_written_bytes(rows[at]) for at in others)):
            read[at] = body = slowly(at)
            size_bytes += len(body)
            columns.check_size(size_bytes)
    return cast(list[bytes], read)


def _written_bytes(row: NewMessage) -> int:
    """Return the length of a body as written."""
    return len(memoryview(row.body)) + len(row.body_base64 or "")
