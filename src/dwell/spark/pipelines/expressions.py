"""SQL expressions of a command line, checked against the columns they use."""

from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812

from dwell.errors import InvalidSettings
from dwell.spark.rows import REFUSED

_AS_JSON = (T.StructType, T.MapType, T.ArrayType)
_POINTS = (T.TimestampType, T.TimestampNTZType, T.DateType)


def column(rows: DataFrame, field: str, text: str) -> Column:
    """Return an SQL expression over the columns; raises InvalidSettings, naming the option."""
    try:
        found = F.expr(text)
        rows.select(found)
    except AnalysisException as error:
        raise InvalidSettings(f"--{field}: got {text!r:.80}: {_reason(error)}") from None
    return found


def chosen(rows: DataFrame, field: str, text: str | None) -> DataFrame:
    """Return the rows that satisfy an SQL expression; all rows without an expression."""
    if text is None:
        return rows
    column(rows, field, text)
    try:
        return rows.where(text)
    except AnalysisException as error:
        raise InvalidSettings(f"--{field}: got {text!r:.80}: {_reason(error)}") from None


def _reason(error: AnalysisException) -> str:
    """Return what is wrong; the plan below the first line is left out."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(" SQLSTATE:")[0] if lines else "not an SQL expression"


def selected(rows: DataFrame, columns: dict[str, Column], *, trying: bool) -> DataFrame:
    """Return columns; with ``trying``, a failed column is null in its row, with REFUSED set."""
    if not trying:
        return rows.select(*[what.alias(name) for name, what in columns.items()])
    attempts = [_attempt(what).alias(name) for name, what in columns.items()]
    reasons = [
        F.when(
            F.col(name).isNull(), F.lit(f"{name}: got SQL that fails for the row, expected a value")
        )
        for name in columns
        if name != REFUSED
    ]
    if REFUSED in columns:
        reasons.append(F.col(REFUSED)["value"])
    values = [F.col(name)["value"].alias(name) for name in columns if name != REFUSED]
    return rows.select(*attempts).select(*values, F.coalesce(*reasons).alias(REFUSED))


def _attempt(what: Column) -> Column:
    """Return a struct of one value; null where Spark fails to compute it.

    SQL has some functions that try, and no form that tries any expression. Spark itself has one.
    """
    java: Any = SparkSession.active()._jvm
    columns = java.org.apache.spark.sql.classic.ExpressionUtils
    # Without a condition before it, a part shared by several columns would be computed before all
    # of them, outside of the attempts.
    value: Any = F.struct(F.when(F.spark_partition_id() >= 0, what).alias("value"))
    attempt = java.org.apache.spark.sql.catalyst.expressions.TryEval(columns.expression(value._jc))
    made: Any = Column
    found: Column = made(columns.column(attempt))
    return found


def type_of(rows: DataFrame, what: Column) -> T.DataType:
    """Return the type of an expression."""
    return rows.select(what).schema.fields[0].dataType


def due_ms(rows: DataFrame, what: Column) -> Column:
    """Return a point in time as epoch milliseconds; whole numbers are unchanged.

    An invalid text becomes null, so that the row is bad and the job goes on. Parts of a millisecond
    are rounded up: nothing is early.
    """
    kind = type_of(rows, what)
    if isinstance(kind, T.IntegralType):
        return what.cast("long")
    if not isinstance(kind, (*_POINTS, T.StringType)):
        allowed = "a timestamp, a date, a text of one, or epoch milliseconds as a whole number"
        raise InvalidSettings(f"--due: got {kind.simpleString()}, expected {allowed}")
    return F.ceil(F.unix_micros(what.try_cast("timestamp")) / F.lit(1000)).cast("long")


def body(rows: DataFrame, what: Column) -> Column:
    """Return a body: texts and bytes unchanged, nested values as JSON, the rest as text."""
    kind = type_of(rows, what)
    if isinstance(kind, _AS_JSON):
        return F.to_json(what, {"ignoreNullFields": "false"})
    return what if isinstance(kind, T.BinaryType) else what.cast("string")


def everything(rows: DataFrame) -> Column:
    """Return all columns as one JSON object."""
    every = F.struct(*[rows[f"`{name}`"] for name in rows.columns])
    return F.to_json(every, {"ignoreNullFields": "false"})
