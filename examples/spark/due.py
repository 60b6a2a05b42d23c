"""Hand due messages to a sink as a stream; they are acked when Spark has committed them.

Needs `dwell serve`, and its address in DWELL_STORE. Prints::

    in the sink: 30, the attempts: [1]
    still pending: [('delayed', 5)]
"""

# %% A session that knows the format `dwell`
import os
import tempfile

from pyspark.sql import functions as f

from dwell.spark import register, session

url = os.environ.get("DWELL_STORE", "http://127.0.0.1:8410")
spark = session("due")
register(spark)
folder = tempfile.mkdtemp()

# %% Thirty messages are due now, and five in a hundred years or so; without ids each is a new one
rows = spark.range(30).selectExpr("id AS order", "timestamp'2000-01-01' AS due")
later = spark.range(5).selectExpr("concat('later-', id) AS id", "timestamp'2100-01-01' AS due")
for frame in (rows, later.withColumn("body", f.lit("x"))):
    frame.write.format("dwell").mode("append").options(url=url, topic="due").save()

# %% A query that works off what is due and ends; without the trigger it would wait for more
stream = spark.readStream.format("dwell").options(
    url=url, view="due", topics="due", lease="2m", maxRowsPerBatch="20"
)
query = (
    stream.load()
    .selectExpr("id", "string(body) AS body", "attempt")
    .writeStream.format("parquet")
    .option("path", f"{folder}/sink")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% What came, and what is left
sink = spark.read.parquet(f"{folder}/sink")
attempts = [row.attempt for row in sink.select("attempt").distinct().collect()]
print(f"in the sink: {sink.count()}, the attempts: {attempts}")
pending = spark.read.format("dwell").options(url=url, topics="due").load()
print("still pending:", [tuple(row) for row in pending.groupBy("state").count().collect()])
