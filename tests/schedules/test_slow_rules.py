"""Rules that take longer than any lease: the others fire, and they are set aside."""

import asyncio
import contextlib
import json
import threading
import time

import pytest

from dwell.calendar.epoch import LAST_MS
from dwell.errors import InvalidSchedule
from dwell.message import State
from dwell.queue.schedules import TOPIC, firer, schedule, sidethread
from dwell.queue.schedules.times import Times, times_of
from tests.schedules.test_schedules import MINUTE_MS, NINE_MS, fired, ids, names, opened
from tests.waiting import PATIENCE_S, until, until_async

STUCK = "0 9 * * *"


class Stuck:
    """A rule of each minute whose moments take until it is let go."""

    def __init__(self):
        self.goes_on = threading.Event()
        self._rule = times_of("* * * * *", None, None, "UTC", None, None)

    def following(self, ms):
        while not self.goes_on.is_set():
            time.sleep(0.001)
        return self._rule.following(ms)

    def before(self, ms):
        return self._rule.before(ms)


@pytest.fixture
def stuck(monkeypatch):
    rule, reckoned = Stuck(), schedule._times

    def times(cron, *more):
        return Times(rule, None, None) if cron == STUCK else reckoned(cron, *more)

    monkeypatch.setattr(schedule, "_times", times)
    yield rule
    rule.goes_on.set()
    until(lambda: not threads(), "threads are left")


@pytest.fixture
def soon(monkeypatch):
    """Let all that is waited for come soon, but the end of patience."""
    monkeypatch.setattr(firer, "_RECKONING_S", 0.05)
    monkeypatch.setattr(firer, "_TOUCH_S", 0.01)
    monkeypatch.setattr(firer, "_MOST_TOUCHES", 1_000_000)


def threads():
    return [one for one in threading.enumerate() if one.name == "dwell-reckoning"]


async def put_stuck(queue, name):
    """Put a slow schedule that is due before all others."""
    body = json.dumps({"name": name, "topic": "slow", "body": "", "cron": STUCK})
    await queue.put(TOPIC, body.encode(), id=name, due=NINE_MS - schedule.AHEAD_MS)


@contextlib.asynccontextmanager
async def firing(queue):
    task = asyncio.create_task(queue.schedules.fire())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def state_of(queue, name):
    return (await queue.get(TOPIC, name)).state


async def test_a_rule_that_takes_for_ever_holds_up_no_other_and_is_set_aside(
    stuck, soon, monkeypatch
):
    monkeypatch.setattr(firer, "_MOST_TOUCHES", 20)
    async with opened(0) as (queue, clock):
        await put_stuck(queue, "slow")
        for number in range(5):
            await queue.schedules.put(f"s{number}", "t", b"", every="1m")
        async with firing(queue):
            for minute in range(1, 4):
                clock.advance(MINUTE_MS)
                for number in range(5):
                    await fired(queue, clock, f"s{number}")
                expected = [names(minute, name=f"s{number}")[0] for number in range(5)]
                assert await ids(queue) == expected

            async def is_dead():
                return await state_of(queue, "slow") is State.DEAD

            await until_async(is_dead)
            found = await queue.schedules.get("slow")
            assert found.problem.startswith("schedule slow: not reckoned within")
            await until_async(lambda: not threads(), "its thread goes on")


async def test_a_slow_schedule_is_held_until_it_is_reckoned_and_fires_then(stuck, soon):
    """Nobody else may take it meanwhile, and begin anew, however long it takes."""
    async with opened(0) as (queue, clock):
        await put_stuck(queue, "slow")
        async with firing(queue):
            await until_async(threads)
            for _ in range(10):
                before_ms = clock.now_ms()
                clock.advance(9_000)

                async def is_touched(until_ms=before_ms + 12_000):
                    return (await queue.get(TOPIC, "slow")).lease_until_ms > until_ms

                await until_async(is_touched)
            assert not await queue.take(TOPIC)
            stuck.goes_on.set()
            await until_async(lambda: queue.get("slow", names(0, name="slow")[0]))
            await fired(queue, clock, "slow")


async def test_few_slow_schedules_are_reckoned_at_once_and_none_loses_its_moment(stuck, soon):
    async with opened(0) as (queue, clock):
        slow = [f"slow-{number}" for number in range(firer._MOST_SLOW + 3)]
        for name in slow:
            await put_stuck(queue, name)
        async with firing(queue):

            async def are_given_back():
                states = [await state_of(queue, name) for name in slow]
                return states.count(State.DELAYED) == 3

            await until_async(are_given_back)
            await until_async(lambda: len(threads()) == firer._MOST_SLOW)
            await queue.schedules.put("s", "t", b"", every="1s")
            clock.advance(1_000)
            await fired(queue, clock)
            assert len(await ids(queue)) == 1
            stuck.goes_on.set()
            # One that is tried while all threads are busy waits once more.
            await until_async(lambda: not {t.get_name() for t in asyncio.all_tasks()} & {*slow})
            clock.advance(firer._LATER.ms)
            for name in slow:
                await until_async(lambda name=name: queue.get("slow", names(0, name=name)[0]))


async def test_one_that_fires_in_more_than_a_hundred_years_is_set_aside():
    """It cannot be given back for then, and was held and taken again for ever."""
    async with opened() as (queue, clock):
        far = {"name": "far", "topic": "t", "body": "", "every_ms": 1000, "start_ms": LAST_MS}
        await queue.put(TOPIC, json.dumps(far).encode(), id="far")
        await queue.schedules.put("s", "t", b"", every="1m")

        async def is_dead():
            return await state_of(queue, "far") is State.DEAD

        await until_async(is_dead)
        found = await queue.get(TOPIC, "far")
        assert "in more than 100 years" in found.last_error
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert await ids(queue) == names(1)


async def test_a_call_that_asks_for_a_slow_rule_is_refused_in_time(stuck, monkeypatch):
    """Others are answered in the meantime, and no thread is left."""
    monkeypatch.setattr(sidethread, "_MOST_S", 0.2)
    async with opened(0) as (queue, _):
        asked = [queue.schedules.put(f"s{n}", "t", b"", cron=STUCK) for n in range(20)]
        asking = asyncio.gather(*asked, return_exceptions=True)
        await until_async(threads)
        assert len(threads()) <= 4
        assert await asyncio.to_thread(int, "1") == 1
        async with asyncio.timeout(PATIENCE_S):
            answers = {str(answer) for answer in await asking}
        assert answers == {f"schedule s{n}: not reckoned within 0.2 s" for n in range(20)}
        await put_stuck(queue, "slow")
        with pytest.raises(InvalidSchedule, match="slow: not reckoned within"):
            await queue.schedules.next("slow")
        await until_async(lambda: not threads(), "a thread goes on")


async def test_who_stops_does_not_wait_for_a_slow_rule(stuck, soon):
    async with opened(0) as (queue, _):
        await put_stuck(queue, "slow")
        async with firing(queue):
            await until_async(threads)
        await until_async(lambda: not threads(), "its thread goes on")
