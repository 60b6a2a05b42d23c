"""Schedules that several change at the same time, and that are listed while they fire."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from dwell.errors import InvalidInput
from dwell.message import Result, State
from dwell.queue.schedules import TOPIC
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.testing.faults import FaultyDisk
from tests.schedules.test_schedules import MINUTE_MS, opened


def in_a_folder(clock):
    return EmbeddedStore(Path("/store"), clock=clock, disk=FaultyDisk())


STORES = pytest.mark.parametrize("store", [MemoryStore, in_a_folder])


@STORES
@pytest.mark.parametrize("is_paused_first", [True, False])
async def test_who_pauses_a_schedule_while_another_changes_it_has_it_paused(store, is_paused_first):
    async with opened(0, store) as (queue, _):
        for number in range(10):
            await queue.schedules.put("s", "t", b"old", every="1h")
            changes = [
                queue.schedules.put("s", "t", b"%d" % number, every="1h"),
                queue.schedules.pause("s"),
            ]
            await asyncio.gather(*(reversed(changes) if is_paused_first else changes))
            found = (await queue.schedules.get("s")).schedule
            assert (found.paused, found.body) == (True, b"%d" % number)
            assert await queue.schedules.remove("s") is Result.CANCELLED


@STORES
async def test_what_is_removed_does_not_come_back_by_another_change(store):
    async with opened(0, store) as (queue, _):
        for turns in range(20):
            await queue.schedules.put("s", "t", b"", every="1h")
            await queue.schedules.pause("s")
            change = asyncio.create_task(queue.schedules.resume("s"))
            for _ in range(turns):
                await asyncio.sleep(0)
            assert await queue.schedules.remove("s") is Result.CANCELLED
            assert await change in (Result.REPLACED, Result.UNKNOWN)
            assert await queue.schedules.get("s") is None


async def test_of_two_that_put_a_new_schedule_both_are_told_what_came_of_it():
    async with opened(0) as (queue, _):
        for number in range(10):
            puts = [
                queue.schedules.put(f"s{number}", "t", body, every="1h") for body in (b"1", b"2")
            ]
            assert set(await asyncio.gather(*puts)) == {Result.CREATED, Result.REPLACED}


async def test_a_change_that_is_cancelled_holds_up_nobody():
    async with opened(0) as (queue, _):
        await queue.schedules.put("s", "t", b"", every="1h")
        for turns in range(20):
            change = asyncio.create_task(queue.schedules.put("s", "t", b"%d" % turns, every="1h"))
            for _ in range(turns):
                await asyncio.sleep(0)
            change.cancel()
            await asyncio.wait([change])
            assert await queue.schedules.change("s", ttl=f"{turns + 1}s") is Result.REPLACED


@pytest.mark.parametrize("still", [1, 2, 3])
@pytest.mark.parametrize("start", [State.DELAYED, State.READY, State.LEASED])
async def test_each_schedule_is_listed_once_however_it_moves_on(start, still, monkeypatch):
    """From some look on it is in another state whenever one has been looked at."""
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m")
        message = None

        async def move():
            nonlocal message
            state = (await queue.get(TOPIC, "s")).state
            if state is State.DELAYED:
                clock.advance(MINUTE_MS)
            elif state is State.READY:
                (message,) = await queue.take(TOPIC, 1)
            else:
                await queue.release(message, "1m")

        while (await queue.get(TOPIC, "s")).state is not start:
            await move()
        looked, pages = [], queue.pages

        async def moving(topic, state):
            looked.append(state)
            async for page in pages(topic, state):
                yield page
            if len(looked) >= still:
                await move()

        monkeypatch.setattr(queue, "pages", moving)
        assert [found.schedule.name async for found in queue.schedules.each()] == ["s"]


@STORES
async def test_a_change_changes_what_it_names_and_no_more(store):
    async with opened(0, store) as (queue, _):
        assert await queue.schedules.change("s", ttl="1h") is Result.UNKNOWN
        words = {"zone": "Asia/Tokyo", "ttl": "10m", "headers": {"a": "1"}, "key": "k"}
        await queue.schedules.put("s", "t", b"old", cron="0 9 * * *", **words, app="shop")
        before = (await queue.schedules.get("s")).schedule
        assert await queue.schedules.change("s", every="1h", body=b"new") is Result.REPLACED
        after = (await queue.schedules.get("s")).schedule
        assert after == replace(before, cron=None, every_ms=3_600_000, body=b"new")
        assert await queue.schedules.change("s", body=b"new", every="1h") is Result.KEPT
        assert await queue.schedules.change("s", key=None, ttl=None) is Result.REPLACED
        assert (await queue.schedules.get("s")).schedule == replace(after, key=None, ttl_ms=0)


@STORES
async def test_changes_at_the_same_time_are_all_made(store):
    async with opened(0, store) as (queue, _):
        await queue.schedules.put("s", "t", b"", every="1h")
        changes = [{"ttl": "1h"}, {"key": "k"}, {"jitter": "1s"}, {"every": "2h"}, {"body": b"new"}]
        await asyncio.gather(
            *(queue.schedules.change("s", **words) for words in changes), queue.schedules.pause("s")
        )
        found = (await queue.schedules.get("s")).schedule
        assert (found.ttl_ms, found.key, found.jitter_ms) == (3_600_000, "k", 1_000)
        assert (found.every_ms, found.body, found.paused) == (7_200_000, b"new", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"colour": "red"}, "schedule: got 'colour', expected topic, body, cron"),
        ({"cron": "0 0 30 2 *"}, "cron: got"),
        ({"cron": "* * * * *", "every": "1h"}, "got cron and every"),
        ({"every": None}, "got none"),
        ({"zone": "x"}, "zone"),
        ({"body": float("nan")}, "body"),
        ({"topic": None}, "topic"),
        ({"end": 1}, "never fires"),
    ],
)
async def test_a_change_that_would_be_refused_as_a_put_changes_nothing(words, told):
    async with opened(0) as (queue, _):
        await queue.schedules.put("s", "t", b"", every="1h")
        before = await queue.schedules.get("s")
        with pytest.raises(InvalidInput, match=told):
            await queue.schedules.change("s", **words)
        assert await queue.schedules.get("s") == before
