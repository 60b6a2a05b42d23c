import asyncio
import contextlib
from collections import Counter

import pytest

import dwell
from dwell import Result
from dwell.queue.turns import ENOUGH
from dwell.store.memory import MemoryStore

NOW = 1_700_000_000_000


class CountingStore(MemoryStore):
    """The store in memory, which also notes how large the batches are that it gets."""

    def __init__(self):
        super().__init__(dwell.SimulatedClock(NOW))
        self.sizes = []

    async def put(self, puts, on_conflict):
        self.sizes.append(("put", puts.topic, len(puts)))
        return await super().put(puts, on_conflict)

    async def take(self, topics, limit, lease_ms, owner):
        self.sizes.append(("take", topics, limit))
        return await super().take(topics, limit, lease_ms, owner)

    async def ack(self, receipts):
        self.sizes.append(("ack", None, len(receipts)))
        return await super().ack(receipts)

    async def cancel(self, topic, ids):
        self.sizes.append(("cancel", topic, len(ids)))
        return await super().cancel(topic, ids)


@contextlib.asynccontextmanager
async def opened():
    store = CountingStore()
    async with dwell.Queue(store) as queue, asyncio.timeout(60):
        yield queue, store


async def test_calls_of_one_turn_are_one_batch():
    async with opened() as (queue, store):
        puts = await asyncio.gather(*(queue.put("t", str(n), id=f"i{n}") for n in range(50)))
        assert [put.id for put in puts] == [f"i{n}" for n in range(50)]
        batches = await asyncio.gather(*(queue.take("t") for _ in range(30)))
        assert sorted(int(b[0].id[1:]) for b in batches) == list(range(30))
        results = await asyncio.gather(*(queue.ack(batch[0]) for batch in batches))
        assert results == [Result.ACKED] * 30
        answers = await asyncio.gather(*(queue.cancel("t", f"i{n}") for n in range(29, 32)))
        assert answers == [Result.UNKNOWN, Result.CANCELLED, Result.CANCELLED]
        assert store.sizes == [
            ("put", "t", 50),
            ("take", ("t",), 30),
            ("ack", None, 30),
            ("cancel", "t", 3),
        ]


async def test_different_topics_and_conflicts_are_different_batches():
    async with opened() as (queue, store):
        await asyncio.gather(
            queue.put("a", b"", id="1"),
            queue.put("b", b"", id="1"),
            queue.put("a", b"", id="2", on_conflict="replace"),
            queue.put("a", b"", id="3"),
            queue.put("a", b""),
        )
        assert Counter(store.sizes) == {
            ("put", "a", 2): 1,
            ("put", "b", 1): 1,
            ("put", "a", 1): 2,
        }


async def test_each_gets_its_own_share_of_a_take():
    async with opened() as (queue, _store):
        await queue.put_many("t", [str(n) for n in range(7)])
        batches = await asyncio.gather(*(queue.take("t", n) for n in (2, 3, 4, 5)))
        assert [[int(m.body) for m in batch] for batch in batches] == [
            [0, 1],
            [2, 3, 4],
            [5, 6],
            [],
        ]


async def test_an_id_that_exists_hits_only_its_own_caller():
    async with opened() as (queue, _store):
        await queue.put("t", b"", id="b")
        answers = await asyncio.gather(
            *(queue.put("t", b"", id=id_, on_conflict="error") for id_ in "abcc"),
            return_exceptions=True,
        )
        assert [getattr(answer, "result", type(answer)) for answer in answers] == [
            Result.CREATED,
            dwell.IdExists,
            Result.CREATED,
            dwell.IdExists,
        ]


async def test_a_full_topic_refuses_only_what_is_too_much():
    async with opened() as (queue, _store):
        await queue.configure("t", max_pending=2)
        answers = await asyncio.gather(
            *(queue.put("t", b"") for _ in range(4)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [dwell.Put] * 2 + [dwell.TopicFull] * 2


async def test_bad_input_hits_only_its_own_caller():
    async with opened() as (queue, store):
        answers = await asyncio.gather(
            queue.put("t", b"", id="a"),
            queue.put("t", b"", id=""),
            queue.put("t", b"", id="b"),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [dwell.Put, dwell.InvalidId, dwell.Put]
        assert ("put", "t", 2) in store.sizes


async def test_a_caller_cancelled_before_the_batch_is_left_out():
    async with opened() as (queue, store):
        calls = [asyncio.create_task(queue.put("t", b"", id=f"i{n}")) for n in range(3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.wait(calls)
        assert store.sizes == [("put", "t", 2)]
        known = await queue.get("t", ["i0", "i1", "i2"])
        assert [message is not None for message in known] == [True, False, True]


async def test_everybody_gets_an_error_of_the_store():
    class Broken(CountingStore):
        async def ack(self, receipts):
            raise dwell.DiskFull("no room")

    async with dwell.Queue(Broken()) as queue:
        receipt = f"{queue.store.number:08x}" + "0" * 24
        answers = await asyncio.gather(
            *(queue.ack(receipt) for _ in range(3)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [dwell.DiskFull] * 3
        assert len(set(map(id, answers))) == 3


async def test_an_error_that_cannot_be_copied_reaches_everybody_all_the_same(monkeypatch):
    class Odd(Exception):
        def __init__(self, *, where):
            super().__init__(where)

    async def broken(*_, **__):
        raise Odd(where="here")

    async with dwell.open("memory:") as queue:
        for verb in ("put", "take"):
            monkeypatch.setattr(queue.store, verb, broken)
        calls = [*(queue.put("t", "x") for _ in range(3)), *(queue.take("t") for _ in range(3))]
        found = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        assert [type(error) for error in found] == [Odd] * 6


async def test_more_than_a_batch_holds_becomes_several():
    async with opened() as (queue, store):
        await asyncio.gather(*(queue.put("t", b"x" * 1_048_576) for _ in range(20)))
        assert sorted(store.sizes) == [("put", "t", 4), ("put", "t", 16)]
        store.sizes.clear()
        await asyncio.gather(*(queue.cancel("t", "none") for _ in range(10_005)))
        assert sorted(store.sizes) == [("cancel", "t", 5), ("cancel", "t", 10_000)]


@pytest.mark.parametrize("count", [1, 64])
async def test_whole_lives_from_many_coroutines(count):
    async with opened() as (queue, _store):

        async def live():
            for _ in range(20):
                await queue.put("t", b"x")
                (message,) = await queue.take("t", wait=5)
                assert await queue.ack(message) is Result.ACKED

        await asyncio.gather(*(live() for _ in range(count)))
        totals = (await queue.stats()).totals
        assert totals["put"] == totals["take"] == totals["ack"] == count * 20


async def test_who_is_refused_costs_the_others_little():
    async with opened() as (queue, store):
        await queue.put("t", "old", id="i500")
        store.sizes.clear()
        puts = (queue.put("t", "x", id=f"i{n}", on_conflict="error") for n in range(1_000))
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert [n for n, one in enumerate(answers) if isinstance(one, dwell.IdExists)] == [500]
        assert len(store.sizes) < 30


class SlowStore(CountingStore):
    """One whose calls end when the test lets them, and of which one is under way at a time."""

    most_small = 1

    def __init__(self):
        super().__init__()
        self.gate = asyncio.Event()

    async def put(self, puts, on_conflict):
        answer = await super().put(puts, on_conflict)
        await self.gate.wait()
        return answer

    async def take(self, topics, limit, lease_ms, owner):
        batch = await super().take(topics, limit, lease_ms, owner)
        await self.gate.wait()
        return batch


@contextlib.asynccontextmanager
async def slowly():
    store = SlowStore()
    async with dwell.Queue(store) as queue, asyncio.timeout(60):
        store.gate.set()
        await queue.put_many("t", ["x"] * 1000)
        store.gate.clear()
        store.sizes.clear()
        try:
            yield queue, store
        finally:
            store.gate.set()


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_small_calls_gather_while_one_is_under_way():
    async with slowly() as (queue, store):
        calls = [asyncio.ensure_future(queue.put("t", "first"))]
        await turns()
        for _ in range(10):
            calls += [asyncio.ensure_future(queue.put("t", "x"))]
            calls += [asyncio.ensure_future(queue.take("t"))]
            await turns()
        assert store.sizes == [("put", "t", 1)]
        store.gate.set()
        await asyncio.gather(*calls)
        assert sorted(store.sizes[1:]) == [("put", "t", 10), ("take", ("t",), 10)]


async def test_calls_of_one_turn_begin_together():
    async with slowly() as (queue, store):
        calls = [asyncio.ensure_future(queue.put(f"t{n}", "x")) for n in range(3)]
        calls += [asyncio.ensure_future(queue.take("t"))]
        await turns()
        assert len(store.sizes) == 4
        store.gate.set()
        await asyncio.gather(*calls)


async def test_a_call_that_has_become_large_waits_for_nobody():
    async with slowly() as (queue, store):
        calls = [asyncio.ensure_future(queue.put("t", "first"))]
        await turns()
        calls += [asyncio.ensure_future(queue.put("t", "x")) for _ in range(ENOUGH - 1)]
        calls += [asyncio.ensure_future(queue.take("t")) for _ in range(ENOUGH - 1)]
        await turns()
        assert len(store.sizes) == 1
        calls += [
            asyncio.ensure_future(queue.put("t", "x")),
            asyncio.ensure_future(queue.take("t")),
        ]
        await turns()
        assert store.sizes[1:] == [("put", "t", ENOUGH), ("take", ("t",), ENOUGH)]
        many = asyncio.ensure_future(queue.put_many("t", ["x"] * ENOUGH))
        await turns()
        assert store.sizes[3:] == [("put", "t", ENOUGH)]
        store.gate.set()
        await asyncio.gather(many, *calls)


async def test_a_call_that_fails_or_is_given_up_ends_its_turn():
    async with slowly() as (queue, store):
        first = asyncio.ensure_future(queue.put("t", "first"))
        await turns()
        second = asyncio.ensure_future(queue.put("t", "second"))
        third = asyncio.ensure_future(queue.take("t"))
        await turns()
        second.cancel()
        third.cancel()
        await turns()
        first.cancel()
        store.gate.set()
        assert len(await queue.take("t", 2000)) == 1001
