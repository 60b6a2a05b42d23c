"""Prove that nothing was lost: the books over all events of a server.

Each run reads the new events into a table, closes the books at one position and compares them with
the server's own counts. It ends with 1 when they do not balance.
"""

import re
import sys
import time
from typing import Annotated

import msgspec
from msgspec import Meta
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from dwell.batch.events import Event
from dwell.errors import InvalidSettings
from dwell.given import values
from dwell.spark.events import AnotherHistory
from dwell.spark.pipelines import audit_page, files
from dwell.spark.pipelines.books import Books, close, findings, hours
from dwell.spark.pipelines.closing import Check, absent, checks, closing, oldest
from dwell.spark.pipelines.command import PipelineFailed, known_error, main
from dwell.spark.pipelines.ledger import Ledger
from dwell.spark.pipelines.page import inside, save
from dwell.spark.pipelines.positions import Span
from dwell.spark.schemas import EVENTS

_DAY_MS = 86_400_000
_CHECKPOINT = "checkpoint"

#: An event in the format of `dwell relay --events`.
_RECORD = re.sub(r"(\w+) TIMESTAMP", r"\1_ms BIGINT", EVENTS.replace(" NOT NULL", ""))
_AGAIN_S = 0.5

Count = Annotated[int, Meta(ge=0)]


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server, and the place of the books."""

    url: Annotated[str, Meta(description="The queue: the address of a server.")]
    out: Annotated[
        str,
        Meta(
            description="The folder of the books: the events and their checkpoint, which the next "
            "run goes on with, the tables hours and findings, and audit.html."
        ),
    ]
    max_rows_per_batch: Annotated[
        int, Meta(ge=1, description="How many events are written at once.")
    ] = 500_000
    since: Annotated[
        Count,
        Meta(description="Begin with this position. What was known before counts as known."),
    ] = 0
    early_ms: Annotated[
        Count, Meta(description="How many milliseconds before its due a take may be.")
    ] = 0
    new_table: Annotated[
        bool,
        Meta(
            description="Where the server has another history than the books, as after a backup "
            "was restored, begin a new table of events beside the old one."
        ),
    ] = False
    format: Annotated[
        str,
        Meta(
            description="Where the events come from: dwell, the server itself; or kafka, the topic "
            "that `dwell relay --events` fills, which may keep them longer."
        ),
    ] = "dwell"
    option: Annotated[dict[str, str], Meta(description="An option of the format.")] = {}
    patience: Annotated[
        str, Meta(description="How long to wait for events that are not in Kafka yet.")
    ] = "1m"
    report: Annotated[bool, Meta(description="Write audit.html. Default: yes.")] = True

    def __post_init__(self) -> None:
        """Refuse settings that do not go together; raises InvalidInput."""
        values.delay_ms(self.patience, "--patience")
        if self.format not in ("dwell", "kafka"):
            raise InvalidSettings(f"--format: got {self.format!r:.80}, expected dwell or kafka")
        if self.format == "dwell" and self.option:
            raise InvalidSettings("--option: got some, and --format dwell has none")


def run(spark: SparkSession, settings: AuditSettings) -> str:
    """Bring the table of events up to date and balance the books."""
    end = closing(settings.url)
    _collect_new(spark, settings)
    begin = max(oldest(settings.url), settings.since)
    events = collected(spark, settings.out)
    if settings.format == "kafka":
        events = _of_feed(spark, settings, end.position)
    span = Span.of(events, settings.since, max(end.position, settings.since))
    with Ledger(events, span, settings.early_ms) as ledger:
        books = close(ledger, events, span)
        hours(ledger).write.mode("overwrite").parquet(inside(settings.out, "hours"))
        findings(ledger).write.mode("overwrite").parquet(inside(settings.out, "findings"))
    found, lost = checks(books, end, begin), books.lost + absent(books, end)
    meanwhile = end.meanwhile.events
    if settings.report:
        page = audit_page.page(books, found, lost, meanwhile)
        save(spark, inside(settings.out, "audit.html"), page)
    line = _line(books, lost, found, settings, meanwhile)
    if not all(check.holds for check in found):
        raise PipelineFailed(line)
    return line


def _collect_new(spark: SparkSession, settings: AuditSettings) -> None:
    """Update the table; raises AnotherHistory, or starts a new table if the settings allow it."""
    try:
        collect(spark, settings)
    except StreamingQueryException as error:
        found = known_error(error)
        if not isinstance(found, AnotherHistory):
            raise
        if not settings.new_table:
            raise AnotherHistory(
                f"{inside(settings.out, 'events')}: got books of another history than the "
                f"server's, expected its own; --new-table begins a new table ({found})"
            ) from None
        collect(spark, settings, _tables(spark, settings.out) + 1)


def _of_feed(spark: SparkSession, settings: AuditSettings, end: int) -> DataFrame:
    """Return the events that a feed has sent, each once; waits for those not sent yet.

    Events missing after that are missing in the books, which then do not balance.
    """
    until = time.monotonic() + values.delay_ms(settings.patience) / 1000
    while True:
        events = collected(spark, settings.out)
        before = events.where(F.col("position") < end)
        first, count = before.agg(F.min("position"), F.count_distinct("position")).head() or (0, 0)
        if count == end - (first or 0) or time.monotonic() > until:
            return events.dropDuplicates(["position"])
        time.sleep(_AGAIN_S)
        _collect_new(spark, settings)


def _tables(spark: SparkSession, out: str) -> int:
    """Return how many tables of events there are, one for each history."""
    names = files.names(spark, inside(files.literal(out), f"{_CHECKPOINT}-*"))
    numbers = [name.rpartition("-")[2] for name in names]
    return max([1, *(int(number) for number in numbers if number.isdecimal())])


def _table(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def collect(spark: SparkSession, settings: AuditSettings, number: int | None = None) -> None:
    """Append the new events to the table of events, each once.

    Files that a killed run has left are not in the table's list of files, and so are not read; the
    next run starts where the last whole batch ended. ``number`` is the table's number, the newest
    by default.
    """
    number = number or _tables(spark, settings.out)
    events = _stream(spark, settings)
    # Days are in UTC, whatever the zone of the session, so that no day is written in two zones.
    day = F.date_from_unix_date(F.expr(f"cast(unix_millis(time) div {_DAY_MS} AS INT)"))
    query = (
        events.withColumn("day", day)
        .writeStream.format("parquet")
        .queryName("events")
        .partitionBy("day")
        .option("path", inside(settings.out, _table("events", number)))
        .option("checkpointLocation", inside(settings.out, _table(_CHECKPOINT, number)))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _stream(spark: SparkSession, settings: AuditSettings) -> DataFrame:
    """Return the events as a stream, from the server or from the topic of a feed."""
    if settings.format == "dwell":
        reader = spark.readStream.format("dwell").option("url", settings.url)
        reader = reader.option("view", "events")
        return reader.option("maxRowsPerBatch", settings.max_rows_per_batch).load()
    reader = spark.readStream.format("kafka").option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", settings.max_rows_per_batch)
    records = reader.options(**settings.option).load()
    event = F.from_json(records["value"].cast("string"), _RECORD)
    found = records.select(event.alias("event")).where("event.position IS NOT NULL")
    names = Event.__struct_fields__
    columns = [
        F.timestamp_millis(f"event.{name}") if name.endswith("_ms") else F.col(f"event.{name}")
        for name in names
    ]
    return found.select(
        *(
            column.alias(name.removesuffix("_ms"))
            for column, name in zip(columns, names, strict=True)
        )
    )


def collected(spark: SparkSession, out: str) -> DataFrame:
    """Return the newest table of events; it is empty before the first."""
    try:
        return spark.read.parquet(inside(out, _table("events", _tables(spark, out))))
    except AnalysisException as error:
        # A table without data has no file that shows its columns.
        if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        return spark.createDataFrame([], EVENTS)


def _line(
    books: Books, lost: int, found: list[Check], settings: AuditSettings, meanwhile: int
) -> str:
    total = books.total
    parts = (
        f"{total.accepted:,} accepted = {total.acked:,} acked + {total.cancelled:,} cancelled"
        f" + {total.dead:,} dead + {total.pending:,} pending",
        f"lost {lost:,}, early {total.early:,}, doubled {total.doubled:,}",
        f"{books.events:,} events"
        + ("" if books.is_from_start else f" from position {books.first_position:,} on"),
        *([f"in use: {meanwhile:,} events while the server counted"] if meanwhile else []),
        *_failed(found),
        *([f"report {inside(settings.out, 'audit.html')}"] if settings.report else []),
    )
    return "audit: " + "; ".join(parts)


def _failed(found: list[Check]) -> list[str]:
    wrong = [f"{c.what}: {c.books:,}, not {c.other:,}" for c in found if not c.holds]
    return ["the books do not balance: " + ", ".join(wrong)] if wrong else []


if __name__ == "__main__":
    sys.exit(main("audit"))
