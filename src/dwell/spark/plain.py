"""Plain columns: the several forms of Spark's data in a single form for reading."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from dwell.errors import InvalidInput, InvalidSettings
from dwell.spark.zones import offset_us, zone_of

#: The columns with a meaning for the queue; all others are packed into the body.
KNOWN = (
    "id",
    "topic",
    "body",
    "due",
    "delay",
    "priority",
    "key",
    "headers",
    "lease",
    "max_attempts",
    "expires",
    "ttl",
)

#: The columns of points in time.
_MOMENTS = ("due", "expires")
_SHOWN_CHARS = 120


def check_types(schema: StructType) -> None:
    """Refuse columns of types that the queue has no values of; raises InvalidSettings."""
    for field in schema.fields:
        if _has_months(field.dataType):
            raise InvalidSettings(
                f"columns: got {field.name} of type {field.dataType.simpleString()}, whose months "
                "differ in length; expected a span of days or less, or a moment"
            )
        if field.name in KNOWN and _has_parts(field):
            raise InvalidSettings(
                f"columns: got {field.name} of type {field.dataType.simpleString()}, expected a "
                "single value"
            )


def _has_parts(field: StructField) -> bool:
    kinds = (ArrayType, VariantType)
    return isinstance(
        field.dataType, kinds if field.name == "headers" else (*kinds, MapType, StructType)
    )


def _has_months(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_months(field.dataType) for field in kind.fields)
    parts = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    return isinstance(kind, YearMonthIntervalType) or any(
        _has_months(part) for part in parts if part is not None
    )


def plain(rows: pa.RecordBatch, zone: str | None) -> pa.RecordBatch:
    """Return rows with small texts and bytes, and with points in time that know their zone.

    ``zone`` is the session's zone, None for the machine's: Spark uses it to cast a TIMESTAMP_NTZ to
    a point in time.
    """
    for at, field in enumerate(rows.schema):
        column = _narrow(rows.column(at))
        if field.name in _MOMENTS and _is_local(column.type):
            column = moments_in(column, zone)
        if column is not rows.column(at):
            rows = rows.set_column(at, field.name, column)
    return rows


def _narrow(column: pa.Array) -> pa.Array:
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


# --- moments ----------------------------------------------------------------------------------


def _is_local(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def moments_in(column: pa.Array, zone: str | None) -> pa.Array:
    """Return local times as the points in time that they are in a zone.

    As in Spark's casts: in an hour that occurs twice the first is meant, and a time in a skipped
    hour is as much later.
    """
    micros = column.cast(pa.timestamp("us")).cast(pa.int64())
    by = None if zone is None else zone_of(zone)
    offsets = [None if one is None else offset_us(one, by) for one in micros.to_pylist()]
    moments = pc.subtract(micros, pa.array(offsets, pa.int64()))
    return moments.cast(pa.timestamp("us", tz="UTC"))


# --- values -----------------------------------------------------------------------------------


def number(value: Any) -> Any:
    """Return a decimal as a number; any other value unchanged."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)


def listed(column: pa.Array, name: str, refusal: type[InvalidInput] = InvalidInput) -> list[Any]:
    """Return the values of a column; raises an error for a value that Python cannot represent."""
    try:
        many: list[Any] = column.to_pylist()
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise refusal(f"{name}: got {shown(column)}, expected a value in range: {error}") from None
    return many


def shown(column: pa.Array) -> str:
    """Return the first value of a column in a form for people, whatever it is."""
    return " ".join(str(column.slice(0, 1)).split())[:_SHOWN_CHARS]
