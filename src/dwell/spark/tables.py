"""Tables: messages and events as record batches with the columns that Spark expects."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dwell.batch.batch import Batch
from dwell.batch.blobs import Blobs, Same, joined, sizes_of
from dwell.batch.events import EVENT_ARRAYS, EVENT_COLUMNS, KIND_WORDS, Event, Events
from dwell.batch.sweep import Sweep
from dwell.errors import InvalidSettings
from dwell.message import State, decode_extra, keys_of

Column = Callable[[Any], Any]


class Table:
    """The requested columns of a view; raises InvalidSettings for a column it lacks."""

    def __init__(self, schema: StructType, columns: dict[str, Column]) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        unknown = [name for name in self._schema.names if name not in columns]
        if unknown:
            raise InvalidSettings(f"schema: got {unknown}, expected some of {list(columns)}")
        self._columns = [columns[name] for name in self._schema.names]

    def batch(self, rows: Batch | Events | Sweep) -> pa.RecordBatch:
        """Return some rows."""
        arrays = [
            column(rows).cast(field.type)
            for column, field in zip(self._columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def message_table(schema: StructType) -> Table:
    """Return the columns of messages."""
    return Table(schema, _MESSAGE)


def sweep_table(schema: StructType) -> Table:
    """Return the columns of messages of a sweep, with their versions."""
    return Table(schema, _SWEPT)


def event_table(schema: StructType) -> Table:
    """Return the columns of events."""
    return Table(schema, _EVENT)


# --- columns ----------------------------------------------------------------------------------


def _moments(times_ms: np.ndarray, absent: int | None = None) -> pa.Array:
    none = None if absent is None else times_ms == absent
    return pa.array(times_ms * 1000, pa.timestamp("us", tz="UTC"), mask=none)


def _words(codes: np.ndarray, words: dict[int, str]) -> pa.Array:
    names = pa.array([words.get(code, "") for code in range(max(words) + 1)])
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int8)), names
    ).dictionary_decode()


def _texts(values: Sequence[str]) -> pa.Array:
    if isinstance(values, Same) and len(values):
        return pa.repeat(pa.scalar(values[0], pa.string()), len(values))
    return pa.array(list(values), pa.string())


def _blobs(values: Sequence[bytes]) -> pa.Array:
    if not isinstance(values, Blobs):
        return pa.array(list(values), pa.binary())
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes_of(values), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(joined(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _keys(batch: Batch) -> pa.Array:
    if isinstance(batch.extras, Same) and not batch.extras.value:
        return pa.nulls(len(batch), pa.string())
    return pa.array(keys_of(batch.extras), pa.string())


def _headers(batch: Batch) -> pa.Array:
    kind = pa.map_(pa.string(), pa.string())
    if isinstance(batch.extras, Same) and not batch.extras.value:
        return pa.nulls(len(batch), kind)
    many = (decode_extra(extra).headers for extra in batch.extras)
    return pa.array([list(headers.items()) or None for headers in many], kind)


_STATES = {int(state): state.name.lower() for state in State}

_MESSAGE: dict[str, Column] = {
    "topic": lambda batch: _texts(batch.topics),
    "id": lambda batch: _texts(batch.ids),
    "body": lambda batch: _blobs(batch.bodies),
    "due": lambda batch: _moments(batch.due_ms),
    "state": lambda batch: _words(batch.state, _STATES),
    "priority": lambda batch: pa.array(batch.priority),
    "attempt": lambda batch: pa.array(batch.attempt),
    "max_attempts": lambda batch: pa.array(batch.max_attempts),
    "lease_ms": lambda batch: pa.array(batch.lease_ms),
    "lease_until": lambda batch: _moments(batch.lease_until_ms, absent=0),
    "died": lambda batch: _moments(batch.died_ms, absent=0),
    "expires": lambda batch: _moments(batch.expires_ms, absent=0),
    "key": _keys,
    "headers": _headers,
    "last_error": lambda batch: pa.array(
        [batch.errors.get(at) for at in range(len(batch))], pa.string()
    ),
    "number": lambda batch: pa.array(batch.numbers.view(np.int64)),
}


def _of_messages(column: Column) -> Column:
    return lambda sweep: column(sweep.messages)


def _versions(sweep: Sweep) -> pa.Array:
    if sweep.versions is None:
        return pa.nulls(len(sweep.messages), pa.int64())
    return pa.array(sweep.versions.view(np.int64))


_SWEPT: dict[str, Column] = {
    **{name: _of_messages(column) for name, column in _MESSAGE.items()},
    "version": _versions,
}


def _of_events(column: str) -> Column:
    if column == "kind":
        return lambda events: _words(events.kind, KIND_WORDS)
    if column.endswith("_ms"):
        return lambda events: _moments(getattr(events, column))
    if column in EVENT_ARRAYS:
        return lambda events: pa.array(getattr(events, column))
    return lambda events: _texts(getattr(events, column))


_EVENT: dict[str, Column] = {
    field.removesuffix("_ms"): _of_events(column)
    for field, column in zip(Event.__struct_fields__, EVENT_COLUMNS, strict=True)
}
