"""Schedules when the clock was ahead, and is put right."""

import asyncio

import pytest

import dwell
from dwell.message import Result, State
from dwell.queue.schedules import TOPIC
from dwell.store.memory import MemoryStore
from tests.schedules.test_changes import in_a_folder
from tests.schedules.test_schedules import MINUTE_MS, NINE_MS, fired, ids, names, opened
from tests.waiting import until_async

HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
STORES = pytest.mark.parametrize("store", [MemoryStore, in_a_folder])
AHEAD = pytest.mark.parametrize("ahead_ms", [5 * MINUTE_MS, DAY_MS, 365 * DAY_MS])


async def goes_on(queue, clock, count=3):
    """Wait until the schedule fires at the next minutes of the clock as it is now."""
    await until_async(lambda: is_next(queue, clock))
    await ids(queue)
    first = (clock.now_ms() - NINE_MS) // MINUTE_MS + 1
    for minute in range(first, first + count):
        clock.advance(MINUTE_MS)
        await until_async(lambda minute=minute: is_there(queue, clock, minute))
    assert await ids(queue) == names(*range(first, first + count))


async def is_there(queue, clock, minute):
    """Of two that fire, one may leave the schedule to the other for a second of this clock."""
    clock.advance(10)
    await fired(queue, clock)
    return await queue.get("t", names(minute)[0]) is not None


async def is_next(queue, clock):
    found = await queue.schedules.get("s")
    return found.state is State.DELAYED and found.next_ms <= clock.now_ms() + MINUTE_MS


@STORES
@AHEAD
@pytest.mark.parametrize("has_fired", [True, False])
async def test_a_schedule_goes_on_when_a_clock_that_was_ahead_is_put_right(
    store, ahead_ms, has_fired, caplog
):
    async with opened(2, store) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m")
        await queue.schedules.put("paused", "t", b"", every="1m")
        await queue.schedules.pause("paused")
        await queue.configure("t", remember_ms=10_000)
        clock.advance(ahead_ms)
        if has_fired:
            await fired(queue, clock)
        else:
            # It is put anew while the clock is ahead, and does not fire by then.
            await queue.schedules.remove("s")
            await queue.schedules.put("s", "t", b"", every="1m")
            await asyncio.sleep(0.6)
        await ids(queue)
        clock.advance(-ahead_ms)
        await goes_on(queue, clock)
        assert (await queue.schedules.get("paused")).next_ms is None
        assert "1 schedules were ahead of the clock and are due again: s" in caplog.text


@pytest.mark.parametrize("is_changed", [True, False])
async def test_a_clock_that_was_put_right_while_nobody_fired(is_changed):
    clock = dwell.SimulatedClock(NINE_MS)
    async with dwell.Queue(MemoryStore(clock)) as queue:
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(DAY_MS)
        firing = asyncio.create_task(queue.schedules.fire())
        await fired(queue, clock)
        firing.cancel()
        await asyncio.gather(firing, return_exceptions=True)
        clock.advance(-DAY_MS)
        if is_changed:
            assert await queue.schedules.put("s", "t", b"new", every="1m") is Result.REPLACED
        firing = asyncio.create_task(queue.schedules.fire())
        await goes_on(queue, clock)
        firing.cancel()


async def test_a_small_step_back_puts_nothing_twice():
    """Schedules wait until the time comes again, also where ids are not remembered."""
    async with opened() as (queue, clock):
        await queue.configure("t", remember_ms=0)
        await queue.schedules.put("s", "t", b"", every="1s")
        found = []
        for step_ms in [10_000, -9_000, *[1_000] * 20]:
            clock.advance(step_ms)
            await asyncio.sleep(0.1)
            found += await ids(queue)
        assert len(found) == len(set(found))
        assert len(found) >= 10


async def test_a_schedule_that_was_changed_since_it_was_looked_at_is_left_alone():
    class Slow(MemoryStore):
        goes_on = None

        async def reschedule(self, topic, ids, due_ms, versions=None):
            await self.goes_on.wait()
            return await super().reschedule(topic, ids, due_ms, versions)

    clock = dwell.SimulatedClock(NINE_MS)
    store = Slow(clock)
    store.goes_on = asyncio.Event()
    async with dwell.Queue(store) as queue:
        await queue.schedules.put("s", "t", b"", every="90d")
        firing = asyncio.create_task(queue.schedules.fire())
        await asyncio.sleep(0.2)
        await queue.schedules.pause("s")
        paused = await queue.get(TOPIC, "s")
        store.goes_on.set()
        await asyncio.sleep(0.2)
        assert await queue.get(TOPIC, "s") == paused
        firing.cancel()
