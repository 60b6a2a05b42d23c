"""Topics with limits on Redis, where its own ways of keeping them show: lanes, fronts and turns."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from dwell.message import State
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import LATER_MS
from tests.redis.test_redis_suite import new_store

#: How long it takes until what is put with a delay here falls due.
SOON_MS = 60

Ask = Callable[[Rig], Awaitable[list[str]]]
Leave = Callable[[Rig], Awaitable[None]]


async def _by_take(rig: Rig) -> list[str]:
    return await rig.take_ids(1)


async def _by_id(rig: Rig) -> list[str]:
    return list((await rig.take_by_ids("2")).ids)


async def _fill(rig: Rig) -> None:
    """Let more messages of another topic fall due at once than one call makes ready."""
    await rig.configure("u", ordered=True)
    for start in range(0, 3000, 200):
        # Blocks whose messages are due one after the other do not become ready as a whole.
        due_ms = {number: SOON_MS - 50 + number % 40 for number in range(start, start + 200)}
        await rig.put_entries(
            [rig.entry(f"u{number}", delay_ms=ms) for number, ms in due_ms.items()], topic="u"
        )


async def _leave_behind(rig: Rig, keys: Iterable[str]) -> None:
    """Let something that is not ready stand first in some lanes."""
    engine = rig.store.shards.engine
    for key in keys:
        await engine.ask("ZADD", f"{engine.keys(0).lane}1:t{key}", 0, bytes(6) + b"\1" * 7)


async def _cut_off(rig: Rig, steps: int, **settings: bool) -> None:
    """Set what holds for the topic, and give up after so many calls."""
    run, calls = rig.store.shards.run, 0

    async def run_some(shard: int, verb: str, *own: object) -> object:
        nonlocal calls
        calls += 1
        if calls > steps:
            raise asyncio.CancelledError
        return await run(shard, verb, *own)

    rig.store.shards.run = run_some
    with pytest.raises(asyncio.CancelledError):
        await rig.configure(**settings)
    rig.store.shards.run = run


async def _set_again(rig: Rig) -> None:
    await rig.configure(ordered=True)


async def _wait(rig: Rig) -> None:
    await rig.tick()


class TestLanes(Suite):
    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url

    async def make_store(self, clock):
        return new_store(self.url, clock)

    # --- ordered ------------------------------------------------------------------------------

    @pytest.mark.parametrize("ask", [_by_take, _by_id])
    @scenario
    async def test_what_is_due_comes_first_before_it_is_made_ready(
        self, rig: Rig, ask: Ask
    ) -> None:
        """What was put later and is ready already does not come before it."""
        await rig.configure(ordered=True)
        await _fill(rig)
        await rig.put("1", key="k", delay_ms=SOON_MS)
        rig.advance(2 * SOON_MS)
        await rig.put("2", key="k")
        assert await ask(rig) == (["1"] if ask is _by_take else [])

    @scenario
    async def test_a_begun_message_of_a_block_is_cancelled(self, rig: Rig) -> None:
        """The others of its key go on, when it lies in a block that waits again."""
        ids = [f"{number}" for number in range(8)]
        await rig.put(*ids, key="k", delay_ms=100)
        rig.advance(100)
        assert len(await rig.take(8, lease_ms=50)) == 8
        rig.advance(60)
        await rig.tick()
        rig.advance(-100)
        await rig.tick()
        await rig.configure(ordered=True)
        await rig.put("later", key="k")
        assert await rig.take_ids() == []
        assert await rig.cancel(*ids) == ["cancelled"] * 8
        assert await rig.take_ids() == ["later"]

    @scenario
    async def test_many_that_were_begun_are_looked_up_as_often_as_they_end(self, rig: Rig) -> None:
        """Not all of them at each end, when a topic is ordered of whose key many are taken."""
        await rig.put(*(f"{number}" for number in range(400)), key="k")
        receipts = receipts_of(await rig.take(400))
        engine = rig.store.shards.engine

        async def looked_up() -> int:
            calls: int = (await engine.ask("INFO", "commandstats"))["cmdstat_hget"]["calls"]
            return calls

        before = await looked_up()
        await rig.configure(ordered=True)
        await rig.put("next", key="k")
        assert await rig.take_ids() == []
        for at in range(400):
            await rig.ack(receipts[at : at + 1])
        assert await looked_up() - before < 400 * 40
        assert await rig.take_ids() == ["next"]

    @scenario
    async def test_what_leaves_before_it_is_made_ready_leaves_its_lane(self, rig: Rig) -> None:
        """What was asked for by its id meanwhile, and is cancelled, holds nothing back."""
        await rig.configure(ordered=True)
        await _fill(rig)
        await rig.put("1", key="k", delay_ms=SOON_MS)
        await rig.put("0", key="k", priority=1)
        rig.advance(2 * SOON_MS)
        assert len(await rig.take_by_ids("1")) == 0
        assert await rig.cancel("1") == ["cancelled"]
        await rig.put("2", key="k")
        found = []
        for _ in range(2):
            batch = await rig.take(1)
            found += batch.ids
            await rig.ack(receipts_of(batch))
        assert found == ["0", "2"]

    @scenario
    async def test_what_is_gone_holds_back_no_lane(self, rig: Rig) -> None:
        """An entry that was left in a lane is dropped by takes, peeks, acks, and takes by id."""
        await rig.configure(ordered=True)
        keys = ("take", "peek", "ack", "id", "check")
        for key in keys:
            await rig.put(key, key=key)
        batch = await rig.take_by_ids("ack")
        await rig.put("ack 2", key="ack", priority=2000)
        assert sorted(await rig.peek_ids()) == sorted({*keys} - {"ack"})
        await _leave_behind(rig, keys)
        assert [of.problem for of in await rig.store.find_stale()] == ["no body"] * len(keys)
        assert "peek" in await rig.peek_ids()
        await rig.ack(receipts_of(batch))
        assert list((await rig.take_by_ids("id")).ids) == ["id"]
        assert sorted(await rig.take_ids()) == ["ack 2", "check", "peek", "take"]

    @scenario
    async def test_a_check_repairs_lanes(self, rig: Rig) -> None:
        """A lane that lost its first, or has one that is gone, is as it was."""
        await rig.configure(ordered=True)
        await rig.put("1", key="k")
        # Of another priority, it has no place in the line.
        await rig.put("2", key="k", priority=2000)
        await _leave_behind(rig, ["k"])
        engine = rig.store.shards.engine
        lane, ready = f"{engine.keys(0).lane}1:tk", f"{engine.keys(0).ready}t"
        await engine.ask("ZREM", lane, (await engine.ask("ZRANGE", lane, 1, 1))[0])
        first = (await engine.ask("ZRANGE", ready, 0, 0))[0]
        await engine.ask("ZADD", ready, 2**45 + 1000, first)
        assert await rig.store.find_stale(repair=True)
        assert await rig.store.find_stale() == []
        assert await rig.take_ids() == ["1"]

    @scenario
    async def test_a_check_repairs_lines(self, rig: Rig) -> None:
        """A line whose first is gone, or forgotten, goes on."""
        await rig.configure(ordered=True)
        await rig.put("1", "2", "3", key="k")
        engine = rig.store.shards.engine
        keys = engine.keys(0)
        first = (await engine.ask("ZRANGE", f"{keys.ready}t", 0, 0))[0]
        await engine.ask("HDEL", keys.messages, first[6:])
        await engine.ask("ZREM", f"{keys.ready}t", first)
        assert await rig.store.find_stale(repair=True)
        assert await rig.store.find_stale() == []
        assert await rig.take_ids() == ["2"]
        await engine.ask("DEL", f"{keys.fronts}t")
        assert await rig.store.find_stale(repair=True)
        assert await rig.store.find_stale() == []

    @scenario
    @pytest.mark.parametrize("count", [1, 64])
    async def test_a_check_repairs_fronts(self, rig: Rig, count: int) -> None:
        """Those whose leader is gone hold nothing back; those of what is taken are there again."""
        await rig.configure(ordered=True)
        keys, engine = [f"k{at}" for at in range(count)], rig.store.shards.engine
        await rig.put_entries([rig.entry(f"1 {key}", key=key) for key in keys])
        names = await engine.ask("KEYS", f"{engine.keys(0).block}*")
        await engine.ask("DEL", engine.keys(0).messages, *names)
        assert await rig.store.find_stale(repair=True)
        assert await rig.store.find_stale() == []
        await rig.put_entries([rig.entry(f"2 {key}", key=key) for key in keys])
        batch = await rig.take()
        assert list(batch.ids) == [f"2 {key}" for key in keys]
        await engine.ask("DEL", f"{engine.keys(0).fronts}t")
        await rig.put_entries([rig.entry("3 k0", key="k0", delay_ms=5)])
        assert len(await rig.store.find_stale(repair=True)) == count
        assert await rig.store.find_stale() == []
        rig.advance(5)
        assert await rig.take_ids() == []
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == ["3 k0"]

    @scenario
    async def test_all_that_are_begun_hold_a_key(self, rig: Rig) -> None:
        """Those taken before the topic was ordered are done first; given back, one at a time."""
        await rig.put(*"12345", key="k")
        batch = await rig.take(3)
        await rig.configure(ordered=True)
        receipts = receipts_of(batch)
        assert await rig.release(receipts[2:], 0) == ["released"]
        assert await rig.take_ids() == []
        await rig.ack(receipts[1:2])
        assert await rig.take_ids() == []
        rig.hush()
        assert await rig.release(receipts[:1], 0) == ["released"]
        assert rig.woken["t"]
        found = []
        for _ in range(4):
            batch = await rig.take()
            found += batch.ids
            await rig.ack(receipts_of(batch))
        assert found == ["1", "3", "4", "5"]

    @pytest.mark.parametrize("is_fair", [False, True])
    @scenario
    async def test_a_peek_sees_what_is_behind_a_held_key(self, rig: Rig, is_fair: bool) -> None:
        """However many wait behind one that is taken, it shows what a take would give."""
        await rig.configure(ordered=True, fair=is_fair)
        await rig.put(*(f"{number:04d}" for number in range(600)), key="k")
        rig.advance(1)
        await rig.put("other", key="l")
        assert await rig.take_ids(1) == ["0000"]
        assert await rig.peek_ids(10) == ["other"]

    @scenario
    async def test_one_call_acks_some_of_many_keys(self, rig: Rig) -> None:
        """The others come in later calls, and every receipt has its own result."""
        await rig.configure(ordered=True)
        for at in range(2):
            await rig.put_entries([rig.entry(f"{at} {n}", key=f"k{n}") for n in range(500)])
            rig.advance(1)
        receipts = receipts_of(await rig.take())
        assert len(receipts) == 500
        await rig.ack(receipts[100:101])
        results = await rig.ack(receipts)
        assert [at for at, result in enumerate(results) if result != "acked"] == [100]
        assert len(await rig.take_ids()) == 500

    # --- a topic becomes what it was not ------------------------------------------------------

    @pytest.mark.parametrize("go_on", [_set_again, _wait])
    @pytest.mark.parametrize("steps", [1, 3, 6])
    @scenario
    async def test_who_sets_ordered_is_cut_off(self, rig: Rig, steps: int, go_on: Leave) -> None:
        """Nothing is taken out of order meanwhile, and others go on with it."""
        await rig.put_entries([rig.entry(f"1 {n}", key=f"k{n}") for n in range(150)])
        batch = await rig.take(100)
        held = {id_.removeprefix("1 ") for id_ in batch.ids}
        await rig.put_entries([rig.entry(f"2 {n}", key=f"k{n}") for n in range(150)])
        await _cut_off(rig, steps, ordered=True)
        await go_on(rig)
        found = await rig.take_ids()
        assert len(found) == 50
        assert not held & {id_.removeprefix("1 ").removeprefix("2 ") for id_ in found}
        await rig.ack(receipts_of(batch))
        assert len(await rig.take_ids()) == 100

    @pytest.mark.parametrize("steps", [1, 3, 6])
    @scenario
    async def test_who_sets_ordered_off_is_cut_off(self, rig: Rig, steps: int) -> None:
        """What was parked is taken, and no lane is left over; also when it is ordered again."""
        await rig.configure(ordered=True, fair=True)
        await rig.put(*(f"{n:03d}" for n in range(200)), key="k")
        await rig.put_entries([rig.entry(f"of {n}", key=f"k{n}") for n in range(200)])
        held = await rig.take_by_ids("000")
        await _cut_off(rig, steps)
        await rig.cancel("001")
        await rig.configure(ordered=True)
        await rig.ack(receipts_of(held))
        assert (await rig.take_by_ids("002")).ids[0] == "002"
        await rig.configure()
        assert len(await rig.take_ids()) == 397
        engine = rig.store.shards.engine
        assert await engine.ask("KEYS", f"{engine.keys(0).lane}*") == []
        assert await engine.ask("EXISTS", f"{engine.keys(0).turns}t") == 0

    @pytest.mark.parametrize("ordered", [False, True])
    @scenario
    async def test_keys_that_are_taken_from_by_ids_are_forgotten(
        self, rig: Rig, ordered: bool
    ) -> None:
        """Nothing is known of turns when nobody waits, although none of them has come."""
        await rig.configure(fair=True, ordered=ordered)
        engine = rig.store.shards.engine
        for turn in range(3):
            ids = [f"{turn} {number}" for number in range(20)]
            await rig.put_entries([rig.entry(id_, key=id_) for id_ in ids])
            await rig.ack(receipts_of(await rig.take_by_ids(*ids)))
            assert await engine.ask("EXISTS", f"{engine.keys(0).turns}t") == 0
        await rig.put("waits", key="w")
        for number in range(0, 600, 5):
            ids = [f"{n}" for n in range(number, number + 5)]
            await rig.put_entries([rig.entry(id_, key=id_) for id_ in ids])
            await rig.ack(receipts_of(await rig.take_by_ids(*ids)))
        known = await engine.ask("ZCARD", f"{engine.keys(0).turns}t")
        assert known < 500

    @scenario
    async def test_a_tick_goes_on_with_what_is_cut_off(self, rig: Rig) -> None:
        """Who only waits finds the topic formed in the end."""
        await rig.put(*(f"{n:03d}" for n in range(300)), key="k")
        await _cut_off(rig, 1, ordered=True)
        for _ in range(100):
            rig.advance(1)
            await rig.tick()
        engine = rig.store.shards.engine
        assert await engine.ask("HEXISTS", f"{engine.keys(0).counts}t", "form") == 0
        assert (await rig.store.settings("t")).ordered

    @scenario
    async def test_a_topic_becomes_fair_with_many_of_a_key(self, rig: Rig) -> None:
        """They keep the order in which they became ready; also when it is ordered meanwhile."""
        ids = [f"{n:04d}" for n in range(600)]
        for at in range(0, 600, 5):
            await rig.put(*ids[at : at + 5], key="k")
        for settings in ({}, {"ordered": True}, {}):
            await rig.configure(fair=True, **settings)
            if not settings:
                assert await rig.peek_ids() == ids
        assert await rig.take_ids() == ids

    # --- fair ---------------------------------------------------------------------------------

    @scenario
    async def test_fair_and_ordered_keeps_the_order_of_a_key(self, rig: Rig) -> None:
        """Within a key priority counts, and the urgent one takes the turn of the other."""
        await rig.configure(fair=True, ordered=True)
        await rig.put("low", key="k", priority=100)
        await rig.put("other", key="l")
        rig.advance(1)
        await rig.put("urgent", key="k", priority=1)
        assert sorted(await rig.peek_ids()) == ["other", "urgent"]
        assert list((await rig.take_by_ids("low", "urgent")).ids) == ["urgent"]
        assert await rig.take_ids() == ["other"]

    @scenario
    async def test_turns_that_are_not_used_are_given_back(self, rig: Rig) -> None:
        """Who cancels what it put, or moves it, stands no further behind than others."""
        await rig.configure(fair=True)
        await rig.put(*(f"b{n:03}" for n in range(300)), key="b")
        ids = [f"a{n:03}" for n in range(200)]
        await rig.put(*ids, key="a")
        await rig.cancel(*ids)
        await rig.put("a", key="a")
        for _ in range(20):
            rig.advance(1)
            await rig.reschedule("a", delay_ms=0)
        assert "a" in await rig.take_ids(3)

    @scenario
    async def test_turns_go_on(self, rig: Rig) -> None:
        """Ever new keys do not hold up the second of one; and no key is kept in the end."""
        await rig.configure(fair=True)
        await rig.put("a1", "a2", key="a")
        await rig.put("x", key="x")
        found: list[str] = []
        for n in range(20):
            found += await rig.take_ids(1)
            rig.advance(5)
            await rig.put(f"n{n}", key=f"n{n}")
        assert "a2" in found
        await rig.take_ids()
        engine = rig.store.shards.engine
        assert await engine.ask("ZCARD", f"{engine.keys(0).turns}t") == 0

    @scenario
    async def test_a_page_of_a_fair_topic(self, rig: Rig) -> None:
        """Pages have all that is ready by due and arrival, in few calls, parked or not."""
        for settings in ({"fair": True}, {"fair": True, "ordered": True}):
            await rig.configure(**settings)
            ids = [f"{n:04}" for n in range(1500)]
            await rig.put_entries(
                [rig.entry(id_, key=id_[-1], delay_ms=-n) for n, id_ in enumerate(ids)]
            )
            cursor, found, before = None, [], rig.store.commands
            while not found or cursor:
                page = await rig.store.scan("t", State.READY, cursor, 500)
                cursor, found = page.cursor, found + list(page.messages.ids)
            assert found == ids[::-1]
            assert rig.store.commands - before < 60
            await rig.cancel(*ids)

    @scenario
    async def test_the_clock_goes_back_with_many_turns(self, rig: Rig) -> None:
        """What is not due any more waits, whatever its turn, and comes when it is."""
        await rig.configure(fair=True)
        await rig.put(*(f"a{n:03}" for n in range(200)), key="a")
        rig.advance(LATER_MS)
        await rig.put(*(f"b{n:03}" for n in range(200)), key="b")
        rig.advance(-LATER_MS)
        assert {id_[0] for id_ in await rig.take_ids()} == {"a"}
        rig.advance(LATER_MS)
        assert await rig.take_ids() == [f"b{n:03}" for n in range(200)]

    # --- rate ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("by_id", [False, True])
    @scenario
    async def test_a_take_within_the_rate_wakes_the_next(self, rig: Rig, by_id: bool) -> None:
        """Who waits for what was left by a take that got all it asked for is woken in time."""
        await rig.configure(rate=10)
        await rig.put(*"abcdef")
        got = list((await rig.take_by_ids("a")).ids) if by_id else await rig.take_ids(1)
        for _ in range(5):
            assert len(got) == 1
            rig.hush()
            rig.advance(100)
            await rig.tick()
            assert rig.woken["t"]
            got = await rig.take_ids(1)

    @scenario
    async def test_a_change_of_settings_does_not_fill_the_bucket(self, rig: Rig) -> None:
        """However often settings are set, no more are taken; also when the rate is set anew."""
        await rig.configure(rate=10)
        await rig.put(*(f"{number:03d}" for number in range(100)))
        assert len(await rig.take_ids()) == 1
        for number in range(20):
            await rig.configure(rate=10, lease_ms=60_000 + number)
            assert await rig.take_ids() == []
        await rig.configure(rate=100)
        assert await rig.take_ids() == []
        rig.advance(100)
        assert len(await rig.take_ids()) == 10
