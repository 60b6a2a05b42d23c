"""Rows: record batches of Spark in the form of the queue's arguments."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dwell.batch.blobs import Blobs
from dwell.batch.puts import Puts
from dwell.errors import (
    InvalidBody,
    InvalidId,
    InvalidInput,
    InvalidSettings,
    InvalidTime,
)
from dwell.message import DEFAULT_PRIORITY, I64, U64
from dwell.queue.bulk import puts_of
from dwell.queue.messagecolumns import blobs_of
from dwell.spark.options import WriteOptions
from dwell.spark.packed import packed
from dwell.spark.plain import KNOWN, listed, number

#: A column of pipelines: why a row has an invalid due.
REFUSED = "due_refused"

#: The columns that each verb other than put accepts.
_ALLOWED = {
    "cancel": {"id", "topic", "version"},
    "reschedule": {"id", "topic", "due", "delay", "version"},
    "kick": {"id", "topic", "due", "delay", "version"},
}

_MICROS_A_MS = 1000


def check_columns(names: list[str], options: WriteOptions) -> None:
    """Refuse columns that do not fit the verb; raises InvalidSettings."""
    if options.topic is None and "topic" not in names:
        raise InvalidSettings("topic: got none, expected the option or a column of that name")
    if "due" in names and "delay" in names:
        raise InvalidSettings("columns: got due and delay, expected one of them")
    if options.op == "put":
        if "body" in names:
            _refuse(names, {*KNOWN, REFUSED}, "put with a body")
        return
    if "id" not in names:
        raise InvalidSettings(f"columns: got {names}, expected id for op={options.op}")
    if options.op == "reschedule" and not {"due", "delay"} & set(names):
        raise InvalidSettings(f"columns: got {names}, expected due or delay for op=reschedule")
    _refuse(names, _ALLOWED[options.op], f"op={options.op}")


def _refuse(names: list[str], allowed: set[str], what: str) -> None:
    unknown = [name for name in names if name not in allowed]
    if unknown:
        expected = ", ".join(name for name in (*KNOWN, "version") if name in allowed)
        raise InvalidSettings(f"columns: got {unknown} for {what}, expected some of {expected}")


def by_topic(
    rows: pa.RecordBatch, topic: str | None
) -> list[tuple[str | None, pa.RecordBatch, I64]]:
    """Return the rows of each topic with their places; None for rows without a topic."""
    every = np.arange(rows.num_rows)
    if "topic" not in rows.schema.names:
        assert topic is not None, "the columns were checked"
        return [(topic, rows, every)]
    column = _topics(rows.column("topic"))
    column = column.fill_null(topic) if topic is not None else column
    names = column.unique().to_pylist()
    if len(names) == 1:
        return [(names[0], rows, every)]
    found = []
    for name in names:
        is_of = column.is_null() if name is None else pc.equal(column, name).fill_null(False)
        places = np.flatnonzero(is_of.to_numpy(zero_copy_only=False))
        found.append((name, rows.take(pa.array(places)), places))
    return found


def _topics(column: pa.Array) -> pa.Array:
    """Return topics as texts; an invalid value becomes an invalid name."""
    if pa.types.is_binary(column.type):
        texts = [one and one.decode(errors="replace") for one in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_string(column.type) or pa.types.is_integer(column.type):
        return column.cast(pa.string())
    none = pa.scalar(None, pa.string())
    return pc.if_else(column.is_null(), none, pa.scalar(f"a value of {column.type}"))


def puts_of_rows(
    topic: str, rows: pa.RecordBatch, now_ms: int, made_ids: list[str] | None = None
) -> Puts:
    """Return rows as the columns of a put; raises InvalidInput for the first refused row.

    ``made_ids`` are for rows without an id.
    """
    names = rows.schema.names
    values: dict[str, Any] = {
        name: _values(rows.column(name), name)
        for name in names
        if name in KNOWN and name not in ("id", "topic", "body", "due", "expires", "priority")
    }
    if "due" in names:
        values["due"] = moments(rows.column("due"), "due")
    elif "delay" not in names:
        raise InvalidTime("due: got neither due nor delay, expected one of them")
    elif rows.column("delay").null_count:
        raise InvalidTime("delay: got null, expected a span")
    if "expires" in names:
        values["expires"] = _optional_moments(rows.column("expires"))
    if "priority" in names:
        values["priority"] = _priorities(rows.column("priority"))
    ids = _ids(rows.column("id")) if "id" in names else made_ids
    return puts_of(topic, _bodies(rows), now_ms, ids=ids, **values)


def _ids(column: pa.Array) -> Blobs | list[str]:
    if column.null_count or not pa.types.is_string(column.type):
        return texts(column, "id")
    return blobs_of(column)


def texts(column: pa.Array, name: str) -> list[str]:
    """Return the texts of a column; raises InvalidId for a null."""
    if column.null_count:
        raise InvalidId(f"{name}: got null, expected an id")
    try:
        many: list[str] = column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        raise InvalidId(f"{name}: got {column.type}, expected text") from None
    return many


def versions(rows: pa.RecordBatch) -> U64 | None:
    """Return the required versions of messages; None without any, as from an older server.

    Raises InvalidInput where only some rows have one.
    """
    if "version" not in rows.schema.names:
        return None
    column = rows.column("version")
    if column.null_count == len(column):
        return None
    if column.null_count or not pa.types.is_integer(column.type):
        raise InvalidInput(
            f"version: got {column.type} with {column.null_count} nulls, expected whole numbers"
        )
    found: U64 = column.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
    return found


def _priorities(column: pa.Array) -> list[Any]:
    if pa.types.is_integer(column.type):
        many: list[Any] = column.cast(pa.int64()).fill_null(DEFAULT_PRIORITY).to_pylist()
        return many
    return [DEFAULT_PRIORITY if one is None else number(one) for one in listed(column, "priority")]


def check_refused(rows: pa.RecordBatch) -> None:
    """Refuse rows that a pipeline has marked as invalid; raises InvalidInput."""
    if REFUSED in rows.schema.names and len(reasons := rows.column(REFUSED).drop_null()):
        raise InvalidInput(reasons[0].as_py())


def moments(column: pa.Array, name: str) -> I64:
    """Return points in time as epoch milliseconds, rounded up; raises InvalidTime for a null.

    Timestamps are converted; whole numbers are epoch milliseconds already.
    """
    if column.null_count:
        raise InvalidTime(f"{name}: got null, expected a moment")
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        # A message may be late by a part of a millisecond, and never early.
        found: I64 = -(-micros.to_numpy(zero_copy_only=False) // _MICROS_A_MS)
        return found
    if pa.types.is_integer(column.type):
        given: I64 = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return given
    raise InvalidTime(f"{name}: got a column of {column.type}, expected timestamp or epoch ms")


def _optional_moments(column: pa.Array) -> list[int | None]:
    known = moments(column.drop_null(), "expires").tolist()
    left = iter(known)
    return [next(left) if there else None for there in column.is_valid().to_pylist()]


def spans(column: pa.Array, name: str) -> list[Any]:
    """Return spans in the forms of the queue: texts, seconds, or intervals."""
    many = listed(column, name)
    return [number(one) for one in many] if pa.types.is_decimal(column.type) else many


def _span_or_spans(column: pa.Array, name: str) -> object:
    """Return a single span if all are the same, as they often are; it is then parsed once."""
    known = spans(column.unique(), name)
    return known[0] if len(known) == 1 else spans(column, name)


def _values(column: pa.Array, name: str) -> object:
    if name == "headers":
        return [dict(pairs) if isinstance(pairs, list) else pairs for pairs in listed(column, name)]
    if name in ("delay", "lease", "ttl"):
        return _span_or_spans(column, name)
    return spans(column, name)


# --- bodies -----------------------------------------------------------------------------------


def _bodies(rows: pa.RecordBatch) -> Any:
    names = rows.schema.names
    if "body" not in names:
        return packed(rows.select([name for name in names if name not in KNOWN]))
    column = rows.column("body")
    if column.null_count:
        raise InvalidBody("body: got null, expected bytes or text")
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return blobs_of(column)
    raise InvalidBody(f"body: got a column of {column.type}, expected binary or text")
