"""The data source over a store on Redis, without a server of ours between."""

import asyncio
import threading
from collections import Counter

import pytest

import dwell
from dwell.message import Kind
from dwell.spark import register
from dwell.spark.pipelines import audit
from dwell.spark.pipelines.audit import AuditSettings
from dwell.spark.pipelines.closing import closing
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


# --- the audit of a store in use ------------------------------------------------------------------

#: Shards, and topics: counts of shards, and of every 200 topics, are of different moments.
PARTS = {"shards": (3, 40), "topics": (1, 1_000)}


@pytest.fixture
def in_use(request, url):
    """The address of a store whose messages move while the test runs."""
    shards, count = PARTS[request.param]
    address = f"{url}?prefix=used{shards}&shards={shards}&max_events=2000000&timeout=60"
    topics = [f"t{at}" for at in range(count)]
    stopping = threading.Event()

    async def use(queue):
        for at in range(count * 1_000):
            if stopping.is_set():
                return
            some = [topics[(at * 13 + step) % count] for step in range(6)]
            await asyncio.gather(*(queue.put(one, b"", delay=(at % 2) * 60) for one in some))
            taken = await queue.take(some, 3)
            if len(taken):
                await queue.ack(taken)
            await asyncio.sleep(0.005)

    async def main():
        async with dwell.open(address) as queue:
            await asyncio.gather(*(queue.put(topic, b"", delay="1h") for topic in topics))
            is_ready.set()
            await asyncio.gather(*(use(queue) for _ in range(3)))

    is_ready = threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert is_ready.wait(PATIENCE_S)
        yield address
    finally:
        stopping.set()
        thread.join()


@pytest.mark.parametrize("in_use", PARTS, indirect=True)
def test_what_a_store_in_use_counts_differs_by_what_happened_meanwhile(in_use):
    for _ in range(4):
        end = closing(in_use)
        pending, totals = Counter(), Counter()
        with dwell.open(in_use) as queue:
            at = 0
            while at < end.position:
                page = queue.events(at, min(end.position - at, 10_000))
                at = page.next_position
                for event in page.events:
                    totals[str(event.kind)] += 1
                    pending[event.topic] += {Kind.PUT: 1, Kind.ACK: -1}.get(event.kind, 0)
        for word in map(str, Kind):
            differs = abs(totals[word] - end.totals.get(word, 0))
            assert differs <= end.meanwhile.kinds.get(word, 0)
        for topic in pending.keys() | end.pending.keys():
            differs = abs(pending[topic] - end.pending.get(topic, 0))
            assert differs <= end.meanwhile.topics.get(topic, 0)


@pytest.mark.parametrize(
    "in_use", ["shards", pytest.param("topics", marks=pytest.mark.campaign)], indirect=True
)
def test_the_audit_of_a_store_in_use_balances(spark, in_use, tmp_path):
    register(spark)
    settings = AuditSettings(url=in_use, out=str(tmp_path / "books"), report=False)
    assert "lost 0, early 0, doubled 0" in audit.run(spark, settings)
