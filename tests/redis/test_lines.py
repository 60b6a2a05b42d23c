"""Ordered topics whose messages lie in blocks: lines, against the store that has no blocks."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import redis

from dwell.clock import SimulatedClock
from dwell.store.memory import MemoryStore
from dwell.store.redis import taking
from dwell.store.redis.limits import Limits
from dwell.testing.model import Entry
from dwell.testing.rig import Rig, receipts_of
from tests import RUNS
from tests.redis.test_redis_suite import new_store

_STEPS = 120
_LEASE_MS = 50


class _Both:
    """One course of verbs on two stores, whose answers are the same."""

    def __init__(self, rigs: list[Rig], clock: SimulatedClock, seed: int) -> None:
        self._rigs = rigs
        self._clock = clock
        self._chance = random.Random(seed)
        self._keys = [f"k{at}" for at in range(self._chance.choice((1, 3, 20, 200)))] + [None]
        #: Whether each put has the keys in the same order, and none without.
        self._is_in_turns = self._chance.random() < 0.4
        self._most = self._chance.choice((3, 12, 70, 200))
        self._sometimes = self._chance.choice((0, 0.02, 0.2))
        self._names = (f"{at:05d}" for at in itertools.count())
        self._ids: list[str] = []
        #: Of each message that was taken its receipt by each store.
        self.held: dict[str, list] = {}

    async def same(self, verb, *args, **values):
        """Let both do something, and return what they say."""
        said = [await getattr(rig, verb)(*args, **values) for rig in self._rigs]
        assert said[0] == said[1], verb
        return said[0]

    async def step(self) -> None:
        """Do one thing, and compare."""
        verbs = [self.put] * 3 + [self.take] * 3 + [self.ack] * 3 + [self.wait]
        if self._chance.random() < self._sometimes:
            verbs = [
                self.give_back,
                self.cancel,
                self.move,
                self.replace,
                self.take_by_id,
                self.peek,
                self.change,
            ]
        await self._chance.choice(verbs)()
        counts = [await self._counts(rig) for rig in self._rigs]
        assert counts[0] == counts[1]
        if self._chance.random() < 0.1:
            assert await self._rigs[1].store.find_stale() == []

    async def _counts(self, rig: Rig) -> tuple[int, ...]:
        of = (await rig.store.stats()).topics.get("t")
        return (of.delayed, of.ready, of.leased, of.dead) if of else (0, 0, 0, 0)

    async def put(self) -> None:
        number = self._chance.randrange(1, self._most)
        # As when those who put have clocks that differ.
        delay_ms = self._chance.choice((0, 0, 0, 0, -1, -5, 7))
        is_odd = self._chance.random() < self._sometimes
        entries = [self._entry(at, delay_ms, is_odd) for at in range(number)]
        # More of one put would count as having arrived in the order of their dues.
        if number < 64 and self._chance.random() < self._sometimes:
            dues_ms = [entry.due_ms - self._chance.choice((0, 1, 5)) for entry in entries]
            pairs = zip(entries, dues_ms, strict=True)
            entries = [replace(entry, due_ms=due_ms) for entry, due_ms in pairs]
        await self.same("put_entries", entries)
        self._ids += [entry.id for entry in entries]

    def _entry(self, at: int, delay_ms: int, is_odd: bool) -> Entry:
        keys = self._keys[at % (len(self._keys) - 1) :][:1] if self._is_in_turns else self._keys
        values = {"key": self._chance.choice(keys), "delay_ms": delay_ms}
        if is_odd:
            delay_ms = self._chance.choice((-3, 0, 5))
            values |= {"delay_ms": delay_ms, "priority": self._chance.choice((1024, 1024, 7))}
            values |= {"expires_in_ms": self._chance.choice((None, None, 20))}
        return self._rigs[0].entry(next(self._names), **values)

    async def take(self) -> None:
        limit = self._chance.choice((1, 5, 40, 100, 1000))
        batches = [await rig.take(limit, lease_ms=_LEASE_MS) for rig in self._rigs]
        self._hold(batches)

    def _hold(self, batches) -> None:
        assert [list(batch.ids) for batch in batches[1:]] == [list(batches[0].ids)]
        receipts = zip(*(receipts_of(batch) for batch in batches), strict=True)
        self.held |= zip(batches[0].ids, map(list, receipts), strict=True)

    def _some_held(self) -> list[np.ndarray]:
        ids = list(self.held)
        if self._chance.random() < 0.5:
            ids = self._chance.sample(ids, self._chance.randrange(len(ids) + 1))
        receipts = [self.held.pop(id_) for id_ in ids]
        columns = zip(*receipts, strict=True) if receipts else ([], [])
        return [np.array(column, np.uint64).reshape(-1, 2) for column in columns]

    async def ack(self) -> None:
        receipts = self._some_held()
        said = [await rig.ack(its) for rig, its in zip(self._rigs, receipts, strict=True)]
        assert said[0] == said[1]

    async def give_back(self) -> None:
        receipts = self._some_held()
        verb = self._chance.choice(("release", "release", "bury", "touch"))
        values = {"delay_ms": self._chance.choice((0, 4))} if verb == "release" else {}
        pairs = zip(self._rigs, receipts, strict=True)
        said = [await getattr(rig, verb)(its, **values) for rig, its in pairs]
        assert said[0] == said[1]

    def _some_ids(self) -> list[str]:
        return self._chance.sample(self._ids, min(self._chance.choice((1, 9)), len(self._ids)))

    async def cancel(self) -> None:
        await self.same("cancel", *self._some_ids())

    async def move(self) -> None:
        verb = self._chance.choice(("reschedule", "kick"))
        await self.same(verb, *self._some_ids(), delay_ms=self._chance.choice((0, 6)))

    async def replace(self) -> None:
        delay_ms = self._chance.choice((0, 0, 6))
        entries = [
            replace(self._entry(at, delay_ms, is_odd=False), id=id_)
            for at, id_ in enumerate(self._some_ids())
        ]
        await self.same("put_entries", entries, on_conflict="replace")

    async def take_by_id(self) -> None:
        ids = self._some_ids()
        self._hold([await rig.take_by_ids(*ids, lease_ms=_LEASE_MS) for rig in self._rigs])

    async def peek(self) -> None:
        await self.same("peek_ids", self._chance.choice((1, 10, 100)))

    async def change(self) -> None:
        how = self._chance.choice(({}, {"ordered": True}))
        for rig in self._rigs:
            await rig.configure(**how)
            await rig.tick()

    async def wait(self) -> None:
        self._clock.advance(self._chance.choice((1, 1, 3, _LEASE_MS)))
        for rig in self._rigs:
            await rig.tick()


async def _course(url: str, seed: int, limits: Limits) -> list[str]:
    """Go through one course, and end all that is left; return the keys that stay."""
    clock = SimulatedClock()
    store = new_store(url, clock, packed=random.Random(seed).choice((1, 3, 32)), limits=limits)
    rigs = [Rig(MemoryStore(clock=clock), clock), Rig(store, clock)]
    for rig in rigs:
        await rig.store.open()
        await rig.configure(ordered=True)
    both = _Both(rigs, clock, seed)
    for _ in range(_STEPS):
        await both.step()
    for rig in rigs:
        await rig.configure(ordered=True)
    for _ in range(5_000):
        clock.advance(_LEASE_MS)
        for rig in rigs:
            await rig.tick()
        await both.take()
        if not any((await both._counts(rigs[0]))[:3]):
            break
        await both.ack()
    counts = [await both._counts(rig) for rig in rigs]
    assert counts[0] == counts[1]
    assert await store.find_stale() == []
    prefix = store.shards.engine.keys(0).base
    for rig in rigs:
        await rig.store.close()
    client = redis.Redis.from_url(url)
    return [name.decode().removeprefix(prefix) for name in client.scan_iter(f"{prefix}*")]


@pytest.mark.parametrize(
    "seed",
    [*range(4), *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(4, 40 * RUNS))],
)
def test_blocks_of_an_ordered_topic_are_as_its_messages_one_by_one(redis_url, seed):
    chance = random.Random(seed)
    limits = Limits(
        lined=chance.choice((1, 2, 32)),
        loose=chance.choice((2, 30, 200)),
    )
    names = asyncio.run(_course(redis_url, seed, limits))
    assert not [name for name in names if name.startswith((":lane", ":front"))]


@asynccontextmanager
async def _ordered(url: str) -> AsyncIterator[Rig]:
    """Open a store with an ordered topic."""
    store = new_store(url, SimulatedClock())
    rig = Rig(store, store.clock)
    await store.open()
    await rig.configure(ordered=True)
    yield rig
    await store.close()


async def _entries(engine: redis.Redis, base: str) -> list[tuple[int, bool]]:
    """Return of each entry of what is ready whether it is of a block, and stands."""
    found = engine.zrange(f"{base}:ready:t", 0, -1, withscores=True)
    return [(len(entry) == 14, score < 2**45) for entry, score in found]


async def test_blocks_stand_and_wait_as_a_whole(redis_url):
    """Each is put, parked, taken and acked as one, though a few of its messages have other keys."""
    async with _ordered(redis_url) as rig:
        store, engine = rig.store, redis.Redis.from_url(redis_url)
        base = store.shards.engine.keys(0).base
        for at in range(3):
            rig.advance(1)
            keys = [f"k{n if at else n + 5}" for n in range(64)]
            await rig.put_entries([rig.entry(f"{at} {key}", key=key) for key in keys])
        # Five keys of the second are behind none, so that it stands.
        whole, parked = (True, True), (True, False)
        assert await _entries(engine, base) == [whole, whole, parked]
        assert len(engine.hget(f"{base}:fronts:t", "k10")) == 3 * 7 + 1
        assert await rig.cancel("1 k10") == ["cancelled"]
        assert len(engine.hget(f"{base}:fronts:t", "k10")) == 6 + 2 * 13
        await rig.ack(receipts_of(await rig.take(64)))
        assert await _entries(engine, base) == [whole, whole]
        assert len(await rig.take_ids(63)) == 63
        assert await _entries(engine, base) == [whole]


@pytest.mark.parametrize(
    ("held", "left"),
    [(1, [(False, False)]), (32, [(False, False)] * 32), (33, [(False, False)] * 33)],
)
async def test_what_is_held_of_a_block_leaves_it_when_it_is_taken(redis_url, held, left):
    async with _ordered(redis_url) as rig:
        store, engine = rig.store, redis.Redis.from_url(redis_url)
        for word, first in (("a", 0), ("b", 64 - held)):
            keys = [f"k{at}" for at in range(first, first + 64)]
            await rig.put_entries([rig.entry(f"{word} {key}", key=key) for key in keys])
        before = await rig.take(64)
        assert await rig.take_ids() == [f"b k{at}" for at in range(64, 128 - held)]
        assert await _entries(engine, store.shards.engine.keys(0).base) == left
        assert await store.find_stale() == []
        await rig.ack(receipts_of(before))
        assert await rig.take_ids() == [f"b k{at}" for at in range(64 - held, 64)]


@pytest.mark.parametrize("look", ["take", "peek_ids"])
async def test_a_block_that_is_held_whole_is_parked_again(redis_url, look):
    async with _ordered(redis_url) as rig:
        store, engine = rig.store, redis.Redis.from_url(redis_url)
        # The second stands for its last keys, until the third comes before it.
        for word, first, delay_ms in (("a", 0, 0), ("b", 32, 0), ("c", 64, -1)):
            keys = [f"k{at}" for at in range(first, first + 64)]
            entries = [rig.entry(f"{word} {key}", key=key, delay_ms=delay_ms) for key in keys]
            await rig.put_entries(entries)
        base, whole, parked = store.shards.engine.keys(0).base, (True, True), (True, False)
        assert await _entries(engine, base) == [whole, whole, whole]
        batch = await rig.take(128)
        assert len(batch) == 128
        assert list(await getattr(rig, look)(10)) == []
        assert await _entries(engine, base) == [parked]
        assert await store.find_stale() == []
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == [f"b k{at}" for at in range(32, 96)]


async def test_of_a_block_and_many_of_its_messages_the_first_are_taken(redis_url):
    """More of them are loose than a take looks at together."""
    async with _ordered(redis_url) as rig:
        names = [f"m{at:02d}" for at in range(64)]
        await rig.put_entries([rig.entry(name, key=name) for name in names])
        # What is taken by its id leaves the block.
        await rig.release(receipts_of(await rig.take_by_ids(*names[1:61])))
        assert await rig.take_ids(40) == names[:40]


async def test_what_was_taken_in_part_holds_back_what_comes_before_it(redis_url):
    async with _ordered(redis_url) as rig:
        ids = [f"a{at}" for at in range(64)]
        await rig.put_entries([rig.entry(id_, key=id_[1:]) for id_ in ids])
        batch = await rig.take(40)
        earlier = [rig.entry(f"b{at}", key=f"{at}", delay_ms=-5) for at in range(64)]
        await rig.put_entries(earlier)
        assert await rig.take_ids() == [f"b{at}" for at in range(40, 64)]
        await rig.ack(receipts_of(batch))
        assert await rig.store.find_stale() == []
        assert await rig.take_ids() == [f"b{at}" for at in range(40)]


@pytest.mark.parametrize("verb", ["touch", "release", "bury"])
async def test_who_has_a_part_of_a_block_changes_nothing_of_the_rest(redis_url, verb, monkeypatch):
    """It comes between the call that leases the rest, and the one that reads it."""
    async with _ordered(redis_url) as rig:
        ids = [f"m{at}" for at in range(64)]
        await rig.put_entries([rig.entry(id_, key=id_) for id_ in ids])
        part = receipts_of(await rig.take(40))
        read = taking.blocks_of

        async def later(*args, **words):
            await getattr(rig, verb)(part[:10])
            return await read(*args, **words)

        monkeypatch.setattr(taking, "blocks_of", later)
        assert await rig.take_ids() == ids[40:]


async def test_a_message_that_is_taken_holds_its_key_only(redis_url):
    """Two of a key were out as the topic became ordered; one of them has another key now."""
    store = new_store(redis_url, SimulatedClock())
    rig = Rig(store, store.clock)
    await store.open()
    await rig.put("a", "b", key="k")
    receipts = receipts_of(await rig.take())
    await rig.configure(ordered=True)
    await rig.release(receipts[1:])
    await rig.put_entries([rig.entry("b", key="other")], on_conflict="replace")
    await rig.release(receipts[:1], 5)
    rig.advance(5)
    assert sorted(await rig.take_ids()) == ["a", "b"]
    await store.close()


async def test_what_is_replaced_in_a_block_comes_in_order_of_due(redis_url):
    store = new_store(redis_url, SimulatedClock())
    rig = Rig(store, store.clock)
    await store.open()
    ids = [f"m{at:02d}" for at in range(40)]
    await rig.put_entries([rig.entry(id_, delay_ms=-5) for id_ in ids])
    later = [ids[at] for at in (0, 5, 6)]
    entries = [rig.entry(id_, delay_ms=-1) for id_ in later]
    await rig.put_entries(entries, on_conflict="replace")
    assert await rig.take_ids() == [*(id_ for id_ in ids if id_ not in later), *later]
    await store.close()


async def test_a_key_that_looks_like_a_part_of_another_is_found(redis_url):
    """The size of a key stands before it, and a key may hold such a byte, too."""
    async with _ordered(redis_url) as rig:
        keys = ["x\x01b", "c", "b", *(f"k{at}" for at in range(61))]
        for word in "12":
            await rig.put_entries([rig.entry(f"{word} {key}", key=key) for key in keys])
        assert await rig.cancel("1 b") == ["cancelled"]
        batch = await rig.take()
        assert list(batch.ids) == ["1 x\x01b", "1 c", *(f"1 {key}" for key in keys[3:]), "2 b"]
        assert await rig.store.find_stale() == []


async def test_loose_messages_of_several_calls_come_in_order(redis_url):
    store = new_store(redis_url, SimulatedClock(), limits=Limits(taken=20))
    rig = Rig(store, store.clock)
    await store.open()
    await rig.put(*(f"{at}" for at in range(60)))
    await rig.release(receipts_of(await rig.take()), np.arange(60, 0, -1))
    rig.advance(60)
    assert await rig.take_ids() == [f"{at}" for at in reversed(range(60))]
    await store.close()


async def test_loose_messages_of_a_fair_topic_come_by_their_turns_over_several_calls(redis_url):
    store = new_store(redis_url, SimulatedClock(), limits=Limits(taken=20))
    rig, ids = Rig(store, store.clock), [f"{at}" for at in range(60)]
    await store.open()
    await rig.configure(fair=True)
    await rig.put(*ids)
    # Each is due before those that became ready earlier.
    for at, id_ in enumerate(ids):
        await rig.reschedule(id_, delay_ms=-1 - at)
    assert await rig.take_ids() == ids
    await store.close()


async def test_a_block_comes_before_many_others(redis_url):
    store = new_store(redis_url, SimulatedClock(), packed=1)
    rig, keys = Rig(store, store.clock), [f"k{at}" for at in range(8)]
    await store.open()
    await rig.configure(ordered=True)
    for key in keys:
        await rig.put(f"late {key}", key=key)
    await rig.put_entries([rig.entry(f"early {key}", key=key, delay_ms=-1) for key in keys])
    for word in ("early", "late"):
        batch = await rig.take()
        assert sorted(batch.ids) == [f"{word} {key}" for key in keys]
        await rig.ack(receipts_of(batch))
    await store.close()


@asynccontextmanager
async def _two_blocks(url: str, **second: int) -> AsyncIterator[Rig]:
    """Put two blocks of the same keys into an ordered topic, of which only marks are known."""
    async with _ordered(url) as rig:
        for word, values in (("a", {}), ("b", second)):
            entries = [rig.entry(f"{word}{at}", key=f"k{at}", **values) for at in range(64)]
            await rig.put_entries(entries)
        yield rig
        assert await rig.store.find_stale() == []


def _ids(word: str, *without: int) -> list[str]:
    return [f"{word}{at}" for at in range(64) if at not in without]


async def test_a_block_behind_another_follows_when_that_is_acked(redis_url):
    async with _two_blocks(redis_url) as rig:
        for word in "ab":
            batch = await rig.take()
            assert list(batch.ids) == _ids(word)
            await rig.ack(receipts_of(batch))


async def test_a_block_that_is_due_earlier_comes_before_another(redis_url):
    async with _two_blocks(redis_url, delay_ms=-5) as rig:
        batch = await rig.take()
        assert list(batch.ids) == _ids("b")
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == _ids("a")


async def test_a_block_whose_lease_ends_goes_on_to_hold_its_keys(redis_url):
    async with _two_blocks(redis_url) as rig:
        await rig.take(lease_ms=50)
        rig.advance(50)
        batch = await rig.take()
        assert sorted(batch.ids) == sorted(_ids("a"))
        await rig.ack(receipts_of(batch))
        assert sorted(await rig.take_ids()) == sorted(_ids("b"))


async def test_what_leaves_a_block_goes_on_to_hold_its_key(redis_url):
    """Whether it is given back, or moved, or taken by its id before."""
    async with _two_blocks(redis_url) as rig:
        await rig.reschedule("a7", delay_ms=10)
        by_id = await rig.take_by_ids("a5")
        batch = await rig.take()
        assert list(batch.ids) == [*_ids("a", 5, 7), "b7"]
        receipts = receipts_of(batch)
        await rig.release(receipts[3:4], 20)
        await rig.release(receipts[40:60], 20)
        await rig.ack(np.concatenate([receipts[:3], receipts[4:40], receipts[60:]]))
        given_back = [3, *(int(id_[1:]) for id_ in list(batch.ids)[40:60])]
        assert sorted(await rig.take_ids()) == sorted(_ids("b", *given_back, 5, 7))
        await rig.ack(receipts_of(by_id))
        assert await rig.take_ids() == ["b5"]
        rig.advance(20)
        assert sorted(await rig.take_ids()) == sorted(["a7", *(f"a{at}" for at in given_back)])


@pytest.mark.parametrize("verb", ["release", "reschedule"])
async def test_what_leaves_a_block_that_only_marks_tell_of_stays_before_others(redis_url, verb):
    async with _two_blocks(redis_url) as rig:
        batch = await rig.take(64)
        receipts = receipts_of(batch)
        await rig.release(receipts[3:4], 20)
        await rig.ack(np.concatenate([receipts[:3], receipts[4:]]))
        if verb == "reschedule":
            await rig.reschedule("a3", delay_ms=10)
        assert await rig.take_ids(64) == _ids("b", 3)
        rig.advance(20)
        batch = await rig.take()
        assert list(batch.ids) == ["a3"]
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == ["b3"]


async def test_a_message_that_gets_another_key_holds_back_no_longer_the_old_one(redis_url):
    """Though its due and its number stay, so that it is ready in the same place."""
    async with _two_blocks(redis_url) as rig:
        entries = [rig.entry(f"a{at}", key=f"other{at}") for at in range(64)]
        assert set(await rig.put_entries(entries, on_conflict="replace")) == {"replaced"}
        assert sorted(await rig.take_ids()) == sorted(_ids("a") + _ids("b"))


async def test_a_put_of_blocks_and_loose_messages_is_lined_up_in_order(redis_url):
    async with _ordered(redis_url) as rig:
        early = [rig.entry(f"early {at}", key=f"k{at}", delay_ms=-60) for at in range(64)]
        await rig.put_entries([rig.entry("late", key="k7", delay_ms=-1, max_attempts=2), *early])
        batch = await rig.take()
        assert list(batch.ids) == [entry.id for entry in early]
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == ["late"]


async def test_a_block_that_is_loose_in_part_does_not_stand_for_what_has_left_it(redis_url):
    async with _ordered(redis_url) as rig:
        for word, letters, delay_ms in (("a", "x", -100), ("c", "y", -70), ("b", "xy", -50)):
            keys = [f"{letter}{at}" for letter in letters for at in range(8)]
            entries = [rig.entry(f"{word} {key}", key=key, delay_ms=delay_ms) for key in keys]
            await rig.put_entries(entries)
        left = [f"b x{at}" for at in range(8)]
        await rig.reschedule(*left, delay_ms=-40)
        batch = await rig.take()
        assert list(batch.ids) == [f"{of}{at}" for of in ("a x", "c y") for at in range(8)]
        await rig.ack(receipts_of(batch)[:8])
        assert await rig.take_ids() == left
        assert await rig.store.find_stale() == []
        await rig.ack(receipts_of(batch)[8:])
        assert await rig.take_ids() == [f"b y{at}" for at in range(8)]


async def test_what_lies_in_blocks_is_not_early_when_the_clock_goes_back(redis_url):
    """One of them stands though most of its messages wait behind those of the other."""
    async with _ordered(redis_url) as rig:
        for word, first in (("a", 0), ("b", 1)):
            slots = range(first, first + 64)
            entries = [rig.entry(f"{word}{at}", key=f"k{at}", delay_ms=1_000) for at in slots]
            await rig.put_entries(entries)
        rig.advance(1_000)
        await rig.tick()
        rig.advance(-1_000)
        for _ in range(50):
            await rig.tick()
        assert await rig.take_ids() == []
        assert (await rig.store.stats()).topics["t"].delayed == 128
        rig.advance(1_000)
        batch = await rig.take()
        assert list(batch.ids) == [*_ids("a"), "b64"]
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == [f"b{at}" for at in range(1, 64)]
        assert await rig.store.find_stale() == []
