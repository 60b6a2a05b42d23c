"""Arrow: messages and events as record batches, for programs that think in columns."""

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.blobs import sizes_of
from dwell.batch.events import EVENT_ARRAYS, EVENT_COLUMNS, KIND_WORDS, Event, Events
from dwell.batch.puts import PutAnswer
from dwell.errors import InvalidBody, InvalidInput, InvalidTime
from dwell.given import columns, values
from dwell.given.options import PutManyOptions
from dwell.given.values import Delay
from dwell.message import Message, State, decode_extra
from dwell.queue.bulk import puts_of
from dwell.server.http.body import Data
from dwell.server.http.call import Call
from dwell.server.http.encoding import MOST_PAGE_BYTES, parts_of
from dwell.server.http.tables import Table, loaded, pyarrow
from dwell.wire.rows import state_text

#: The columns that a put may have, beside ``body``, and the words of the queue for them.
_WORDS = {name: name for name in PutManyOptions.__annotations__ if name != "ids"} | {
    "id": "ids",
    "due_ms": "due",
    "expires_ms": "expires",
}

_MS = {"delay_ms": "delay", "lease_ms": "lease", "ttl_ms": "ttl"}

#: What says when a message falls due. A null would mean at once.
_WHEN = ("due", "delay", "delay_level")


async def put(call: Call, topic: str, data: Data, on_conflict: str) -> PutAnswer:
    """Put the rows of an Arrow stream: all of them or none."""
    await loaded()
    table = Table(memoryview(data), check_names)
    words: Any = {
        _word(name): _values(await table.column(name), name)
        for name in table.names
        if name != "body"
    }
    _check_when(words)
    given = await table.column("body")
    if None in given:
        raise InvalidBody(f"body[{given.index(None)}]: got null, expected bytes or text")
    bodies = columns.bodies(given)
    call.service.check_body(int(sizes_of(bodies).max(initial=0)))
    if not len(bodies):
        return PutAnswer.empty()
    levels_ms = (await call.queue.settings(topic)).delay_levels_ms if "delay_level" in words else ()
    puts = puts_of(topic, bodies, call.queue.clock.now_ms(), levels_ms, **words)
    return await call.put_puts(puts, on_conflict)


def _word(name: str) -> str | None:
    """Return the word of the queue for a column."""
    return _WORDS.get(name) or _MS.get(name)


def check_names(names: Sequence[str]) -> None:
    """Refuse columns that are no part of a put, or say the same as others."""
    if "body" not in names:
        raise InvalidInput(f"arrow: got columns {values.shown(names)}, expected one named body")
    words = set[str]()
    for name in names:
        word = "body" if name == "body" else _word(name)
        if word is None or word in words:
            allowed = ", ".join(["body", *_WORDS, *_MS])
            raise InvalidInput(
                f"arrow: got column {values.shown(name)}, expected one each of {allowed}"
            )
        words.add(word)


def _check_when(words: dict[str, Any]) -> None:
    """Refuse a null where the rows say when they are due; raises InvalidTime."""
    for word in _WHEN:
        if None in (many := words.get(word, ())):
            at = list(many).index(None)
            raise InvalidTime(f"{word}[{at}]: got null, expected a moment or a span")


def _values(many: Any, name: str) -> Any:
    """Return a column in the words of the queue, in which a span says its unit."""
    return list(map(_millis, many)) if name in _MS else many


def _millis(value: Any) -> Delay | None:
    if value is None or values.is_whole(value):
        return None if value is None else values.Millis(int(value))
    return f"{value}ms"


# --- out --------------------------------------------------------------------------------------


async def messages(batch: Batch, most_bytes: int = MOST_PAGE_BYTES) -> tuple[memoryview, int]:
    """Return messages as an Arrow stream, as many as an answer has room for, and how many.

    Bodies are binary. Many messages are several record batches, between which the other connections
    have their turn.
    """
    await loaded()
    # A stream of Arrow's own doubles as it grows, and keeps what it grew from.
    pa, sink, count = pyarrow(), io.BytesIO(), 0
    with pa.ipc.new_stream(sink, pa.table(_columns(pa, batch[:0])).schema) as writer:
        for part in parts_of(batch):
            if count and sink.tell() > most_bytes:
                break
            writer.write_table(pa.table(_columns(pa, batch[part])))
            count = part.stop
            await asyncio.sleep(0)
    return sink.getbuffer(), count


def _columns(pa: Any, batch: Batch) -> dict[str, Any]:
    """Return the columns in the order of the fields of a message."""
    extras = [decode_extra(extra) for extra in batch.extras]
    words = {int(state): state_text(state) for state in State}
    pairs = [list(extra.headers.items()) for extra in extras]
    columns = {
        "topic": pa.array(list(batch.topics), pa.string()),
        "id": pa.array(list(batch.ids), pa.string()),
        "body": pa.array(list(batch.bodies), pa.binary()),
        "state": pa.array([words[code] for code in batch.state.tolist()], pa.string()),
        "key": pa.array([extra.key for extra in extras], pa.string()),
        "headers": pa.array(pairs, pa.map_(pa.string(), pa.string())),
        "last_error": pa.array([batch.errors.get(at) for at in range(len(batch))], pa.string()),
        "number": pa.array(batch.numbers.astype("i8"), pa.int64()),
    }
    names = [name for name in Message.__struct_fields__ if name != "receipt"]
    numbers = {name: getattr(batch, name) for name in names if name not in columns}
    columns |= {
        name: pa.array(values, pa.int32() if values.dtype == np.uint16 else pa.int64())
        for name, values in numbers.items()
    }
    return {name: columns[name] for name in names}


def _event_column(pa: Any, many: Events, name: str) -> Any:
    column = getattr(many, name)
    if name == "kind":
        return pa.array([KIND_WORDS[code] for code in column.tolist()], pa.string())
    if name in EVENT_ARRAYS:
        return pa.array(column, pa.int32() if name == "attempt" else pa.int64())
    return pa.array(list(column), pa.string())


async def events(many: Events) -> memoryview:
    """Return events as an Arrow stream."""
    await loaded()
    pa, sink = pyarrow(), io.BytesIO()
    fields = zip(Event.__struct_fields__, EVENT_COLUMNS, strict=True)
    table = pa.table({field: _event_column(pa, many, column) for field, column in fields})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getbuffer()
