"""More shards for a store that has messages: nothing is lost, and nothing is there twice."""

import asyncio
import itertools
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import dwell
from dwell import State
from dwell.errors import ForeignReceipt, InvalidInput, StoreLocked
from dwell.store.redis.engine import Engine
from dwell.store.redis.putting import shard_for
from dwell.store.redis.resharding import reshard
from tests.waiting import until_async

pytestmark = pytest.mark.campaign

MANY = 1_000


@pytest.fixture
def url(redis_url):
    return f"{redis_url}?prefix={uuid.uuid4().hex}"


async def fill(queue: dwell.Queue) -> None:
    """Put messages of every state, with and without keys, and let some ids be remembered."""
    await queue.configure("t", max_attempts=3)
    await queue.put_many("t", ["done"] * 100, ids=[f"done-{n}" for n in range(100)])
    await queue.ack(await queue.take("t", 100))
    await queue.put_many("t", ["dead"] * 100, ids=[f"dead-{n}" for n in range(100)])
    await queue.bury(await queue.take("t", 100), "broken")
    await queue.put_many("t", ["held"] * 100, ids=[f"held-{n}" for n in range(100)])
    await queue.take("t", 100, owner="me")
    await queue.put_many("t", ["far"] * MANY, ids=[f"far-{n}" for n in range(MANY)], delay="1h")
    await queue.put_many("t", ["made"] * 100, delay="1h")
    keys = [f"key-{n % 7}" for n in range(100)]
    await queue.put_many("t", keys, ids=[f"keyed-{n}" for n in range(100)], key=keys, delay="1h")


async def seen(queue: dwell.Queue) -> dict[str, tuple]:
    """Return all that is there; what was held is ready again, so it is shown as if it were."""
    found = {}
    for state in (State.DELAYED, State.READY, State.LEASED, State.DEAD):
        async for batch in queue.pages("t", state):
            for m in batch:
                assert m.id not in found, "a message is there twice"
                shown = State.READY if m.state is State.LEASED else m.state
                found[m.id] = (shown, m.body, m.due_ms, m.attempt, m.key, m.last_error)
    return found


async def check(queue: dwell.Queue, before: dict[str, tuple]) -> None:
    assert await seen(queue) == before
    assert await queue.find_stale() == []
    again = await queue.put_many("t", ["x"] * 100, ids=[f"done-{n}" for n in range(100)])
    assert {put.result for put in again} == {dwell.Result.KEPT}
    ids = [f"far-{n}" for n in range(0, MANY, 2)]
    assert (await queue.cancel("t", ids)).count(dwell.Result.CANCELLED) == len(ids)
    made = [id_ for id_ in before if id_.startswith("~")]
    assert (await queue.cancel("t", made)).count(dwell.Result.CANCELLED) == len(made)
    sizes = await queue.sizes("t")
    assert len(sizes) == 4
    assert all(size.delayed for size in sizes)
    assert (await queue.settings("t")).max_attempts == 3


async def whole_log(queue: dwell.Queue) -> list[tuple[int, str, str]]:
    events, position = [], 0
    while True:
        page = await queue.events(position, 1000)
        events += [(e.position, str(e.kind), e.id) for e in page.events]
        if not page.events:
            return events
        position = page.next_position


@pytest.mark.parametrize("first", [1, 2])
async def test_nothing_is_lost(url, first):
    async with dwell.open(url, shards=first) as queue:
        await fill(queue)
        before, log = await seen(queue), await whole_log(queue)
    moved = await reshard(url, 4)
    assert moved > MANY // 3
    async with dwell.open(url) as queue:
        assert (await whole_log(queue))[: len(log)] == log
        await check(queue, before)


def test_a_move_that_is_cut_off_is_made_again(url, monkeypatch):
    """It may end at any call; until it is made again, nobody can open the store."""

    async def play(fails_at: int) -> bool:
        calls, run = 0, Engine.run

        async def failing(self, shard, verb, *own, **large):
            nonlocal calls
            calls += verb in ("adopt", "disown", "remember")
            if calls == fails_at:
                raise dwell.ServerUnreachable("cut off")
            return await run(self, shard, verb, *own, **large)

        own = f"{url}{fails_at}"
        async with dwell.open(own) as queue:
            await fill(queue)
            before = await seen(queue)
        monkeypatch.setattr(Engine, "run", failing)
        try:
            await reshard(own, 4)
            return True
        except dwell.ServerUnreachable:
            pass
        finally:
            monkeypatch.setattr(Engine, "run", run)
        with pytest.raises(StoreLocked, match="on its way to 4 shards"):
            async with dwell.open(own):
                pass
        with pytest.raises(InvalidInput, match="on its way to 4"):
            await reshard(own, 8)
        await reshard(own, 4)
        async with dwell.open(own) as queue:
            await check(queue, before)
        return False

    for fails_at in range(1, 60, 7):
        if asyncio.run(play(fails_at)):
            break


async def test_a_store_that_is_open_stays(url):
    async with dwell.open(url) as queue:
        await queue.put("t", "x", id="x")
        await asyncio.sleep(0.2)
        with pytest.raises(StoreLocked, match="an instance has the store open"):
            await reshard(url, 4)


@pytest.mark.parametrize("shards", [0, 1, 2, 257])
async def test_numbers_that_are_refused(url, shards):
    async with dwell.open(url, shards=2):
        pass
    with pytest.raises(InvalidInput, match=f"shards: got {shards}, expected more than the store"):
        await reshard(url, shards)


def test_command(url):
    with dwell.open(url) as queue:
        queue.put_many("t", ["x"] * 100, ids=[f"{n}" for n in range(100)])
    dwell_ = str(Path(sys.executable).with_name("dwell"))
    done = subprocess.run(
        [dwell_, "--store", url, "reshard", "4"], capture_output=True, text=True, check=True
    )
    assert "4 shards" in done.stdout
    with dwell.open(url) as queue:
        assert sum(size.ready for size in queue.sizes("t")) == 100


@pytest.mark.parametrize(("before", "after"), [(1, 4), (2, 4), (2, 3), (4, 6)])
async def test_what_is_remembered_stays_so_with_and_without_a_key(url, before, after):
    """Also an id that is in use again: what was remembered of it counts when it is cancelled."""
    ids = [f"order-{n}" for n in range(60)]
    keys = [f"customer-{n}" if n % 2 else None for n in range(60)]

    async with dwell.open(url, shards=before) as queue:
        await queue.put_many("t", ids, ids=ids, key=keys)
        done = 0
        while done < len(ids):
            done += len(await queue.ack(await queue.take("t", 100)))
        # A third of them are put again, as if they were new.
        await queue.put_many(
            "t", ids[::3], ids=ids[::3], key=keys[::3], on_conflict="replace", delay="1h"
        )
    await reshard(url, after)
    async with dwell.open(url) as queue:
        assert len(await queue.sizes("t")) == after
        assert await queue.find_stale() == []
        again = await queue.put_many("t", ids, ids=ids, key=keys)
        assert {put.result for put in again} == {dwell.Result.KEPT}
        assert set(await queue.cancel("t", ids[::3])) == {dwell.Result.CANCELLED}
        again = await queue.put_many("t", ids, ids=ids, key=keys)
        assert {put.result for put in again} == {dwell.Result.KEPT}


async def test_what_is_remembered_is_forgotten_in_every_shard(url):
    async with dwell.open(url) as queue:
        await queue.configure("t", remember_ms=3_000)
        await queue.put("t", "x", id="a", key="k")
        await queue.ack(await queue.take("t"))
    await reshard(url, 4)
    async with dwell.open(url) as queue:
        assert (await queue.put("t", "x", id="a", key="k")).result is dwell.Result.KEPT
        while (await queue.put("t", "x", id="a", key="k")).result is dwell.Result.KEPT:
            await asyncio.sleep(0.05)
        for shard in range(4):
            engine = queue.store.shards.engine
            while await engine.ask("EXISTS", engine.keys(shard).forgets):
                await asyncio.sleep(0.05)
            left = await engine.ask("HLEN", f"{engine.keys(shard).ids}t")
            assert left == int(shard == home("k"))


def home(key: str) -> int:
    """Return the shard of a key."""
    return shard_for(b"", key, 4)


async def test_a_store_that_was_resharded_is_another_with_the_same_history(url: str) -> None:
    """Its events go on; receipts of before are foreign, as their leases have ended."""

    async with dwell.open(url) as queue:
        await queue.put_many("t", ["x"] * 10)
        taken = await queue.take("t", 5)
        number, before = queue.store.number, await queue.events(0)
    await reshard(url, 4)
    async with dwell.open(url) as queue:
        assert queue.store.number != number
        with pytest.raises(ForeignReceipt):
            await queue.ack(taken)
        again = await queue.take("t", 10)
        assert set(await queue.ack(again)) == {dwell.Result.ACKED}
        page = await queue.events(before.next_position)
        assert page.since == before.history == page.history != ""


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_what_cannot_go_to_the_shard_of_its_key_is_not_left_behind(url, is_ordered):
    """An ordered topic whose ids the queue made stays as it is; when they are done it moves."""
    async with dwell.open(url) as queue:
        await queue.configure("t", ordered=is_ordered)
        for n in range(8):
            await queue.put_many("t", ["x"] * 2, key=f"k{n}")
        await queue.put_many("t", ["x"] * 8, ids=[f"own {n}" for n in range(8)], key="own")
        await queue.put_many("t", ["x"] * 8)
    if is_ordered:
        with pytest.raises(InvalidInput, match=r"topic 't': is ordered .* ids the queue made"):
            await reshard(url, 4)
        async with dwell.open(url, shards=1) as queue:
            assert (await queue.stats()).topics["t"].ready == 32
            while len(batch := await queue.take("t", 100)):
                await queue.ack(batch)
    await reshard(url, 4)
    async with dwell.open(url, shards=4) as queue:
        assert (await queue.settings("t")).ordered == is_ordered
        assert await queue.find_stale() == []


@pytest.mark.parametrize("moves", [((0, 2), (1, 2)), ((0, 1), (1, 0)), ((0, 1), (1, 2))])
async def test_two_messages_of_one_id_do_not_meet_in_one_shard(url, moves):
    """They have different keys, and are in different shards; nothing moves until one is gone."""

    def places(key: str) -> tuple[int, int]:
        return shard_for(b"", key, 2), shard_for(b"", key, 3)

    keys = [f"k{n}" for n in range(100)]
    first, second = (next(key for key in keys if places(key) == move) for move in moves)
    async with dwell.open(url, shards=2) as queue:
        for key in (first, second):
            await queue.put("t", key, id="one", key=key, delay="1h")
    with pytest.raises(InvalidInput, match="id 'one' of topic 't': two messages have it"):
        await reshard(url, 3)
    async with dwell.open(url, shards=2) as queue:
        found = (await queue.scan("t", State.DELAYED)).messages
        assert set(found.bodies) == {first.encode(), second.encode()}
        await queue.cancel("t", "one")
    assert await reshard(url, 3) == 1
    async with dwell.open(url, shards=3) as queue:
        assert len((await queue.scan("t", State.DELAYED)).messages) == 1
        assert await queue.find_stale() == []


def key_of_the_other_shard() -> str:
    """Return a key whose messages move when there are two shards."""
    keys = (f"k{at}" for at in itertools.count())
    return next(key for key in keys if shard_for(b"x", key, 2) == 1)


async def one_by_one(url: str, count: int) -> list[str]:
    """Take and ack messages of an ordered topic that has only one key."""
    found: list[str] = []
    async with dwell.open(url, shards=2) as queue:
        assert await queue.find_stale() == []
        while len(found) < count:
            batch = await queue.take("t", 10, wait="5s")
            assert len(batch) == 1
            found += batch.ids
            await queue.ack(batch)
    return found


async def test_what_was_given_back_goes_on_to_come_before_what_is_due_earlier(url):
    key = key_of_the_other_shard()
    async with dwell.open(url) as queue:
        await queue.configure("t", ordered=True)
        await queue.put("t", "x", id="second", key=key, delay="100ms")
        await queue.put("t", "x", id="first", key=key)
        await queue.release(await queue.take("t"), "200ms")

        async def is_ready() -> bool:
            return (await queue.stats()).topics["t"].ready == 2

        await until_async(is_ready)
    await reshard(url, 2)
    assert await one_by_one(url, 2) == ["first", "second"]


async def test_several_that_were_taken_before_their_topic_was_ordered_keep_their_order(url):
    key = key_of_the_other_shard()
    async with dwell.open(url) as queue:
        await queue.put_many("t", ["x"] * 2, ids=["first", "second"], key=key)
        batch = await queue.take("t", 2)
        await queue.configure("t", ordered=True)
        await queue.put("t", "x", id="third", key=key)
        await queue.release(batch)
    await reshard(url, 2)
    assert await one_by_one(url, 3) == ["first", "second", "third"]


@pytest.mark.parametrize("packed", [1, 32])
async def test_all_leases_end(url, packed):
    async with dwell.open(f"{url}&packed={packed}") as queue:
        ids = [f"m{n}" for n in range(100)]
        await queue.put_many("t", ids, ids=ids)
        await queue.cancel("t", ids[:5])
        await queue.take("t", 50, lease="7d", owner="me")
        await queue.take("t", 50, lease="7d")
    await reshard(url, 2)
    async with dwell.open(url, shards=2) as queue:

        async def are_ready() -> bool:
            return (await queue.stats()).topics["t"].ready == 95

        await until_async(are_ready)
        assert len(await queue.take("t", 100)) == 95
        assert await queue.find_stale() == []


class Standing:
    """Runs of a reshard, of which the first stands still before a call of the engine."""

    def __init__(self, monkeypatch, verb: str) -> None:
        self.stands, self.goes_on = asyncio.Event(), asyncio.Event()
        run = Engine.run

        async def standing(engine, shard, name, *own, **large):
            if name == verb and not self.stands.is_set():
                self.stands.set()
                await self.goes_on.wait()
            return await run(engine, shard, name, *own, **large)

        monkeypatch.setattr(Engine, "run", standing)


@pytest.mark.parametrize("verb", ["agree", "claim", "adopt", "disown", "touch", "remember"])
async def test_a_run_that_stood_still_changes_nothing_after_the_next(url, monkeypatch, verb):
    """The next one has ended, and workers have done messages and hold others."""
    async with asyncio.timeout(60):
        async with dwell.open(url, shards=2) as queue:
            ids = [f"m{n}" for n in range(60)]
            await queue.put_many("t", ids, ids=ids)
            done = len(await queue.ack(await queue.take("t", 10)))
            held = done
            while held < len(ids):
                held += len(await queue.take("t", 100, lease="7d"))
        standing = Standing(monkeypatch, verb)
        first = asyncio.create_task(reshard(url, 5))
        await standing.stands.wait()
        await reshard(url, 5)
        async with dwell.open(url, shards=5) as queue:
            number = queue.store.number
            while done < len(ids):
                done += len(await queue.ack(await queue.take("t", 100, wait="5s")))
            await queue.put_many("t", ids, ids=[f"later {n}" for n in range(60)])
            held = []
            while len(held) < len(ids):
                held += await queue.take("t", 100, lease="7d", wait="5s")
            standing.goes_on.set()
            with pytest.raises(StoreLocked, match="another `dwell reshard` has begun since"):
                await first
            assert (await queue.stats()).topics["t"].leased == len(ids)
            assert set(await queue.ack(held)) == {dwell.Result.ACKED}
            assert (await queue.stats()).topics["t"].ready == 0
            assert (queue.store.number, queue.store.shards.count) == (number, 5)
        async with dwell.open(url, shards=5) as queue:
            assert queue.store.number == number


@pytest.mark.parametrize(
    ("first_at", "second_at"), [("agree", "claim"), ("claim", "adopt"), ("touch", "agree")]
)
async def test_of_two_runs_at_a_time_the_later_ends_the_move(url, monkeypatch, first_at, second_at):
    """The first goes on while the second stands still at its own call."""
    async with asyncio.timeout(60):
        async with dwell.open(url, shards=2) as queue:
            ids = [f"m{n}" for n in range(60)]
            await queue.put_many("t", ids, ids=ids)
            held = 0
            while held < len(ids):
                held += len(await queue.take("t", 100, lease="7d"))
        first_stands = Standing(monkeypatch, first_at)
        first = asyncio.create_task(reshard(url, 3))
        await first_stands.stands.wait()
        second_stands = Standing(monkeypatch, second_at)
        second = asyncio.create_task(reshard(url, 3))
        await second_stands.stands.wait()
        first_stands.goes_on.set()
        if (first_at, second_at) == ("touch", "agree"):
            # The second has not begun its move yet: the first one's is whole.
            assert await first > 0
        else:
            with pytest.raises(StoreLocked, match="another `dwell reshard` has begun since"):
                await first
        second_stands.goes_on.set()
        if first.exception() is None:
            with pytest.raises(StoreLocked, match="another `dwell reshard` has begun since"):
                await second
        else:
            assert await second > 0
        async with dwell.open(url, shards=3) as queue:
            found = 0
            while found < len(ids):
                found += len(await queue.take("t", 100, wait="5s"))
            assert await queue.find_stale() == []


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_lease_that_ends_on_the_last_attempt_makes_the_message_dead(url, is_own):
    """Also of a message that goes to another shard: it is not delivered once more."""
    async with dwell.open(url, shards=2) as queue:
        if not is_own:
            await queue.configure("t", max_attempts=1)
        ids = [f"m{n}" for n in range(60)]
        await queue.put_many("t", ids, ids=ids, max_attempts=1 if is_own else None)
        held = 0
        while held < len(ids):
            held += len(await queue.take("t", 100, lease="7d", owner="me"))
    assert await reshard(url, 5) > 0
    async with dwell.open(url, shards=5) as queue:

        async def are_dead() -> bool:
            return (await queue.stats()).topics["t"].dead == len(ids)

        await until_async(are_dead)
        found = await queue.get("t", ids)
        assert {(m.state, m.attempt, m.last_error) for m in found} == {
            (State.DEAD, 1, "lease ended")
        }
        assert not await queue.held("me")
        assert await queue.find_stale() == []
        assert [kind for _, kind, _ in await whole_log(queue)].count("exhaust") == len(ids)


async def test_an_ordered_topic_whose_messages_have_no_keys_moves(url):
    """They are held back by none, and overtake none."""
    async with dwell.open(url) as queue:
        await queue.configure("t", ordered=True)
        await queue.put_many("t", ["x"] * 8)
    assert await reshard(url, 4) == 0
    async with dwell.open(url, shards=4) as queue:
        assert len(await queue.take("t", 100)) == 8


async def test_results_stay_and_end_with_the_next_life_of_their_ids(url):
    ids = [f"{n}" for n in range(8)]
    async with dwell.open(url) as queue:
        await queue.put_many("t", [b""] * 8, ids=ids)
        taken = await queue.take("t", 8)
        await queue.ack(taken, results=[one.id for one in taken])
    await reshard(url, 4)
    async with dwell.open(url, shards=4) as queue:
        assert [(await queue.result("t", id_)).json() for id_ in ids] == [*range(8)]
        await queue.put_many("t", [b""] * 8, ids=ids, on_conflict="replace")
        while len(taken := await queue.take("t", 8)):
            await queue.ack(taken)
        assert {await queue.result("t", id_) for id_ in ids} == {dwell.Outcome("done")}
