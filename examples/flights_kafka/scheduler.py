"""Spark between the topics and the queue: the plan is put, the news cancel and reschedule."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from examples.flights.plan import TOPIC
from examples.flights_kafka.producer import CANCELLED, DELAYED, PLAN

_ROWS = "id STRING, due_ms BIGINT"
_MOST = 200_000


class Scheduler:
    """A streaming query over the three topics.

    A batch that runs again after a failure changes nothing: a put of an id that is there is kept,
    and a cancel or a reschedule says the same again. What is planned is put before what is known
    of it is told, in each batch as over all of them.
    """

    def __init__(self, spark: SparkSession, hosts: str, url: str, folder: Path) -> None:
        self._spark, self._url, self._folder = spark, url, folder
        self._options = {
            "kafka.bootstrap.servers": hosts,
            "subscribe": ",".join((PLAN, CANCELLED, DELAYED)),
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(_MOST),
        }
        self.planned = 0

    def warm_up(self) -> None:
        """Write nothing, in the way in which everything is written."""
        nothing = self._spark.createDataFrame([], "id STRING, due BIGINT, body STRING")
        self._write(nothing.repartition(2), "put")

    @contextlib.contextmanager
    def running(self) -> Iterator["Scheduler"]:
        """Schedule until the block ends, and then what is left to read."""
        records = self._spark.readStream.format("kafka").options(**self._options).load()
        said = F.from_json(F.col("value").cast("string"), _ROWS)
        query = (
            records.select("topic", said.alias("said"))
            .select("topic", "said.*")
            .writeStream.foreachBatch(self._schedule)
            .option("checkpointLocation", str(self._folder / "scheduler"))
            .start()
        )
        self._query = query
        try:
            yield self
            query.processAllAvailable()
        finally:
            query.stop()

    def wait_for(self, planned: int) -> None:
        """Return when so many records of the plan are scheduled; raises what ended the query."""
        while self.planned < planned:
            self._query.awaitTermination(1)
            if not self._query.isActive:
                raise SystemExit("the scheduler ended")

    def _schedule(self, batch: DataFrame, _number: int) -> None:
        batch = batch.persist()
        counts = {row.topic: row["count"] for row in batch.groupBy("topic").count().collect()}
        due = F.col("due_ms").alias("due")
        if PLAN in counts:
            plan = batch.where(F.col("topic") == PLAN)
            # A reminder says which it is, as its consumers have no other id.
            body = F.to_json(F.struct("id"))
            self._write(plan.select("id", due, body.alias("body")), "put")
        if DELAYED in counts:
            self._write(batch.where(F.col("topic") == DELAYED).select("id", due), "reschedule")
        if CANCELLED in counts:
            self._write(batch.where(F.col("topic") == CANCELLED).select("id"), "cancel")
        self.planned += counts.get(PLAN, 0)
        batch.unpersist()

    def _write(self, rows: DataFrame, op: str) -> None:
        writer = rows.write.format("dwell").mode("append")
        writer.option("url", self._url).option("topic", TOPIC).option("op", op).save()
