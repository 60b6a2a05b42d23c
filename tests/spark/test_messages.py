"""The view ``messages``: the pending set as a table, and the filters that are pushed down."""

import os
import pickle
import random
import threading
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

import dwell
from dwell.spark import register
from dwell.spark.messages import MessagesReader
from dwell.spark.options import ReadOptions
from tests.spark import PATIENCE_S

NOON_MS = 4_102_444_800_000
NOON = datetime.fromtimestamp(NOON_MS / 1000, UTC)


@pytest.fixture(scope="module")
def topic(shared):
    """Messages in every state, in three topics."""
    with dwell.open(shared.url) as queue:
        queue.put_many(
            "view.a",
            [f"body {n}".encode() for n in range(3000)],
            ids=[f"m{n}" for n in range(3000)],
            due=np.arange(NOON_MS, NOON_MS + 3000),
            key=[f"k{n % 3}" if n % 5 else None for n in range(3000)],
        )
        queue.put_many("view.b", [b"x"] * 40, headers={"h": "v"}, priority=5, lease="1h")
        queue.bury(queue.take("view.b", 10), "broken")
        queue.take("view.b", 10, owner="me")
        queue.put("view.c", "late", due=NOON, ttl="36000d")
    return "view.a"


@pytest.fixture
def table(spark, shared, topic):
    return spark.read.format("dwell").option("url", shared.url).load()


def of_view(table):
    return table.where("topic IN ('view.a', 'view.b', 'view.c')")


def test_counts_by_state(table):
    found = {
        (r.topic, r.state): r["count"]
        for r in of_view(table).groupBy("topic", "state").count().collect()
    }
    assert found == {
        ("view.a", "delayed"): 3000,
        ("view.b", "ready"): 20,
        ("view.b", "leased"): 10,
        ("view.b", "dead"): 10,
        ("view.c", "delayed"): 1,
    }


def test_columns(table):
    one = table.where("topic = 'view.a' AND id = 'm1'").collect()[0]
    assert (bytes(one.body), one.state, one.priority, one.attempt) == (
        b"body 1",
        "delayed",
        1024,
        0,
    )
    assert one.due.replace(tzinfo=UTC).timestamp() * 1000 == NOON_MS + 1
    assert (one.key, one.headers, one.last_error, one.lease_until) == ("k1", None, None, None)
    dead = table.where("topic = 'view.b' AND state = 'dead'").first()
    assert (dead.headers, dead.last_error, dead.attempt) == ({"h": "v"}, "broken", 1)
    assert (one.died, dead.died is None, dead.lease_until) == (None, False, None)
    leased = table.where("topic = 'view.b' AND state = 'leased'").first()
    assert (leased.lease_ms, leased.lease_until is None) == (3_600_000, False)
    assert table.where("topic = 'view.c'").first().expires is not None


@pytest.mark.parametrize(
    ("condition", "count", "left"),
    [
        ("topic = 'view.a'", 3000, ""),
        ("topic IN ('view.a', 'view.c')", 3001, ""),
        ("topic IN ('view.c', NULL)", 1, ""),
        ("topic = 'no topic'", 0, ""),
        ("topic = 'view.b' AND state = 'dead'", 10, ""),
        ("topic = 'view.b' AND state IN ('dead', 'leased')", 20, ""),
        ("topic = 'view.b' AND state = 'none'", 0, ""),
        ("topic = 'view.a' AND key = 'k1'", 800, ""),
        ("topic = 'view.a' AND due < timestamp_millis(4102444800100)", 100, "due"),
        ("topic = 'view.a' AND due <= timestamp_millis(4102444800100)", 101, "due"),
        ("topic = 'view.a' AND due >= timestamp_millis(4102444802990)", 10, "due"),
        ("topic = 'view.a' AND due > timestamp_micros(4102444802990001)", 9, "due"),
        ("topic = 'view.a' AND due = timestamp_millis(4102444800007)", 1, "due"),
        ("topic = 'view.a' AND NOT key = 'k1'", 1600, "key"),
        ("topic = 'view.a' AND key IS NULL", 600, "key"),
        ("topic = 'view.a' AND (key = 'k1' OR id = 'm0')", 801, "key"),
    ],
)
def test_filters(table, condition, count, left):
    """What the server can choose is not in Spark's own filter any more, and the answer is right."""
    chosen = table.where(condition)
    assert chosen.count() == count
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    filters = " ".join(
        line for line in plan.splitlines() if "Filter" in line and "Batch" not in line
    )
    assert ("topic" in filters) is False
    assert (left in filters) if left else ("state" not in filters)


def test_partitions(spark, shared, topic):
    reader = spark.read.format("dwell").options(url=shared.url, topics="view.a", partitions=7)
    table = reader.load()
    assert table.rdd.getNumPartitions() == 7
    assert table.select("id").distinct().count() == table.count() == 3000


def test_some_columns(spark, shared, topic):
    table = (
        spark.read.format("dwell")
        .options(url=shared.url, topics="view.a")
        .schema("due TIMESTAMP NOT NULL, topic STRING NOT NULL")
        .load()
    )
    assert table.columns == ["due", "topic"]
    assert table.agg(f.count_distinct("due")).first()[0] == 3000


def test_wrong_columns(spark, shared):
    with pytest.raises(PySparkException, match="nonsense"):
        spark.read.format("dwell").option("url", shared.url).schema(
            "nonsense STRING"
        ).load().count()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"view": "due", "topics": "t"}, "stream"),
        ({"view": "table"}, "view"),
        ({"partitions": "-1"}, "partitions"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_options(spark, shared, options, reason):
    with pytest.raises(PySparkException, match=reason):
        spark.read.format("dwell").options(url=shared.url, **options).load().count()


def test_messages_are_no_stream(spark, shared, tmp_path):
    stream = spark.readStream.format("dwell").option("url", shared.url).load()
    with pytest.raises(PySparkException, match="expected events or due"):
        stream.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path)
        ).start().processAllAvailable()


@pytest.mark.campaign
def test_found_without_register(tmp_path, shared, topic):
    """A session that knows nothing of the package finds the format, pushdown or not."""
    import subprocess
    import sys

    program = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
table = spark.read.format("dwell").option("url", "{shared.url}").load()
print("found", table.where("topic = 'view.b' AND state = 'dead'").count())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        timeout=PATIENCE_S,
    )
    assert "found 10" in done.stdout, done.stderr[-3000:]


@pytest.mark.campaign
def test_read_while_the_server_is_killed(spark, server, queue):
    """A read waits for a server that comes back, and gives each message once."""
    import threading

    for start in range(0, 60_000, 10_000):
        ids = [f"m{n}" for n in range(start, start + 10_000)]
        queue.put_many("t", [b"x" * 100] * 10_000, ids=ids, due=NOON)
    reader = spark.read.format("dwell").options(url=server.url, partitions=40)

    def restart():
        server.kill()
        server.start()

    timer = threading.Timer(1.0, restart)
    timer.start()
    table = reader.load().select("id").cache()
    assert table.count() == 60_000
    timer.join()
    assert table.distinct().count() == 60_000
    table.unpersist()


def test_what_moves_while_it_is_read_is_given_once(server, queue):
    """Messages are taken, given back, moved, buried and kicked; others come and go."""
    count = 20_000
    for at in range(0, count, 10_000):
        ids = [f"m{n}" for n in range(at, at + 10_000)]
        queue.put_many("stays", ["x"] * 10_000, ids=ids)
    ended = threading.Event()

    def move():
        draw = random.Random(1)
        with dwell.open(server.url) as other:
            while not ended.is_set():
                batch = other.take("stays", 500)
                other.release(batch[:200], draw.choice(["0s", "1h"]))
                other.bury(batch[200:], "no")
                other.kick("stays", limit=300)
                some = [f"m{draw.randrange(count)}" for _ in range(500)]
                other.reschedule("stays", some, delay=draw.choice(["0s", "1h"]))
                puts = other.put_many("goes", ["x"] * 500, delay="1h")
                other.cancel("goes", [put.id for put in puts])

    thread = threading.Thread(target=move)
    thread.start()
    try:
        schema = StructType().add("topic", StringType()).add("id", StringType())
        for _ in range(3):
            reader = MessagesReader(ReadOptions(url=server.url, partitions=5), schema)
            found = Counter()
            for part in pickle.loads(pickle.dumps(reader.partitions())):
                for rows in pickle.loads(pickle.dumps(reader)).read(part):
                    stays = pc.equal(rows.column("topic"), "stays")
                    found.update(rows.filter(stays).column("id").to_pylist())
            assert len(found) == count
            assert set(found.values()) == {1}
    finally:
        ended.set()
        thread.join()


def test_a_source_that_spark_has_found_is_not_replaced(spark):
    """Spark warns of each one that is."""
    found = spark._jsparkSession.sessionState().dataSourceManager()
    register(spark)
    before = found.lookupDataSource("dwell")
    register(spark)
    assert found.lookupDataSource("dwell").equals(before)


def test_by_default_a_query_knows_nothing_of_the_filters_of_another(spark, shared):
    """Spark 4.3 keeps what it has pushed down for the next query of a DataFrame."""
    setting = "spark.sql.python.filterPushdown.enabled"
    pushed = spark.conf.get(setting)
    spark.conf.unset(setting)
    try:
        assert spark.conf.get(setting) == "false"
        table = spark.read.format("dwell").option("url", shared.url).load()
        dead, others = table.where("state = 'dead'"), table.where("state <> 'dead'")
        count = table.count()
        assert 0 < dead.count() < count
        assert table.count() == count
        assert dead.union(others).count() == count
        assert dead.count() + others.count() == count
    finally:
        spark.conf.set(setting, pushed)
