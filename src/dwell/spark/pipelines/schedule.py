"""Put the rows of a file, a table or a database into a queue.

Messages are defined in SQL over the columns of the source. Ids are the keys: a killed run is simply
started again, and existing messages are kept.
"""

import sys
from pathlib import PurePosixPath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812

from dwell.errors import InvalidInput, InvalidSettings
from dwell.given import values
from dwell.message import MAX_DELAY_MS
from dwell.spark.pipelines import decision, expressions, pace, sink
from dwell.spark.pipelines.command import main
from dwell.spark.rows import REFUSED

_FORMATS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".orc": "orc",
    ".delta": "delta",
}
_PACKED = (".gz", ".bz2", ".zst", ".lz4")

_MADE = "made"

Text = str | None


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows to put, and when they fall due."""

    url: Annotated[str, Meta(description="The queue: the address of a server.")]
    source: Annotated[str, Meta(description="A path, an address, or the name of a table.")]
    format: Annotated[
        Text,
        Meta(
            description="csv, json, parquet, delta, jdbc, table, or another that Spark can read. "
            "Without it, the name of the source says it."
        ),
    ] = None
    option: Annotated[dict[str, str], Meta(description="An option of Spark's reader.")] = {}
    where: Annotated[Text, Meta(description="Which rows, in SQL.")] = None
    id: Annotated[str, Meta(description="The id of the message, in SQL.")]
    due: Annotated[
        Text, Meta(description="When it falls due, in SQL: a timestamp, or epoch milliseconds.")
    ] = None
    delay: Annotated[
        Text, Meta(description='Or after how long, in SQL: seconds, or a text such as "30m".')
    ] = None
    start: Annotated[
        Text,
        Meta(
            description="Nothing falls due before this time, and delays count from it: "
            f"{pace.START_FORM}. Without it, delays count from now."
        ),
    ] = None
    body: Annotated[
        Text, Meta(description="The body, in SQL. Without it, all columns as a JSON object.")
    ] = None
    topic: Annotated[Text, Meta(description="The topic, as it is.")] = None
    topic_expr: Annotated[Text, Meta(description="Or the topic of each row, in SQL.")] = None
    key: Annotated[Text, Meta(description="The order key, in SQL.")] = None
    priority: Annotated[Text, Meta(description="The priority, in SQL.")] = None
    headers: Annotated[Text, Meta(description="The headers, in SQL: a map of texts.")] = None
    pace: Annotated[
        Text,
        Meta(
            description='No more than so many fall due at once: "5000/s", "300/m" or "1000/h". '
            "What is too many comes later, in the order of due and id."
        ),
    ] = None
    spread: Annotated[
        Text,
        Meta(
            description='Each due moves back by a part of this span: "30m". '
            "The part follows from the id, so that it is the same in every run."
        ),
    ] = None
    on_conflict: Annotated[
        Literal["keep", "replace", "error"], Meta(description="What happens to an id that exists.")
    ] = "keep"
    checkpoint: Annotated[
        Text,
        Meta(
            description="A folder for the messages that were made, until all are put: a run that "
            "was killed is ended by the next one, although the source has changed since."
        ),
    ] = None
    bad_rows: Annotated[
        Text,
        Meta(
            description="A folder for rows that no message can be made of, with the reason. "
            "Without it, the first one ends the run."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse settings that do not go together; raises InvalidSettings."""
        _one_of("due", self.due, "delay", self.delay)
        _one_of("topic", self.topic, "topic-expr", self.topic_expr)
        if self.topic is not None:
            values.topic(self.topic)
        pace.pace(self.pace)
        if self.spread is not None:
            values.delay_ms(self.spread, "--spread")
        pace.start_ms(self.start)


def run(spark: SparkSession, settings: ScheduleSettings) -> str:
    """Put the rows, and return how many were put and how many existed."""
    with pace.letting_go():
        counts = sink.write(
            _made(spark, settings),
            settings.url,
            "put",
            onConflict=settings.on_conflict,
            topic=settings.topic,
            badRows=settings.bad_rows,
        )
    if settings.checkpoint is not None:
        decision.forget(spark, settings.checkpoint, _MADE)
    result = "replaced" if settings.on_conflict == "replace" else "kept"
    return f"schedule: {counts.total():,} rows; {sink.shown(counts, 'created', result, 'bad')}"


def _made(spark: SparkSession, settings: ScheduleSettings) -> DataFrame:
    """Return the messages; with a checkpoint, as stored there.

    A pace gives each row a place among all of them. If half of them were put, and the others made
    from a changed source, more would fall due at once than the pace allows.
    """
    place = settings.checkpoint
    if place is None:
        return messages(source(spark, settings), settings)
    if decision.unfinished(spark, place, settings) is not None:
        return decision.found(spark, place, _MADE)
    rows = decision.kept(messages(source(spark, settings), settings), place, _MADE)
    decision.seal(spark, place, settings)
    return rows


def _one_of(name: str, one: Text, other_name: str, other: Text) -> None:
    if (one is None) == (other is None):
        came = "neither" if one is None else "both"
        raise InvalidSettings(f"--{name}, --{other_name}: got {came}, expected one of them")


# --- the source -----------------------------------------------------------------------------------


def source(spark: SparkSession, settings: ScheduleSettings) -> DataFrame:
    """Return the selected rows, with the columns of the source."""
    name, format_ = settings.source, settings.format or _format(spark, settings.source)
    reader = spark.read.format(format_ if format_ != "table" else "parquet")
    if format_ == "csv":
        # A table without column names could not be made into messages. Quotes inside quotes are
        # doubled, as in every program except Spark.
        reader = reader.option("header", "true").option("escape", '"')
    reader = reader.options(**settings.option)
    if format_ == "table":
        rows = reader.table(name)
    elif format_ == "jdbc":
        rows = reader.option("dbtable", name).load()
    else:
        rows = reader.load(name)
    return expressions.chosen(rows, "where", settings.where)


def _format(spark: SparkSession, name: str) -> str:
    endings = [ending.lower() for ending in PurePosixPath(name).suffixes]
    while endings and endings[-1] in _PACKED:
        endings.pop()
    if endings and endings[-1] in _FORMATS:
        return _FORMATS[endings[-1]]
    if "/" not in name and spark.catalog.tableExists(name):
        return "table"
    allowed = f"one of {', '.join(sorted({*_FORMATS.values(), 'jdbc', 'table'}))}"
    raise InvalidSettings(f"--format: got none, and {name!r:.80} does not say it; {allowed}")


# --- the messages ---------------------------------------------------------------------------------


def messages(rows: DataFrame, settings: ScheduleSettings) -> DataFrame:
    """Return the columns for a put, with dues spread and paced."""

    def column(field: str, text: str) -> Column:
        return expressions.column(rows, field, text)

    columns = {"id": column("id", settings.id).cast("string")}
    if settings.body is None:
        columns["body"] = expressions.everything(rows)
    else:
        columns["body"] = expressions.body(rows, column("body", settings.body))
    if settings.topic_expr is not None:
        columns["topic"] = column("topic-expr", settings.topic_expr).cast("string")
    if settings.key is not None:
        columns["key"] = column("key", settings.key).cast("string")
    if settings.priority is not None:
        columns["priority"] = column("priority", settings.priority).cast("bigint")
    if settings.headers is not None:
        columns["headers"] = column("headers", settings.headers).cast("map<string,string>")
    due_ms = _due_ms(rows, settings)
    columns["due"] = _possible(due_ms)
    columns[REFUSED] = _refused(rows, settings, due_ms)
    made = expressions.selected(rows, columns, trying=settings.bad_rows is not None)
    made = made.withColumn("due", F.col("due") + pace.jitter_ms(F.col("id"), settings.spread))
    return pace.paced(made, "due", pace.pace(settings.pace), [F.col("id")])


def _due_ms(rows: DataFrame, settings: ScheduleSettings) -> Column:
    start_ms = pace.start_ms(settings.start)
    if settings.due is not None:
        due_ms = expressions.due_ms(rows, expressions.column(rows, "due", settings.due))
        # greatest skips nulls, and a row without a due is not due at the start.
        late = due_ms >= F.lit(start_ms)
        return due_ms if start_ms is None else F.when(~late, F.lit(start_ms)).otherwise(due_ms)
    delay = expressions.column(rows, "delay", settings.delay or "")
    return F.lit(pace.now_ms() if start_ms is None else start_ms) + _delay_ms(rows, delay)


def _possible(due_ms: Column) -> Column:
    """Return a due; null if no message can have it.

    Spread and pace calculate with dues: one that is out of range would overflow there and end the
    run, and seconds would become a due that is only in the past.
    """
    return F.when(_is_in_range(due_ms) & ~_is_seconds(due_ms), due_ms)


def _is_in_range(due_ms: Column) -> Column:
    return due_ms.between(0, pace.now_ms() + MAX_DELAY_MS)


def _is_seconds(due_ms: Column) -> Column:
    return due_ms.between(values.SECONDS.start, values.SECONDS.stop - 1)


def _refused(rows: DataFrame, settings: ScheduleSettings, due_ms: Column) -> Column:
    """Return why a row has an invalid due; null if it is valid or absent."""
    name, text = ("delay", settings.delay) if settings.due is None else ("due", settings.due)
    given = expressions.column(rows, name, text or "").cast("string")

    def said(allowed: str) -> Column:
        return F.concat(F.lit(f"{name}: got '"), given, F.lit(f"', expected {allowed}"))

    forms = "a span" if name == "delay" else "a timestamp, or epoch milliseconds"
    return (
        F.when(due_ms.isNull(), said(forms))
        .when(_is_seconds(due_ms), said("milliseconds: those are seconds"))
        .when(~_is_in_range(due_ms), said(f"a time from 1970 to {MAX_DELAY_MS} ms from now"))
    )


def _delay_ms(rows: DataFrame, delay: Column) -> Column:
    if isinstance(expressions.type_of(rows, delay), T.NumericType):
        # Seconds of a narrow type have no room for their milliseconds.
        return F.round(delay * F.lit(1000).cast("long")).cast("long")
    # A plain function would not do: Spark reads type hints, and does not know these.
    spans_ms = F.udf(lambda text: _span_ms(text), T.LongType())
    return spans_ms(delay.cast("string"))


def _span_ms(text: str | None) -> int | None:
    """Return a span such as "30m" in milliseconds; null for an invalid text (a bad row)."""
    try:
        return None if text is None else values.delay_ms(text)
    except InvalidInput:
        return None


if __name__ == "__main__":
    sys.exit(main("schedule"))
