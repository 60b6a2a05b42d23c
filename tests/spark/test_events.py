"""The view ``events``: exact by position, in a batch and in a stream."""

import threading
from typing import NamedTuple

import pytest
from pyspark.errors import PySparkException

import dwell
from tests.spark.conftest import ServerProcess
from tests.waiting import until


def live(queue):
    """1,000 messages put, 600 taken, 500 acked, 100 released, 50 cancelled."""
    queue.put_many("t", [b"x"] * 1000, ids=[f"m{n}" for n in range(1000)])
    batch = queue.take("t", 600)
    queue.ack(batch[:500])
    queue.release(batch[500:], "1h")
    queue.cancel("t", [f"m{n}" for n in range(900, 950)])


LIVES = 2250


class Lived(NamedTuple):
    """A server of some lives, and how many events Spark read of it before."""

    url: str
    before: int


@pytest.fixture(scope="module")
def lived(spark, tmp_path_factory):
    server = ServerProcess(tmp_path_factory.mktemp("lived"))
    before = events(spark, server).count()
    with dwell.open(server.url) as queue:
        live(queue)
    yield Lived(server.url, before)
    server.stop()


def events(spark, server, **options):
    return spark.read.format("dwell").options(url=server.url, view="events", **options).load()


def follow(spark, server, folder, **options):
    """Run a stream of the events to its end, into Parquet."""
    stream = spark.readStream.format("dwell").options(url=server.url, view="events", **options)
    writer = stream.load().writeStream.format("parquet")
    query = (
        writer.option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "check"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def positions(spark, folder):
    table = spark.read.parquet(str(folder / "table"))
    return sorted(row.position for row in table.select("position").collect())


def test_batch(spark, lived):
    table = events(spark, lived, partitions=5)
    assert table.rdd.getNumPartitions() == 5
    kinds = {row.kind: row["count"] for row in table.groupBy("kind").count().collect()}
    assert kinds == {"put": 1000, "take": 600, "ack": 500, "release": 100, "cancel": 50}
    assert sorted(row.position for row in table.collect()) == list(range(LIVES))
    last = table.where("position = 2249").first()
    assert (last.topic, last.id, last.kind, last.attempt) == ("t", "m949", "cancel", 0)


def test_batch_between_positions(spark, lived):
    table = events(spark, lived, startPosition=900, endPosition=1100)
    assert sorted(row.position for row in table.collect()) == list(range(900, 1100))
    assert events(spark, lived, startPosition="latest").count() == 0
    assert events(spark, lived, startPosition=LIVES).count() == 0


def test_a_batch_from_beyond_the_end_is_told(spark, lived):
    with pytest.raises(PySparkException, match=f"AnotherHistory.*position {LIVES + 1}"):
        events(spark, lived, startPosition=LIVES + 1).count()
    anew = events(spark, lived, startPosition=LIVES + 1, failOnDataLoss=False)
    assert anew.count() == LIVES


def test_batch_of_nothing(lived):
    assert lived.before == 0


def test_stream_with_a_limit_goes_on_where_it_was(spark, server, queue, tmp_path):
    live(queue)
    query = follow(spark, server, tmp_path, maxRowsPerBatch=400)
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert [count for count in rows if count] == [400, 400, 400, 400, 400, 250]
    assert positions(spark, tmp_path) == list(range(2250))
    queue.put_many("t", [b"x"] * 10)
    follow(spark, server, tmp_path, maxRowsPerBatch=400)
    assert positions(spark, tmp_path) == list(range(2260))
    follow(spark, server, tmp_path)
    assert positions(spark, tmp_path) == list(range(2260))


@pytest.mark.campaign
def test_stream_that_was_stopped_in_the_middle(spark, server, queue, tmp_path):
    """Batch after batch is stopped somewhere; in the end each event is there once."""
    for start in range(0, 20_000, 5000):
        queue.put_many("t", [b"x"] * 5000, ids=[f"m{n}" for n in range(start, start + 5000)])
    stream = spark.readStream.format("dwell").options(
        url=server.url, view="events", maxRowsPerBatch=2000
    )
    for _ in range(3):
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "check"))
            .start()
        )
        while not (query.lastProgress and query.lastProgress["numInputRows"]):
            assert query.exception() is None
            query.awaitTermination(0.05)
        query.stop()
    follow(spark, server, tmp_path)
    assert positions(spark, tmp_path) == list(range(20_000))


@pytest.mark.campaign
def test_stream_while_the_server_is_killed(spark, server, queue, tmp_path):
    for start in range(0, 50_000, 10_000):
        queue.put_many("t", [b"x"] * 10_000, ids=[f"m{n}" for n in range(start, start + 10_000)])

    def restart():
        server.kill()
        server.start()

    timer = threading.Timer(2.0, restart)
    timer.start()
    follow(spark, server, tmp_path, maxRowsPerBatch=3000)
    timer.join()
    assert positions(spark, tmp_path) == list(range(50_000))


def test_events_that_are_gone(request, spark, tmp_path):
    """Events that the store dropped are missed only by who says so."""
    with dwell.open(tmp_path / "store", events_bytes=100_000) as queue:

        def is_gone():
            queue.put_many("t", [b"x"] * 10_000)
            first = queue.events(0, 1).first_position
            queue.ack(queue.take("t", 10_000))
            return first > 0

        until(is_gone)
    # By now nobody drops more of them.
    with dwell.open(tmp_path / "store", events_bytes=100_000) as queue:
        first = queue.events(0, 1).first_position
        end = queue.stats().totals
    server = ServerProcess(tmp_path)
    request.addfinalizer(server.stop)
    with pytest.raises(PySparkException, match=f"the oldest event that is kept is {first}"):
        events(spark, server, startPosition=0).count()
    kept = events(spark, server, startPosition=0, failOnDataLoss=False)
    assert kept.agg({"position": "min"}).first()[0] == first
    assert kept.count() == sum(end.values()) - first
    assert events(spark, server).count() == kept.count()
