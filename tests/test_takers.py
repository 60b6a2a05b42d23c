import asyncio
import contextlib
import random
from collections import Counter

import pytest

import dwell
from dwell import Result
from dwell.batch.puts import Puts, uniform
from dwell.message import MAX_BODY_BYTES
from dwell.queue.takers import Take, Wish
from dwell.store.memory import MemoryStore

NOW = 1_700_000_000_000


class SlowStore(MemoryStore):
    """The store in memory, which takes a few turns of the event loop, as one on a disk does."""

    takes = 0

    async def take(self, topics, limit, lease_ms, owner):
        await asyncio.sleep(0)
        batch = await super().take(topics, limit, lease_ms, owner)
        self.takes += 1
        for _ in range(3):
            await asyncio.sleep(0)
        return batch


@contextlib.asynccontextmanager
async def opened(store=None):
    async with dwell.Queue(store or MemoryStore(dwell.SimulatedClock(NOW))) as queue:
        async with asyncio.timeout(60):
            yield queue
        assert queue.waiting == {}
        assert queue._takers._under_way == set()


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def waiting(queue, *args, **kwargs):
    return asyncio.create_task(queue.take(*args, wait="1h", **kwargs))


async def test_a_taker_that_may_not_wait_is_answered_at_once():
    async with opened() as queue:
        assert len(await queue.take("t", 5)) == 0


async def test_a_taker_waits_for_a_put():
    async with opened() as queue:
        taker = waiting(queue, "t")
        await settle()
        await queue.put("t", b"x")
        assert (await taker)[0].body == b"x"


async def test_a_wait_ends_empty():
    clock = dwell.SimulatedClock(NOW)

    async with opened(MemoryStore(clock)) as queue:
        taker = asyncio.create_task(queue.take("t", wait="10s"))
        await settle()
        clock.advance(9_999)
        await settle()
        assert not taker.done()
        clock.advance(1)
        assert len(await taker) == 0
        await queue.put("t", b"x")
        assert len(await queue.take("t")) == 1


async def test_the_oldest_taker_is_served_first():
    async with opened() as queue:
        takers = []
        for _ in range(4):
            takers.append(waiting(queue, "t"))
            await settle()
        for n in range(3):
            await queue.put("t", str(n))
            await settle()
        assert [taker.done() for taker in takers] == [True, True, True, False]
        assert [int(taker.result()[0].body) for taker in takers[:3]] == [0, 1, 2]
        await queue.put("t", b"3")
        assert (await takers[3])[0].body == b"3"


async def test_a_taker_woken_for_nothing_keeps_its_place():
    async with opened() as queue:
        first = waiting(queue, "t")
        await settle()
        second = waiting(queue, "t")
        await settle()
        queue.store.wake("t", 2)
        await settle()
        await queue.put("t", b"x")
        assert len(await first) == 1
        await queue.put("t", b"y")
        assert len(await second) == 1


async def test_only_takers_of_the_topic_are_woken():
    asked = []

    class Noting(MemoryStore):
        async def take(self, topics, limit, lease_ms, owner):
            asked.append(topics)
            return await super().take(topics, limit, lease_ms, owner)

    async with opened(Noting(dwell.SimulatedClock(NOW))) as queue:
        takers = [waiting(queue, topic) for topic in ("a", "b", ("a", "b"))]
        await settle()
        asked.clear()
        await queue.put("b", b"x")
        await settle()
        assert asked == [("b",)]
        await queue.put_many("a", [b"", b""])
        await settle()
        assert Counter(asked) == {("b",): 1, ("a",): 1, ("a", "b"): 1}
        await asyncio.gather(*takers)


async def test_as_many_are_woken_as_their_limits_need():
    async with opened() as queue:
        takers = [waiting(queue, "t", limit) for limit in (3, 1, 1)]
        await settle()
        await queue.put_many("t", [b""] * 4)
        await settle()
        assert [taker.done() for taker in takers] == [True, True, False]
        await queue.put("t", b"")
        assert [len(await taker) for taker in takers] == [3, 1, 1]


async def test_no_more_are_woken_than_needed():
    asked = []

    class Noting(MemoryStore):
        async def take(self, topics, limit, lease_ms, owner):
            asked.append(limit)
            return await super().take(topics, limit, lease_ms, owner)

    async with opened(Noting(dwell.SimulatedClock(NOW))) as queue:
        takers = [waiting(queue, "t", limit) for limit in (10, 2, 2)]
        await settle()
        asked.clear()
        await queue.put_many("t", [b""] * 5)
        await settle()
        assert asked == [10]
        await queue.put_many("t", [b""] * 4)
        await settle()
        assert asked == [10, 4]
        await asyncio.gather(*takers)


async def test_a_cancelled_taker_passes_its_wake_on():
    async with opened() as queue:
        first, second = waiting(queue, "t"), waiting(queue, "t")
        await settle()
        put = asyncio.create_task(queue.put("t", b"x"))
        while queue.waiting["t"] == 2:
            await asyncio.sleep(0)
        # The first was woken and is about to ask; it goes before it does.
        first.cancel()
        assert (await second)[0].body == b"x"
        assert first.cancelled()
        await put


async def test_what_a_cancelled_taker_had_taken_is_given_back():
    async with opened(SlowStore(dwell.SimulatedClock(NOW))) as queue:
        await queue.put("t", b"x")
        taker = waiting(queue, "t")
        while not (await queue.stats()).topics["t"].leased:
            await asyncio.sleep(0)
        taker.cancel()
        (message,) = await queue.take("t", wait="1h")
        assert message.attempt == 1
        await asyncio.wait([taker])


async def test_a_put_while_a_take_is_under_way_is_not_missed():
    def queue_puts():
        return Puts(
            topic="t",
            bodies=[b"x"],
            due_ms=uniform(NOW, 1, "int64"),
            priority=uniform(1, 1, "uint32"),
            lease_ms=uniform(0, 1, "uint32"),
            max_attempts=uniform(0, 1, "uint16"),
            expires_ms=uniform(0, 1, "int64"),
        )

    async with opened(SlowStore(dwell.SimulatedClock(NOW))) as queue:
        taker = waiting(queue, "t")
        while not queue.store.takes:
            await asyncio.sleep(0)
        # The store has answered that there is nothing, and the taker does not know it yet.
        await queue.store.put(queue_puts(), "keep")
        assert len(await taker) == 1


async def test_a_taker_of_two_topics_leaves_no_other_asleep():
    async with opened() as queue:
        both = waiting(queue, ["a", "b"])
        await settle()
        only = waiting(queue, "b")
        await settle()
        # The wake of b goes to the one that waits longest, which then finds something on a.
        await asyncio.gather(queue.put("b", b"b"), queue.put("a", b"a"))
        assert (await both)[0].topic == "a"
        assert (await only)[0].topic == "b"


async def test_unpausing_wakes():
    async with opened() as queue:
        await queue.configure("t", paused=True)
        await queue.put("t", b"x")
        taker = waiting(queue, "t")
        await settle()
        assert not taker.done()
        await queue.configure("t", paused=False)
        assert len(await taker) == 1


async def test_close_ends_every_wait():
    queue = dwell.Queue(SlowStore(dwell.SimulatedClock(NOW)))
    await queue.open()
    takers = [waiting(queue, "t") for _ in range(3)]
    await settle()
    takers.append(waiting(queue, "t"))
    for _ in range(3):
        await asyncio.sleep(0)
    await queue.close()
    answers = await asyncio.gather(*takers, return_exceptions=True)
    assert [type(answer) for answer in answers] == [dwell.StoreClosed] * 4


async def test_a_store_that_cannot_tick_tells_the_takers():
    class Failing(MemoryStore):
        is_broken = False

        async def tick(self, now_ms):
            if self.is_broken:
                raise dwell.StoreFailed("fsync failed")
            return await super().tick(now_ms)

    store = Failing(dwell.SimulatedClock(NOW))

    async with opened(store) as queue:
        taker = waiting(queue, "t")
        await settle()
        store.is_broken = True
        await queue.put("other", b"", delay=5)
        with pytest.raises(dwell.StoreFailed):
            await taker
        store.is_broken = False


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(8))
async def test_no_wake_is_lost(seed):
    """Takers come, wait, give up and are cancelled; in the end each message was taken once."""
    rng = random.Random(seed)
    clock = dwell.SimulatedClock(NOW)
    count, taken = 400, Counter()

    async def take(queue):
        topics = rng.choice(["a", "b", ["a", "b"], ["b", "a"]])
        wait = rng.choice([0, 0.001, "1h", "1h"])
        batch = await queue.take(topics, rng.randint(1, 3), wait=wait)
        taken.update(message.body for message in batch)
        assert (await queue.ack(batch)).count(Result.ACKED) == len(batch)

    async def put(queue):
        for n in range(count):
            delay = rng.choice([0, 0, 0.001, 0.002])
            await queue.put(rng.choice("ab"), str(n), delay=delay)
            if rng.random() < 0.3:
                clock.advance(1)

    async def end(takers):
        for taker in takers:
            taker.cancel()
        if takers:
            await asyncio.wait(takers)
        await settle()

    async with opened(SlowStore(clock) if seed % 2 else MemoryStore(clock)) as queue:
        takers = set()
        putter = asyncio.create_task(put(queue))
        while not putter.done() or sum(taken.values()) < count:
            while len(takers) < 30:
                takers.add(asyncio.create_task(take(queue)))
            for taker in takers:
                if rng.random() < 0.05:
                    taker.cancel()
            await asyncio.sleep(0)
            if putter.done():
                clock.advance(1)
            done = {taker for taker in takers if taker.done()}
            takers -= done
            for taker in done:
                assert taker.cancelled() or taker.exception() is None
        await end(takers)
        assert len(taken) == count
        assert set(taken.values()) == {1}


@pytest.mark.parametrize("seed", range(10))
async def test_no_taker_sleeps_while_there_is_something(seed):
    rng = random.Random(seed)

    async with opened(SlowStore(dwell.SimulatedClock(NOW))) as queue:
        takers = []
        for n in range(40):
            takers.append(waiting(queue, rng.choice(["a", ["a", "b"], ["b", "a"], "b"])))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            await queue.put(rng.choice("ab"), str(n))
        await settle()
        topics = (await queue.stats()).topics
        assert [topics[topic].ready for topic in queue.waiting] in ([], [0], [0, 0])
        for taker in takers:
            taker.cancel()
        await asyncio.wait(takers)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("sync", ["always", "never"])
async def test_no_wake_is_lost_on_a_disk(tmp_path, sync):
    """The same on the real clock and a real disk, where answers come when they come."""
    rng = random.Random(sync)
    count, taken, acking = 400, Counter(), set()

    async def take(queue):
        topics = rng.choice(["a", "b", ["a", "b"], ["b", "a"]])
        wait = rng.choice([0, 0.01, "1h", "1h"])
        batch = await queue.take(topics, rng.randint(1, 3), wait=wait)
        acking.add(asyncio.current_task())
        taken.update(message.body for message in batch)
        assert (await queue.ack(batch)).count(Result.ACKED) == len(batch)

    async def put(queue):
        for n in range(count):
            await queue.put(rng.choice("ab"), str(n), delay=rng.choice([0, 0, 0.001, 0.02]))

    async with dwell.open(tmp_path / "queue", sync=sync) as queue:
        takers = set()
        putter = asyncio.create_task(put(queue))
        while not putter.done() or sum(taken.values()) < count:
            takers |= {asyncio.create_task(take(queue)) for _ in range(30 - len(takers))}
            for taker in takers - acking:
                if rng.random() < 0.03:
                    taker.cancel()
            await asyncio.sleep(0.002)
            for taker in [taker for taker in takers if taker.done()]:
                takers.remove(taker)
                assert taker.cancelled() or taker.exception() is None
        for taker in takers:
            taker.cancel()
        await asyncio.wait(takers)
    assert len(taken) == count
    assert set(taken.values()) == {1}


async def put_large(queue, count, **how):
    for _ in range(count // 10):
        await queue.put_many("t", [bytes(MAX_BODY_BYTES)] * 10, **how)


async def test_who_was_not_served_for_the_size_of_an_answer_asks_again():
    async with opened() as queue:
        await put_large(queue, 40)
        batches = await asyncio.gather(*(queue.take("t", 10) for _ in range(4)))
        assert [len(batch) for batch in batches] == [10, 6, 10, 6]


async def test_what_an_answer_has_no_room_for_wakes_others():
    clock = dwell.SimulatedClock(NOW)

    async with opened(MemoryStore(clock)) as queue:
        await put_large(queue, 20, delay="10s")
        parked = [waiting(queue, "t", 100, lease=lease) for lease in (30, 60)]
        await settle()
        clock.advance(10_000)
        batches = await asyncio.gather(*parked)
        assert sum(map(len, batches)) == 20
        assert min(map(len, batches)) > 0


async def test_what_falls_due_as_a_wait_ends_is_taken():
    clock = dwell.SimulatedClock()
    async with dwell.Queue(MemoryStore(clock)) as queue, asyncio.timeout(60):
        for _ in range(5):
            taking = asyncio.ensure_future(queue.take("t", wait=1))
            while not queue.waiting:
                await asyncio.sleep(0)
            await queue.put("t", b"x", delay=1)
            clock.advance(1000)
            assert len(await taking) == 1


class Name(str):
    """Counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_a_wake_does_not_look_through_many_topics():
    topics = tuple(Name(f"t{number}") for number in range(10_000))
    take = Take(Wish(topics, 1000, ""), [])
    Name.compared = 0
    assert "u" not in take.topics
    assert "t9999" in take.topics
    assert Name.compared < 10
