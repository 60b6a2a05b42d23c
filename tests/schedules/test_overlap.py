"""Schedules whose messages take longer than the time to the next one."""

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dwell
from dwell.errors import InvalidSchedule, StoreError
from dwell.message import State
from dwell.queue.schedules import TOPIC, Firer
from dwell.store.memory import MemoryStore
from tests.schedules.test_schedules import (
    MINUTE_MS,
    NINE_MS,
    fired,
    ids,
    names,
    opened,
    refused,
)


async def minutes(queue, clock, count, schedules="s"):
    """Let the clock run, and the schedules fire each minute."""
    for _ in range(count):
        clock.advance(MINUTE_MS)
        for name in schedules:
            await fired(queue, clock, name)


@pytest.mark.parametrize(
    ("overlap", "left"), [("queue", (1, 2, 3)), ("skip", (1,)), ("replace", (3,))]
)
async def test_what_is_put_while_nobody_takes_follows_the_overlap(overlap, left):
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap=overlap)
        await minutes(queue, clock, 3)
        assert await ids(queue) == names(*left)
        # Nothing is there now, so that the next one is put.
        await minutes(queue, clock, 1)
        assert await ids(queue) == names(4)


async def test_a_message_that_is_taken_is_not_done():
    async with opened() as (queue, clock):
        for name, overlap in (("s", "skip"), ("r", "replace")):
            await queue.schedules.put(name, name, b"", every="1m", overlap=overlap)
        await minutes(queue, clock, 1, "sr")
        taken = [(await queue.take(topic, lease="1h"))[0] for topic in "sr"]
        await minutes(queue, clock, 2, "sr")
        assert await ids(queue, "s") == []
        # It is not called back, and the last one is put beside it.
        assert await ids(queue, "r") == names(3, name="r")
        await queue.ack(taken[0])
        await minutes(queue, clock, 1)
        assert await ids(queue, "s") == names(4)


@pytest.mark.parametrize("has_fired", [True, False])
@pytest.mark.parametrize("is_changed", [True, False])
async def test_a_message_that_is_put_by_hand_is_not_done(has_fired, is_changed):
    async with opened() as (queue, clock):
        overlaps = (("s", "skip"), ("r", "replace"))
        for name, overlap in overlaps:
            await queue.schedules.put(name, name, b"", every="1m", overlap=overlap)
        if has_fired:
            await minutes(queue, clock, 1, "sr")
            assert await ids(queue, "s") == names(1)
            assert await ids(queue, "r") == names(1, name="r")
        clock.advance(30_000)
        for name, overlap in overlaps:
            await queue.schedules.run(name)
            if is_changed:
                await queue.schedules.put(name, name, b"", every="1m", overlap=overlap, ttl="1h")
        (taken,) = await queue.take("s", lease="1h")
        await minutes(queue, clock, 2, "sr")
        assert await ids(queue, "s") == []
        # Nobody has taken the one of the other, and the last one takes its place.
        assert len(await ids(queue, "r")) == 1
        await queue.ack(taken)
        await minutes(queue, clock, 1)
        assert len(await ids(queue, "s")) == 1


@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_each_of_several_runs_by_hand_counts_until_it_is_done(overlap):
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap=overlap)
        clock.advance(10_000)
        first = await queue.schedules.run("s")
        (taken,) = await queue.take("t", lease="2h")
        for _ in range(2):
            await queue.schedules.run("s")
        clock.advance(1_000)
        assert len(await ids(queue)) == 2
        # One that the topic has no room for changes nothing.
        await queue.put("t", b"", delay="1d")
        await queue.configure("t", max_pending=1)
        with pytest.raises(dwell.TopicFull):
            await queue.schedules.run("s")
        await queue.configure("t", max_pending=0)
        await minutes(queue, clock, 2)
        assert await queue.get("t", first.id) is not None
        assert await ids(queue) == ([] if overlap == "skip" else names(2))
        await queue.ack(taken)
        await minutes(queue, clock, 1)
        assert await ids(queue) == names(3)


async def test_a_run_by_hand_counts_whose_put_comes_after_the_next_run(monkeypatch):
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap="skip")
        clock.advance(10_000)
        puts, gate = queue.put_rows, asyncio.Event()
        begun = asyncio.Event()

        async def late(*args):
            begun.set()
            await gate.wait()
            return await puts(*args)

        with monkeypatch.context() as patched:
            patched.setattr(queue, "put_rows", late)
            first = asyncio.create_task(queue.schedules.run("s"))
            await begun.wait()
        clock.advance(1_000)
        second = await queue.schedules.run("s")
        gate.set()
        await first
        clock.advance(1_000)
        taken = {message.id: message for message in await queue.take("t", 2, lease="1h")}
        await queue.ack(taken[second.id])
        await minutes(queue, clock, 2)
        assert await ids(queue) == []


async def test_a_long_run_by_hand_counts_behind_many_that_are_done():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap="skip")
        clock.advance(10_000)
        await queue.schedules.run("s")
        (long,) = await queue.take("t", lease="2h")
        for _ in range(120):
            clock.advance(10)
            await queue.schedules.run("s")
            await queue.ack(await queue.take("t"))
        await minutes(queue, clock, 2)
        assert await ids(queue) == []
        await queue.ack(long)
        await minutes(queue, clock, 1)
        assert len(await ids(queue)) == 1


async def test_several_runs_by_hand_that_nobody_has_taken_are_all_replaced():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap="replace")
        clock.advance(10_000)
        for _ in range(3):
            await queue.schedules.run("s")
        await minutes(queue, clock, 1)
        assert await ids(queue) == names(1)


@pytest.mark.parametrize("overlap", ["queue", "skip", "replace"])
async def test_a_run_by_hand_leaves_a_dead_schedule_dead(overlap):
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap=overlap)
        clock.advance(MINUTE_MS)
        await queue.bury((await queue.take(TOPIC))[0], "not now")
        await queue.schedules.run("s")
        found = await queue.schedules.get("s")
        assert (found.state, found.problem) == (State.DEAD, "not now")


async def test_a_run_by_hand_changes_nothing_else():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap="skip", ttl="1h")
        await minutes(queue, clock, 1)
        await ids(queue)
        clock.advance(1_000)
        before = await queue.schedules.get("s")
        await queue.schedules.run("s")
        assert (await queue.schedules.get("s")).as_dict() == before.as_dict()
        await queue.schedules.pause("s")
        await queue.schedules.run("s")
        assert (await queue.schedules.get("s")).next_ms is None
        clock.advance(1_000)
        assert len(await ids(queue)) == 2


async def test_a_dead_message_holds_up_nothing():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap="skip")
        await minutes(queue, clock, 1)
        await queue.bury((await queue.take("t"))[0], "no")
        await minutes(queue, clock, 1)
        assert await ids(queue) == names(2)


async def test_after_a_time_in_which_nobody_fired_one_is_put():
    async with opened() as (queue, clock):
        for name, overlap in (("s", "skip"), ("r", "replace")):
            words = {"every": "1m", "misfire": "all", "overlap": overlap}
            await queue.schedules.put(name, name, b"", **words)
        clock.advance(5 * MINUTE_MS)
        for name in "sr":
            await fired(queue, clock, name)
        await minutes(queue, clock, 1, "sr")
        assert await ids(queue, "s") == names(1)
        assert await ids(queue, "r") == names(6, name="r")


async def _patched(queue):
    await queue.schedules.change("s", body=b"new")


async def _put_again(queue):
    await queue.schedules.put("s", "t", b"new", every="1m", overlap="skip")


async def _paused(queue):
    await queue.schedules.pause("s")
    await queue.schedules.resume("s")


@pytest.mark.parametrize("change", [_patched, _put_again, _paused])
async def test_a_change_keeps_what_is_not_done(change):
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap="skip")
        await minutes(queue, clock, 1)
        (taken,) = await queue.take("t", lease="1h")
        for _ in range(2):
            await minutes(queue, clock, 2)
            await change(queue)
        await minutes(queue, clock, 2)
        assert await ids(queue) == []
        await queue.ack(taken)
        await minutes(queue, clock, 1)
        assert len(await ids(queue)) == 1
        with pytest.raises(InvalidSchedule, match="overlap: got str 'never', expected one of"):
            await queue.schedules.change("s", overlap="never")


class Dying(Firer):
    """Dies between the put of a message and the release that tells of it."""

    async def _give_back(self, work):
        raise asyncio.CancelledError


class DyingSooner(Firer):
    """Dies between the put of a message and the cancel of the one before."""

    async def _finish(self, work, results):
        raise asyncio.CancelledError


@pytest.mark.parametrize(("overlap", "left"), [("skip", 1), ("replace", 3)])
async def test_a_message_of_a_firer_that_died_is_the_one_before(overlap, left):
    async with opened(firers=0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", misfire="once", overlap=overlap)
        clock.advance(MINUTE_MS)
        with pytest.raises(asyncio.CancelledError):
            await Dying(queue).run()
        clock.advance(2 * MINUTE_MS)
        task = asyncio.create_task(queue.schedules.fire())
        await fired(queue, clock)
        task.cancel()
        assert await ids(queue) == names(left)


class Stopped(Firer):
    """Is stopped for longer than its lease between the put of a message and the release."""

    async def _give_back(self, work):
        if not self._firing.unsaid:
            self._queue.clock.advance(MINUTE_MS)
        await super()._give_back(work)


@pytest.mark.parametrize(("overlap", "left"), [("skip", 1), ("replace", 2)])
async def test_a_message_of_a_firer_that_was_stopped_is_the_one_before(overlap, left):
    async with opened(firers=0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap=overlap)
        clock.advance(MINUTE_MS)
        task = asyncio.create_task(Stopped(queue).run())
        await fired(queue, clock)
        task.cancel()
        assert await ids(queue) == names(left)


async def test_all_that_firers_left_when_they_died_is_replaced():
    async with opened(firers=0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", misfire="once", overlap="replace")
        for _ in range(2):
            clock.advance(MINUTE_MS)
            with pytest.raises(asyncio.CancelledError):
                await DyingSooner(queue).run()
        assert (await queue.stats()).topics["t"].ready == 2
        clock.advance(MINUTE_MS)
        firer = asyncio.create_task(queue.schedules.fire())
        await fired(queue, clock)
        firer.cancel()
        assert await ids(queue) == names(3)


@pytest.mark.parametrize("verb", ["get", "cancel"])
async def test_a_topic_that_cannot_be_reached_holds_up_no_other(monkeypatch, verb):
    async with opened() as (queue, clock):
        does = getattr(queue, verb)

        async def fails(topic, *args, **words):
            if topic == "r":
                raise StoreError("the shard is down")
            return await does(topic, *args, **words)

        for name in "sr":
            await queue.schedules.put(name, name, b"", every="1m", overlap="replace")
        await minutes(queue, clock, 1, "sr")
        with monkeypatch.context() as patched:
            patched.setattr(queue, verb, fails)
            await minutes(queue, clock, 2, "s")
            assert await ids(queue, "s") == names(3)
        clock.advance(MINUTE_MS)
        await minutes(queue, clock, 1, "sr")
        assert await ids(queue, "r") == names(5, name="r")


async def test_a_message_stays_where_nothing_takes_its_place():
    async with opened() as (queue, clock):
        for name in "sr":
            await queue.schedules.put(name, name, b"", every="1m", overlap="replace")
        await minutes(queue, clock, 1, "sr")
        for name, on_full in (("s", "drop"), ("r", "refuse")):
            await queue.configure(name, max_pending=1, on_full=on_full)
        await minutes(queue, clock, 2)
        await refused(queue, clock, "r")
        for name in "sr":
            assert [m.id for m in (await queue.scan(name, "ready")).messages] == names(1, name=name)
            await queue.configure(name, max_pending=0)
        await minutes(queue, clock, 1, "sr")
        assert await ids(queue, "s") == names(4)
        assert len(await ids(queue, "r")) == 1


async def test_moments_that_were_too_late_leave_the_message_to_be_replaced():
    async with opened() as (queue, clock):
        words = {"every": "1m", "overlap": "replace", "misfire": "skip", "grace": "0s"}
        await queue.schedules.put("s", "t", b"", **words)
        await minutes(queue, clock, 1)
        clock.advance(5 * MINUTE_MS + 30_000)
        await fired(queue, clock)
        clock.advance(MINUTE_MS // 2)
        await fired(queue, clock)
        assert await ids(queue) == names(7)


async def test_what_is_not_due_yet_is_not_replaced():
    async with opened() as (queue, clock):
        words = {"every": "1m", "overlap": "replace", "jitter": "2h"}
        await queue.schedules.put("s", "t", b"", **words)
        await minutes(queue, clock, 4)
        (waiting,) = (await queue.scan("t", "delayed")).messages
        assert waiting.id == names(1)[0]
        assert waiting.due_ms > clock.now_ms()


_STEPS = ("minute", "take", "done", "again", "run", "change", "pause", "put")


@given(st.lists(st.sampled_from(_STEPS), max_size=25))
@example(["minute", "take", "minute", "run", "take", "minute", "change", "done", "minute"])
@example(["minute", "take", "minute", "run", "minute", "run", "take", "take", "done", "done"])
@settings(max_examples=60, deadline=None)
async def test_skipped_messages_never_overlap(steps):
    clock = dwell.SimulatedClock(NINE_MS)
    async with dwell.Queue(MemoryStore(clock)) as queue:
        firing = asyncio.create_task(Firer(queue).run())
        await queue.schedules.put("s", "t", b"", every="1m", overlap="skip")
        taken, by_hand = [], set()
        for number, step in enumerate([*steps, "minute"]):
            if step == "minute":
                clock.advance(MINUTE_MS)
                await fired(queue, clock)
            elif step == "take":
                taken += await queue.take("t", lease="1h")
            elif step == "done" and taken:
                await queue.ack(taken.pop())
            elif step == "again":
                # Somebody else fires it from now on.
                firing.cancel()
                firing = asyncio.create_task(Firer(queue).run())
            elif step == "run":
                by_hand.add((await queue.schedules.run("s")).id)
                clock.advance(1)
            elif step == "change":
                await queue.schedules.change("s", priority=number)
            elif step == "pause":
                await queue.schedules.pause("s")
                await queue.schedules.resume("s")
            elif step == "put":
                await queue.schedules.put("s", "t", str(number), every="1m", overlap="skip")
            ready = (await queue.scan("t", "ready")).messages
            there = {message.id for message in (*ready, *taken)}
            assert len(there - by_hand) <= 1
        assert await queue.get(TOPIC, "s") is not None
        firing.cancel()
