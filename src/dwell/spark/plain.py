"""Plain columns: what Spark sends in several forms, in the one form that rows are read in."""

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import is_variant
from pyspark.sql.types import DataType, StructType, VariantVal, YearMonthIntervalType

from dwell.errors import InvalidSettings, InvalidTime

#: The columns that are moments.
_MOMENTS = ("due", "expires")

#: Offsets as Spark writes them, in the one form that PyArrow knows.
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d))?")


def check_types(schema: StructType) -> None:
    """Refuse columns of types that are no values of the queue's; raises InvalidSettings."""
    for field in schema.fields:
        if _has_months(field.dataType):
            raise InvalidSettings(
                f"columns: got {field.name} of type {field.dataType.simpleString()}, whose months "
                "differ in length; expected a span of days or less, or a moment"
            )


def _has_months(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_months(field.dataType) for field in kind.fields)
    parts = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    return isinstance(kind, YearMonthIntervalType) or any(
        _has_months(part) for part in parts if part is not None
    )


def plain(rows: pa.RecordBatch, zone: str | None) -> pa.RecordBatch:
    """Return rows whose texts and bytes are small ones, and whose moments know their zone.

    ``zone`` is that of the session, None for that of the machine: Spark casts a TIMESTAMP_NTZ to a
    moment by it.
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
    """Return times of a calendar and a clock as the moments that they are in a zone.

    As Spark casts them: of an hour that comes twice the first one is meant, and a time in an hour
    that is left out is as much later.
    """
    column = column.cast(pa.timestamp("us"))
    if zone is None:
        return _by_the_machine(column)
    try:
        guess = pc.assume_timezone(
            column, _zone_name(zone), ambiguous="earliest", nonexistent="earliest"
        )
    except pa.ArrowInvalid as error:
        raise InvalidTime(f"due: got times without a zone, in {zone!r:.80}: {error}") from None
    # In an hour that is left out the guess is its begin, where the offset is still the one before.
    offset = pc.subtract(pc.local_timestamp(guess).cast(pa.int64()), guess.cast(pa.int64()))
    moments = pc.subtract(column.cast(pa.int64()), offset)
    return moments.cast(pa.timestamp("us", tz="UTC"))


def _by_the_machine(column: pa.Array) -> pa.Array:
    def micros(local: datetime | None) -> int | None:
        return None if local is None else round(local.timestamp() * 1_000_000)

    return pa.array([micros(one) for one in column.to_pylist()], pa.timestamp("us", tz="UTC"))


def _zone_name(zone: str) -> str:
    if zone == "Z":
        return "UTC"
    found = _OFFSET.fullmatch(zone)
    return zone if found is None else f"{found[1]}{int(found[2]):02}:{found[3] or '00'}"


# --- values -----------------------------------------------------------------------------------


def number(value: Any) -> Any:
    """Return a decimal as the number that it is; anything else as it is."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)


def unpacked(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes the values in a column's VARIANTs of its values; None without any."""
    if pa.types.is_struct(kind):
        if is_variant(kind):
            return _of_variant
        parts = {field.name: unpacked(field.type) for field in kind}
        return _each(parts) if any(parts.values()) else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        one = unpacked(kind.value_type)
        return None if one is None else _of_list(one)
    if pa.types.is_map(kind):
        one = unpacked(kind.item_type)
        return None if one is None else _of_map(one)
    return None


def _of_list(one: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda many: many and [one(value) for value in many]


def _of_map(one: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda many: many and {name: one(value) for name, value in many.items()}


def _each(parts: dict[str, Callable[[Any], Any] | None]) -> Callable[[Any], Any]:
    known = {name: part for name, part in parts.items() if part is not None}
    return lambda row: row and row | {name: part(row[name]) for name, part in known.items()}


def _of_variant(value: dict[str, bytes] | None) -> Any:
    return None if value is None else VariantVal(value["value"], value["metadata"]).toPython()
