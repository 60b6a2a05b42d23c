"""A server whose store was put back from an older copy is told, and never passed over in silence.

The reader is Spark's, without Spark: offsets go through JSON, partitions and readers are pickled.
"""

import json
import pickle
import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType

import dwell
from dwell.spark import register
from dwell.spark.events import AnotherHistory
from dwell.spark.eventstream import EventStream
from dwell.spark.messages import MessagesReader
from dwell.spark.options import ReadOptions
from dwell.spark.pipelines import audit
from dwell.spark.pipelines.command import main

pytestmark = pytest.mark.campaign

SCHEMA = StructType().add("position", LongType()).add("id", StringType())


class Query:
    """A query that is started anew at each step, with its checkpoint."""

    def __init__(self, url, **options):
        self._url, self._options = url, options
        self.offset = None
        self.ids = []

    def step(self, limit=None):
        reader = EventStream(ReadOptions(url=self._url, view="events", **self._options), SCHEMA)
        try:
            if self.offset is None:
                self.offset = json.loads(json.dumps(reader.initialOffset()))
            asked = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
            end = json.loads(json.dumps(reader.latestOffset(self.offset, asked)))
            if end != self.offset:
                self.take(reader, end)
        finally:
            reader.stop()

    def take(self, reader, end):
        for part in pickle.loads(pickle.dumps(reader.partitions(self.offset, end))):
            for batch in pickle.loads(pickle.dumps(reader)).read(part):
                self.ids += batch.column("id").to_pylist()
        self.offset = end


def put(server, name, count):
    with dwell.open(server.url) as queue:
        queue.put_many("t", ["x"] * count, ids=[f"{name}{n}" for n in range(count)])
    return [f"{name}{n}" for n in range(count)]


def put_back(server, tmp_path):
    """Stop the server, and start it over the copy that was made."""
    server.stop()
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "copy", tmp_path / "store")
    server.start()


@pytest.fixture
def copied(server, tmp_path):
    """A server with some events, of whose store there is a copy."""
    base = put(server, "base", 10)
    server.stop()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    server.start()
    return base


@pytest.mark.parametrize("after", [0, 3, 9])
def test_messages_of_two_stores_are_not_one_table(server, tmp_path, copied, after):
    lost = put(server, "lost", 5)
    schema = StructType().add("id", StringType())
    reader = MessagesReader(ReadOptions(url=server.url, view="messages", partitions=2), schema)
    first, second = pickle.loads(pickle.dumps(reader.partitions()))

    def read(part):
        batches = pickle.loads(pickle.dumps(reader)).read(part)
        return [id_ for batch in batches for id_ in batch.column("id").to_pylist()]

    assert sorted(read(first) + read(second)) == sorted([*copied, *lost])
    server.stop()
    server.start()
    read(first)
    put_back(server, tmp_path)
    put(server, "other", after)
    with pytest.raises(AnotherHistory, match="messages: the store was put back"):
        read(second)


def test_a_server_that_is_started_again_is_gone_on_with(server):
    query = Query(server.url)
    ids = put(server, "a", 5)
    query.step()
    for _ in range(2):
        server.stop()
        server.start()
        query.step()
    ids += put(server, "b", 5)
    query.step(3)
    query.step()
    assert query.ids == ids


@pytest.mark.parametrize("count", [49, 50, 51])
def test_another_history_is_told(server, tmp_path, copied, count):
    """Whether it is behind the stream, as far, or ahead of it."""
    query = Query(server.url)
    put(server, "old", 50)
    query.step()
    put_back(server, tmp_path)
    put(server, "new", count)
    with pytest.raises(AnotherHistory, match="another than the one that was read, or was put back"):
        query.step()


def test_a_stream_that_the_copy_has_all_of_goes_on(server, tmp_path, copied):
    query = Query(server.url)
    query.step()
    put(server, "old", 50)
    put_back(server, tmp_path)
    ids = put(server, "new", 20)
    query.step()
    assert query.ids == copied + ids


def test_a_stream_may_be_told_to_read_anew(server, tmp_path, copied):
    query = Query(server.url, fail_on_data_loss=False)
    old = put(server, "old", 50)
    query.step()
    put_back(server, tmp_path)
    new = put(server, "new", 50)
    query.step(20)
    query.step()
    query.step()
    assert query.ids == copied + old + copied + new


def test_a_batch_that_was_planned_before_is_told_too(server, tmp_path, copied):
    query = Query(server.url)
    put(server, "old", 50)
    reader = EventStream(ReadOptions(url=server.url, view="events"), SCHEMA)
    query.offset = reader.initialOffset()
    end = reader.latestOffset(query.offset, ReadAllAvailable())
    reader.stop()
    put_back(server, tmp_path)
    for count in (49, 2):
        put(server, f"new{count}", count)
        with pytest.raises(AnotherHistory):
            query.take(reader, end)


def test_an_offset_of_before_says_where_it_is_and_no_more(server):
    ids = put(server, "a", 5)
    query = Query(server.url)
    query.offset = {"position": 2}
    query.step()
    assert query.ids == ids[2:]
    assert query.offset["history"]
    query.offset = {"position": 6}
    with pytest.raises(AnotherHistory, match="the server's end at 5"):
        query.step()


def test_the_audit_fails_or_begins_a_new_table_as_told(spark, server, tmp_path, copied, capfd):
    register(spark)
    wanted = audit.AuditSettings(url=server.url, out=str(tmp_path / "books"), report=False)
    put(server, "old", 50)
    assert audit.run(spark, wanted).startswith("audit: 60 accepted")
    put_back(server, tmp_path)
    put(server, "new", 50)
    argv = ["--url", wanted.url, "--out", wanted.out, "--no-report"]
    for _ in range(2):
        assert main("audit", argv) == 3
        assert "AnotherHistory: " in (err := capfd.readouterr().err)
        assert "--new-table begins a new table" in err
    assert main("audit", [*argv, "--new-table"]) == 0
    put(server, "more", 5)
    assert audit.run(spark, wanted).startswith("audit: 65 accepted")
    ids = {row.id[:3] for row in audit.collected(spark, wanted.out).select("id").collect()}
    assert ids == {"bas", "new", "mor"}
