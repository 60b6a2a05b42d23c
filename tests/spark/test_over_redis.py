"""The data source over a store on Redis, without a server of ours between."""

import pytest

import dwell
from tests.redis.servers import redis_server
from tests.spark import PATIENCE_S
from tests.waiting import until


@pytest.fixture(scope="module")
def url():
    with redis_server() as engine:
        yield engine.url


def test_rows_in_and_out(spark, url):
    rows = [(f"order-{n}", f"body {n}".encode(), "1h") for n in range(5_000)]
    frame = spark.createDataFrame(rows, "id STRING, body BINARY, delay STRING").repartition(4)
    frame.write.format("dwell").mode("append").options(url=url, topic="orders").save()
    reader = spark.read.format("dwell").option("url", url)
    found = reader.load().select("id", "body").collect()
    assert sorted((row.id, bytes(row.body)) for row in found) == sorted(row[:2] for row in rows)
    events = reader.option("view", "events").load().groupBy("kind").count().collect()
    assert {row.kind: row["count"] for row in events} == {"put": 5_000}


def test_due_messages_as_a_stream(spark, url, tmp_path):
    with dwell.open(url) as queue:
        queue.put_many("due", ["x"] * 1_000, ids=[f"d{n}" for n in range(1_000)], delay="500ms")
    stream = (
        spark.readStream.format("dwell")
        .options(url=url, view="due", topics="due")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "out"))
    )
    try:
        with dwell.open(url) as queue:
            none = dwell.TopicStats()
            until(
                lambda: queue.stats().topics["due"] == none or not stream.isActive,
                queue.stats,
                PATIENCE_S,
            )
            assert stream.isActive, stream.exception()
    finally:
        stream.stop()
    ids = [row.id for row in spark.read.parquet(str(tmp_path / "out")).select("id").collect()]
    assert sorted(ids) == sorted(f"d{n}" for n in range(1_000))
