"""Much at once: what one call of a script cannot do is done by the next, and none is lost."""

import asyncio

import numpy as np
import pytest

import dwell
from dwell import Result
from dwell.clock import SimulatedClock
from tests.http.between import between
from tests.redis.calls import call_of
from tests.redis.servers import redis_server
from tests.waiting import until_async


@pytest.mark.parametrize("packed", [8, 1])
async def test_a_take_of_two_topics_of_which_one_has_a_backlog_loses_none(packed):
    with redis_server() as server:
        clock = SimulatedClock()
        async with dwell.open(server.url, clock=clock, packed=packed) as queue:
            await queue.put_many("settled", ["x"] * 30)
            # Loose ones of two priorities: their order is known when all are ready.
            due = np.arange(clock.now_ms() + 1000, clock.now_ms() + 1000 + 6000)
            for priority in (1, 2):
                await queue.put_many("late", ["x"] * 6000, due=due, priority=priority)
            clock.advance(10_000)
            taken = await queue.take(["settled", "late"], 100)
            assert [message.topic for message in taken] == ["settled"] * 30 + ["late"] * 70
            assert {message.priority for message in taken[30:]} == {1}
            assert await queue.find_stale() == []
            assert set(await queue.ack(taken)) == {Result.ACKED}


@pytest.mark.parametrize("verb", ["cancel", "reschedule", "kick", "put"])
async def test_a_taker_is_given_what_somebody_else_names_meanwhile(verb):
    """A taker reads blocks after the script leased them: that must not change what it is given."""

    with redis_server() as server:
        async with (
            between(server.url) as wire,
            dwell.open(wire.url) as taker,
            dwell.open(server.url) as other,
        ):
            ids = [f"id-{at}" for at in range(20)]
            # The first time, connections are made.
            await taker.take("t")
            await other.put_many("t", ids, ids=ids)
            wire.break_("late", 1, only=b"MGET")
            taking = asyncio.create_task(taker.take("t", 20))
            await until_async(lambda: wire.how != "late")
            if verb == "put":
                put = await other.put("t", "new", id="id-7", on_conflict="replace")
                assert put.result is Result.LEASED
            elif verb == "kick":
                assert await other.kick("t", "id-7") is Result.UNKNOWN
            elif verb == "cancel":
                assert await other.cancel("t", "id-7") is Result.LEASED
            else:
                assert await other.reschedule("t", "id-7", delay=5) is Result.LEASED
            wire.let_go.set()
            taken = await taking
            assert [message.id for message in taken] == ids
            assert set(await taker.ack(taken)) == {Result.ACKED}
            assert await other.find_stale() == []


async def test_a_lease_that_ends_before_its_block_is_read_is_nobodys_message():
    with redis_server() as server:
        async with (
            between(server.url) as wire,
            dwell.open(wire.url) as slow,
            dwell.open(server.url) as other,
        ):
            await slow.take("t")
            await other.put_many("t", [str(at) for at in range(20)])
            wire.break_("late", 1, only=b"MGET")
            taking = asyncio.create_task(slow.take("t", 20, lease="200ms"))
            await until_async(lambda: wire.how != "late")
            await asyncio.sleep(0.3)
            taken = await other.take("t", 20)
            assert len(taken) == 20
            wire.let_go.set()
            await asyncio.sleep(0)
            late = await taking
            # Whatever it was given is no longer its own, and what the other has stays so.
            assert set(await slow.ack(late)) <= {Result.STALE}
            assert set(await other.ack(taken)) == {Result.ACKED}
            assert await other.find_stale() == []


@pytest.mark.campaign
async def test_books_of_a_long_backlog_are_read_within_the_time_out():
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            for start in range(0, 100_000, 5_000):
                ids = [f"id-{at}" for at in range(start, start + 5_000)]
                await queue.put_many("t", ["x"] * 5_000, ids=ids, delay=600)
            assert await queue.find_stale() == []
            assert (await queue.stats()).topics["t"].delayed == 100_000


@pytest.mark.parametrize("packed", [8, 1000])
async def test_a_lease_that_ends_before_its_answer_is_repeated_is_nobodys_message(packed):
    with redis_server() as server:
        async with (
            between(server.url) as wire,
            dwell.open(wire.url, packed=packed) as slow,
            dwell.open(server.url, packed=packed) as other,
        ):
            await slow.take("t")
            await other.put_many("t", [str(at) for at in range(20)])
            call = call_of("take")
            wire.break_("mute", 1, call)
            taking = asyncio.create_task(slow.take("t", 20, lease="200ms"))
            while wire.how == "mute":
                await asyncio.sleep(0)
            wire.break_("cut", only=call)
            await asyncio.sleep(0.3)
            taken = await other.take("t", 20)
            assert len(taken) == 20
            wire.break_("pass")
            late = await taking
            assert set(await slow.ack(late)) <= {Result.STALE}
            assert set(await other.ack(taken)) == {Result.ACKED}
            assert await other.find_stale() == []


@pytest.mark.parametrize("packed", [8, 1000])
async def test_what_is_named_in_vain_keeps_its_place(packed):
    with redis_server() as server:
        async with dwell.open(server.url, packed=packed) as queue:
            ids = [f"id-{at:02}" for at in range(20)]
            await queue.put_many("t", ids, ids=ids)
            assert await queue.kick("t", "id-07") is Result.UNKNOWN
            assert (await queue.put("t", "x", id="id-08")).result is Result.KEPT
            assert [message.id for message in await queue.take("t", 20)] == ids


@pytest.mark.parametrize("packed", [8, 1000])
async def test_what_is_moved_to_its_own_due_keeps_its_place(packed):
    with redis_server() as server:
        async with dwell.open(server.url, packed=packed) as queue:
            ids = [f"id-{at:02}" for at in range(20)]
            due_ms = queue.clock.now_ms() - 5_000
            await queue.put_many("t", ids, ids=ids, due=due_ms)
            assert await queue.reschedule("t", "id-07", due=due_ms) is Result.MOVED
            assert [message.id for message in await queue.take("t", 20)] == ids
