"""What consumers of the reminders got, beside the data set."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from examples.flights.audit import Check
from examples.flights_kafka.producer import REMINDERS


def sent(spark: SparkSession, hosts: str) -> DataFrame:
    """Return how often each reminder is in the topic, and when it was first."""
    options = {"kafka.bootstrap.servers": hosts, "subscribe": REMINDERS}
    records = spark.read.format("kafka").options(**options).load()
    id_ = F.get_json_object(F.col("value").cast("string"), "$.id").alias("id")
    return (
        records.select(id_, F.unix_millis("timestamp").alias("at_ms"))
        .groupBy("id")
        .agg(F.count("*").alias("times"), F.min("at_ms").alias("first_ms"))
    )


def checks(found: DataFrame, flights: DataFrame) -> tuple[list[Check], int]:
    """Return all that must hold between the topic and the data set, and how many came again."""
    row = (
        flights.join(found, "id", "full")
        .agg(
            F.expr("count_if(NOT is_cancelled)").alias("kept"),
            F.expr("count_if(NOT is_cancelled AND times > 0)").alias("sent"),
            F.expr("count_if(is_cancelled IS NULL OR is_cancelled AND times > 0)").alias("wrong"),
            F.expr("count_if(first_ms < due_ms)").alias("early"),
            F.expr("coalesce(sum(times - 1), 0)").alias("again"),
        )
        .first()
    )
    assert row is not None, "sums are one row"
    return [
        Check("sent = flights that left", row.sent, row.kept),
        Check("sent of flights that never left", row.wrong, 0),
        Check("sent before they were due", row.early, 0),
    ], row.again
