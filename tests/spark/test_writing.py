"""Writing DataFrames: every verb, what is refused, and tasks that run again."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import dwell

LATER = datetime.now(UTC) + timedelta(hours=1)


def now_ms_of():
    return time.time_ns() // 1_000_000


def write(frame, url, **options):
    frame.write.format("dwell").mode("append").options(url=url, **options).save()


@pytest.fixture(scope="module")
def queue(shared):
    with dwell.open(shared.url) as queue:
        yield queue


@pytest.fixture
def counted(tmp_path):
    """Writes, and returns how many rows had which result."""
    path = tmp_path / "counts.json"

    def one(frame, url, **options):
        write(frame, url, counts=str(path), **options)
        return json.loads(path.read_bytes())

    return one


def messages(queue, topic, *states):
    return {
        message.id: message
        for state in states or ("delayed", "ready")
        for page in queue.pages(topic, state, limit=10_000)
        for message in page
    }


def test_put_columns(spark, shared, queue, counted, topic):
    rows = [
        ("a", b"body", LATER, 3, "k", {"h": "v"}, "5s", 7, LATER + timedelta(hours=1)),
        ("b", b"", LATER, None, None, None, None, None, None),
    ]
    schema = (
        "id STRING, body BINARY, due TIMESTAMP, priority INT, key STRING, "
        "headers MAP<STRING, STRING>, lease STRING, max_attempts INT, expires TIMESTAMP"
    )
    frame = spark.createDataFrame(rows, schema)
    assert counted(frame, shared.url, topic=topic) == {"created": 2}
    found = messages(queue, topic)
    a, b = found["a"], found["b"]
    due_ms = -(-int(LATER.timestamp() * 1_000_000) // 1000)
    assert (a.body, a.due_ms, a.priority, a.key, a.headers) == (b"body", due_ms, 3, "k", {"h": "v"})
    assert (a.lease_ms, a.max_attempts, a.expires_ms) == (5000, 7, due_ms + 3_600_000)
    assert (b.body, b.priority, b.key, b.headers, b.expires_ms) == (b"", 1024, None, {}, 0)


def test_due_is_never_early(spark, shared, queue, topic):
    """Spark counts microseconds, the queue milliseconds."""
    frame = spark.sql("SELECT 'a' id, 'x' body, timestamp_micros(4102444800000001) due")
    write(frame, shared.url, topic=topic)
    assert messages(queue, topic)["a"].due_ms == 4_102_444_800_001


@pytest.mark.parametrize(
    ("delay", "ms"),
    [("'30m'", 1_800_000), ("90", 90_000), ("0.25D", 250), ("INTERVAL '2' MINUTE", 120_000)],
)
def test_put_with_a_delay(spark, shared, queue, delay, ms, topic):
    before_ms = now_ms_of() - 50
    write(spark.sql(f"SELECT 'a' id, 'x' body, {delay} delay"), shared.url, topic=topic)
    late_ms = messages(queue, topic)["a"].due_ms - ms - before_ms
    assert 0 <= late_ms < 60_000


def test_due_as_a_number_is_epoch_milliseconds(spark, shared, queue, topic):
    write(spark.sql("SELECT 'a' id, 'x' body, 4102444800123 due"), shared.url, topic=topic)
    assert messages(queue, topic)["a"].due_ms == 4_102_444_800_123


def test_other_columns_become_json(spark, shared, queue, topic):
    frame = spark.sql(
        "SELECT 'a' id, timestamp'2100-01-01' due, 7 number, 'é' text, array(1, null) list, "
        "named_struct('x', 1.5D, 'y', null) inner, true flag, date'2024-02-29' day, 1.10BD price"
    )
    write(frame, shared.url, topic=topic)
    body = msgspec.json.decode(messages(queue, topic)["a"].body)
    assert body == {
        "number": 7,
        "text": "é",
        "list": [1, None],
        "inner": {"x": 1.5, "y": None},
        "flag": True,
        "day": "2024-02-29",
        "price": 1.1,
    }


def test_topics_from_a_column(spark, shared, queue, counted, topic):
    frame = spark.range(1000).selectExpr(
        "concat('m', id) id", f"concat('{topic}-', id % 3) topic", "'x' body", "'1h' delay"
    )
    assert counted(frame, shared.url) == {"created": 1000}
    sizes = [len(messages(queue, f"{topic}-{number}")) for number in range(3)]
    assert sizes == [334, 333, 333]


def test_rows_without_ids_get_some(spark, shared, queue, counted, topic):
    frame = spark.range(5000).selectExpr("cast(id AS STRING) body", "'1h' delay")
    assert counted(frame, shared.url, topic=topic) == {"created": 5000}
    bodies = {message.body for message in messages(queue, topic).values()}
    assert len(bodies) == 5000
    # Another write of the same rows is another write.
    assert counted(frame, shared.url, topic=topic) == {"created": 5000}


def test_written_twice_changes_nothing(spark, shared, queue, counted, topic):
    """Also when the first messages were delivered and acked meanwhile."""
    frame = spark.range(2000).selectExpr("concat('m', id) id", "'x' body", "'0s' delay")
    assert counted(frame, shared.url, topic=topic) == {"created": 2000}
    batch = queue.take(topic, 500)
    assert set(queue.ack(batch)) == {dwell.Result.ACKED}
    assert counted(frame, shared.url, topic=topic) == {"kept": 2000}
    assert len(messages(queue, topic)) == 1500


def test_on_conflict(spark, shared, queue, counted, topic):
    old = spark.sql("SELECT 'a' id, 'old' body, '1h' delay")
    new = spark.sql("SELECT 'a' id, 'new' body, '1h' delay")
    write(old, shared.url, topic=topic)
    assert counted(new, shared.url, topic=topic) == {"kept": 1}
    assert counted(new, shared.url, topic=topic, onConflict="replace") == {"replaced": 1}
    assert messages(queue, topic)["a"].body == b"new"
    with pytest.raises(PySparkException, match="exists"):
        write(new, shared.url, topic=topic, onConflict="error")


def test_cancel_reschedule_and_kick(spark, shared, queue, counted, topic):
    rows = spark.range(10).selectExpr("concat('m', id) id", "'x' body", "'1h' delay")
    write(rows, shared.url, topic=topic)
    ids = rows.select("id")
    late = ids.where("id < 'm4'").withColumn("due", f.lit(datetime(2100, 1, 1, tzinfo=UTC)))
    assert counted(late, shared.url, topic=topic, op="reschedule") == {"moved": 4}
    assert messages(queue, topic)["m0"].due_ms == 4_102_444_800_000
    now = ids.where("id = 'm4'").withColumn("delay", f.lit("0s"))
    assert counted(now, shared.url, topic=topic, op="reschedule") == {"moved": 1}
    (taken,) = queue.take(topic, 10)
    assert taken.id == "m4"
    assert counted(ids, shared.url, topic=topic, op="cancel") == {"cancelled": 9, "leased": 1}
    assert counted(ids, shared.url, topic=topic, op="cancel") == {"unknown": 9, "leased": 1}
    queue.bury([taken], "no")
    assert counted(ids, shared.url, topic=topic, op="kick") == {"kicked": 1, "unknown": 9}
    assert queue.stats().topics[topic].ready == 1


def test_kick_with_delays(spark, shared, queue, counted, topic):
    queue.put_many(topic, [b"x"] * 6, ids=list("abcdef"))
    queue.bury(queue.take(topic, 6), "no")
    frame = spark.createDataFrame(
        list(zip("abcdef", [0, 60, 60, 0, 7, 7], strict=True)), "id STRING, delay INT"
    )
    assert counted(frame, shared.url, topic=topic, op="kick") == {"kicked": 6}
    now_ms = now_ms_of()
    due = {m.id: (m.due_ms - now_ms) / 1000 for m in messages(queue, topic).values()}
    assert 0 >= due["a"] > -60
    assert 60 >= due["b"] > 0
    assert 7 >= due["f"] > -53


# --- refused --------------------------------------------------------------------------------------

BAD_ROWS = [
    ("id STRING, body STRING, due TIMESTAMP", ("a", "x", None), "due: got null"),
    ("id STRING, body STRING, delay STRING", ("a", "x", None), "delay: got null"),
    ("id STRING, body STRING, delay STRING", ("a", "x", "soon"), "delay"),
    ("id STRING, body STRING, delay STRING", ("a", None, "1h"), "body: got null"),
    ("id STRING, body STRING, delay STRING", ("a", "x" * 1_048_577, "1h"), "1048577 bytes"),
    ("id STRING, body STRING, delay STRING", (None, "x", "1h"), "id: got null"),
    ("id STRING, body STRING, delay STRING", ("i" * 300, "x", "1h"), "id"),
    ("id STRING, body STRING, delay STRING, topic STRING", ("a", "x", "1h", "no topic"), "topic"),
    ("id STRING, body STRING, delay STRING, priority INT", ("a", "x", "1h", -1), "priority"),
    ("id STRING, body STRING, due BIGINT", ("a", "x", -1), "due"),
]


@pytest.mark.campaign
@pytest.mark.parametrize(("schema", "row", "reason"), BAD_ROWS[:2])
def test_bad_row_fails_the_job(spark, shared, queue, topic, schema, row, reason):
    frame = spark.createDataFrame([row], schema)
    with pytest.raises(PySparkException) as caught:
        write(frame, shared.url, topic=topic)
    assert "BadRow" in str(caught.value)
    assert reason in str(caught.value)
    assert not messages(queue, topic)


@pytest.mark.parametrize(("schema", "row", "reason"), BAD_ROWS)
def test_bad_row_is_kept_with_its_reason(spark, shared, queue, tmp_path, schema, row, reason):
    folder = str(tmp_path / "bad")
    write(spark.createDataFrame([row], schema), shared.url, topic="bad-rows", badRows=folder)
    (bad,) = spark.read.parquet(folder).collect()
    assert reason in bad.reason
    assert not messages(queue, "bad-rows")


def test_bad_rows_to_a_folder(spark, shared, queue, counted, tmp_path, topic):
    """The good ones are put, each bad one is kept with its reason, also when run again."""
    frame = spark.range(1000).selectExpr(
        "concat('m', id) id",
        "if(id % 100 = 7, null, 'x') body",
        "if(id % 100 = 8, 'soon', '1h') delay",
    )
    for word in ("created", "kept"):
        counts = counted(frame, shared.url, topic=topic, badRows=str(tmp_path / "bad"))
        assert counts == {word: 980, "bad": 20}
    bad = spark.read.parquet(str(tmp_path / "bad"))
    reasons = {row["id"]: row["reason"] for row in bad.dropDuplicates(["id"]).collect()}
    assert len(reasons) == 20
    assert "body: got null" in reasons["m107"]
    assert "delay" in reasons["m108"]
    assert len(messages(queue, topic)) == 980


BAD_WRITES = [
    ({"topic": "t"}, "id STRING, body STRING, due TIMESTAMP, delay STRING", "due and delay"),
    ({}, "id STRING, body STRING, delay STRING", "topic: got none"),
    ({"topic": "t"}, "id STRING, body STRING, delay STRING, extra STRING", "extra"),
    ({"topic": "t", "op": "cancel"}, "name STRING", "expected id"),
    ({"topic": "t", "op": "reschedule"}, "id STRING", "expected due or delay"),
    ({"topic": "t", "op": "kick"}, "id STRING, body STRING", "body"),
    ({"topic": "t", "op": "ack"}, "id STRING", "op"),
    ({"topic": "t", "onConflict": "maybe"}, "id STRING, delay STRING", "onconflict"),
    ({"topic": "t", "batch": "0"}, "id STRING, delay STRING", "batch"),
    ({"topic": "t", "speed": "fast"}, "id STRING, delay STRING", "speed"),
    ({"topic": "a b"}, "id STRING, body STRING, delay STRING", "topic"),
]


@pytest.mark.parametrize(("options", "schema", "reason"), BAD_WRITES)
def test_bad_options_and_columns(spark, shared, options, schema, reason):
    with pytest.raises(PySparkException, match=reason):
        write(spark.createDataFrame([], schema), shared.url, **options)


@pytest.mark.parametrize("url", ["./data", "memory:", "file:data", "/var/lib/dwell"])
def test_a_folder_is_refused_with_the_way_out(spark, url):
    with pytest.raises(PySparkException, match="dwell serve"):
        write(spark.sql("SELECT 'a' id, 'x' body, '1h' delay"), url, topic="t")
    with pytest.raises(PySparkException, match="dwell serve"):
        spark.read.format("dwell").option("url", url).load().count()


def test_overwrite_is_refused(spark, shared):
    frame = spark.sql("SELECT 'a' id, 'x' body, '1h' delay")
    with pytest.raises(PySparkException, match="append"):
        frame.write.format("dwell").mode("overwrite").options(url=shared.url, topic="t").save()


# --- tasks that run again -------------------------------------------------------------------------


@pytest.mark.campaign
def test_a_task_that_fails_and_is_retried(spark, server, counted, tmp_path):
    """The first attempts fail after a part of their rows was put; the messages are put once."""

    def failing(batches):
        for number, batch in enumerate(batches):
            marker = tmp_path / f"failed-{batch['id'].iloc[0]}"
            if number == 2 and not marker.exists():
                marker.touch()
                raise RuntimeError("this attempt fails")
            yield batch

    frame = spark.range(0, 60_000, 1, 2).selectExpr("concat('m', id) id", "'x' body", "'1h' delay")
    failing_frame = frame.mapInPandas(failing, frame.schema)
    counts = counted(failing_frame, server.url, topic="t")
    assert len(list(tmp_path.glob("failed-*"))) == 2
    assert sum(counts.values()) == 60_000
    assert counts["kept"] > 0
    with dwell.open(server.url) as queue:
        assert queue.stats().topics["t"].delayed == 60_000
        assert queue.stats().totals["put"] == 60_000


@pytest.mark.campaign
def test_write_while_the_server_is_killed(spark, server, counted):
    """Tasks wait for a server that comes back, and every row is put once."""

    def restart():
        server.kill()
        server.start()

    timer = threading.Timer(0.4, restart)
    timer.start()
    frame = spark.range(0, 300_000, 1, 2).selectExpr("concat('m', id) id", "'x' body", "'1h' delay")
    counts = counted(frame, server.url, topic="t")
    timer.join()
    assert sum(counts.values()) == 300_000
    with dwell.open(server.url) as fresh:
        assert fresh.stats().topics["t"].delayed == 300_000
        assert fresh.stats().totals["put"] == 300_000


def test_stream_into_the_queue(spark, shared, queue, tmp_path, topic):
    """Each row of a stream is put once, also when the query is started again."""
    schema = "id STRING, body STRING, delay STRING"
    before = queue.stats().totals["put"]

    def run():
        stream = spark.readStream.schema(schema).json(str(tmp_path / "in"))
        writer = stream.writeStream.format("dwell").options(url=shared.url, topic=topic)
        query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(
            availableNow=True
        )
        query.start().awaitTermination()

    for number in range(3):
        path = tmp_path / "in" / f"{number}.json"
        path.parent.mkdir(exist_ok=True)
        lines = [
            json.dumps({"id": f"{number}-{n}", "body": "x", "delay": "1h"}) for n in range(100)
        ]
        path.write_text("\n".join(lines))
        run()
        assert queue.stats().topics[topic].delayed == 100 * (number + 1)
    # A commit that was lost makes Spark run the last batch again.
    commits = sorted((tmp_path / "check" / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    run()
    assert queue.stats().totals["put"] - before == 300
