"""Packed rows: the columns unknown to the queue, one JSON object a row."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import is_variant
from pyspark.sql.types import VariantVal

from dwell.errors import InvalidBody
from dwell.spark.plain import listed
from dwell.spark.zones import zone_of

#: Makes a value of JSON from a value of a column; it never gets None.
Reader = Callable[[Any], Any]


def packed(rows: pa.RecordBatch) -> list[bytes]:
    """Return each row as one object of JSON; raises InvalidBody for values without a JSON form."""
    if not rows.num_columns:
        raise InvalidBody("body: got no column for it, expected body or others to be packed")
    encode = msgspec.json.Encoder(enc_hook=_refused, decimal_format="number").encode
    names = rows.schema.names
    columns = [_column(rows.column(at), name) for at, name in enumerate(names)]
    try:
        return [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    except (TypeError, RecursionError) as error:
        raise InvalidBody(f"body: {error}") from None


def _refused(value: object) -> object:
    raise InvalidBody(f"body: got a {type(value).__name__} in a column, expected what JSON can say")


def _column(column: pa.Array, name: str) -> list[Any]:
    """Return the values of a column as values of JSON; raises InvalidBody."""
    kind, read = _in_utc(column.type), _reader(column.type)
    many = listed(column if kind == column.type else column.cast(kind), name, InvalidBody)
    if read is None:
        return many
    try:
        return [None if one is None else read(one) for one in many]
    except (ArithmeticError, TypeError, ValueError) as error:
        raise InvalidBody(f"{name}: {error}") from None


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with its times in UTC, because PyArrow does not know all zones of Spark."""
    types = pa.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_utc(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    return kind


# --- values -----------------------------------------------------------------------------------


def _reader(kind: pa.DataType) -> Reader | None:
    """Return a function from values of a type to values of JSON; None if it is not needed."""
    types = pa.types
    if types.is_struct(kind):
        return _of_variant if is_variant(kind) else _of_struct(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return _of_list(_reader(kind.value_type))
    if types.is_map(kind):
        return _of_map(_reader(kind.key_type), _reader(kind.item_type))
    if types.is_timestamp(kind) and kind.tz is not None:
        zone = zone_of(kind.tz)
        return lambda moment: moment.astimezone(zone)
    if types.is_floating(kind):
        return _finite if types.is_float64(kind) else _short
    return None


def _read(read: Reader | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


def _of_struct(kind: pa.DataType) -> Reader | None:
    parts = {field.name: read for field in kind if (read := _reader(field.type)) is not None}
    if not parts:
        return None
    return lambda row: row | {name: _read(read, row[name]) for name, read in parts.items()}


def _of_list(one: Reader | None) -> Reader | None:
    return None if one is None else lambda many: [_read(one, value) for value in many]


def _of_map(name: Reader | None, one: Reader | None) -> Reader:
    return lambda pairs: {_name(_read(name, key)): _read(one, value) for key, value in pairs}


def _name(key: Any) -> Any:
    """Return a key of a map as a key for an object of JSON."""
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, dict | list):
        raise ValueError(f"got {key!r:.80} as a key, expected one that is text or can be")
    return str(key) if isinstance(key, Decimal) else key


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"got {number}, expected a number that JSON can say")
    return number


def _short(number: float) -> float:
    """Return a number of single precision as its shortest notation."""
    return _finite(float(str(np.float32(number))))


def _of_variant(parts: dict[str, bytes]) -> Any:
    value = VariantVal(parts["value"], parts["metadata"]).toPython()
    _check_finite(value)
    return value


def _check_finite(value: Any) -> None:
    if isinstance(value, float):
        _finite(value)
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_finite(part)
