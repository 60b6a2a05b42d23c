"""Tables: messages and events as record batches with the columns that Spark expects."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dwell.batch.batch import Batch
from dwell.batch.events import EVENT_ARRAYS, EVENT_COLUMNS, KIND_WORDS, Event, Events
from dwell.batch.sweep import Sweep
from dwell.errors import InvalidSettings
from dwell.queue.messagecolumns import MESSAGE_COLUMNS, moments, texts, words

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
    return Table(schema, MESSAGE_COLUMNS)


def sweep_table(schema: StructType) -> Table:
    """Return the columns of messages of a sweep, with their versions."""
    return Table(schema, _SWEPT)


def event_table(schema: StructType) -> Table:
    """Return the columns of events."""
    return Table(schema, _EVENT)


# --- columns ----------------------------------------------------------------------------------


def _of_messages(column: Column) -> Column:
    return lambda sweep: column(sweep.messages)


def _versions(sweep: Sweep) -> pa.Array:
    if sweep.versions is None:
        return pa.nulls(len(sweep.messages), pa.int64())
    return pa.array(sweep.versions.view(np.int64))


_SWEPT: dict[str, Column] = {
    **{name: _of_messages(column) for name, column in MESSAGE_COLUMNS.items()},
    "version": _versions,
}


def _of_events(column: str) -> Column:
    if column == "kind":
        return lambda events: words(events.kind, KIND_WORDS)
    if column.endswith("_ms"):
        return lambda events: moments(getattr(events, column))
    if column in EVENT_ARRAYS:
        return lambda events: pa.array(getattr(events, column))
    return lambda events: texts(getattr(events, column))


_EVENT: dict[str, Column] = {
    field.removesuffix("_ms"): _of_events(column)
    for field, column in zip(Event.__struct_fields__, EVENT_COLUMNS, strict=True)
}
