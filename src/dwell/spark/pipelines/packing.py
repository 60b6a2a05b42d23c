"""Rows as bodies, in both directions: the same row, to the last digit.

A body is the row as one object of JSON. Columns of bytes, which JSON could hold only in base64,
precede it unencoded, after a line with their sizes, null for a null column::

    [3,null,200]
    (3 bytes)(200 bytes){"offset":7,...}

So Spark reads no JSON at all when only they are needed, as for a sink for Kafka.
"""

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812

from dwell.errors import InvalidSettings
from dwell.given import values

# Spark's default forms stop at milliseconds. Bad JSON must not become a row of nulls.
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
#: A size in the first line of a body; a larger number would not fit an INT.
_SIZE = "([0-9]{1,9}|null)"

_WRITE = {**_TIMES, "ignoreNullFields": "false"}
_READ = {**_TIMES, "mode": "FAILFAST"}
#: The parsed JSON of a row between two steps.
_PARSED = "\x00parsed"
#: The field of a parsed row with the whole text of an unreadable row.
_BROKEN = "\x00broken"

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
    """Return the body with all columns of a schema; raises InvalidSettings if it has none."""
    for name, kind in _leaves("", schema):
        allowed = "a type that JSON can say (a map's keys are text)"
        if not isinstance(kind, _PLAIN):
            raise values.refusal(InvalidSettings, f"column {name}", kind.simpleString(), allowed)
    raw, said = _parted(schema)
    packed = F.to_json(F.struct(*map(_column, said)), _WRITE) if said.fields else F.lit("{}")
    if not raw.fields:
        return packed.cast("binary")
    blobs = [_column(field) for field in raw]
    # JSON by plain text: Spark's own writer of JSON takes a fifth of the time of a relay.
    sizes = [F.coalesce(F.octet_length(blob).cast("string"), F.lit("null")) for blob in blobs]
    line = F.concat(F.lit("["), F.concat_ws(",", *sizes), F.lit("]\n"))
    some = [F.coalesce(blob, F.lit(b"")) for blob in blobs]
    return F.concat(line.cast("binary"), *some, packed.cast("binary"))


def unpack(bodies: DataFrame, schema: T.StructType) -> DataFrame:
    """Return the rows whose column ``body`` was made by :func:`pack`."""
    raw, said = _parted(schema)
    body = F.col("body")
    if not raw.fields:
        return _spread(bodies.select(_parsed(body, said)), [], said.names)
    line = F.substring_index(body.cast("string"), "\n", 1)
    none = F.raise_error(F.concat(F.lit("body: got no line of sizes: "), F.left(line, F.lit(80))))
    sizes = F.when(_is_line(line, len(raw)), _sizes(line)).otherwise(none)
    # Each step is a projection of its own, so that Spark does not read JSON again for each column.
    cut = bodies.select(body, (F.octet_length(line) + 2).alias("start"), sizes.alias("sizes"))
    start, found = F.col("start"), list[Column]()
    for at, name in enumerate(raw.names):
        size = _size(F.col("sizes")[at])
        found.append(body.substr(start, size).alias(name))
        start = start + F.coalesce(size, F.lit(0))
    rest = body.substr(start, F.octet_length(body))
    return _spread(cut.select(*found, _parsed(rest, said)), raw.names, schema.names)


def is_readable(schema: T.StructType) -> Column:
    """Return whether :func:`unpack` can read the column ``body``, which may be from any message.

    JSON with other names is not such a body: it would become a row of nulls.
    """
    raw, said = _parted(schema)
    body = F.col("body")
    if not raw.fields:
        return _is_said(body, said)
    line = F.substring_index(body.cast("string"), "\n", 1)
    sizes = F.when(_is_line(line, len(raw)), _sizes(line))
    taken = sum((F.coalesce(_size(sizes[at]), F.lit(0)) for at in range(len(raw))), F.lit(0))
    start = F.octet_length(line) + 2 + taken
    rest = body.substr(start, F.octet_length(body))
    return F.coalesce(sizes.isNotNull() & _is_said(rest, said), F.lit(False))


def _is_line(line: Column, count: int) -> Column:
    """Return whether a text is the sizes of so many columns."""
    return line.rlike(rf"^\[{_SIZE}(,{_SIZE}){{{count - 1}}}\]$")


def _sizes(line: Column) -> Column:
    """Return the texts of the sizes in a line that :func:`_is_line`."""
    return F.split(F.substring(line, 2, F.octet_length(line) - 2), ",")


def _size(text: Column) -> Column:
    return F.when(text != "null", text.cast("int"))


def _is_said(body: Column, schema: T.StructType) -> Column:
    """Return whether a body is a JSON object with values for a schema."""
    text = F.try_validate_utf8(body.cast("string"))
    fields = [T.StructField(field.name, field.dataType) for field in schema]
    kind = T.StructType([*fields, T.StructField(_BROKEN, T.StringType())])
    how = {**_READ, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    found = F.from_json(F.when(F.trim(text) != "", text), kind, how)
    is_read = found.isNotNull() & found[_BROKEN].isNull()
    if fields:
        names = F.array(*[F.lit(field.name) for field in fields])
        is_read = is_read & F.arrays_overlap(F.json_object_keys(text), names)
    return F.coalesce(is_read, F.lit(False))


def _spread(rows: DataFrame, whole: list[str], names: list[str]) -> DataFrame:
    """Return columns by name: existing columns, and the others from the parsed JSON."""
    parsed = F.col(_PARSED)
    return rows.select(
        *[F.col(f"`{name}`") if name in whole else parsed[name].alias(name) for name in names]
    )


def _parted(schema: T.StructType) -> tuple[T.StructType, T.StructType]:
    """Return the columns stored as bytes, and the columns stored in JSON."""
    raw = [field for field in schema if isinstance(field.dataType, T.BinaryType)]
    return T.StructType(raw), T.StructType([field for field in schema if field not in raw])


def _column(field: T.StructField) -> Column:
    return F.col(f"`{field.name}`")


def _parsed(body: Column, schema: T.StructType) -> Column:
    # In the result of from_json any field may be missing.
    nullable = T.StructType([T.StructField(field.name, field.dataType) for field in schema])
    return _read(F.decode(body, "UTF-8"), nullable).alias(_PARSED)


def _read(text: Column, kind: T.StructType | T.ArrayType) -> Column:
    # Spark reads an empty text as null, and pack never writes one.
    return F.from_json(F.when(F.trim(text) == "", F.lit("?")).otherwise(text), kind, _READ)


def _leaves(name: str, kind: T.DataType) -> Iterator[tuple[str, T.DataType]]:
    """Yield the types that a type consists of, each with its place."""
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _leaves(f"{name}.{field.name}".lstrip("."), field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield from _leaves(f"{name}[]", kind.elementType)
    elif isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        yield from _leaves(f"{name}[]", kind.valueType)
    else:
        yield name, kind
