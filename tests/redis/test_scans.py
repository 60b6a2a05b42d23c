"""Scans of much, page after page: all of it, in order, each message once."""

import asyncio
import random

import pytest

import dwell
from dwell import State
from dwell.clock import SimulatedClock
from tests.redis.test_redis_suite import new_store

COUNT = 2100
PUT = 150


async def fill(queue: dwell.Queue, clock: SimulatedClock, *, delay_ms: int, priorities: int):
    """Put messages whose dues are alike, near each other and far apart, in blocks and loose."""
    draw = random.Random(7)
    for first in range(0, COUNT, PUT):
        spans = draw.choice((range(1), range(1000), range(86_400_000), (0, 300, 3_600_000)))
        due = [clock.now_ms() + delay_ms + draw.choice(spans) for _ in range(PUT)]
        ids = [f"{at:05}" for at in range(first, first + PUT)]
        priority = [draw.randrange(priorities) for _ in ids] if draw.random() < 0.5 else 0
        await queue.put_many("t", ids, ids=ids, due=due, priority=priority)


async def pages(queue: dwell.Queue, state: State, limit: int) -> list[dwell.Batch]:
    found, cursor = [], None
    while True:
        page = await queue.store.scan("t", state, cursor, limit)
        found.append(page.messages)
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.campaign
@pytest.mark.parametrize(("shards", "priorities"), [(1, 4), (3, 1)])
@pytest.mark.parametrize("limit", [70, 1024])
@pytest.mark.parametrize("state", [State.DELAYED, State.READY, State.LEASED, State.DEAD])
@pytest.mark.timeout(60)
async def test_pages_give_all_in_order(
    redis_url: str, shards: int, limit: int, state: State, priorities: int
) -> None:
    clock = SimulatedClock()
    async with dwell.Queue(new_store(redis_url, clock, shards=shards)) as queue:
        await queue.put_many("other", ["x"] * 100)
        await fill(queue, clock, delay_ms=1000, priorities=priorities)
        if state is not State.DELAYED:
            clock.advance(100_000_000)
        while state in (State.LEASED, State.DEAD) and (await queue.stats()).topics["t"].ready:
            batch = await queue.take(["other", "t"], 500)
            if state is State.DEAD:
                await queue.bury(batch)
        batches = await pages(queue, state, limit)
        assert {len(batch) for batch in batches[:-1]} <= {limit}
        found = [message for batch in batches for message in batch]
        assert sorted(m.id for m in found) == [f"{at:05}" for at in range(COUNT)]
        assert {m.body for m in found} == {m.id.encode() for m in found}
        places = [(m.due_ms, m.number) for m in found]
        assert places == sorted(places)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.timeout(60)
async def test_a_block_of_several_dues_is_read_past_the_one_of_the_cursor(
    redis_url: str, limit: int
) -> None:
    clock = SimulatedClock()
    async with dwell.Queue(new_store(redis_url, clock, packed=1)) as queue:
        # The first of two blocks holds what comes last, and begins with a due of the second.
        due = [clock.now_ms() + delay_ms for delay_ms in (300, 3_600_000, 1, 300)]
        await queue.put_many("t", ["x"] * 4, due=due)
        found = [m.due_ms for batch in await pages(queue, State.DELAYED, limit) for m in batch]
        assert [due_ms - clock.now_ms() for due_ms in found] == [1, 300, 300, 3_600_000]


@pytest.mark.timeout(60)
async def test_what_stays_is_given_while_much_else_comes_and_goes(redis_url: str) -> None:
    clock = SimulatedClock()
    async with dwell.Queue(new_store(redis_url, clock)) as queue:
        await fill(queue, clock, delay_ms=1000, priorities=3)
        draw = random.Random(8)

        async def disturb() -> None:
            while True:
                due = [clock.now_ms() + draw.randint(1000, 86_400_000) for _ in range(40)]
                others = [f"other-{draw.random()}" for _ in due]
                await queue.put_many("t", others, ids=others, due=due)
                await queue.cancel("t", others[:30])

        disturbing = asyncio.create_task(disturb())
        for limit in (50, 700):
            batches = await pages(queue, State.DELAYED, limit)
            found = [id_ for batch in batches for id_ in batch.ids]
            own = [id_ for id_ in found if not id_.startswith("other")]
            assert sorted(own) == [f"{at:05}" for at in range(COUNT)]
            assert len(set(found)) == len(found)
        assert not disturbing.done()
        disturbing.cancel()


@pytest.mark.timeout(60)
async def test_what_is_ready_too_early_waits_again_after_a_jump_back(redis_url: str) -> None:
    clock = SimulatedClock()
    async with dwell.Queue(new_store(redis_url, clock)) as queue:
        await fill(queue, clock, delay_ms=1000, priorities=3)
        await queue.put_many("u", ["x"] * 1000)
        clock.advance(100_000_000)
        assert (await queue.stats()).topics["t"].ready == COUNT
        clock.advance(-100_000_000)
        assert len(await queue.take("t", COUNT)) == 0
        sizes = await queue.stats()
        assert (sizes.topics["t"].ready, sizes.topics["t"].delayed) == (0, COUNT)
        assert sizes.topics["u"].ready == 1000
        assert await queue.find_stale() == []
        clock.advance(100_000_000)
        assert len(await queue.take("t", COUNT)) == COUNT


@pytest.mark.parametrize("owner", ["", "me"])
@pytest.mark.timeout(60)
async def test_held_gives_much(redis_url: str, owner: str) -> None:
    clock = SimulatedClock()
    async with dwell.Queue(new_store(redis_url, clock)) as queue:
        await fill(queue, clock, delay_ms=0, priorities=3)
        clock.advance(100_000_000)
        await queue.take("t", 100, owner="other")
        taken = await queue.take("t", COUNT, owner=owner)
        held = await queue.held(owner)
        assert sorted(held.ids) == sorted(taken.ids)
        assert len(held) == COUNT - 100
        assert set(await queue.ack(held)) == {dwell.Result.ACKED}
