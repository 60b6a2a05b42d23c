"""Changes of schedules that meet a fire, another change, or a damaged record on their way."""

import asyncio
import json
import logging

import pytest
from msgspec.structs import replace

import dwell
from dwell.errors import InvalidSchedule, StoreDamaged
from dwell.message import Result
from dwell.queue.schedules import Firer
from dwell.queue.schedules.changing import Changing
from dwell.worker.declared import TOPIC as DECLARED
from dwell.worker.declared import Declared, Declaring
from tests.schedules.test_changes import STORES
from tests.schedules.test_schedules import MINUTE_MS, opened
from tests.store.test_damage import flip
from tests.waiting import until_async

HOUR_MS = 60 * MINUTE_MS


class Between:
    """A queue in which something happens once, after so many looks at a schedule."""

    def __init__(self, queue, happens, looks):
        self._queue, self._happens, self._left = queue, happens, looks

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def scan(self, *args, **words):
        found = await self._queue.scan(*args, **words)
        await self._happen()
        return found

    async def get(self, *args):
        found = await self._queue.get(*args)
        await self._happen()
        return found

    async def _happen(self):
        self._left -= 1
        if self._left == 0:
            await self._happens()


async def fire_once(queue, clock):
    """Fire what is due, and have what was put done and forgotten; return the ids."""
    firing = asyncio.create_task(Firer(queue).run())
    done = []
    try:
        await until_async(lambda: is_waiting(queue, clock))
        for message in await queue.take("t", 100):
            done.append(message.id)
            await queue.ack(message)
    finally:
        firing.cancel()
        await asyncio.wait([firing])
    return done


async def is_waiting(queue, clock):
    planned = await queue.schedules.get("s")
    return planned.next_ms is not None and planned.next_ms > clock.now_ms()


@STORES
@pytest.mark.parametrize("looks", [1, 2, 3, 4])
async def test_what_fires_while_a_schedule_is_changed_is_put_once(store, looks):
    async with opened(0, store) as (queue, clock):
        await queue.configure("t", remember_ms=0)
        await queue.schedules.put("s", "t", b"old", every="1m", misfire="all")
        clock.advance(MINUTE_MS)
        done = []

        async def fires():
            done.extend(await fire_once(queue, clock))

        changing = Changing(Between(queue, fires, looks))
        assert await changing.change("s", lambda old: replace(old, body=b"new")) is Result.REPLACED
        done += await fire_once(queue, clock)
        clock.advance(MINUTE_MS)
        done += await fire_once(queue, clock)
        assert done == ["s@2026-11-24T09:01:00Z", "s@2026-11-24T09:02:00Z"]
        assert (await queue.schedules.get("s")).schedule.body == b"new"


async def test_a_change_of_a_schedule_that_is_removed_meanwhile_does_not_bring_it_back():
    async with opened(0) as (queue, _):
        await queue.schedules.put("s", "t", b"", every="1m")

        async def removes():
            assert await queue.schedules.remove("s") is Result.CANCELLED

        changing = Changing(Between(queue, removes, 2))
        done = await changing.change("s", lambda old: old and replace(old, body=b"new"))
        assert done is Result.UNKNOWN
        assert await queue.schedules.get("s") is None


async def test_a_schedule_that_has_just_been_declared_is_not_removed():
    """Whoever removes has found no record of it, and another worker declares it just then."""
    async with opened(0) as (queue, _):
        one = [Declared("s", "t", b"", {"every": "1h"})]
        await Declaring(queue, "shop", one, 300_000).start()
        answers = iter([True, False])

        async def may():
            if is_first := next(answers):
                await Declaring(queue, "shop", one, 300_000).start()
            return is_first

        assert await Changing(queue).remove("s", may) is Result.KEPT
        assert await queue.schedules.get("s") is not None


@pytest.mark.parametrize("text", [b'"name":"a"', b'a{"name"'])
async def test_a_damaged_schedule_stops_no_others(tmp_path, text, caplog):
    """It is put again by the worker that declares it, and others fire, are listed and changed."""
    caplog.set_level(logging.WARNING)
    words = {"every": "1h"}
    both = [Declared(name, "t", b"", words) for name in "ab"]
    async with dwell.open(tmp_path / "s") as queue:
        await Declaring(queue, "shop", both, 300_000).start()
    flip(tmp_path / "s", text)
    async with dwell.open(tmp_path / "s") as queue:
        assert [found.schedule.name async for found in queue.schedules.each()] == ["b"]
        with pytest.raises(StoreDamaged, match="'a'"):
            await queue.schedules.pause("a")
        assert await queue.schedules.pause("b") is Result.REPLACED
        await Declaring(queue, "shop", both, 300_000).start()
        assert {found.schedule.name async for found in queue.schedules.each()} == {"a", "b"}
        assert "schedule a: put again from now on, as it was damaged" in caplog.text
        assert await queue.schedules.remove("a") is Result.CANCELLED


async def test_a_damaged_schedule_can_be_removed(tmp_path):
    async with dwell.open(tmp_path / "s") as queue:
        await queue.schedules.put("a", "t", b"", every="1h")
    flip(tmp_path / "s", b'"name":"a"')
    async with dwell.open(tmp_path / "s") as queue:
        assert await queue.schedules.remove("a") is Result.CANCELLED
        assert await queue.schedules.put("a", "t", b"", every="1h") is Result.CREATED


async def test_a_damaged_record_of_code_stops_no_worker(tmp_path):
    one = [Declared("a", "t", b"", {"every": "1h"})]
    async with dwell.open(tmp_path / "s") as queue:
        await Declaring(queue, "shop", one, 300_000).start()
    flip(tmp_path / "s", b'"generation"')
    async with dwell.open(tmp_path / "s") as queue:
        code = Declaring(queue, "shop", one, 300_000)
        await code.start()
        await code.beat()
        assert await queue.schedules.get("a") is not None
        assert (await queue.stats()).topics[DECLARED].delayed == 1


def code_of(queue, app="shop", **hours):
    declared = [Declared(name, name, b"", {"every": f"{span}h"}) for name, span in hours.items()]
    return Declaring(queue, app, declared, 300_000)


async def spans(queue):
    return {p.schedule.name: p.schedule.every_ms // HOUR_MS async for p in queue.schedules.each()}


async def test_code_that_was_late_for_more_than_a_day_has_become_no_newer():
    async with opened(0) as (queue, clock):
        old, new = code_of(queue, tidy=1), code_of(queue, tidy=2)
        await old.start()
        await new.start()
        clock.advance(26 * HOUR_MS)
        # The record of the old code is forgotten now.
        await new.beat()
        for _ in range(15):
            clock.advance(MINUTE_MS // 2)
            await old.beat()
            await new.beat()
        assert await spans(queue) == {"tidy": 2}


class Looking:
    """A queue in which something happens after so many looks through records of code."""

    def __init__(self, queue, looks, happens):
        self._queue, self._looks, self._happens = queue, looks, happens

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def pages(self, topic, state):
        async for page in self._queue.pages(topic, state):
            yield page
        self._looks -= topic == DECLARED
        if self._looks == 0 and topic == DECLARED:
            await self._happens()


@pytest.mark.parametrize("looks", range(1, 7))
async def test_a_late_record_that_is_renewed_while_others_look_is_not_missed(looks):
    async with opened(0) as (queue, clock):
        old = code_of(queue, tidy=1)
        await old.start()
        clock.advance(4 * MINUTE_MS)
        new = code_of(Looking(queue, looks, old.beat), tidy=2)
        await new.start()
        found = [message async for page in queue.pages(DECLARED) for message in page]
        assert sorted(json.loads(message.body)["generation"] for message in found) == [1, 2]


class Slow:
    """A queue whose user is slow: what it has put is done, and its lease over, when it goes on."""

    def __init__(self, queue, clock):
        self._queue, self._clock = queue, clock
        self.done, self.goes_on = [], asyncio.Event()

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def put_rows(self, *args, **words):
        found = await self._queue.put_rows(*args, **words)
        for message in await self._queue.take("t", 100):
            self.done.append(message.id)
            await self._queue.ack(message)
        self._clock.advance(11_000)
        await self.goes_on.wait()
        return found


class Counted:
    """A queue that counts the schedules that were taken, and those that were done with."""

    def __init__(self, queue):
        self._queue, self.taken, self.released = queue, 0, 0

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def take(self, *args, **words):
        batch = await self._queue.take(*args, **words)
        self.taken += len(batch)
        return batch

    async def release(self, *args, **words):
        found = await self._queue.release(*args, **words)
        self.released += 1
        return found


async def test_of_two_who_fire_the_quicker_one_puts_nothing_again():
    """The lease of the slow one ends, by a clock that a test moves on, when what it put is done."""
    async with opened(0) as (queue, clock):
        await queue.configure("t", remember_ms=0)
        await queue.schedules.put("s", "t", b"", every="1h", misfire="all")
        clock.advance(HOUR_MS)
        slow, quick = Slow(queue, clock), Counted(queue)
        tasks = [asyncio.create_task(Firer(slow).run())]
        await until_async(lambda: slow.done)
        tasks.append(asyncio.create_task(Firer(quick).run()))
        await until_async(lambda: quick.released)
        assert quick.taken
        slow.goes_on.set()
        for _ in range(3):
            # Whoever is told that another fires it tries again a second later.
            clock.advance(1_000)
            await asyncio.sleep(0)
        await until_async(lambda: is_waiting(queue, clock))
        assert slow.done == ["s@2026-11-24T10:00:00Z"]
        assert not await queue.take("t", 100)
        for task in tasks:
            task.cancel()


async def test_a_schedule_that_another_puts_meanwhile_is_checked():
    async with opened(0) as (queue, _):
        await queue.schedules.put("s", "t", b"", every="1h")
        schedule = (await queue.schedules.get("s")).schedule
        await queue.schedules.remove("s")

        async def puts():
            await queue.schedules.put("s", "t", b"", every="2h", app="another")

        def check(old):
            if old is not None:
                raise InvalidSchedule(old.app)

        changing = Changing(Between(queue, puts, 1))
        with pytest.raises(InvalidSchedule, match="another"):
            await changing.put(schedule, check=check)
        assert (await queue.schedules.get("s")).schedule.app == "another"
