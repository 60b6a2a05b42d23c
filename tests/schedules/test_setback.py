"""Schedules when the clock was ahead, and is put right."""

import asyncio
import contextlib
import threading

import pytest
from msgspec.structs import replace

import dwell
from dwell.errors import Forbidden, InvalidInput
from dwell.message import Result, State
from dwell.queue.schedules import TOPIC, setback
from dwell.queue.schedules.schedule import OWNER, fired_text, schedule_of, since_ms
from dwell.queue.schedules.times import Times
from dwell.store.memory import MemoryStore
from tests.schedules.test_changes import in_a_folder
from tests.schedules.test_schedules import MINUTE_MS, NINE_MS, fired, ids, names, opened, refused
from tests.waiting import until_async

HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
STORES = pytest.mark.parametrize("store", [MemoryStore, in_a_folder])
AHEAD = pytest.mark.parametrize("ahead_ms", [5 * MINUTE_MS, DAY_MS, 365 * DAY_MS])


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(setback, "_LOOK_S", 0.05)


class SetClock(dwell.SimulatedClock):
    """Can be set, while no time passes."""

    _set_ms = 0

    def monotonic_ms(self):
        return self.now_ms() - self._set_ms

    def set(self, step_ms):
        self._set_ms += step_ms
        self.advance(step_ms)


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


async def is_next(queue, clock, name="s"):
    found = await queue.schedules.get(name)
    return (
        found is not None
        and found.state is State.DELAYED
        and found.next_ms <= clock.now_ms() + MINUTE_MS
    )


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


@STORES
@pytest.mark.parametrize("ahead_ms", [5 * MINUTE_MS, 5 * HOUR_MS, 5 * DAY_MS])
async def test_a_schedule_put_by_a_clock_that_was_ahead_in_a_process_that_has_ended(
    store, ahead_ms
):
    """Nobody has seen the clock go back, and what waits for its time is left alone."""
    clock = dwell.SimulatedClock(NINE_MS + ahead_ms)
    async with dwell.Queue(store(clock)) as queue:
        await queue.schedules.put("s", "t", b"", every="1m")
        await queue.schedules.put("later", "t", b"", every="90d", start="2099-01-01T00:00:00Z")
        later = await queue.get(TOPIC, "later")
        clock.advance(-ahead_ms)
        firing = asyncio.create_task(queue.schedules.fire())
        await goes_on(queue, clock)
        assert await queue.get(TOPIC, "later") == later
        firing.cancel()


async def test_a_rule_that_takes_long_does_not_hold_up_the_look_at_others(monkeypatch):
    monkeypatch.setattr("dwell.queue.schedules.setback._RECKONING_S", 0.1)
    clock = dwell.SimulatedClock(NINE_MS + HOUR_MS)
    async with dwell.Queue(MemoryStore(clock)) as queue:
        await queue.schedules.put("slow", "t", b"", cron="0 0 29 2 *")
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(-HOUR_MS)
        going = threading.Event()
        slow = Times.after

        def after(times, ms):
            if ms == clock.now_ms():
                going.wait(10)
            return slow(times, ms)

        monkeypatch.setattr(Times, "after", after)
        firing = asyncio.create_task(queue.schedules.fire())
        await goes_on(queue, clock)
        going.set()
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


class Held(MemoryStore):
    """Does not go on with the next call that changes a topic before it is told to."""

    topic = None

    def hold(self, topic):
        self.topic, self.is_asked, self.goes_on = topic, asyncio.Event(), asyncio.Event()

    async def _let(self, topic):
        if topic == self.topic:
            self.topic = None
            self.is_asked.set()
            await self.goes_on.wait()

    async def put(self, puts, *args, **kwargs):
        await self._let(puts.topic)
        return await super().put(puts, *args, **kwargs)

    async def reschedule(self, topic, *args, **kwargs):
        await self._let(topic)
        return await super().reschedule(topic, *args, **kwargs)


@pytest.mark.parametrize("has_fired", [True, False])
async def test_a_schedule_that_was_changed_since_it_was_looked_at_is_left_alone(has_fired):
    clock = dwell.SimulatedClock(NINE_MS)
    store = Held(clock)
    async with dwell.Queue(store) as queue:
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(HOUR_MS)
        if has_fired:
            firing = asyncio.create_task(queue.schedules.fire())
            await fired(queue, clock)
            firing.cancel()
        else:
            await queue.schedules.remove("s")
            await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(-HOUR_MS)
        store.hold(TOPIC)
        firing = asyncio.create_task(queue.schedules.fire())
        await store.is_asked.wait()
        await queue.schedules.pause("s")
        paused = await queue.get(TOPIC, "s")
        store.goes_on.set()
        await asyncio.sleep(0.2)
        assert await queue.get(TOPIC, "s") == paused
        firing.cancel()


@pytest.mark.parametrize("end", [None, "2026-11-25T08:00:00Z"])
@pytest.mark.parametrize("misfire", ["all", "once"])
@pytest.mark.parametrize("late_s", [0, 0.3])
async def test_a_clock_that_is_put_right_while_a_schedule_fires(end, misfire, late_s):
    """The firing process sees the clock go back after it has put all, or before."""
    clock = dwell.SimulatedClock(NINE_MS)
    store = Held(clock)
    async with dwell.Queue(store) as queue:
        words = {"every": "1m", "misfire": misfire, "end": end}
        await queue.schedules.put("s", "t", b"", **words)
        clock.advance(DAY_MS)
        store.hold("t")
        firing = asyncio.create_task(queue.schedules.fire())
        await store.is_asked.wait()
        clock.advance(-DAY_MS)
        await asyncio.sleep(late_s)
        store.goes_on.set()
        await until_async(lambda: is_next(queue, clock))
        clock.advance(MINUTE_MS)
        await until_async(lambda: is_there(queue, clock, 1))
        firing.cancel()


@STORES
@pytest.mark.parametrize("has_fired", [True, False])
async def test_a_schedule_that_died_with_who_took_it_by_a_clock_that_was_ahead(store, has_fired):
    clock = dwell.SimulatedClock(NINE_MS)
    async with dwell.Queue(store(clock)) as queue:
        await queue.schedules.put("s", "t", b"", every="1m")
        await queue.put("other", b"", id="own")
        if has_fired:
            clock.advance(MINUTE_MS)
            firing = asyncio.create_task(queue.schedules.fire())
            await fired(queue, clock)
            await ids(queue)
            firing.cancel()
            await asyncio.gather(firing, return_exceptions=True)
        clock.advance(DAY_MS)
        for topic in (TOPIC, "other"):
            assert len(await queue.take(topic, lease="10s", owner=OWNER)) == 1
        clock.advance(-DAY_MS)
        firing = asyncio.create_task(queue.schedules.fire())
        await goes_on(queue, clock)
        # What others hold by the same name is theirs.
        assert (await queue.get("other", "own")).state is State.LEASED
        firing.cancel()


@STORES
@pytest.mark.parametrize("misfire", ["all", "once", "skip"])
@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("rule", [{"cron": "0 8 * * *"}, {"every": "1m"}])
async def test_a_schedule_that_has_not_fired_before_a_clock_that_was_behind(
    store, misfire, is_seen, rule
):
    """No moment before its put is fired when the clock is right again."""
    clock = SetClock(NINE_MS)
    async with dwell.Queue(store(clock)) as queue:
        firing = None
        if is_seen:
            firing = asyncio.create_task(queue.schedules.fire())
            await asyncio.sleep(0.1)
        await queue.schedules.put("s", "t", b"", misfire=misfire, **rule)
        clock.set(-2 * DAY_MS)
        firing = firing or asyncio.create_task(queue.schedules.fire())
        await until_async(lambda: is_next_within(queue, clock, DAY_MS))
        clock.set(2 * DAY_MS + 90_000)
        await until_async(lambda: is_next_within(queue, clock, DAY_MS))
        assert await ids(queue) == (names(1) if "every" in rule else [])
        firing.cancel()


async def test_a_full_topic_while_the_clock_is_behind_puts_nothing_twice():
    async with opened(1, clock_of=SetClock) as (queue, clock):
        await queue.configure("t", remember_ms=0)
        await queue.schedules.put("s", "t", b"", every="1m", misfire="all")
        for _ in range(10):
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
        assert await ids(queue) == names(*range(1, 11))
        clock.set(-8 * MINUTE_MS)
        await until_async(lambda: is_next(queue, clock))
        await queue.configure("t", max_pending=1)
        await queue.put("t", b"", id="full")
        clock.advance(MINUTE_MS)
        for _ in range(3):
            await refused(queue, clock)
            clock.advance(1_000)
        await queue.configure("t", max_pending=0)
        await until_async(lambda: is_next_within(queue, clock, MINUTE_MS))
        clock.set(8 * MINUTE_MS)
        await until_async(lambda: is_next_within(queue, clock, MINUTE_MS))
        assert await ids(queue) == ["full", *names(3, 11)]


async def is_next_within(queue, clock, span_ms):
    clock.advance(1)
    found = await queue.schedules.get("s")
    return found.state is State.DELAYED and 0 < found.next_ms - clock.now_ms() <= span_ms


@STORES
@pytest.mark.parametrize(
    ("rule", "count"),
    [
        ({"every": "1m", "end": "2026-11-24T09:06:00Z"}, 5),
        ({"rrule": "FREQ=MINUTELY;COUNT=6", "start": "2026-11-24T09:01:00Z"}, 5),
        ({"rrule": "DTSTART:20261124T090100Z\nRDATE:20261124T090200Z,20261124T090300Z"}, 2),
    ],
)
async def test_a_schedule_that_ended_by_a_clock_that_was_ahead_goes_on(store, rule, count):
    async with opened(2, store) as (queue, clock):
        await queue.schedules.put("s", "t", b"", **rule)
        await queue.schedules.put("kept", "t", b"old", **rule)
        clock.advance(DAY_MS)
        for name in ("s", "kept"):
            await until_async(lambda name=name: is_gone(queue, name))
        # Somebody else has the name of one meanwhile.
        await queue.schedules.put("kept", "t", b"new", every="90d")
        # The last moment of each was put by that clock.
        last = await ids(queue)
        clock.advance(-DAY_MS)
        await until_async(lambda: is_waiting(queue, clock))
        assert (await queue.schedules.get("kept")).schedule.body == b"new"
        found = []
        for _ in range(8):
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
            await until_async(lambda: is_still(queue))
            found += await ids(queue)
        assert found == names(*range(1, 1 + count))
        assert set(last) >= set(names(1 + count))
        assert await queue.schedules.get("s") is None


@STORES
@pytest.mark.parametrize("misfire", ["all", "once", "skip"])
async def test_a_schedule_that_has_ended_fires_nothing_again_after_a_clock_that_was_behind(
    store, misfire
):
    """Of what it has put, only moments that came again while the clock was behind come twice."""
    async with opened(1, store, SetClock) as (queue, clock):
        await queue.configure("t", remember_ms=0)
        words = {"every": "1m", "misfire": misfire, "end": "2026-11-24T09:10:00Z"}
        await queue.schedules.put("s", "t", b"", **words)
        for _ in range(10):
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
        await until_async(lambda: is_gone(queue, "s"))
        assert await ids(queue) == names(*range(1, 11))
        clock.advance(20 * MINUTE_MS)
        clock.set(-28 * MINUTE_MS)
        await until_async(lambda: is_waiting(queue, clock))
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        again = await ids(queue)
        assert again in ([], names(3))
        clock.set(27 * MINUTE_MS)
        await until_async(lambda: is_gone(queue, "s"))
        assert await ids(queue) == []


@STORES
@pytest.mark.parametrize("misfire", ["all", "once", "skip"])
@pytest.mark.parametrize("late_ms", [0, 1_000, 50_000])
@pytest.mark.parametrize("is_changed", [False, True])
async def test_no_moment_is_left_out_after_a_clock_that_was_ahead(
    store, misfire, late_ms, is_changed
):
    """Also the last moment of that clock, and also by a firer that is late."""
    async with opened(1, store, SetClock) as (queue, clock):
        await queue.configure("t", remember_ms=0)
        await queue.schedules.put("s", "t", b"", every="1m", misfire=misfire)
        clock.set(10 * MINUTE_MS + 30_000)
        await fired(queue, clock)
        await ids(queue)
        clock.set(-10 * MINUTE_MS - 30_000)
        await until_async(lambda: is_next(queue, clock))
        if is_changed:
            await queue.schedules.change("s", ttl="1h")
        clock.advance(late_ms)
        found = []
        for _ in range(12):
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
            found += await ids(queue)
        assert found[-1] in (names(12)[0], names(13)[0])
        assert found == names(*range(1, len(found) + 1))


async def is_waiting(queue, clock, name="s"):
    clock.advance(1)
    found = await queue.schedules.get(name)
    return found is not None and found.state is State.DELAYED


@STORES
async def test_a_schedule_that_was_removed_after_its_end_stays_removed(store):
    async with opened(1, store) as (queue, clock):
        words = {"every": "1m", "end": "2026-11-24T09:06:00Z"}
        await queue.schedules.put("s", "t", b"old", **words)
        await queue.schedules.put("other", "t", b"", **words)
        clock.advance(HOUR_MS)
        for name in ("s", "other"):
            await until_async(lambda name=name: is_gone(queue, name))
        await queue.schedules.put("s", "t", b"new", every="90d")
        await queue.schedules.remove("s")
        clock.advance(-HOUR_MS)
        await until_async(lambda: is_waiting(queue, clock, "other"))
        assert await queue.schedules.get("s") is None


async def test_a_schedule_that_ended_goes_on_where_nobody_may_read_events(monkeypatch):
    """Nor see what is held."""

    async def refuse(*_):
        raise Forbidden("token shop may not read")

    monkeypatch.setattr(dwell.Queue, "events", refuse)
    monkeypatch.setattr(MemoryStore, "held", refuse)
    rule = {"every": "1m", "end": "2026-11-24T09:06:00Z"}
    async with opened(1) as (queue, clock):
        await queue.schedules.put("kept", "kept", b"old", **rule)
        await queue.schedules.put("s", "t", b"", **rule)
        await queue.schedules.put("other", "other", b"", every="1m")
        clock.advance(HOUR_MS)
        for name in ("kept", "s"):
            await until_async(lambda name=name: is_gone(queue, name))
        await fired(queue, clock, "other")
        # Somebody else has the name of one meanwhile.
        await queue.schedules.put("kept", "kept", b"new", every="90d")
        clock.advance(-HOUR_MS)
        await until_async(lambda: is_next(queue, clock, "other"))
        await goes_on(queue, clock)
        assert (await queue.schedules.get("kept")).schedule.body == b"new"


async def test_a_time_to_come_that_a_text_tells_is_no_time_to_fire_from():
    clock = dwell.SimulatedClock(NINE_MS)
    async with dwell.Queue(MemoryStore(clock)) as queue:
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(MINUTE_MS)
        taken = await queue.take(TOPIC)
        await queue.release(taken, "1s", error=fired_text(clock.now_ms() + DAY_MS))
        assert since_ms(await queue.get(TOPIC, "s"), clock.now_ms()) == clock.now_ms()


async def test_an_ended_schedule_without_room_for_its_last_moment_stops_no_other(caplog):
    rule = {"every": "1m", "end": "2026-11-24T09:06:00Z"}
    async with opened(1) as (queue, clock):
        for size in range(786_500, 0, -1):
            # The largest that can be put.
            with contextlib.suppress(InvalidInput):
                await queue.schedules.put("a", "full", b"x" * size, **rule)
                break
        await queue.schedules.put("s", "t", b"", **rule)
        clock.advance(HOUR_MS)
        for name in ("a", "s"):
            await until_async(lambda name=name: is_gone(queue, name))
        clock.advance(-HOUR_MS)
        await until_async(lambda: is_next(queue, clock))
        assert await queue.schedules.get("a") is None
    lost = [one.getMessage() for one in caplog.records if "is lost" in one.getMessage()]
    assert len(lost) == 1
    assert "schedule a" in lost[0]


async def test_what_has_ended_is_kept_in_bounded_memory(monkeypatch):
    clock = dwell.SimulatedClock(NINE_MS)
    monkeypatch.setattr(setback, "_MOST_ENDED", 5)
    monkeypatch.setattr(setback, "_MOST_ENDED_BYTES", 4000)
    async with dwell.Queue(MemoryStore(clock)) as queue:
        seen = setback.Setback(queue)
        for size in [10] * 8 + [1000] * 3 + [3500, 10]:
            await queue.schedules.put("s", "t", b"x" * size, every="1m")
            message = await queue.get(TOPIC, "s")
            named = replace(schedule_of(message), name=f"s{len(seen._ended)}-{size}")
            seen.note_end(message_of(named, message), named, NINE_MS)
            sizes = [len(ended.data) for ended in seen._ended.values()]
            assert len(sizes) <= 5
            assert sum(sizes) <= 4000
            assert sum(sizes) == seen._ended_bytes


def message_of(schedule, message):
    return replace(message, id=schedule.name, body=schedule.data)


async def test_a_change_while_the_clock_is_behind_keeps_the_later_mark():
    """Also a run by hand, which changes a schedule whose messages must not overlap."""
    async with opened(1, clock_of=SetClock) as (queue, clock):
        await queue.configure("t", remember_ms=0)
        for name in ("s", "r"):
            await queue.schedules.put(name, name, b"", every="1m", misfire="all", overlap="skip")
            await queue.configure(name, remember_ms=0)
        found = {"s": [], "r": []}

        async def step(ms, change=clock.advance):
            change(ms)
            for name in found:
                await fired(queue, clock, name)
                found[name] += await ids(queue, name)

        for _ in range(10):
            await step(MINUTE_MS)
        clock.set(-8 * MINUTE_MS)
        for name in found:
            await until_async(lambda name=name: is_next(queue, clock, name))
        await queue.schedules.change("s", ttl="1h")
        await queue.schedules.run("r")
        await step(8 * MINUTE_MS, clock.set)
        await step(MINUTE_MS)
        by_hand = [id_ for id_ in found["r"] if not id_.endswith("00Z")]
        assert len(by_hand) == 1
        found["r"].remove(by_hand[0])
        for name in found:
            assert len(found[name]) == len(set(found[name])), found[name]
            assert found[name][-1] == names(11, name=name)[0]


async def is_gone(queue, name):
    return await queue.schedules.get(name) is None


async def is_still(queue):
    """Tell whether nobody fires just now."""
    return not (await queue.stats()).topics[TOPIC].leased


@STORES
@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_a_message_of_a_time_to_come_holds_up_no_schedule(store, overlap):
    async with opened(1, store) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap=overlap)
        for step_ms in (MINUTE_MS, DAY_MS, 2 * MINUTE_MS):
            clock.advance(step_ms)
            await fired(queue, clock)
            if step_ms == MINUTE_MS:
                await ids(queue)
        # Nobody has taken what was put by the clock that was ahead.
        clock.advance(-DAY_MS - 2 * MINUTE_MS)
        await until_async(lambda: is_next(queue, clock))
        for minute in (2, 3, 4):
            clock.advance(MINUTE_MS)
            await until_async(lambda minute=minute: is_there(queue, clock, minute))
            assert await ids(queue) == names(minute)


async def test_next_is_right_after_a_clock_went_back_a_little():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="10s")
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        await ids(queue)
        clock.advance(-50_000)
        (first,) = await queue.schedules.next("s", 1)
        assert first.isoformat() == "2026-11-24T09:01:10+00:00"
        clock.advance(40_000)
        await asyncio.sleep(0.2)
        assert await ids(queue) == []
        clock.advance(20_000)
        await fired(queue, clock)
        assert await ids(queue) == ["s@2026-11-24T09:01:10Z"]


async def test_a_paused_schedule_does_not_fire_when_its_message_is_due():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m")
        await queue.schedules.pause("s")
        assert await queue.reschedule(TOPIC, "s", delay=0) is Result.MOVED
        await until_async(lambda: is_later(queue, clock))
        clock.advance(5 * MINUTE_MS)
        await asyncio.sleep(0.2)
        assert await ids(queue) == []
        await queue.schedules.resume("s")
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert await ids(queue) == names(6)


async def is_later(queue, clock):
    found = await queue.get(TOPIC, "s")
    return found.state is State.DELAYED and found.due_ms > clock.now_ms() + DAY_MS


@STORES
@pytest.mark.parametrize("misfire", ["once", "all", "skip"])
@pytest.mark.parametrize("back_ms", [20 * MINUTE_MS, 10 * DAY_MS])
async def test_a_clock_that_was_behind_lets_nothing_fire_again(store, misfire, back_ms):
    async with opened(2, store, SetClock) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", misfire=misfire)
        await queue.configure("t", remember_ms=1_000)
        before = []
        for _ in range(15):
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
            before += await ids(queue)
        assert before == names(*range(1, 16))
        clock.set(-back_ms)
        # What it puts by the time that the clock shows has other names, or is put a second time.
        await until_async(lambda: is_next(queue, clock))
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        await ids(queue)
        clock.set(back_ms - MINUTE_MS)
        await fired(queue, clock)
        found = await ids(queue)
        for _ in range(3):
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
            found += await ids(queue)
        assert found == names(16, 17, 18)
        last_ms = (await queue.schedules.get("s")).last_ms
        assert last_ms == clock.now_ms()


async def test_what_was_owed_after_a_clock_was_behind_is_put():
    """It was behind, and then nobody fired for a while."""
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", misfire="all")
        for step_ms in (2 * MINUTE_MS, -10 * MINUTE_MS, MINUTE_MS, 20 * MINUTE_MS):
            clock.advance(step_ms)
            firing = asyncio.create_task(queue.schedules.fire())
            await until_async(lambda: is_next(queue, clock))
            await fired(queue, clock)
            firing.cancel()
        assert set(await ids(queue)) >= set(names(*range(1, 14)))
