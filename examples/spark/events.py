"""Follow what happens to messages into a table of Parquet, each event once.

Needs `dwell serve`, and its address in DWELL_STORE. The first time it prints::

    1 [('cancel', 20), ('put', 100)]
    2 [('cancel', 20), ('put', 100), ('replace', 80)]
    each once: True
"""

# %% A session that knows the format `dwell`
import os
import tempfile

from pyspark.sql import DataFrame

from dwell.spark import register, session

url = os.environ.get("DWELL_STORE", "http://127.0.0.1:8410")
spark = session("events")
register(spark)
folder = tempfile.mkdtemp()


# %% Something that happens
def write(rows: DataFrame, **options: str) -> None:
    """Do something to messages."""
    writer = rows.write.format("dwell").mode("append").options(url=url, topic="events", **options)
    writer.save()


ids = spark.range(100).selectExpr("concat('m', id) AS id")
rows = ids.selectExpr("id", "'x' AS body", "'1h' AS delay")
write(rows)
write(ids.limit(20), op="cancel")


# %% A query that goes on where it was, and ends when it has read what there is
def follow() -> DataFrame:
    """Read the events that are new, and return the table."""
    stream = spark.readStream.format("dwell").options(
        url=url, view="events", maxRowsPerBatch="500000"
    )
    query = (
        stream.load()
        .where("topic = 'events'")
        .writeStream.format("parquet")
        .option("path", f"{folder}/table")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{folder}/table")


def kinds(table: DataFrame) -> list[tuple[str, int]]:
    """Return how many events there are of each kind."""
    return [(row[0], row[1]) for row in table.groupBy("kind").count().orderBy("kind").collect()]


print(1, kinds(follow()))

# %% What is new is added
write(rows.join(ids.limit(20), "id", "anti"), onConflict="replace")
table = follow()
print(2, kinds(table))
print("each once:", table.select("position").distinct().count() == table.count())
