"""What is written arrives once, however Spark goes about it; ``DWELL_WRITES`` draws more."""

import json
import os
import random
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

import dwell
from dwell.errors import InvalidSettings, StoreError
from dwell.spark import DwellSource, register, turns
from dwell.spark.writing import Counts
from tests.spark.tasks import TaskFailed, Write, cut, of_stream

WRITES = int(os.environ.get("DWELL_WRITES", "25"))
SCHEMA = pa.schema([("topic", pa.string()), ("body", pa.string()), ("delay", pa.string())])


@pytest.fixture(scope="module")
def queue(shared):
    with dwell.open(shared.url) as queue:
        yield queue


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    """Let turns be noted in a folder of the test's own."""
    monkeypatch.setattr(turns, "_folder", lambda: tmp_path)
    return tmp_path


def bodies(queue, topics):
    found = Counter()
    for topic in topics:
        for page in queue.pages(topic, "delayed", limit=10_000):
            found.update(message.body.decode() for message in page)
    return found


def rows_of(topics, texts, bad=()):
    many = [(topics[n % len(topics)], text) for n, text in enumerate(texts)]
    delays = ["soon" if n in bad else "1h" for n in range(len(texts))]
    columns = [[topic for topic, _ in many], [text for _, text in many], delays]
    return pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in columns], schema=SCHEMA)


class Stream:
    """A query whose batch is written by several sinks, killed and started again."""

    def __init__(self, url, topics, folder):
        self.query, self.run = str(uuid.uuid4()), str(uuid.uuid4())
        self._url, self._topics, self._folder = url, topics, folder

    def restart(self):
        self.run = str(uuid.uuid4())

    def write(self, partitions, draw, batch=0, fails=False, **options):
        """Write partitions as a sink; a task fails a few times, or for good."""
        given = {"url": self._url, "batch": str(draw.randint(1, 30)), **options}
        given |= {"topic": self._topics[0], "badRows": str(self._folder / "bad")}
        known = of_stream(self.query, self.run, batch)
        write = Write(SCHEMA, given, **known)
        messages = []
        for number, rows in enumerate(partitions):
            batches = cut(rows, [draw.randint(1, 12) for _ in range(3)])
            for _ in range(draw.choice([0, 0, 1, 2])):
                with pytest.raises(TaskFailed):
                    write.run(number, batches, draw.randint(0, len(batches)))
            if fails and number == len(partitions) - 1:
                with pytest.raises(TaskFailed):
                    write.run(number, batches, draw.randint(0, len(batches)))
                write.abort([*messages, None])
                return None
            messages.append(write.run(number, batches))
            if draw.random() < 0.2:
                # What Spark thought slow ran twice, and one of them counts.
                write.run(number, cut(rows, [draw.randint(1, 12)]))
        write.commit(messages)
        return sum((Counter(message.results) for message in messages), Counter())


@pytest.mark.parametrize("number", range(WRITES))
def test_what_arrives_is_the_rows_once(shared, queue, tmp_path, number):
    """Any partitions, batches, tasks that repeat, restarts, refused rows, sinks and topics."""
    draw = random.Random(number)
    topics = [f"w{number}-{os.getpid()}-{n}" for n in range(draw.randint(1, 3))]
    stream = Stream(shared.url, topics, tmp_path)
    sinks, good = [], Counter()
    for _ in range(draw.randint(1, 3)):
        partitions = []
        # Sinks may write the very same rows.
        name = draw.choice("ab")
        for part in range(draw.randint(1, 3)):
            size = draw.choice([0, 1, draw.randint(2, 60)])
            bad = {n for n in range(size) if draw.random() < draw.choice([0, 0.05, 0.3])}
            texts = [f"{name}-{part}-{n}" for n in range(size)]
            given = [*topics, None] if draw.random() < 0.3 else topics
            partitions.append(rows_of(given, texts, bad))
            good.update(text for n, text in enumerate(texts) if n not in bad)
        sinks.append(partitions)
    for _ in range(draw.randint(0, 2)):
        # The batch dies in some sink, and the query is started again.
        dies_at = draw.randrange(len(sinks))
        for at, partitions in enumerate(sinks[: dies_at + 1]):
            stream.write(partitions, draw, fails=at == dies_at)
        stream.restart()
    for partitions in sinks:
        counts = stream.write(partitions, draw)
        assert counts.total() == sum(rows.num_rows for rows in partitions)
    assert bodies(queue, topics) == good


def test_sinks_at_once_are_told_unless_they_have_names(shared, queue, tmp_path):
    known = of_stream("query", "run", 0)
    rows = [rows_of(["at-once"], ["a", "b"])]
    options = {"url": shared.url}
    one, other = Write(SCHEMA, options, **known), Write(SCHEMA, options, **known)
    one.commit([one.run(0, rows)])
    with pytest.raises(InvalidSettings, match="writeName: got none for two writes at once"):
        other.commit([other.run(0, rows)])
    named = [Write(SCHEMA, {**options, "writeName": name}, **known) for name in ("x", "y")]
    for write in named:
        write.commit([write.run(0, rows)])
    assert bodies(queue, ["at-once"]) == {"a": 3, "b": 3}


CONNECT = {"spark.job.tags": "SparkConnect_OperationTag_User_u_Session_s_Operation_o"}
ONE_ROW = {"topic": ["named"], "body": ["x"], "delay": ["1h"]}


def write_once(shared, columns, properties, **options):
    rows = pa.record_batch(columns)
    one = Write(rows.schema, {"url": shared.url, **options}, **properties)
    message = one.run(0, [rows])
    one.commit([message])
    return message.results


@pytest.mark.parametrize("properties", [{}, CONNECT])
def test_a_write_with_a_name_that_runs_again_puts_nothing_twice(shared, properties):
    name = f"batch-{len(properties)}"
    assert write_once(shared, ONE_ROW, properties, writeName=f"{name}-1") == {"created": 1}
    assert write_once(shared, ONE_ROW, properties, writeName=f"{name}-1") == {"kept": 1}
    assert write_once(shared, ONE_ROW, properties, writeName=f"{name}-2") == {"created": 1}


def test_over_connect_rows_without_ids_need_a_name(shared, queue):
    before = queue.stats().totals.get("put", 0)
    with pytest.raises(InvalidSettings, match=r"writeName: got none .* over Spark Connect"):
        write_once(shared, ONE_ROW, CONNECT)
    assert queue.stats().totals.get("put", 0) == before
    assert write_once(shared, {**ONE_ROW, "id": ["own"]}, CONNECT) == {"created": 1}


def test_a_write_that_failed_has_had_its_turn(shared, queue):
    known = of_stream("query-f", "run-f", 0)
    first = Write(SCHEMA, {"url": shared.url}, **known)
    message = first.run(0, [rows_of(["turns"], ["a"])])
    first.abort([message, None])
    second = Write(SCHEMA, {"url": shared.url}, **known)
    second.commit([second.run(0, [rows_of(["turns"], ["b"])])])
    assert bodies(queue, ["turns"]) == {"a": 1, "b": 1}


def test_notes_of_other_runs_and_batches_do_not_count(tmp_path):
    turns.end(turns.Turn("run", "7", 0), is_named=True)
    turns.end(turns.Turn("run", "7", 1), is_named=True)
    ended = turns.ended_writes()
    assert turns.turn_of("run", "7", ended).suffix == "-w2"
    assert turns.turn_of("run", "8", ended).suffix == ""
    assert turns.turn_of("other", "7", ended).suffix == ""


@pytest.mark.parametrize("left", [b"", b'{"batch":"7","wri'])
def test_a_note_that_was_cut_off_stops_its_own_run_alone(shared, queue, notes, left):
    (notes / "gone.json").write_bytes(left)
    topic = f"torn{len(left)}"
    run = of_stream("query-t", "run-t", 0)
    one = Write(SCHEMA, {"url": shared.url}, **run)
    one.commit([one.run(0, [rows_of([topic], ["a"])])])
    assert bodies(queue, [topic]) == {"a": 1}
    # A write of the run itself does not know its turn, and could take another's ids.
    own = Write(SCHEMA, {"url": shared.url}, **of_stream("query-t", "gone", 0))
    with pytest.raises(StoreError, match=r"gone\.json .* got a file that was cut off"):
        own.run(0, [rows_of([topic], ["b"])])
    with pytest.raises(StoreError, match="cut off"):
        turns.end(turns.Turn("gone", "7", 0), is_named=True)


@pytest.mark.parametrize("left", [b"", b'{"created":'])
def test_counts_that_were_cut_off_begin_anew_and_that_is_said(shared, tmp_path, capsys, left):
    path = tmp_path / "counts.json"
    path.write_bytes(left)
    for number in range(2):
        writer = DwellSource({"url": shared.url, "counts": str(path)}).streamWriter(
            from_arrow_schema(SCHEMA), False
        )
        writer.commit([Counts({"created": 1})], number)
    assert json.loads(path.read_bytes()) == {"created": 2}
    assert capsys.readouterr().err.count("cannot be read, counting from 0") == 1
    assert [one.name for one in tmp_path.iterdir() if "counts" in one.name] == ["counts.json"]


# --- through Spark --------------------------------------------------------------------------------


@pytest.fixture
def stream_of(spark, tmp_path):
    register(spark)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("\n".join(json.dumps({"n": n}) for n in range(20)))

    def run(each):
        stream = spark.readStream.schema("n INT").json(str(tmp_path / "in")).repartition(2)
        query = stream.writeStream.foreachBatch(each).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "log")).start().awaitTermination()

    return run


def test_two_writes_in_one_batch_both_arrive_and_once(shared, queue, stream_of, monkeypatch):
    monkeypatch.undo()
    fails = [True]

    def each(frame, number):
        for text, delay in (("welcome", "1h"), ("reminder", "24h"), ("reminder", "24h")):
            rows = frame.selectExpr(f"concat('{text} ', n) AS body", f"'{delay}' AS delay")
            options = {"url": shared.url, "topic": "two-writes"}
            rows.write.format("dwell").mode("append").options(**options).save()
        if fails.pop():
            raise RuntimeError("the driver dies before the batch is in the log")

    with pytest.raises(PySparkException, match="the driver dies"):
        stream_of(each)
    fails.append(False)
    stream_of(each)
    texts = {f"welcome {n}": 1 for n in range(20)} | {f"reminder {n}": 2 for n in range(20)}
    assert bodies(queue, ["two-writes"]) == texts
