"""Arrow: messages and events as record batches, for programs that think in columns."""

import asyncio
import io
from typing import Any

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.blobs import sizes_of
from dwell.batch.events import EVENT_ARRAYS, EVENT_COLUMNS, KIND_WORDS, Event, Events
from dwell.batch.puts import PutAnswer
from dwell.message import Message, State, decode_extra
from dwell.queue.tablecolumns import puts_of_table, pyarrow
from dwell.server.http.body import Data
from dwell.server.http.call import Call
from dwell.server.http.encoding import MOST_PAGE_BYTES, parts_of
from dwell.server.http.tables import loaded, table_of
from dwell.wire.rows import state_text


async def put(call: Call, topic: str, data: Data, on_conflict: str) -> PutAnswer:
    """Put the rows of an Arrow stream: all of them or none."""
    await loaded()
    table = table_of(memoryview(data))
    is_of_levels = "delay_level" in table.column_names
    levels_ms = (await call.queue.settings(topic)).delay_levels_ms if is_of_levels else ()
    puts = await puts_of_table(table, topic, call.queue.clock.now_ms(), levels_ms)
    if not len(puts):
        return PutAnswer.empty()
    call.service.check_body(int(sizes_of(puts.bodies).max()))
    return await call.put_puts(puts, on_conflict)


# --- out --------------------------------------------------------------------------------------


async def messages(batch: Batch, most_bytes: int = MOST_PAGE_BYTES) -> tuple[bytes, int]:
    """Return messages as an Arrow stream, as many as fit an answer, and how many.

    Bodies are binary. Many messages are several record batches; other connections are served
    between them.
    """
    await loaded()
    # The buffer of Arrow's own stream doubles as it grows, and keeps the old one.
    pa, sink, count = pyarrow(), io.BytesIO(), 0
    with pa.ipc.new_stream(sink, pa.table(_columns(pa, batch[:0])).schema) as writer:
        for part in parts_of(batch):
            if count and sink.tell() > most_bytes:
                break
            writer.write_table(pa.table(_columns(pa, batch[part])))
            count = part.stop
            await asyncio.sleep(0)
    return sink.getvalue(), count


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


async def events(many: Events) -> bytes:
    """Return events as an Arrow stream."""
    await loaded()
    pa, sink = pyarrow(), io.BytesIO()
    fields = zip(Event.__struct_fields__, EVENT_COLUMNS, strict=True)
    table = pa.table({field: _event_column(pa, many, column) for field, column in fields})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
