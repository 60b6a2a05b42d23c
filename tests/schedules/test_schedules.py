"""Schedules: put, changed, held up, fired by many, and what is put for moments that were missed."""

import asyncio
import contextlib
import shutil
import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.calendar.epoch import to_ms
from dwell.errors import InvalidSchedule
from dwell.message import MAX_BODY_BYTES, MAX_HEADERS_BYTES, Result, State
from dwell.queue.schedules import TOPIC, Firer, firer
from dwell.queue.schedules.schedule import AHEAD_MS, put_again
from dwell.queue.schedules.times import MOST_AT_ONCE, Times, plan, times_of
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from tests.waiting import until_async

NINE_MS = to_ms(datetime(2026, 11, 24, 9, tzinfo=UTC))
MINUTE_MS = 60_000


@contextlib.asynccontextmanager
async def opened(firers=1, store=MemoryStore, clock_of=dwell.SimulatedClock):
    """Give a queue at nine o'clock, its clock, and so many who fire its schedules."""
    clock = clock_of(NINE_MS)
    async with dwell.Queue(store(clock)) as queue:
        tasks = [asyncio.create_task(queue.schedules.fire()) for _ in range(firers)]
        try:
            yield queue, clock
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def fired(queue, clock, name="s"):
    """Wait until a schedule is to fire later than now, or is gone."""

    async def has():
        found = await queue.schedules.get(name)
        is_later = found is None or (found.next_ms or clock.now_ms() + 1) > clock.now_ms()
        return is_later and (found is None or found.state is not State.LEASED)

    await until_async(has)


async def refused(queue, clock, name="s"):
    """Wait until the schedule is given back, to be tried again later."""

    async def is_given_back():
        found = await queue.get(TOPIC, name)
        return found.state is State.DELAYED and found.due_ms > clock.now_ms()

    await until_async(is_given_back)


async def ids(queue, topic="t"):
    """Take and ack all that there is; return the ids, in order."""
    found = []
    while batch := await queue.take(topic, 1000):
        found += list(batch.ids)
        await queue.ack(batch)
    return sorted(found)


def names(*minutes, name="s"):
    return [f"{name}@2026-11-24T09:{minute:02}:00Z" for minute in minutes]


async def test_runs_at_one_moment_put_a_message_each():
    async with opened() as (queue, _):
        await queue.schedules.put("s", "t", b"", every="1h")
        puts = await asyncio.gather(*(queue.schedules.run("s") for _ in range(20)))
        assert {put.result for put in puts} == {Result.CREATED}
        assert len({put.id for put in puts}) == 20


@pytest.mark.parametrize("paused", [False, True])
async def test_run_puts_the_message_now_and_leaves_the_schedule_as_it_is(paused):
    async with opened() as (queue, clock):
        words = {"every": "1m", "jitter": "10m", "headers": {"a": "b"}, "key": "k"}
        await queue.schedules.put("s", "t", b"body", **words)
        if paused:
            await queue.schedules.pause("s")
        before = await queue.schedules.get("s")
        clock.advance(1_500)
        put = await queue.schedules.run("s")
        assert put.result is Result.CREATED
        assert put.id == "s@2026-11-24T09:00:01.500Z"
        (message,) = await queue.take("t", 10)
        assert (message.id, message.body, message.key) == (put.id, b"body", "k")
        assert message.headers["a"] == "b"
        assert message.headers["dwell-schedule"] == "s"
        assert await queue.schedules.get("s") == before
        assert (await queue.schedules.run("s")).id == "s@2026-11-24T09:00:01.501Z"
        with pytest.raises(InvalidSchedule, match="other"):
            await queue.schedules.run("other")


async def test_a_run_whose_put_was_repeated_puts_one_message(monkeypatch):
    """A client repeats a put when its answer is lost, and hears that the message was there."""
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"body", every="1m")
        clock.advance(1_500)
        put_rows = queue.put_rows

        async def repeated(topic, rows):
            monkeypatch.setattr(queue, "put_rows", put_rows)
            await put_rows(topic, rows)
            return await put_rows(topic, rows)

        monkeypatch.setattr(queue, "put_rows", repeated)
        put = await queue.schedules.run("s")
        assert put.result is Result.CREATED
        clock.advance(10)
        assert list((await queue.take("t", 10)).ids) == [put.id]


async def test_runs_of_one_millisecond_are_all_put_whatever_is_done_by_then():
    async with opened() as (queue, clock):
        await queue.configure("t", remember_ms=60_000)
        headers = {f"h{at}": "x" for at in range(254)}
        await queue.schedules.put("s", "t", b"body", every="1m", headers=headers)
        clock.advance(1_500)
        for _ in range(3):
            await queue.schedules.run("s")
            await queue.ack(await queue.take("t", 10))
        clock.advance(10)
        assert len(await queue.take("t", 10)) == 2


async def test_runs_by_hand_leave_the_ids_of_moments_alone():
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", misfire="all")
        await queue.schedules.put("each", "each", b"", every="1ms")
        clock.advance(MINUTE_MS - 1)
        puts = [await queue.schedules.run("s") for _ in range(3)]
        assert not {put.id for put in puts} & {*names(1)}
        # A schedule that fires each millisecond has no other.
        assert (await queue.schedules.run("each")).result is Result.CREATED


async def test_next_begins_with_what_was_missed_and_is_still_put():
    async with opened(0) as (queue, clock):
        for name, misfire in (("all", "all"), ("once", "once"), ("skip", "skip")):
            await queue.schedules.put(name, "t", b"", every="1m", misfire=misfire)
        clock.advance(3 * MINUTE_MS + 1_000)
        found = {
            name: [to_ms(at) - NINE_MS for at in await queue.schedules.next(name, 4)]
            for name in ("all", "once", "skip")
        }
        assert found == {
            "all": [at * MINUTE_MS for at in (1, 2, 3, 4)],
            "once": [at * MINUTE_MS for at in (3, 4, 5, 6)],
            "skip": [at * MINUTE_MS for at in (3, 4, 5, 6)],
        }


async def test_slow_reads_do_not_hold_up_changes(monkeypatch):
    """A token that may only read previews slow rules, and others run schedules."""
    going = threading.Event()
    async with opened(0) as (queue, _):
        await queue.schedules.put("s", "t", b"", every="1m")
        following = Times.following

        def slow(times, ms):
            going.wait(20)
            return following(times, ms)

        monkeypatch.setattr(Times, "following", slow)
        previews = [
            asyncio.create_task(queue.schedules.preview(cron=f"{minute} * * * *"))
            for minute in range(8)
        ]
        await asyncio.sleep(0.1)
        put = await asyncio.wait_for(queue.schedules.run("s"), 10)
        assert put.result is Result.CREATED
        assert not any(preview.done() for preview in previews)
        going.set()
        await asyncio.gather(*previews)


async def test_a_schedule_that_is_too_large_says_what_is_counted():
    async with opened(0) as (queue, _):
        with pytest.raises(
            dwell.InvalidBody, match="schedule s, stored with its body in base64: g"
        ):
            await queue.schedules.put("s", "t", b"x" * 800_000, every="1m")


async def test_a_message_is_there_before_its_moment_and_due_at_it():
    """However many schedules fire at a moment, it is on time; whoever pauses it then is late."""
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(MINUTE_MS - AHEAD_MS - 1)
        await asyncio.sleep(0.05)
        assert await queue.get("t", names(1)[0]) is None
        clock.advance(1)
        await until_async(lambda: queue.get("t", names(1)[0]))
        await fired(queue, clock)
        assert not await queue.take("t", 1)
        found = await queue.schedules.get("s")
        assert found.next_ms == NINE_MS + 2 * MINUTE_MS
        assert await queue.schedules.pause("s") is Result.REPLACED
        assert await queue.schedules.resume("s") is Result.REPLACED
        await fired(queue, clock)
        clock.advance(AHEAD_MS)
        (message,) = await queue.take("t", 10)
        assert message.due_ms == clock.now_ms() == NINE_MS + MINUTE_MS
        await queue.ack(message)
        clock.advance(MINUTE_MS - AHEAD_MS - 1)
        await asyncio.sleep(0.05)
        assert await queue.schedules.pause("s") is Result.REPLACED
        clock.advance(2 * MINUTE_MS)
        await asyncio.sleep(0.05)
        assert await ids(queue) == []


async def test_of_a_rhythm_that_is_quicker_than_that_nothing_is_left_out():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="100ms")
        for _ in range(30):
            clock.advance(100)
            await fired(queue, clock)
        assert len(await ids(queue)) == 30


@pytest.mark.parametrize("firers", [1, 3])
async def test_each_moment_is_one_message(firers):
    async with opened(firers) as (queue, clock):
        assert await queue.schedules.put("s", "t", {"a": 1}, cron="* * * * *") is Result.CREATED
        found = []
        for _ in range(5):
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
            (message,) = await queue.take("t", 10)
            assert message.json() == {"a": 1}
            assert message.due_ms == clock.now_ms()
            assert message.headers["dwell-schedule"] == "s"
            found.append(message.id)
            await queue.ack(message)
        assert found == names(1, 2, 3, 4, 5)
        planned = await queue.schedules.get("s")
        assert (planned.last_ms, planned.next_ms) == (clock.now_ms(), clock.now_ms() + MINUTE_MS)


async def test_what_a_message_of_a_schedule_has():
    async with opened() as (queue, clock):
        words = {"key": "k", "headers": {"h": "v"}, "priority": 7, "lease": "5s"}
        await queue.schedules.put("s", "t", b"x", every="1m", max_attempts=3, ttl="10m", **words)
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        (message,) = await queue.take("t")
        assert (message.body, message.key, message.priority) == (b"x", "k", 7)
        assert (message.lease_ms, message.max_attempts) == (5_000, 3)
        assert message.expires_ms == NINE_MS + 11 * MINUTE_MS
        assert message.headers == {
            "h": "v",
            "dwell-schedule": "s",
            "dwell-time": "2026-11-24T09:01:00Z",
        }


@pytest.mark.parametrize(
    ("misfire", "minutes"), [("once", [10]), ("all", range(1, 11)), ("skip", [8, 9, 10])]
)
async def test_what_is_put_after_a_time_in_which_nobody_fired(misfire, minutes):
    async with opened(0) as (queue, clock):
        words = {"misfire": misfire, "grace": "2m"}
        await queue.schedules.put("s", "t", b"", every="1m", **words)
        clock.advance(10 * MINUTE_MS)
        task = asyncio.create_task(queue.schedules.fire())
        await fired(queue, clock)
        assert await ids(queue) == names(*minutes)
        task.cancel()


async def test_more_than_are_put_at_a_time():
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1s", misfire="all")
        clock.advance((2 * MOST_AT_ONCE + 5) * 1000)
        task = asyncio.create_task(queue.schedules.fire())
        await fired(queue, clock)
        assert len(await ids(queue)) == 2 * MOST_AT_ONCE + 5
        task.cancel()


@settings(deadline=None)
@given(
    every_s=st.integers(1, 50),
    since=st.integers(0, 300),
    late=st.integers(-40, 3000),
    ahead_s=st.integers(0, 100),
    misfire=st.sampled_from(["once", "all", "skip"]),
    grace_s=st.integers(0, 100),
    start=st.none() | st.integers(0, 300),
    length=st.none() | st.integers(0, 2000),
)
def test_a_plan_is_that_of_a_list(every_s, since, late, ahead_s, misfire, grace_s, start, length):
    """Against all moments, written down one by one: what is to come is never left out."""
    end = None if length is None else (start or 0) + length
    times = times_of(
        None,
        None,
        every_s * 1000,
        "UTC",
        start and start * 1000,
        None if end is None else end * 1000,
    )
    first = start or 0
    last = 10_000 if end is None else end
    all_s = [s for s in range(first, last + 1) if (s - first) % every_s == 0]
    now = max(since + late, 0)
    pending = [s for s in all_s if since < s <= now + ahead_s]
    later = [s for s in all_s if s > max(now + ahead_s, since)]
    words = (misfire, grace_s * 1000)
    found = plan(times, since * 1000, now * 1000, *words, ahead_ms=ahead_s * 1000)
    passed = [s for s in pending if s <= now]
    expected = {
        "once": passed[-1:] + pending[len(passed) :],
        "all": pending,
        "skip": [s for s in pending if now - s <= grace_s],
    }[misfire][:MOST_AT_ONCE]
    assert found.moments == [s * 1000 for s in expected]
    if not pending:
        assert found.fired_ms is None
    if len(expected) < MOST_AT_ONCE and later:
        assert found.next_ms == later[0] * 1000
    if len(expected) < MOST_AT_ONCE and not later and end is not None:
        assert found.next_ms is None


async def test_a_schedule_that_is_put_again_goes_on_and_one_that_is_changed_begins_anew():
    async with opened() as (queue, clock):
        put = queue.schedules.put
        assert await put("s", "t", b"", every="1m") is Result.CREATED
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert await put("s", "t", b"", every="1m") is Result.KEPT
        assert (await queue.schedules.get("s")).last_ms == clock.now_ms()
        assert await put("s", "t", b"new", every="2m") is Result.REPLACED
        found = await queue.schedules.get("s")
        assert (found.last_ms, found.next_ms) == (clock.now_ms(), clock.now_ms() + MINUTE_MS)
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert [m.body for m in await queue.take("t", 10)] == [b"", b"new"]


@pytest.mark.parametrize(("misfire", "minutes"), [("all", [1, 2, 3]), ("once", [3])])
async def test_what_was_missed_before_a_change_is_made_up_for_after_it(misfire, minutes):
    """A deploy after some downtime brings new code, and the schedule that it declares."""
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"old", every="1m", misfire=misfire)
        clock.advance(3 * MINUTE_MS)
        await queue.schedules.put("s", "t", b"new", every="1m", misfire=misfire)
        task = asyncio.create_task(queue.schedules.fire())
        await fired(queue, clock)
        assert {m.body for m in await queue.peek("t", 10)} == {b"new"}
        assert await ids(queue) == names(*minutes)
        task.cancel()


async def test_what_is_paused_does_not_fire_and_misses_nothing_it_has_to_make_up_for():
    async with opened() as (queue, clock):
        schedules = queue.schedules
        await schedules.put("s", "t", b"", every="1m", misfire="all")
        assert await schedules.pause("s") is Result.REPLACED
        assert await schedules.pause("s") is Result.KEPT
        clock.advance(5 * MINUTE_MS)
        assert (await schedules.get("s")).next_ms is None
        # A deploy that puts it again does not resume it.
        assert await schedules.put("s", "t", b"", every="1m", misfire="all") is Result.KEPT
        assert await schedules.put("s", "t", b"x", every="1m", misfire="all") is Result.REPLACED
        assert (await schedules.get("s")).schedule.paused
        assert await schedules.resume("s") is Result.REPLACED
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert await ids(queue) == names(6)
        # What it has fired is known as long as it is there.
        last_ms = (await schedules.get("s")).last_ms
        assert last_ms is not None
        assert await schedules.pause("s") is Result.REPLACED
        assert (await schedules.get("s")).last_ms == last_ms
        assert await schedules.resume("s") is Result.REPLACED
        assert (await schedules.get("s")).last_ms == last_ms
        assert await schedules.pause("unknown") is Result.UNKNOWN


async def test_one_that_is_removed_fires_no_more():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m")
        assert await queue.schedules.remove("s") is Result.CANCELLED
        assert await queue.schedules.remove("s") is Result.UNKNOWN
        assert await queue.schedules.get("s") is None
        clock.advance(5 * MINUTE_MS)
        assert await ids(queue) == []


async def test_a_schedule_ends_with_its_end():
    async with opened() as (queue, clock):
        words = {"start": NINE_MS + 3 * MINUTE_MS, "end": NINE_MS + 4 * MINUTE_MS}
        await queue.schedules.put("s", "t", b"", every="1m", **words)
        found = []
        for _ in range(6):
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
            found += await ids(queue)
        assert found == names(3, 4)
        assert await queue.schedules.get("s") is None
        assert await queue.schedules.put("s", "t", b"", every="1m") is Result.CREATED


async def test_jitter_is_the_same_whoever_fires():
    async with opened(3) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", jitter="10m", misfire="all")
        clock.advance(30 * MINUTE_MS)
        await fired(queue, clock)
        dues = [m.due_ms async for page in queue.pages("t", ["delayed", "ready"]) for m in page]
        assert len(dues) == 30
        spread = [
            due - NINE_MS - at * MINUTE_MS
            for at, due in zip(range(1, 31), sorted(dues), strict=True)
        ]
        assert max(dues) > clock.now_ms()
        assert len(set(spread)) > 10


async def test_what_has_fired_is_not_fired_again_by_a_change_when_the_clock_goes_back():
    async with opened() as (queue, clock):
        await queue.configure("t", remember_ms=0)
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert await ids(queue) == names(1)
        clock.advance(-MINUTE_MS)
        await queue.schedules.put("s", "t", b"new", every="1m")
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert await ids(queue) == []


async def test_minutes_that_were_missed_for_days_are_put_in_good_time():
    """Each look for the next minute used to walk more than a week of them."""
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", rrule="FREQ=MINUTELY", misfire="all")
        clock.advance(2 * 1440 * MINUTE_MS)
        task = asyncio.create_task(queue.schedules.fire())
        await fired(queue, clock)
        assert len(await ids(queue)) == 2 * 1440
        task.cancel()


async def test_next_runs_are_in_the_zone_of_the_schedule():
    async with opened() as (queue, _):
        await queue.schedules.put("s", "t", b"", cron="0 9 * * mon-fri", zone="Europe/Berlin")
        runs = await queue.schedules.next("s", 3)
        assert [run.isoformat() for run in runs] == [
            f"2026-11-{day}T09:00:00+01:00" for day in (25, 26, 27)
        ]
        await queue.schedules.pause("s")
        assert await queue.schedules.next("s") == []
        with pytest.raises(InvalidSchedule, match="none that is called 'other'"):
            await queue.schedules.next("other")


async def test_a_dead_schedule_has_no_next_runs_until_it_is_changed():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1h")
        clock.advance(3_600_000)
        await queue.bury(await queue.take(TOPIC), "not reckoned within 20 s")
        found = await queue.schedules.get("s")
        assert (found.state, found.next_ms) == (State.DEAD, None)
        assert await queue.schedules.next("s", 2) == []
        await queue.schedules.change("s", every="2h")
        assert len(await queue.schedules.next("s", 2)) == 2


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({}, "got none"),
        ({"cron": "* * * * *", "every": "1s"}, "got cron and every"),
        ({"cron": "0 0 30 2 *"}, "cron: got"),
        ({"cron": "* * * * *", "zone": "Mars"}, "zone: got"),
        ({"every": 0}, "every: got 0 ms"),
        ({"every": "1s", "end": 5}, "never fires"),
        ({"every": "1s", "start": NINE_MS + 5, "end": NINE_MS + 4}, "end: got"),
        ({"every": "1s", "misfire": "twice"}, "misfire: got"),
        ({"rrule": "FREQ=DAILY;COUNT=2"}, "COUNT without a start"),
        ({"rrule": "FREQ=DAILY;INTERVAL=7;BYDAY=FR"}, "never fires"),
        ({"every": "1s", "key": ""}, "key: got"),
        ({"every": "1s", "ttl": "0s"}, "ttl: got str '0s', expected a span above 0"),
        ({"every": "1s", "ttl": 0.0001}, "ttl: got float 0.0001, expected a span above 0"),
        ({"every": "1s", "headers": {"a": 1}}, "headers: got"),
        ({"every": "1s", "name": "a b"}, "name: got"),
        ({"every": "1s", "body": b"x" * MAX_BODY_BYTES}, "stored with its body"),
    ],
)
async def test_bad_input_is_refused_and_nothing_is_put(words, error):
    async with opened() as (queue, _):
        given = {"name": "s", "topic": "t", "body": b"", **words}
        with pytest.raises(dwell.InvalidInput, match=error):
            await queue.schedules.put(**given)
        assert TOPIC not in (await queue.stats()).topics


_HEAD = b'{"name":"bad-%d","topic":"t","body":""'
BAD = [
    b"",
    b"{}",
    b"\xff",
    b'{"name":"other","topic":"t","body":""}',
    _HEAD + b"}",
    _HEAD + b',"every_ms":0}',
    _HEAD + b',"every_ms":1000,"jitter_ms":-1}',
    _HEAD + b',"every_ms":1000,"ttl_ms":-5}',
    _HEAD + b',"every_ms":1000,"start_ms":99999999999999999}',
    _HEAD + b',"every_ms":1000,"priority":-1}',
    _HEAD + b',"cron":"* * * * *","zone":"Mars"}',
    _HEAD + b',"rrule":"FREQ=DAILY;BYHOUR=99"}',
    _HEAD + b',"rrule":"FREQ=DAILY\\nEXDATE:2030"}',
    _HEAD + b',"cron":"* * * * *","days_off":["someday"]}',
    _HEAD + b',"cron":"* * * * *","when_off":"later"}',
    _HEAD + b',"rrule":"FREQ=DAILY;UNTIL=2030"}',
    b'{"name":"bad-%d","topic":"a b/c","body":"","every_ms":1000}',
]


async def test_a_message_that_is_no_schedule_is_set_aside_and_holds_up_none():
    async with opened() as (queue, clock):
        for number, body in enumerate(BAD):
            body = body % number if b"%d" in body else body
            await queue.put(TOPIC, body, id=f"bad-{number}")
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert await ids(queue) == names(1)
        dead = [m async for page in queue.pages(TOPIC, "dead") for m in page]
        assert {m.id for m in dead} == {f"bad-{number}" for number in range(len(BAD))}
        assert all(m.last_error for m in dead)
        alive = [p.schedule.name async for p in queue.schedules.each() if not p.problem]
        assert alive == ["s"]


async def test_what_a_full_topic_drops_is_logged(caplog):
    async with opened() as (queue, clock):
        await queue.configure("t", max_pending=1, on_full="drop")
        await queue.put("t", b"", id="first")
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(MINUTE_MS)
        await fired(queue, clock, "s")
        assert await ids(queue) == ["first"]
        assert "topic 't' is full and drops what schedules put into it" in caplog.text


async def test_a_topic_that_is_full_is_tried_again():
    async with opened() as (queue, clock):
        await queue.configure("t", max_pending=1)
        await queue.put("t", b"", id="first")
        await queue.schedules.put("s", "t", b"", every="1m", misfire="all")
        await queue.schedules.put("other", "u", b"", every="1m")
        clock.advance(2 * MINUTE_MS)
        await fired(queue, clock, "other")
        await refused(queue, clock)
        assert await ids(queue, "u") == names(2, name="other")
        assert await ids(queue) == ["first"]

        async def came():
            clock.advance(10)
            return (await queue.stats()).topics["t"].ready

        for minute in (1, 2):
            await until_async(came)
            # As soon as it is acked the next one has room.
            batch = await queue.take("t", 10)
            assert list(batch.ids) == names(minute)
            await queue.ack(batch)


async def refused_thrice(queue, clock):
    """Put a schedule into a full topic, which refuses its first three messages."""
    await queue.configure("t", max_pending=1)
    await queue.put("t", b"", id="first")
    await queue.schedules.put("s", "t", b"", every="1m", misfire="all")
    for _ in range(3):
        clock.advance(MINUTE_MS)
        await refused(queue, clock)


async def test_what_a_full_topic_refused_is_put_after_a_change():
    async with opened() as (queue, clock):
        await refused_thrice(queue, clock)
        assert (await queue.schedules.get("s")).last_ms is None
        await queue.schedules.put("s", "t", b"new", every="1m", misfire="all")
        assert await ids(queue) == ["first"]
        await queue.configure("t", max_pending=0)
        await fired(queue, clock)
        await until_async(lambda: queue.get("t", names(3)[0]))
        assert await ids(queue) == names(1, 2, 3)


async def test_what_a_full_topic_refused_is_put_by_another_queue_that_the_schedule_moves_to():
    async with opened() as (queue, clock):
        await refused_thrice(queue, clock)
        body, due_ms = put_again(await queue.get(TOPIC, "s"))
        async with dwell.Queue(MemoryStore(clock)) as target:
            await target.put(TOPIC, body, id="s", due=due_ms)
            firing = asyncio.create_task(target.schedules.fire())
            await fired(target, clock)
            assert await ids(target) == names(1, 2, 3)
            firing.cancel()


async def test_a_schedule_that_has_fired_in_part_goes_on_in_another_queue():
    """Its due is that of the next try, which is later than the moment that was refused."""
    async with opened() as (queue, clock):
        await queue.configure("t", max_pending=1)
        await queue.schedules.put("s", "t", b"", every="1m", misfire="all")
        clock.advance(3 * MINUTE_MS)
        await refused(queue, clock)
        assert (await queue.schedules.get("s")).last_ms == NINE_MS + MINUTE_MS
        body, due_ms = put_again(await queue.get(TOPIC, "s"))
        async with dwell.Queue(MemoryStore(clock)) as target:
            await target.put(TOPIC, body, id="s", due=due_ms)
            firing = asyncio.create_task(target.schedules.fire())
            await fired(target, clock)
            assert await ids(target) == names(2, 3)
            firing.cancel()


class SlowPuts(MemoryStore):
    """A store in which a put of ten messages takes three seconds."""

    async def put(self, puts, on_conflict):
        if puts.topic == "t":
            self.clock.advance(300 * len(puts))
        return await super().put(puts, on_conflict)


class Said(Firer):
    """Notes of each schedule that is given back whether its lease had ended."""

    def __init__(self, queue):
        super().__init__(queue)
        self.said = []

    async def _give_back(self, work):
        await super()._give_back(work)
        self.said.append((work.message.id, work.message.id in self._firing.unsaid))


async def test_many_missed_moments_outlive_no_lease(monkeypatch):
    """Ten schedules with ten moments each take half a minute, and a lease is of ten seconds."""
    monkeypatch.setattr(firer, "_MOST_MOMENTS", 10)
    async with opened(firers=0, store=SlowPuts) as (queue, clock):
        for number in range(10):
            await queue.schedules.put(f"s{number}", "t", b"", every="1m", misfire="all")
        clock.advance(10 * MINUTE_MS)
        firing = Said(queue)
        task = asyncio.create_task(firing.run())
        await until_async(lambda: len(firing.said) >= 10)
        task.cancel()
        assert firing.said[:10] == [(f"s{number}", False) for number in range(10)]
        assert len(await ids(queue)) == 100


async def test_a_copy_of_a_folder_fires_beside_the_original(tmp_path):
    clock = dwell.SimulatedClock(NINE_MS)
    async with dwell.Queue(EmbeddedStore(tmp_path / "a", clock=clock)) as queue:
        await queue.schedules.put("s", "t", b"", every="1m")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    stores = [EmbeddedStore(tmp_path / name, clock=clock) for name in "ab"]
    async with dwell.Queue(stores[0]) as first, dwell.Queue(stores[1]) as second:
        assert first.store.number == second.store.number
        firers = [Firer(queue) for queue in (first, second)]
        assert firers[0]._firing is not firers[1]._firing


class SetBack:
    """A queue whose clock is set back after the first take; releases take a millisecond."""

    def __init__(self, queue, clock, back_ms):
        self._queue, self._clock, self.back_ms = queue, clock, back_ms

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def take(self, *args, **words):
        batch = await self._queue.take(*args, **words)
        if len(batch):
            self._clock.advance(-self.back_ms)
            self.back_ms = 0
        return batch

    async def release(self, *args, **words):
        self._clock.advance(1)
        return await self._queue.release(*args, **words)


@pytest.mark.parametrize("back_ms", [1, 1_000, 30_000])
async def test_a_clock_that_goes_back_at_the_first_moment_leaves_it(back_ms):
    """Who took a schedule and finds it too early gives it back for the same moment."""
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", misfire="all")
        set_back = SetBack(queue, clock, back_ms)
        task = asyncio.create_task(Firer(set_back).run())
        clock.advance(MINUTE_MS - AHEAD_MS)
        await until_async(lambda: not set_back.back_ms)
        while not await queue.get("t", names(1)[0]):
            await fired(queue, clock)
            assert clock.now_ms() <= NINE_MS + 2 * MINUTE_MS
            clock.advance(100)
            await asyncio.sleep(0.002)
        task.cancel()


async def test_headers_that_fit_some_moments_only_are_refused():
    """A moment between two seconds has a longer name; what does not fit there holds up no other."""
    async with opened() as (queue, clock):
        size = MAX_HEADERS_BYTES
        while True:
            size -= 1
            words = {"every": "1500ms", "headers": {"h": "x" * size}}
            with contextlib.suppress(dwell.InvalidInput):
                await queue.schedules.put("s", "t", b"", **words)
                break
        await queue.schedules.put("other", "u", b"", every="1500ms")
        for _ in range(4):
            clock.advance(1500)
            await fired(queue, clock)
            await fired(queue, clock, "other")
        assert (len(await ids(queue)), len(await ids(queue, "u"))) == (4, 4)


async def test_who_fires_and_ends_is_followed_by_another_within_the_lease():
    """What the first has put is put once more, and stays one message."""

    class Cut(MemoryStore):
        cut = True

        async def release(self, receipts, delay_ms, error, **more):
            if self.cut:
                self.cut = False
                raise dwell.StoreFailed("killed")
            return await super().release(receipts, delay_ms, error, **more)

    async with opened(1, Cut) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(MINUTE_MS)
        await until_async(lambda: not queue.store.cut)
        assert await ids(queue) == names(1)
        clock.advance(11_000)
        await fired(queue, clock)
        assert await ids(queue) == []
        clock.advance(49_000)
        await fired(queue, clock)
        assert await ids(queue) == names(2)


class Stepping:
    """A queue whose clock steps on by more than a lease after each put, so many times."""

    def __init__(self, queue, clock, steps):
        self._queue, self._clock, self.steps = queue, clock, steps

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def put_rows(self, *args, **words):
        found = await self._queue.put_rows(*args, **words)
        self.step()
        return found

    async def release(self, *args, **words):
        self.step()
        return await self._queue.release(*args, **words)

    def step(self):
        if self.steps:
            self.steps -= 1
            self._clock.advance(11_000)


@pytest.mark.parametrize("end", [None, NINE_MS + 60 * MINUTE_MS])
async def test_a_clock_that_steps_faster_than_the_loop_puts_a_moment_once(end):
    """The lease ends before the schedule can be told that it has fired, and ids are forgotten."""
    async with opened(0) as (queue, clock):
        await queue.configure("t", remember_ms=0)
        await queue.schedules.put("s", "t", b"", every="1h", end=end)
        stepping = Stepping(queue, clock, 5)
        firing = asyncio.create_task(Firer(stepping).run())
        clock.advance(60 * MINUTE_MS)
        found = []

        async def is_over():
            found.extend(await ids(queue))
            planned = await queue.schedules.get("s")
            return (stepping.steps == 0 or end) and (
                planned is None or (planned.next_ms > clock.now_ms() and found)
            )

        await until_async(is_over)
        await asyncio.sleep(0.1)
        found += await ids(queue)
        assert found == ["s@2026-11-24T10:00:00Z"]
        firing.cancel()


class Stopped:
    """A queue whose takes are answered when it goes on."""

    def __init__(self, queue):
        self._queue = queue
        self.goes_on, self.asks = asyncio.Event(), 0

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def take(self, *args, **words):
        self.asks += 1
        batch = await self._queue.take(*args, **words)
        await self.goes_on.wait()
        return batch


async def test_who_was_stopped_for_longer_than_his_lease_puts_nothing():
    """Another has put it meanwhile, it is done, and its id is forgotten."""
    async with opened(0) as (queue, clock):
        await queue.configure("t", remember_ms=0)
        await queue.schedules.put("s", "t", b"", every="1h")
        clock.advance(60 * MINUTE_MS)
        stopped = Stopped(queue)
        tasks = [asyncio.create_task(Firer(stopped).run())]
        await until_async(lambda: stopped.asks)
        await until_async(leased(queue))
        clock.advance(11_000)
        tasks.append(asyncio.create_task(queue.schedules.fire()))
        await fired(queue, clock)
        assert await ids(queue) == ["s@2026-11-24T10:00:00Z"]
        stopped.goes_on.set()
        await until_async(lambda: stopped.asks > 1)
        assert await ids(queue) == []
        for task in tasks:
            task.cancel()


def leased(queue):
    async def is_leased():
        return (await queue.schedules.get("s")).state is State.LEASED

    return is_leased


async def test_a_change_waits_for_who_fires():
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(MINUTE_MS)
        (held,) = await queue.take(TOPIC)
        changing = asyncio.create_task(queue.schedules.put("s", "t", b"new", every="1m"))
        removing = asyncio.create_task(queue.schedules.remove("s"))
        await asyncio.sleep(0.05)
        assert not changing.done()
        assert not removing.done()
        await queue.release(held, counted=False)
        assert await changing in (Result.REPLACED, Result.CREATED)
        assert await removing in (Result.CANCELLED, Result.UNKNOWN)


def test_the_sync_face_has_the_same():
    with dwell.open("memory:") as queue:
        assert queue.schedules.put("s", "t", b"", every="1h") is Result.CREATED
        assert [p.schedule.name for p in queue.schedules.each()] == ["s"]
        assert len(queue.schedules.next("s", 2)) == 2
        assert queue.schedules.remove("s") is Result.CANCELLED


async def test_a_schedule_that_is_held_up_says_so_and_what_it_owes():
    async with opened() as (queue, clock):
        await queue.configure("t", max_pending=1)
        await queue.put("t", b"other")
        await queue.schedules.put(
            "s", "t", b"", every="1m", end="2026-11-24T09:02:00Z", misfire="all"
        )
        clock.advance(5 * MINUTE_MS)
        await refused(queue, clock)
        found = await queue.schedules.get("s")
        assert found.problem.startswith("tried again: topic 't': 1 messages are pending")
        said = [run.strftime("%H:%M") for run in await queue.schedules.next("s")]
        assert said == ["09:01", "09:02"]
        # It is over, and what it owes is put as it is then.
        for words in ({"body": b"new"}, {"priority": 3}):
            assert await queue.schedules.change("s", **words) is Result.REPLACED
        await queue.configure("t", max_pending=0)
        await queue.take("t", 1)
        clock.advance(2_000)
        await fired(queue, clock)
        batch = await queue.take("t", 9)
        assert list(batch.ids) == names(1, 2)
        assert {(m.body, m.priority) for m in batch} == {(b"new", 3)}


async def test_a_schedule_that_waits_says_for_what():
    async with opened() as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m", overlap="skip")
        for minute in range(2):
            assert (await queue.schedules.get("s")).problem is None
            clock.advance(MINUTE_MS)
            await fired(queue, clock)
            assert minute or (await queue.schedules.get("s")).problem is None
        found = await queue.schedules.get("s")
        assert found.problem == f"waits until {names(1)[0]} is done"
        await ids(queue)
        clock.advance(MINUTE_MS)
        await fired(queue, clock)
        assert (await queue.schedules.get("s")).problem is None
        assert await ids(queue) == names(3)


async def test_a_run_by_hand_at_a_moment_leaves_the_run_of_that_moment():
    async with opened(0) as (queue, clock):
        await queue.schedules.put("s", "t", b"", every="1m")
        clock.advance(MINUTE_MS)
        put = await queue.schedules.run("s")
        firing = asyncio.create_task(queue.schedules.fire())
        await fired(queue, clock)
        firing.cancel()
        clock.advance(1)
        assert await ids(queue) == sorted([*names(1), put.id])
