"""The engine's clock is set while it runs: dues stay what they are, and everybody gets on."""

import asyncio
import itertools
import os

import numpy as np
import pytest

import dwell
from dwell.clock import SimulatedClock
from dwell.clock.clock import elapsed_s
from dwell.clock.servertime import ServerClock
from dwell.store.redis import RedisStore
from dwell.store.redis.limits import Limits
from tests.redis.servers import redis_server, redis_with_clock
from tests.waiting import until_async

pytestmark = pytest.mark.campaign

HOUR_S = 3_600.0
HOUR_MS = 3_600_000
#: How far off a delay may be that was counted while the clock was set, as the docs say.
STEP_MS = 500
_names = itertools.count()


@pytest.fixture(scope="module")
def clock():
    with redis_with_clock() as clock:
        yield clock


@pytest.fixture
def url(clock):
    clock.step(0)
    yield f"{clock.server.url}?prefix=steps-{os.getpid()}-{next(_names)}"
    clock.step(0)


# --- dues -----------------------------------------------------------------------------------------


async def test_an_explicit_due_is_stored_as_it_is_given(url, clock):
    """Also one that is about now, by the earliest and the latest time that the engine can have."""

    async with dwell.open(url) as queue:
        for ahead_s in (0.0, HOUR_S, 0.0):
            clock.step(ahead_s)
            for off_ms in (-30, -10, -5, -3, -2, -1, 0, 1, 2, 5, 30):
                now_ms = clock.now_ms()
                asks = [queue.clock.now_ms() + off_ms, now_ms + off_ms]
                puts = [await queue.put("t", "x", due=due_ms) for due_ms in asks]
                many = await queue.put_many("t", ["x", "y"], due=np.array(asks))
                more = await queue.put_many("t", ["x", "y", "z"], due=[*asks, None])
                ids = [put.id for put in (*puts, *many, *more)]
                found = [message.due_ms for message in await queue.get("t", ids)]
                assert found[:-1] == asks * 3
                assert found[-1] <= queue.clock.now_ms()


async def test_nothing_is_taken_before_its_due(url, clock):
    async with dwell.open(url) as queue:
        for ahead_s in (0.0, HOUR_S, 0.5, 0.0):
            clock.step(ahead_s)
            for _ in range(5):
                due_ms = clock.now_ms() + 15
                await queue.put("t", "x", due=due_ms)
                while not (taken := await queue.take("t", 1)):
                    pass
                assert clock.now_ms() >= due_ms
                assert taken.due_ms.tolist() == [due_ms]
                await queue.ack(taken)


async def test_what_is_put_without_a_time_can_be_taken_at_once(url, clock):
    async with dwell.open(url) as queue:
        for ahead_s in (0.0, HOUR_S, -HOUR_S, 0.0):
            clock.step(ahead_s)
            for _ in range(20):
                await queue.put("t", "x")
                assert len(await queue.take("t", 1)) == 1
                await queue.put_many("t", ["x"] * 70)
                assert len(await queue.take("t", 70)) == 70


@pytest.mark.parametrize("shards", [1, 3])
async def test_delays_count_from_the_clock_that_was_set(url, clock, shards):
    """The first put after a step is told nothing of it before."""

    async with dwell.open(url, shards=shards) as queue:
        for ahead_s in (HOUR_S, 0.0, -HOUR_S, 1.0, 0.0):
            await queue.put("warm", "x")
            clock.step(ahead_s)
            before_ms = clock.now_ms()
            keys = [str(at) for at in range(6)]
            answer = await queue.put_many("t", ["x"] * 6, key=keys, delay="1h", ttl="2h")
            after_ms = clock.now_ms()
            for message in await queue.get("t", list(answer.ids)):
                due_ms, expires_ms = message.due_ms - HOUR_MS, message.expires_ms - 2 * HOUR_MS
                assert before_ms - STEP_MS <= due_ms <= after_ms + STEP_MS
                assert before_ms - STEP_MS <= expires_ms <= after_ms + STEP_MS


async def test_a_due_beside_a_ttl_is_not_counted_anew(url, clock):
    async with dwell.open(url) as queue:
        await queue.put("warm", "x")
        clock.step(HOUR_S)
        due_ms = clock.now_ms() + 5
        put = await queue.put("t", "x", due=due_ms, ttl="2h")
        (message,) = await queue.get("t", [put.id])
        assert message.due_ms == due_ms
        assert abs(message.expires_ms - due_ms - 2 * HOUR_MS) < 60_000


def test_an_answer_from_before_the_step_does_not_set_the_clock_back():
    clock, asked_at = ServerClock(), elapsed_s()
    clock.hear(1_000_000, asked_at)
    # Of two questions under way when the clock was set, the older one is answered last.
    older_at = elapsed_s()
    newer_at = older_at + 1e-6
    while elapsed_s() <= newer_at:
        pass
    clock.hear(1_000_000 + HOUR_MS, newer_at)
    clock.hear(1_000_000, older_at)
    assert clock.now_ms() >= 1_000_000 + HOUR_MS


# --- takers that wait -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(HOUR_S,), (-HOUR_S, 0.5, HOUR_S)])
@pytest.mark.parametrize("of", ["due", "lease", "wait after"])
async def test_takers_get_what_a_step_lets_fall_due(url, clock, steps, of):
    """Nothing else happens on the queue: it has to find out by itself that the clock was set."""

    async with dwell.open(url) as queue, dwell.open(url) as other:
        ids = ["a"]
        await queue.put("t", "x", id="a", delay="30m" if of != "lease" else 0)
        if of == "lease":
            await other.take("t", lease="30m")
        waiting = None
        if of != "wait after":
            waiting = asyncio.create_task(queue.take("t", wait="50s"))
            await until_async(lambda: queue.waiting.get("t"), "nobody waits")
        for ahead_s in steps:
            clock.step(ahead_s)
            if ahead_s == steps[-1]:
                break
            # Each step is noticed before the next comes.
            stepped = queue.store.commands
            await until_async(
                lambda stepped=stepped: queue.store.commands > stepped + 1, "it does not tick"
            )
        if waiting is None:
            waiting = asyncio.create_task(queue.take("t", wait="50s"))
        ticks = queue.store.commands
        assert list((await waiting).ids) == ids
        # A tick a second, and what the take itself asks: it did not wait for a minute.
        assert queue.store.commands - ticks < 12


# --- a clock that goes back -----------------------------------------------------------------------


async def in_calls(store: RedisStore, most: int, verb):
    """Return what a verb answers, which takes so many calls at most."""
    before, asking = store.commands, asyncio.ensure_future(verb)
    while not asking.done():
        await asyncio.sleep(0.001)
        if store.commands - before > most:
            asking.cancel()
            pytest.fail(f"after {most} calls there was no answer")
    assert store.commands - before <= most
    return await asking


@pytest.mark.parametrize("kind", ["topics", "priorities"])
@pytest.mark.parametrize("count", [256, 700])
async def test_time_gets_on_when_the_clock_goes_back(kind, count):
    """More than one call may do: each comes nearer, also when the clock goes back all the while."""

    with redis_server() as server:
        clock, most = SimulatedClock(), 10 + count // 50
        topics = ["t"] * count if kind == "priorities" else [f"t{at}" for at in range(count)]
        async with dwell.Queue(RedisStore(server.url, clock=clock)) as queue:
            puts = (queue.put(topic, "x", priority=at) for at, topic in enumerate(topics))
            await asyncio.gather(*puts)
        # Nobody ticks beside what is asked for here.
        store = RedisStore(server.url, clock=clock)
        await store.open()

        async def counted(states: tuple[str, ...]) -> int:
            stats = await in_calls(store, most, store.stats())
            return sum(getattr(of, name) for of in stats.topics.values() for name in states)

        clock.advance(10)
        await store.tick(clock.now_ms())
        for turn, back_ms in enumerate((5, 1, 1)):
            clock.advance(-back_ms)
            (taken,) = await in_calls(store, most, store.take([topics[turn]], 1, 0, ""))
            assert taken.topic == topics[turn]
            assert await counted(("ready", "leased")) == count
        # What is ready too early waits again, of every topic and every priority.
        clock.advance(-1_000)
        assert await counted(("delayed", "leased")) == count
        assert not await in_calls(store, most, store.take([topics[-1]], 1, 0, ""))
        clock.advance(1_000)
        assert await counted(("ready", "leased")) == count
        assert await store.find_stale() == []
        await store.close()


async def test_a_real_clock_that_goes_back_a_little(url, clock):
    async with dwell.open(url) as queue:
        for at in range(300):
            await queue.put("t", "x", priority=at)
        for ahead_s in (-0.005, -0.01, -0.02):
            clock.step(ahead_s)
            before = queue.store.commands
            assert len(await queue.take("t", 1)) == 1
            await queue.stats()
            assert queue.store.commands - before < 40


@pytest.mark.parametrize("back_ms", [3, 2])
async def test_a_clock_that_goes_back_twice(back_ms):
    """The second time comes while topics are walked for the first: those are walked again."""

    with redis_server() as server:
        clock = SimulatedClock()
        limits = Limits(budget=1, topics=1)
        async with dwell.Queue(RedisStore(server.url, clock=clock, limits=limits)) as queue:
            store = queue.store
            # Nothing ticks beside what is asked for here.
            await queue._ticker.stop()
            for at in range(4):
                await queue.put(f"t{at}", "x", due=clock.now_ms() + 5 + at % 2)
            clock.advance(10)
            stats = await queue.stats()
            assert sum(of.ready for of in stats.topics.values()) == 4
            # To when all are still due, and, after some of the walk, to when none is.
            clock.advance(-back_ms)
            for _ in range(3):
                await store.shards.run(0, "cancel", "none", b"nobody")
            clock.advance(back_ms - 8)
            stats = await queue.stats()
            assert sum(of.delayed for of in stats.topics.values()) == 4
