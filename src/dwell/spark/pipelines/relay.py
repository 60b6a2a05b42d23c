"""Hold a stream's rows in the queue until they are due, and send them on as a stream.

Two streaming queries run in one application. The first writes each row of the input as a message
into a topic; the second takes due messages, and writes the same rows to targets.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from dwell.errors import InvalidSettings
from dwell.given import values
from dwell.message import Result
from dwell.spark import badrows
from dwell.spark.options import Place
from dwell.spark.pipelines import expressions, files, packing, sink
from dwell.spark.pipelines.command import main

_FILES = ("parquet", "json", "csv", "orc", "text")
_KAFKA = "kafka"
#: The columns that Spark's sink for Kafka knows, in addition to the topic.
_OF_KAFKA = ("key", "value", "headers")
_POLL_S = 0.2

Text = str | None

#: Takes the rows of a batch, with a column ``target``, and the number of the batch.
Outgoing = Callable[[DataFrame, int], None]


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input, the rules for due and target, and the output."""

    url: Annotated[str, Meta(description="The queue: the address of a server.")]
    topic: Annotated[str, Meta(description="The topic that holds the rows.")] = "relay"
    source: Annotated[Text, Meta(description="The folder to read, if the format has one.")] = None
    format: Annotated[
        str, Meta(description="The format of the input: json, csv, parquet, rate, kafka ...")
    ] = "json"
    option: Annotated[dict[str, str], Meta(description="An option of the input.")] = {}
    schema: Annotated[
        Text, Meta(description='The columns of the input: "id LONG, at TIMESTAMP". Files need it.')
    ] = None
    id: Annotated[
        str,
        Meta(description="What no two rows share, in SQL. A row that comes again is kept once."),
    ]
    due: Annotated[
        Text, Meta(description="When a row falls due, in SQL: a timestamp, or epoch milliseconds.")
    ] = None
    delay: Annotated[
        Text, Meta(description='Or after how long, in SQL: seconds, or a text such as "30m".')
    ] = None
    target: Annotated[
        Text,
        Meta(description="Where a row goes, in SQL: OUT/target=... Without it, all go to one."),
    ] = None
    out: Annotated[Text, Meta(description="The folder that the files are written to.")] = None
    out_format: Annotated[
        str,
        Meta(
            description="parquet, json, csv; or a format without files, which gets the targets "
            "in a column of that name, and may get a batch twice."
        ),
    ] = "parquet"
    out_option: Annotated[dict[str, str], Meta(description="An option of the output.")] = {}
    checkpoint: Annotated[str, Meta(description="The folder where Spark keeps how far it is.")]
    every: Annotated[
        str, Meta(description="How often a batch begins; 0s is as soon as the last is done.")
    ] = "0s"
    max_rows: Annotated[
        int, Meta(ge=1, description="How many due messages one batch takes at most.")
    ] = 100_000
    lease: Annotated[
        str,
        Meta(
            description="How long a batch's messages are held while nobody works on them. A driver "
            "that starts again within it goes on with the same ones."
        ),
    ] = "1h"
    remember: Annotated[
        str,
        Meta(
            description="How long ids are known after the row went out, so that a batch of the "
            "input that runs again after a crash puts nothing twice."
        ),
    ] = "1d"
    bad_rows: Annotated[
        Text,
        Meta(
            description="A folder for rows that no message can be made of, and messages of the "
            "topic that are no rows, with the reason. Without it, the first one ends the run."
        ),
    ] = None
    available_now: Annotated[
        bool, Meta(description="Read what there is, hand on what is due, and end.")
    ] = False
    until_idle: Annotated[
        Text,
        Meta(
            description="End when nothing waits in the topic, and nothing came or went for this "
            'long: "30s". Without it, run until stopped.'
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse settings that do not go together; raises InvalidInput."""
        values.topic(self.topic)
        for name in ("every", "lease", "remember"):
            values.delay_ms(getattr(self, name), f"--{name}")
        if (self.due is None) == (self.delay is None):
            came = "neither" if self.due is None else "both"
            raise InvalidSettings(f"--due, --delay: got {came}, expected one of them")
        if self.out is None and self.out_format in _FILES:
            raise InvalidSettings(f"--out: got none, and {self.out_format} needs a folder")
        if self.out_format == _KAFKA and self.target is None and "topic" not in self.out_option:
            raise InvalidSettings(
                "--target: got none, and kafka needs it or --out-option topic=NAME"
            )
        if self.until_idle is not None:
            values.delay_ms(self.until_idle, "--until-idle")


def run(spark: SparkSession, settings: RelaySettings) -> str:
    """Relay the input to the output, and return how many rows were read and written."""
    reader = spark.readStream.format(settings.format).options(**settings.option)
    if settings.schema is not None:
        reader = reader.schema(settings.schema)
    return relay(spark, reader.load(settings.source), settings)


def relay(
    spark: SparkSession,
    incoming: DataFrame,
    settings: RelaySettings,
    outgoing: Outgoing | None = None,
) -> str:
    """Relay any stream; ``outgoing`` gets each batch of rows, instead of the output settings."""
    rows = _messages(incoming, settings)
    _check_names(incoming.columns, settings)
    _remember(settings)
    tally = _Tally()
    into = _Into(settings, tally)
    out = _Out(incoming.schema, settings, outgoing or _to_target(settings), tally)
    due = spark.readStream.format("dwell").option("url", settings.url).option("view", "due")
    due = due.option("topics", settings.topic).option("lease", settings.lease)
    due = due.option("owner", files.owner(spark, settings.checkpoint))
    # Their ids are read only if unreadable messages are kept.
    columns = "body BINARY" if settings.bad_rows is None else "id STRING, body BINARY"
    held = due.option("maxRowsPerBatch", str(settings.max_rows)).schema(columns).load()
    # An invalid expression for targets is refused now, and not when the first message falls due.
    out.restored(held)
    starts = [_starter(rows, into, "in", settings), _starter(held, out, "out", settings)]
    _Queries(starts, settings, tally).run()
    rest = [f", {tally.rows[name]:,} {name}" for name in ("kept", "bad") if tally.rows[name]]
    return f"relay: {tally.rows['in']:,} rows in, {tally.rows['out']:,} out{''.join(rest)}"


# --- in -------------------------------------------------------------------------------------------


def _messages(incoming: DataFrame, settings: RelaySettings) -> DataFrame:
    columns = {
        "id": expressions.column(incoming, "id", settings.id).cast("string"),
        "body": packing.pack(incoming.schema),
    }
    if settings.due is not None:
        due = expressions.column(incoming, "due", settings.due)
        columns["due"] = expressions.due_ms(incoming, due)
    else:
        columns["delay"] = expressions.column(incoming, "delay", settings.delay or "")
    return expressions.selected(incoming, columns, trying=settings.bad_rows is not None)


def _check_names(names: list[str], settings: RelaySettings) -> None:
    """Refuse columns that the folders of the output would replace."""
    taken = {files.TARGET, files.BATCH}
    if settings.target == files.TARGET:
        taken.remove(files.TARGET)
    for name in names:
        if settings.out is not None and name.lower() in taken:
            raise InvalidSettings(
                f"column {name}: got one of the input, expected none of that name, as the folders "
                f"of the output are called {files.TARGET} and {files.BATCH} (or --target target)"
            )


def _remember(settings: RelaySettings) -> None:
    """Set the topic to remember ids for long enough, if it does not yet."""
    remember_ms = values.delay_ms(settings.remember, "--remember")
    with Place(url=settings.url).opened() as queue:
        if queue.settings(settings.topic).remember_ms < remember_ms:
            queue.configure(settings.topic, remember_ms=remember_ms)


class _Tally:
    """How many rows were read and written, and the time of the last."""

    def __init__(self) -> None:
        self.rows = Counter[str]()
        self.last_s = time.monotonic()
        self._lock = threading.Lock()

    def add(self, name: str, count: int) -> None:
        """Count rows; batches of both queries end in threads of their own."""
        with self._lock:
            self.rows[name] += count
            if count:
                self.last_s = time.monotonic()


class _Into:
    """Puts a batch of rows into the topic."""

    def __init__(self, settings: RelaySettings, tally: _Tally) -> None:
        self._settings = settings
        self._tally = tally

    def __call__(self, batch: DataFrame, _number: int) -> None:
        settings = self._settings
        counts = sink.write(
            batch,
            settings.url,
            "put",
            topic=settings.topic,
            onConflict="keep",
            badRows=settings.bad_rows,
        )
        bad = counts.pop("bad", 0)
        self._tally.add("bad", bad)
        # They ran again, or others had their ids.
        self._tally.add("kept", counts[str(Result.KEPT)])
        self._tally.add("in", counts.total())


# --- out ------------------------------------------------------------------------------------------


class _Out:
    """Restores rows from a batch of messages, and sends them on."""

    def __init__(
        self, schema: StructType, settings: RelaySettings, outgoing: Outgoing, tally: _Tally
    ) -> None:
        self._schema = schema
        self._settings = settings
        self._outgoing = outgoing
        self._tally = tally

    def restored(self, held: DataFrame) -> DataFrame:
        """Return the original rows, with their targets."""
        rows = packing.unpack(held, self._schema)
        if self._settings.target is None:
            return rows.withColumn(files.TARGET, F.lit("all"))
        target = expressions.column(rows, "target", self._settings.target)
        return rows.withColumn(files.TARGET, target.cast("string"))

    def __call__(self, batch: DataFrame, number: int) -> None:
        # The callback may read some of the rows, none, or all of them twice. The count is of the
        # messages taken, which are read once and cached for both.
        batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            good, bad = self._sorted(batch, number)
            self._outgoing(self.restored(good), number)
            self._tally.add("out", batch.count() - bad)
        finally:
            batch.unpersist()

    def _sorted(self, batch: DataFrame, number: int) -> tuple[DataFrame, int]:
        """Return the messages that are rows; set aside the others, and return their number.

        The topic is open to others, so a message of it may belong to them.
        """
        folder = self._settings.bad_rows
        if folder is None:
            return batch, 0
        is_row = packing.is_readable(self._schema)
        others = batch.where(~is_row)
        if count := others.count():
            name = files.batch_name(batch.sparkSession, number)
            badrows.set_aside(others, folder, name, "body: got none that this relay has put")
            self._tally.add("bad", count)
        return batch.where(is_row), count


def _to_target(settings: RelaySettings) -> Outgoing:
    format_, options, out = settings.out_format, settings.out_option, settings.out

    is_checked = False

    def to_files(rows: DataFrame, number: int) -> None:
        nonlocal is_checked
        assert out is not None
        if not is_checked:
            files.check_newest(rows.sparkSession, number, out)
            is_checked = True
        files.write(rows, number, out, format_, options)

    def to_format(rows: DataFrame, _number: int) -> None:
        if format_ == _KAFKA:
            rows = _for_kafka(rows, settings)
        rows.write.format(format_).mode("append").options(**options).save(out)

    return to_files if format_ in _FILES else to_format


def _for_kafka(rows: DataFrame, settings: RelaySettings) -> DataFrame:
    """Return the columns of records; a record's old topic must not be its target."""
    found = [name for name in _OF_KAFKA if name in rows.columns]
    if settings.target is None:
        return rows.select(*found)
    return rows.select(*found, F.col(files.TARGET).alias("topic"))


# --- both -----------------------------------------------------------------------------------------


def _starter(
    rows: DataFrame, each: Outgoing, name: str, settings: RelaySettings
) -> Callable[[], StreamingQuery]:
    place = f"{settings.checkpoint}/{name}"
    writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", place)
    if settings.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        every_ms = values.delay_ms(settings.every, "--every")
        writer = writer.trigger(processingTime=f"{every_ms} milliseconds")
    return writer.queryName(f"relay {name}").start


class _Queries:
    """The two queries, from their start to the end of both."""

    def __init__(
        self,
        starts: list[Callable[[], StreamingQuery]],
        settings: RelaySettings,
        tally: _Tally,
    ) -> None:
        self._starts = starts
        self._settings = settings
        self._tally = tally

    def run(self) -> None:
        """Run until nothing is left to do, or until interrupted, which is not an error."""
        running: list[StreamingQuery] = []
        try:
            for start in self._starts:
                running.append(start())
                if self._settings.available_now:
                    # New rows may be due at once, and then leave in the same run.
                    running[-1].awaitTermination()
            while not self._is_over(running):
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            pass
        finally:
            for query in running:
                query.stop()

    def _is_over(self, running: list[StreamingQuery]) -> bool:
        for query in running:
            if not query.isActive:
                # Raises the error of the query.
                query.awaitTermination()
        if not all(query.isActive for query in running):
            return True
        span = self._settings.until_idle
        return span is not None and self._is_idle(running, span)

    def _is_idle(self, running: list[StreamingQuery], span: str) -> bool:
        idle_ms = (time.monotonic() - self._tally.last_s) * 1000
        if idle_ms < values.delay_ms(span, "--until-idle"):
            return False
        # A query that is starting, or working on a batch for longer than the span, is not idle.
        if not all(query.status["message"].startswith("Waiting") for query in running):
            return False
        with Place(url=self._settings.url).opened() as queue:
            found = queue.stats().topics.get(self._settings.topic)
        return found is None or found.delayed + found.ready + found.leased == 0


if __name__ == "__main__":
    sys.exit(main("relay"))
