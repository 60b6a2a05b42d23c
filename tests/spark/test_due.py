"""The view ``due``: due messages held by owner and offset, acked when Spark is done with them."""

import json
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StringType, StructType

import dwell
from dwell.errors import ServerUnreachable
from dwell.spark.due import DueStream
from dwell.spark.options import ReadOptions
from tests import RUNS
from tests.spark import PATIENCE_S
from tests.spark.conftest import ServerProcess
from tests.waiting import until

SCHEMA = StructType().add("id", StringType())


@pytest.fixture(scope="module")
def of_module(tmp_path_factory):
    """A server of these tests, for what leaves it as it is but for a topic of its own."""
    one = ServerProcess(tmp_path_factory.mktemp("due"))
    yield one
    one.stop()


@pytest.fixture(scope="module")
def own(of_module):
    with dwell.open(of_module.url) as queue:
        yield queue


class Topic:
    """A topic that no other test uses, and what has happened to its messages."""

    def __init__(self, queue, name):
        self.queue, self.name = queue, name
        self._start = sum(queue.stats().totals.values())

    def put(self, count, first=0, **values):
        return put(self.queue, count, first, self.name, **values)

    def counts(self):
        """Return how many are delayed, ready, leased and dead."""
        return counts(self.queue, self.name)

    def totals(self):
        """Return how many events of each kind there were."""
        at, found = self._start, Counter()
        while (page := self.queue.events(at, 10_000)).events:
            at = page.next_position
            found.update(str(one.kind) for one in page.events if one.topic == self.name)
        return found


@pytest.fixture
def t(own, topic):
    return Topic(own, topic)


def due(spark, server, **options):
    given = {"topics": "t", "lease": "60s", **options}
    return spark.readStream.format("dwell").options(url=server.url, view="due", **given).load()


def into(stream, folder, name="out"):
    return (
        stream.selectExpr("id", "cast(body AS STRING) body", "due", "attempt", "now() seen")
        .writeStream.format("parquet")
        .option("path", str(folder / name))
        .option("checkpointLocation", str(folder / f"{name}.check"))
    )


def ids(spark, folder, name="out"):
    return sorted(row.id for row in spark.read.parquet(str(folder / name)).select("id").collect())


def put(queue, count, first=0, topic="t", **values):
    names = [f"m{n:06d}" for n in range(first, first + count)]
    for at in range(0, count, 10_000):
        part = names[at : at + 10_000]
        queue.put_many(topic, [name.encode() for name in part], ids=part, **values)
    return names


def counts(queue, topic="t"):
    found = queue.stats().topics[topic]
    return found.delayed, found.ready, found.leased, found.dead


def test_available_now_drains_and_acks_the_last_batch_too(spark, of_module, t, tmp_path):
    names = t.put(2500)
    t.put(10, first=9000, delay="1h")
    query = into(due(spark, of_module, topics=t.name, maxRowsPerBatch=1000), tmp_path)
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    rows = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert rows == [1000, 1000, 500]
    assert ids(spark, tmp_path) == names
    assert t.counts() == (10, 0, 0, 0)
    assert t.totals()["ack"] == 2500


def test_idle_stream_acks_its_last_batch(spark, of_module, t, tmp_path):
    t.put(300)
    query = into(due(spark, of_module, topics=t.name), tmp_path).start()
    until(lambda: t.totals()["ack"] >= 300, query.exception, PATIENCE_S)
    names = t.put(5, first=1000, delay="500ms")
    until(lambda: t.totals()["ack"] >= 305, query.exception, PATIENCE_S)
    query.stop()
    assert ids(spark, tmp_path)[-5:] == names
    early = spark.read.parquet(str(tmp_path / "out")).where("seen < due").count()
    assert early == 0


def test_leases_are_kept_while_a_batch_runs(spark, of_module, t, tmp_path):
    """A sink that takes longer than the lease has its messages alone."""
    t.put(20)
    seen = []

    def slow(batch, number):
        seen.extend(row.id for row in batch.select("id").collect())
        time.sleep(5)

    query = (
        due(spark, of_module, topics=t.name, lease="1500ms")
        .writeStream.foreachBatch(slow)
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(seen) == 20
    totals = t.totals()
    assert (totals["take"], totals["ack"], totals["lapse"]) == (20, 20, 0)


def test_a_batch_that_failed_gets_the_same_messages(spark, of_module, t, tmp_path):
    names = t.put(900)
    tried = []

    def sink(batch, number):
        got = sorted(row.id for row in batch.select("id").collect())
        tried.append((number, got))
        if len(tried) == 2:
            raise RuntimeError("this sink fails once")

    def run():
        query = (
            due(spark, of_module, topics=t.name, maxRowsPerBatch=300)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "check"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(PySparkException, match="fails once"):
        run()
    # The batch that failed is held, and so may be the next one, which is taken meanwhile.
    _, ready, leased, _ = t.counts()
    assert (ready, leased) in ((300, 300), (0, 600))
    run()
    assert tried[1] == tried[2]
    assert sorted(id_ for _, got in tried[:1] + tried[2:] for id_ in got) == names
    assert t.totals()["ack"] == 900
    assert t.totals()["take"] == 900


def test_messages_taken_ahead_whose_answer_was_lost_are_found(of_module, t):
    t.put(30)
    stream = DueStream(ReadOptions(url=of_module.url, view="due", topics=t.name), SCHEMA)
    try:
        first = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10))
        assert stream._ahead.result() == (first["chunk"] + 1, 10)

        def lose():
            raise ServerUnreachable("the answer was lost")

        stream._ahead.start(lose)
        second = stream.latestOffset(first, ReadMaxRows(10))
        assert second["chunk"] == first["chunk"] + 1
        totals = t.totals()
        # The first batch is acked, the second one held, and the third one taken ahead.
        assert stream._ahead.result() == (second["chunk"] + 1, 10)
        assert t.counts() == (0, 0, 20, 0)
        assert totals["ack"] == 10
    finally:
        stream.stop()


@pytest.mark.campaign
def test_what_an_earlier_driver_took_and_never_planned(spark, server, queue, tmp_path):
    """A driver that died before it wrote an offset left messages held by its next owners."""
    names = put(queue, 30)
    for chunk in range(2):
        queue.take("t", 10, owner=f"mine/{chunk}", lease="1h")
    query = into(due(spark, server, owner="mine"), tmp_path).trigger(availableNow=True)
    query.start().awaitTermination()
    assert ids(spark, tmp_path) == names
    assert counts(queue) == (0, 0, 0, 0)
    assert queue.stats().totals["take"] == 30


class Driver:
    """A driver without Spark: what it is told is JSON, what goes to tasks is pickled."""

    def __init__(self, server, **options):
        given = {"topics": "t", "lease": "60s", "view": "due", "owner": "mine", **options}
        self.reader = DueStream(ReadOptions(url=server.url, **given), SCHEMA)
        self.offset = json.loads(json.dumps(self.reader.initialOffset()))

    def plan(self, most):
        """Plan a batch, and return the ids that its tasks read."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, ReadMaxRows(most))))
        start, self.offset = self.offset, end
        parts = self.reader.partitions(start, end) if start != end else []
        return [
            id_
            for part in pickle.loads(pickle.dumps(parts))
            for batch in pickle.loads(pickle.dumps(self.reader)).read(part)
            for id_ in batch.column("id").to_pylist()
        ]


@pytest.mark.parametrize(
    ("owners", "taken_before"), [(30, [0]), (30, [3, 4, 6]), (3072, [3070, 3071, 0, 1])]
)
def test_what_an_owner_holds_already_comes_first_and_as_itself(
    of_module, t, monkeypatch, owners, taken_before
):
    """The checkpoint is a new one, and chunks are held from before, somewhere among the owners."""
    # All owners are asked for, which takes seconds where there are as many as a query has.
    monkeypatch.setattr("dwell.spark.due._OWNERS", owners)
    old = t.put(10 * len(taken_before))
    for chunk in taken_before:
        t.queue.take(t.name, 10, owner=f"{t.name}/{chunk}", lease="1h")
    new = t.put(25, first=1000)
    driver = Driver(of_module, topics=t.name, owner=t.name)
    try:
        assert driver.plan(1000) == old
        seen = []
        while part := driver.plan(20):
            seen += part
        assert seen == new
        assert t.counts() == (0, 0, 0, 0)
    finally:
        driver.reader.stop()
    assert t.totals()["ack"] == len(old) + len(new)


def test_available_now_ends_although_more_falls_due_meanwhile(of_module, t):
    t.put(25)
    driver = Driver(of_module, topics=t.name, owner="")
    driver.reader.prepareForTriggerAvailableNow()
    seen = []
    try:
        for round_ in range(100):
            part = driver.plan(10)
            if not part:
                break
            seen += part
            t.put(10, first=1000 * (round_ + 1), priority=0)
    finally:
        driver.reader.stop()
    assert len(seen) == len(set(seen)) == 25
    assert t.counts() == (0, 30, 0, 0)


def until_acked(queue, count, driver):
    """Wait until so many were acked while a driver runs."""
    ended = driver.poll
    until(lambda: queue.stats().totals["ack"] >= count or ended() is not None, seconds=PATIENCE_S)
    assert ended() is None


@pytest.mark.campaign
def test_driver_killed_between_batches(server, queue, spark, tmp_path):
    """SIGKILL again and again: nothing lost, nothing twice in a file sink."""
    names = put(queue, 1000)
    program = textwrap.dedent(
        f"""
        from dwell.spark import session, register
        spark = session("killed", "local[2]", {{"spark.sql.shuffle.partitions": "2"}})
        register(spark)
        stream = spark.readStream.format("dwell").options(
            url="{server.url}", view="due", topics="t", maxRowsPerBatch="100", lease="1h").load()
        query = (stream.select("id").writeStream.format("parquet")
            .option("path", "{tmp_path}/out").option("checkpointLocation", "{tmp_path}/out.check")
            .start())
        query.awaitTermination()
        """
    )
    for kills in range(1, 1 + RUNS):
        driver = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until_acked(queue, 500 * kills // (1 + RUNS), driver)
        finally:
            driver.kill()
            driver.wait()
    stream = due(spark, server, lease="1h").select("id").writeStream.format("parquet")
    query = (
        stream.option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "out.check"))
        .trigger(availableNow=True)
    )
    query.start().awaitTermination()
    assert ids(spark, tmp_path) == names
    assert counts(queue) == (0, 0, 0, 0)
    assert queue.stats().totals["ack"] == 1000


@pytest.mark.campaign
def test_server_killed_while_streaming(spark, server, queue, tmp_path):
    names = put(queue, 4000)

    def restart():
        server.kill()
        server.start()

    timer = threading.Timer(2.5, restart)
    timer.start()
    into(due(spark, server, maxRowsPerBatch=500), tmp_path).trigger(
        availableNow=True
    ).start().awaitTermination()
    timer.join()
    with dwell.open(server.url) as fresh:
        assert ids(spark, tmp_path) == names
        assert counts(fresh) == (0, 0, 0, 0)


def test_many_topics_in_the_order_named(spark, of_module, t, tmp_path):
    a, b = f"{t.name}-a", f"{t.name}-b"
    for one in (a, b):
        t.queue.put_many(one, [b"x"] * 10)
    stream = due(spark, of_module, topics=f"{b}, {a}", maxRowsPerBatch=10)
    seen = []

    def sink(batch, number):
        seen.append({row.topic for row in batch.collect()})

    writer = stream.writeStream.foreachBatch(sink).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "check")).start().awaitTermination()
    assert seen == [{b}, {a}]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"topics": ""}, "topics"), ({"lease": "soon"}, "lease"), ({"topics": "a b"}, "topic")],
)
def test_bad_options_are_refused_when_the_stream_is_loaded(spark, shared, options, reason):
    with pytest.raises(PySparkException, match=reason) as raised:
        due(spark, shared, **options)
    # Spark puts an error of its own behind what a stream is refused for later.
    assert "UnboundLocalError" not in str(raised.value)
