"""Topics that drop what is dead for long, and topics that are deleted."""

import asyncio
import contextlib
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.clock import SimulatedClock
from dwell.errors import InvalidSettings, StoreFailed
from dwell.message import State
from dwell.queue import retention
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.store.redis import RedisStore
from dwell.testing.faults import FaultyDisk
from tests.redis.servers import redis_server
from tests.waiting import until_async

LOOK_MS = retention._LOOK_MS


def folder_on(disk: FaultyDisk) -> dwell.Queue:
    return dwell.Queue(EmbeddedStore("/store", clock=SimulatedClock(), disk=disk))


@pytest.fixture(params=["memory", "folder", "redis", "redis, 3 shards"])
async def queue(request, monkeypatch):
    clock = SimulatedClock()
    with contextlib.ExitStack() as stack:
        if request.param == "memory":
            store = MemoryStore(clock)
        elif request.param == "folder":
            store = EmbeddedStore("/store", clock=clock, disk=FaultyDisk())
        else:
            server = stack.enter_context(redis_server())
            shards = {"shards": 3} if "shards" in request.param else {}
            store = RedisStore(server.url, clock=clock, **shards)
        # Several reads are needed even for a few messages.
        monkeypatch.setattr(retention, "_LIMIT", 3)
        async with dwell.Queue(store) as opened:
            yield opened


async def bury(queue, *ids, topic="t"):
    await queue.put_many(topic, [b"x"] * len(ids), ids=list(ids))
    batch = await queue.take(topic, len(ids))
    assert len(batch) == len(ids)
    await queue.bury(batch)


async def left(queue, topic="t"):
    return {id_ async for page in queue.pages(topic, "dead") for id_ in page.ids}


async def look(queue):
    """Let the queue look once, at the present time."""
    await queue._retention._look()


async def test_dead_messages_are_kept_so_long(queue):
    await queue.configure("t", keep_dead_ms="1h")
    await bury(queue, *"abcd")
    await bury(queue, "other", topic="u")
    await queue.put("t", b"x", id="waits", delay="1d")
    clock = queue.store.clock
    clock.advance(1_800_000)
    await bury(queue, "late")
    clock.advance(1_799_999)
    await look(queue)
    assert await left(queue) == {*"abcd", "late"}
    # A topic is looked through once in a hundredth of its span.
    clock.advance(36_000)
    await look(queue)
    assert await left(queue) == {"late"}
    # A message that comes back and dies again is kept from then on.
    assert await queue.kick("t", ["late"]) == [dwell.Result.KICKED]
    await queue.bury(await queue.take("t"))
    clock.advance(1_800_000)
    await look(queue)
    assert await left(queue) == {"late"}
    clock.advance(1_800_000)
    await look(queue)
    assert await left(queue) == set()
    assert await left(queue, "u") == {"other"}
    assert (await queue.get("t", "waits")).state is State.DELAYED
    cancelled = [e.id for e in (await queue.events(0, 100)).events if str(e.kind) == "cancel"]
    assert sorted(cancelled) == [*"abcd", "late"]


async def test_a_queue_looks_by_itself(queue, caplog):
    caplog.set_level(logging.INFO, retention.__name__)
    await queue.configure("t", keep_dead_ms=5_000)
    await bury(queue, "a")

    def is_told():
        queue.store.clock.advance(LOOK_MS)
        return "cancelled 1 dead messages of 't', kept for 5000 ms" in caplog.text

    await until_async(is_told)
    assert await left(queue) == set()


async def test_a_setting_counts_for_messages_that_are_dead(queue):
    await bury(queue, "a")
    queue.store.clock.advance(60_000)
    await look(queue)
    assert await left(queue) == {"a"}
    await queue.configure("t", keep_dead_ms=600_000)
    await look(queue)
    assert await left(queue) == {"a"}
    await queue.configure("t", keep_dead_ms=60_000)
    await look(queue)
    assert await left(queue) == set()
    await bury(queue, "b")
    await queue.configure("t", keep_dead_ms=0)
    queue.store.clock.advance(10**12)
    await look(queue)
    assert await left(queue) == {"b"}


async def test_a_message_that_is_kicked_during_a_look_stays(queue, monkeypatch):
    await queue.configure("t", keep_dead_ms=1_000)
    await bury(queue, "a", "b")
    queue.store.clock.advance(1_000)
    scan = queue.store.scan

    async def scanned(*given):
        found = await scan(*given)
        await queue.kick("t", ["a"])
        return found

    monkeypatch.setattr(queue.store, "scan", scanned)
    await look(queue)
    assert (await queue.get("t", "a")).state is State.READY
    assert await queue.get("t", "b") is None


async def test_it_looks_again_after_an_error(queue, caplog, monkeypatch):
    await queue.configure("t", keep_dead_ms=1_000)
    await bury(queue, "a")
    look_, failures = queue.store.dead_retentions, [StoreFailed("no")] * 3

    async def looked():
        if failures:
            raise failures.pop()
        return await look_()

    monkeypatch.setattr(queue.store, "dead_retentions", looked)

    async def is_gone():
        queue.store.clock.advance(LOOK_MS)
        return not await left(queue)

    await until_async(is_gone)
    assert caplog.text.count("could not cancel dead messages") == 1


async def test_after_a_clock_went_back_it_looks_by_the_new_time(queue):
    clock = queue.store.clock
    await queue.configure("t", keep_dead_ms=1_000)
    clock.advance(10**9)
    await look(queue)
    clock.advance(-(10**9))
    await bury(queue, "a")
    clock.advance(1_000)
    await look(queue)
    assert await left(queue) == set()


async def test_a_topic_is_read_only_when_a_message_may_be_over(queue, monkeypatch):
    await queue.configure("t", keep_dead_ms=100_000)
    await bury(queue, *"abcdefgh")
    scan, reads = queue.store.scan, []

    async def scanned(*given):
        reads.append(given)
        return await scan(*given)

    monkeypatch.setattr(queue.store, "scan", scanned)
    for _ in range(101):
        await look(queue)
        queue.store.clock.advance(1_000)
    # Once at the start and once when they are over, and the queue may look by itself meanwhile.
    assert sum(after is None for _, _, after, _ in reads) <= 3
    assert await left(queue) == set()


@given(
    keep_ms=st.integers(1, 2_000),
    deaths=st.lists(st.integers(0, 3_000), min_size=1, max_size=8),
    at_ms=st.integers(0, 5_000),
)
@settings(max_examples=60, deadline=None)
def test_exactly_those_that_are_over_are_cancelled(keep_ms, deaths, at_ms):
    async def run():
        async with dwell.Queue(MemoryStore(SimulatedClock())) as queue:
            clock = queue.store.clock
            start_ms = clock.now_ms()
            await queue.configure("t", keep_dead_ms=keep_ms)
            await queue.put_many("t", [b"x"] * len(deaths))
            batch = await queue.take("t", len(deaths), lease="1h")
            ids = list(batch.ids)
            for message, after_ms in zip(batch, sorted(deaths), strict=True):
                clock.advance(start_ms + after_ms - clock.now_ms())
                await queue.bury(message)
            clock.advance(at_ms)
            await look(queue)
            now_ms = clock.now_ms() - start_ms
            died = zip(ids, sorted(deaths), strict=True)
            assert await left(queue) == {id_ for id_, at in died if at + keep_ms > now_ms}

    asyncio.run(run())


async def test_a_span_that_is_none_is_refused(queue):
    for value in (-1, "soon", True, 1.5):
        with pytest.raises(InvalidSettings, match="keep_dead_ms"):
            await queue.configure("t", keep_dead_ms=value)


async def test_only_topics_with_dead_messages_are_read(queue, monkeypatch):
    for number in range(5):
        await queue.configure(f"idle-{number}", keep_dead_ms=1_000)
    await queue.configure("t", keep_dead_ms=1_000)
    await queue.put_many("idle-0", [b"x"] * 10)
    await bury(queue, "a")
    scan, reads = queue.store.scan, []

    async def scanned(topic, *given):
        reads.append(topic)
        return await scan(topic, *given)

    monkeypatch.setattr(queue.store, "scan", scanned)
    for _ in range(3):
        queue.store.clock.advance(LOOK_MS)
        await look(queue)
    assert set(reads) == {"t"}
    assert await left(queue) == set()


async def test_a_message_whose_death_is_unknown_is_kept_from_the_start_on():
    disk, clock = FaultyDisk(), SimulatedClock()
    async with dwell.Queue(EmbeddedStore("/store", clock=clock, disk=disk)) as queue:
        await queue.configure("t", keep_dead_ms=60_000)
        await bury(queue, "a")
        table = queue.store.core.machine.table
        # As in a folder of format 1 or 2.
        table.lease_until_ms[: table.top] = 0
        clock.advance(30_000)
        await look(queue)
        assert await left(queue) == {"a"}
        clock.advance(31_000)
        await look(queue)
        assert await left(queue) == set()


# --- deleted topics -------------------------------------------------------------------------------


async def test_a_deleted_topic_is_new(queue):
    await queue.configure("t", lease_ms=5_000, ordered=True, keep_dead_ms=1_000, paused=True)
    await queue.put_many("t", [b"x"] * 5, delay="1h")
    assert await queue.delete_topic("t") == 5
    assert await queue.settings("t") == dwell.TopicSettings()

    async def is_gone():
        queue.store.clock.advance(1_000)
        await queue.store.tick(queue.store.clock.now_ms())
        return "t" not in (await queue.stats()).topics

    await until_async(is_gone)
    await queue.put("t", b"again", key="k")
    await queue.put("t", b"and again", key="k")
    assert len(await queue.take("t", 2)) == 2


async def test_leased_messages_of_a_deleted_topic_stay(queue):
    await queue.configure("t", max_attempts=3)
    await queue.put_many("t", [b"x"] * 3)
    (held,) = await queue.take("t", lease="1h")
    assert await queue.delete_topic("t") == 2
    assert (await queue.stats()).topics["t"].leased == 1
    assert await queue.ack(held) is dwell.Result.ACKED
    assert await queue.delete_topic("t") == 0


async def test_remembered_ids_outlive_their_topic(queue):
    await queue.configure("t", max_attempts=3)
    await queue.put("t", b"x", id="a")
    await queue.ack(await queue.take("t"))
    await queue.delete_topic("t")
    assert (await queue.put("t", b"x", id="a")).result is dwell.Result.KEPT


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_deleted_topic_stays_deleted_after_a_restart(is_killed):
    disk = FaultyDisk()
    async with folder_on(disk) as queue:
        await queue.configure("t", lease_ms=5_000, ordered=True)
        await queue.configure("other", lease_ms=5_000)
        await queue.put("t", b"x", id="a")
        await queue.delete_topic("t")
        assert set((await queue.stats()).topics) == {"other"}
        left = disk.copied()
    disk = left if is_killed else disk
    async with folder_on(disk) as queue:
        assert set((await queue.stats()).topics) == {"other"}
        await queue.configure("new", lease_ms=7_000)
        await queue.put("new", b"x")
        assert (await queue.settings("other")).lease_ms == 5_000
        named = [(e.topic, str(e.kind)) for e in (await queue.events(0, 100)).events]
        assert named == [("t", "put"), ("t", "cancel"), ("new", "put")]
        await queue.delete_topic("other")
        await queue.store.compact()
    async with folder_on(disk) as queue:
        assert set((await queue.stats()).topics) == {"new"}
        assert (await queue.settings("new")).lease_ms == 7_000
