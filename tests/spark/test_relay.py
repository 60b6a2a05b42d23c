"""Rows that wait in the queue and come out as they were: each once, also after a kill."""

import datetime
import decimal
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from pyspark.sql import functions as F  # noqa: N812

import dwell
import dwell.spark
from dwell.errors import InvalidSettings
from dwell.spark.pipelines import audit, decision, files, packing, relay
from tests import RUNS
from tests.spark import PATIENCE_S
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("registered")

KINDS = (
    "id BIGINT, text STRING, bits BINARY, yes BOOLEAN, day DATE, at TIMESTAMP, "
    "there TIMESTAMP_NTZ, money DECIMAL(38,10), small TINYINT, real DOUBLE, less FLOAT, "
    "inner STRUCT<a: INT, b: STRUCT<c: STRING, d: TIMESTAMP>>, many ARRAY<DECIMAL(20,5)>, "
    "some MAP<STRING, ARRAY<INT>>, `a.b c` STRING"
)
AT = datetime.datetime(2026, 7, 1, 12, 30, 15, 123457)
MOST = decimal.Decimal("1234567890123456789012345678.0123456789")
ROWS = [
    (
        *(1, "ä\"\\\n\u2028\U0001f600", b"\x00\xff", True, AT.date(), AT, AT, MOST, -128),
        *(0.1 + 0.2, 1.100000023841858, (7, ("c", AT)), [decimal.Decimal("0.00001"), None]),
        *({"x": [1, None], "y": None}, "odd name"),
    ),
    (2, *[None] * 14),
    (3, "", b"", False, datetime.date(1, 1, 1), datetime.datetime(1883, 1, 1, 0, 0, 0, 1),
     datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), decimal.Decimal("-0.0000000001"), 0,
     float("inf"), float("-inf"), (None, None), [], {}, ""),
    (2**63 - 1, "null", None, None, None, None, None, decimal.Decimal(0), 127, 5e-324, -0.0,
     (None, (None, None)), [None], {"": []}, None),
]  # fmt: skip


def canonical(rows):
    """Return rows as texts, of which NaN and signed zeros too are equal to themselves only."""
    return sorted(repr(row) for row in rows)


def settings(url, folder, **more):
    given = {"id": "id", "delay": "0", "schema": "id BIGINT, at TIMESTAMP", **more}
    place = {"source": f"{folder}/in", "out": f"{folder}/out", "checkpoint": f"{folder}/log"}
    return relay.RelaySettings(url=url, **{**place, **given})


# --- bodies ---------------------------------------------------------------------------------------


def test_every_kind_of_column_comes_back_as_it_was(spark):
    rows = spark.createDataFrame(ROWS, KINDS)
    packed = rows.select(packing.pack(rows.schema).cast("binary").alias("body"))
    back = packing.unpack(packed, rows.schema)
    assert back.schema == rows.schema
    assert canonical(back.collect()) == canonical(rows.collect())


RAW = "a BINARY, b BINARY, `c d` BINARY"
BYTES = [b"", b"\n", b"{}", b"[1]\n", b"\xff\x00", None]


@pytest.mark.parametrize("more", ["", ", n INT, t STRING", ", `sizes` STRING, `start` BINARY"])
def test_bytes_of_every_kind_stand_as_they_are(spark, more):
    given = [(a, b, c) for a in BYTES for b in BYTES for c in BYTES]
    rows = spark.createDataFrame(given, RAW)
    for name, kind in (pair.strip().rsplit(" ", 1) for pair in more.split(",") if pair.strip()):
        rows = rows.withColumn(name.strip("`"), F.lit("7").cast(kind))
    packed = rows.select(packing.pack(rows.schema).alias("body"))
    back = packing.unpack(packed, rows.schema)
    assert back.columns == rows.columns
    assert canonical(back.collect()) == canonical(rows.collect())
    # Part of the columns, as a sink asks for them, in whatever order.
    some = back.select("`c d`", "a")
    assert canonical(some.collect()) == canonical(rows.select("`c d`", "a").collect())


@pytest.mark.parametrize(
    "body", [b"", b" \n", b"{}", b"[1]", b"[x]\n", b'["x"]\n{}', b'{"a": "YQ=="}']
)
def test_a_body_without_its_bytes_fails_and_is_no_row_of_nulls(spark, body):
    schema = spark.createDataFrame([], RAW).schema
    bodies = spark.createDataFrame([(bytearray(body),)], "body BINARY")
    with pytest.raises(Exception, match=r"got no line of sizes|MALFORMED_RECORD"):
        packing.unpack(bodies, schema).collect()


def test_a_body_that_is_not_the_row_fails_and_is_no_row_of_nulls(spark):
    schema = spark.createDataFrame([], "id BIGINT").schema
    bodies = spark.createDataFrame([(bytearray(b'{"id": "x"}'),)], "body BINARY")
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        packing.unpack(bodies, schema).collect()


OTHERS = [b"", b" \n", b"null", b"[]", b"[1]\n", b"[x]\n", b'{"who": 1}', b"[1,2,3]\n{}",
          b"\xff", b'[{"id": 1, "n": 1}]', b'["x"]\n{}', b'{"id": "x"}',
          b"[-1]\n{}", b'{"id']  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        (ROWS, KINDS),
        ([(a, b, None) for a in BYTES for b in BYTES], RAW),
        ([(a, n) for a in BYTES for n in (1, None)], "a BINARY, n INT"),
        ([(1,), (None,)], "id BIGINT"),
    ],
)
def test_bodies_of_rows_are_told_from_all_others(spark, rows, kinds):
    frame = spark.createDataFrame(rows, kinds)
    bodies = frame.select(packing.pack(frame.schema).alias("body"))
    assert bodies.where(packing.is_readable(frame.schema)).count() == len(rows)
    others = spark.createDataFrame([(bytearray(body),) for body in OTHERS], "body BINARY")
    found = others.where(packing.is_readable(frame.schema)).collect()
    assert [bytes(row.body) for row in found] == []


@pytest.mark.parametrize(
    ("kind", "name"), [("MAP<INT, INT>", "x"), ("ARRAY<STRUCT<y: INTERVAL DAY>>", r"x\[\].y")]
)
def test_a_column_that_json_cannot_say_is_refused(spark, kind, name):
    schema = spark.createDataFrame([], f"x {kind}").schema
    with pytest.raises(InvalidSettings, match=f"column {name}: got .* a type that JSON can say"):
        packing.pack(schema)


#: A name that as a pattern is that of others.
ODD_NAME = "o[n]e {a,b} *?"


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out", ODD_NAME])
def test_a_batch_that_runs_again_takes_the_place_of_what_it_wrote(spark, tmp_path, name):
    out = str(tmp_path / name)

    def write(rows, number):
        files.write(spark.createDataFrame(rows, "n INT, target STRING"), number, out, "parquet", {})

    write([(1, "a"), (2, "b")], 0)
    write([(3, "a")], 1)
    # The second time the batch has other rows, as leases ended in between; then the rest comes.
    write([(1, "a")], 0)
    read = files.literal(out)
    assert sorted(row.n for row in spark.read.parquet(read).collect()) == [1, 3]
    write([(2, "b")], 2)
    found = spark.read.parquet(read).select("n", "target").collect()
    assert sorted(found) == [(1, "a"), (2, "b"), (3, "a")]


@pytest.mark.parametrize("name", ["out", ODD_NAME])
def test_a_checkpoint_that_was_put_back_is_refused(spark, tmp_path, name):
    """Its next batches would delete the files of others with their numbers."""
    out = str(tmp_path / name)
    files.check_newest(spark, 0, out)
    for number in range(3):
        rows = spark.createDataFrame([(number, "a")], "n INT, target STRING")
        files.write(rows, number, out, "parquet", {})
    for number in (2, 3):
        files.check_newest(spark, number, out)
    for number in (0, 1):
        with pytest.raises(dwell.InvalidSettings, match=r"--checkpoint: its next batch is none-"):
            files.check_newest(spark, number, out)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "another-query")
    files.check_newest(spark, 0, out)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)


def test_a_checkpoint_has_one_owner(spark, tmp_path):
    first = files.owner(spark, str(tmp_path / "one"))
    assert files.owner(spark, str(tmp_path / "one")) == first
    assert files.owner(spark, str(tmp_path / "two")) != first
    # As a pattern it would be the name of the first.
    odd = files.owner(spark, str(tmp_path / "on[e]"))
    assert odd != first
    assert files.owner(spark, str(tmp_path / "on[e]")) == odd


def test_a_decision_in_a_folder_of_any_name_is_found_and_forgotten(spark, tmp_path):
    place, told = str(tmp_path / ODD_NAME), settings("http://x", tmp_path)
    (tmp_path / "one").mkdir()
    assert decision.kept(spark.range(3), place, "rows").count() == 3
    decision.seal(spark, place, told, end=7)
    assert decision.unfinished(spark, place, told)["end"] == 7
    decision.forget(spark, place, "rows")
    assert decision.about(spark, place) is None
    assert [one.name for one in (tmp_path / ODD_NAME).glob("[!.]*")] == []


def test_tables_of_an_audit_are_counted_in_a_folder_of_any_name(spark, tmp_path):
    out = tmp_path / ODD_NAME
    (out / f"{audit._CHECKPOINT}-3").mkdir(parents=True)
    assert audit._tables(spark, str(out)) == 3


# --- the whole way --------------------------------------------------------------------------------


def test_exactly_the_rows_that_came_in_go_out_to_their_targets(spark, shared, tmp_path):
    rows = spark.createDataFrame(ROWS, KINDS)
    rows.write.parquet(str(tmp_path / "in"))
    more = {"format": "parquet", "schema": KINDS, "topic": "kinds", "available_now": True}
    target = "if(id = 2, null, concat('t', id % 2))"
    given = settings(shared.url, tmp_path, target=target, **more)
    assert relay.run(spark, given) == "relay: 4 rows in, 4 out"
    out = spark.read.parquet(given.out)
    assert canonical(out.drop("target", "batch").collect()) == canonical(rows.collect())
    targets = {row.id: row.target for row in out.select("id", "target").collect()}
    assert targets == {1: "t1", 2: None, 3: "t1", 2**63 - 1: "t1"}
    # The same checkpoint again: what came and went stays as it is.
    assert relay.run(spark, given) == "relay: 0 rows in, 0 out"
    assert out.count() == 4
    again = settings(shared.url, tmp_path, target=target, checkpoint=f"{tmp_path}/new", **more)
    assert relay.run(spark, again) == "relay: 4 rows in, 0 out, 4 kept"


def test_rows_wait_until_they_are_due(spark, shared, tmp_path):
    (tmp_path / "in").mkdir()
    now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
    lines = [{"id": n, "at": (now + (hour if n % 2 else -hour)).isoformat()} for n in range(10)]
    (tmp_path / "in" / "a.json").write_text("\n".join(map(json.dumps, lines)))
    given = {"due": "at", "delay": None, "topic": "waits"}
    once = settings(shared.url, tmp_path, available_now=True, **given)
    assert relay.run(spark, once) == "relay: 10 rows in, 5 out"
    assert {row.id % 2 for row in spark.read.parquet(once.out).collect()} == {0}
    soon_s = time.time() + 4
    with dwell.open(shared.url) as queue:
        queue.reschedule("waits", [f"{n}" for n in range(1, 10, 2)], due=int(soon_s * 1000))
    assert relay.run(spark, settings(shared.url, tmp_path, until_idle="1s", **given)) == (
        "relay: 0 rows in, 5 out"
    )
    assert time.time() >= soon_s
    assert sorted(row.id for row in spark.read.parquet(once.out).collect()) == list(range(10))


def test_bad_rows_are_set_aside_and_hold_up_nothing(spark, shared, tmp_path):
    (tmp_path / "in").mkdir()
    lines = [{"id": 1}, {"at": "x"}, {"id": 2, "big": "x" * 2**21}, {"id": 7}, {"id": 3}]
    (tmp_path / "in" / "a.json").write_text("\n".join(map(json.dumps, lines)))
    given = {"schema": "id BIGINT, big STRING", "delay": "if(id = 7, raise_error('no'), 0)"}
    given |= {"topic": "bad-rows", "available_now": True}
    strict = settings(shared.url, tmp_path, **given)
    with pytest.raises(Exception, match=r"BadRow|USER_RAISED"):
        relay.run(spark, strict)
    # The same checkpoint goes on once there is a place for them, also with what came since.
    (tmp_path / "in" / "b.json").write_text(json.dumps({"id": 4}))
    bad = settings(shared.url, tmp_path, bad_rows=str(tmp_path / "bad"), **given)
    assert relay.run(spark, bad) == "relay: 3 rows in, 3 out, 3 bad"
    found = spark.read.parquet(strict.out)
    assert sorted(row.id for row in found.collect()) == [1, 3, 4]
    reasons = [row.reason for row in spark.read.parquet(str(tmp_path / "bad")).collect()]
    assert sorted(reason.split(":")[0] for reason in reasons) == ["bodies[0]", "delay", "id"]


def test_messages_of_others_are_set_aside_and_hold_up_nothing(spark, shared, tmp_path):
    """Without a folder for them the run ends, and their rows stay in the topic."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("\n".join(json.dumps({"id": n}) for n in range(5)))
    with dwell.open(shared.url) as queue:
        queue.put_many("others", [b"\xff", "text"], ids=["bytes", "text"])
    given = {"topic": "others", "available_now": True}
    with pytest.raises(Exception, match="MALFORMED"):
        relay.run(spark, settings(shared.url, tmp_path, **given))
    bad = settings(shared.url, tmp_path, bad_rows=str(tmp_path / "bad"), **given)
    assert relay.run(spark, bad) == "relay: 0 rows in, 5 out, 2 bad"
    assert sorted(row.id for row in spark.read.parquet(bad.out).collect()) == list(range(5))
    kept = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert {row.id: bytes(row.body) for row in kept} == {"bytes": b"\xff", "text": b"text"}
    assert {row.reason for row in kept} == {"body: got none that this relay has put"}
    with dwell.open(shared.url) as queue:
        assert queue.stats().topics["others"].leased == 0


@pytest.mark.campaign
def test_a_relay_that_starts_slowly_is_not_idle(spark, shared, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("\n".join(json.dumps({"id": n}) for n in range(10)))
    given = settings(shared.url, tmp_path, until_idle="1ms", topic="starts")
    assert relay.run(spark, given) == "relay: 10 rows in, 10 out"


def test_any_stream_can_come_in_and_anything_can_take_it(spark, shared, tmp_path):
    seen = []

    def collect(rows, number):
        seen.extend((number, row.value, row.target) for row in rows.collect())

    rate = spark.readStream.format("rate").option("rowsPerSecond", "50").load()
    stream = rate.where("value < 60")
    given = settings(
        shared.url, tmp_path, id="value", delay="'200ms'", target="value % 3", topic="rate",
        until_idle="3s", out=None, out_format="none",
    )  # fmt: skip
    assert relay.relay(spark, stream, given, collect) == "relay: 60 rows in, 60 out"
    assert sorted(value for _, value, _ in seen) == list(range(60))
    assert all(target == str(value % 3) for _, value, target in seen)


@pytest.mark.parametrize(
    "look", ["nothing", "show", pytest.param("twice", marks=pytest.mark.campaign)]
)
def test_what_counts_is_what_was_taken_and_not_what_was_looked_at(spark, shared, tmp_path, look):
    looks = {
        "nothing": lambda rows, number: None,
        "show": lambda rows, number: rows.limit(2).collect(),
        "twice": lambda rows, number: [rows.count(), rows.count()],
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("\n".join(json.dumps({"id": n}) for n in range(30)))
    given = settings(shared.url, tmp_path, available_now=True, out=None, out_format="none",
                     topic=f"looks-{look}")  # fmt: skip
    incoming = spark.readStream.schema(given.schema).json(given.source)
    assert relay.relay(spark, incoming, given, looks[look]) == "relay: 30 rows in, 30 out"


def test_each_target_has_a_folder_of_its_own(spark, tmp_path):
    names = ["", None, "__EMPTY__", "___EMPTY__", "__HIVE_DEFAULT_PARTITION__", "a", "a/b=%", " "]
    rows = spark.createDataFrame(list(enumerate(names)), "id INT, target STRING")
    files.write(rows, 0, str(tmp_path / "out"), "parquet", {})
    folders = [path for path in (tmp_path / "out").iterdir() if path.name.startswith("target=")]
    assert len(folders) == len(names)
    found = {row.id: row.target for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert found == dict(enumerate(names)) | {
        0: "__EMPTY__",
        2: "___EMPTY__",
        3: "____EMPTY__",
        4: "___HIVE_DEFAULT_PARTITION__",
    }


# --- killed ---------------------------------------------------------------------------------------

COUNT, FILES = 6_000, 6


def start(url, folder):
    words = ["--url", url, "--topic", "killed", "--source", f"{folder}/in", "--format", "json"]
    words += ["--schema", "id BIGINT, name STRING", "--id", "id", "--delay", "id % 3"]
    words += ["--target", "id % 2", "--out", f"{folder}/out", "--checkpoint", f"{folder}/log"]
    words += ["--option", "maxFilesPerTrigger=1", "--max-rows", "750", "--master", "local[2]"]
    command = [sys.executable, "-m", "dwell.spark.pipelines.relay", *words]
    with (folder / "relay.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )


def until_more(written, process, folder):
    """Wait until the relay has written one more."""
    before, log = written(), folder / "relay.log"
    until(lambda: written() > before or process.poll() is not None, log.read_text, PATIENCE_S)
    assert process.poll() is None, log.read_text()[-3000:]


@pytest.mark.campaign
def test_a_driver_that_is_killed_loses_and_doubles_nothing(spark, server, tmp_path):
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    (tmp_path / "in").mkdir()
    for part in range(FILES):
        lines = [json.dumps({"id": n, "name": f"row {n}"}) for n in range(part, COUNT, FILES)]
        (tmp_path / "in" / f"{part}.json").write_text("\n".join(lines))

    def written():
        return len(list((tmp_path / "out").glob("target=*/batch=*/*.parquet")))

    for _ in range(RUNS):
        process = start(server.url, tmp_path)
        try:
            until_more(written, process, tmp_path)
            time.sleep(chance.random())
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    in_the_middle = written()
    with dwell.open(server.url) as queue:
        before = queue.stats().topics["killed"]
    given = {"schema": "id BIGINT, name STRING", "delay": "id % 3", "target": "id % 2"}
    given |= {"topic": "killed", "option": {"maxFilesPerTrigger": "1"}, "max_rows": 750}
    out = relay.run(spark, settings(server.url, tmp_path, until_idle="2s", **given))
    assert out.startswith("relay: ")
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in found) == list(range(COUNT)), (seed, before)
    assert all(row.name == f"row {row.id}" and row.target == row.id % 2 for row in found)
    assert written() > in_the_middle, "everything was out before the last run"
