"""Any row as a body, and back: the same row, to the last digit."""

from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812

from dwell.errors import InvalidSettings
from dwell.given import values

# Spark's own forms stop at milliseconds. Bad JSON must not become a row of nulls.
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_WRITE = {**_TIMES, "ignoreNullFields": "false"}
_READ = {**_TIMES, "mode": "FAILFAST"}

_PLAIN = (
    T.BinaryType,
    T.BooleanType,
    T.DateType,
    T.DecimalType,
    T.DoubleType,
    T.FloatType,
    T.IntegralType,
    T.StringType,
    T.TimestampNTZType,
    T.TimestampType,
)


def pack(schema: T.StructType) -> Column:
    """Return the body that holds all columns of a schema; raises InvalidSettings if none can."""
    for name, kind in _leaves("", schema):
        allowed = "a type that JSON can say (a map's keys are text)"
        if not isinstance(kind, _PLAIN):
            raise values.refusal(InvalidSettings, f"column {name}", kind.simpleString(), allowed)
    return F.to_json(F.struct(*[F.col(f"`{field.name}`") for field in schema.fields]), _WRITE)


def unpack(body: Column, schema: T.StructType) -> Column:
    """Return the columns that :func:`pack` put into a body, as one struct."""
    return F.from_json(F.decode(body, "UTF-8"), _nullable(schema), _READ)


def _leaves(name: str, kind: T.DataType) -> Iterator[tuple[str, T.DataType]]:
    """Yield the types that a type is made of, each with its place."""
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _leaves(f"{name}.{field.name}".lstrip("."), field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield from _leaves(f"{name}[]", kind.elementType)
    elif isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        yield from _leaves(f"{name}[]", kind.valueType)
    else:
        yield name, kind


def _nullable(schema: T.StructType) -> T.StructType:
    """Return the schema as from_json reads it, which promises of no field that it is there."""
    return T.StructType([T.StructField(field.name, field.dataType) for field in schema.fields])
