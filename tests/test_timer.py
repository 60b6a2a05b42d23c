import asyncio
import functools
import logging
import threading
import time

import pytest

import dwell
from dwell.clock import RealClock
from dwell.message import MAX_DELAY_MS
from dwell.store.memory import MemoryStore
from dwell.threads.pool import ThreadPool
from dwell.timer import Timer
from tests.waiting import until, until_async

NOW = 1_700_000_000_000


async def settle():
    """Let the loop and the pool's threads do what they can."""
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_after_runs_once_from_a_plain_thread():
    seen = []
    with Timer() as timer:
        call = timer.after("1ms", seen.append, "x")
        until(lambda: seen)
        assert call.cancel() is False
    assert seen == ["x"]


def test_keywords_reach_the_function():
    seen, done = [], threading.Event()

    def greet(name, *, word):
        seen.append(f"{word} {name}")
        done.set()

    with Timer() as timer:
        timer.after("1ms", greet, "ann", word="hello")
        assert done.wait(20)
        with pytest.raises(dwell.InvalidInput, match="a generator"):
            timer.after("1ms", (lambda x: (yield)), x=1)
    assert seen == ["hello ann"]


async def test_a_clock_that_is_set_back_loses_no_call(monkeypatch):
    """The farthest call is too far then, and is planned with others in one batch."""
    clock, seen = RealClock(), []
    async with Timer(clock=clock) as timer:
        now_ms = clock.now_ms()
        timer.at(now_ms + 100, seen.append, "soon")
        timer.at(now_ms + MAX_DELAY_MS, seen.append, "far")
        monkeypatch.setattr(clock, "now_ms", lambda: RealClock.now_ms(clock) - 200)
        await until_async(lambda: seen)
    assert seen == ["soon"]


async def test_nothing_runs_before_its_time_and_in_order_of_due():
    clock = dwell.SimulatedClock(NOW)

    seen = []

    async def note(word):
        seen.append(word)

    async with Timer(clock=clock) as timer:
        second = timer.after("2s", note, "second")
        first = timer.at(NOW + 1_000, note, "first")
        assert (first.due_ms, second.due_ms) == (NOW + 1_000, NOW + 2_000)
        await settle()
        clock.advance(999)
        await settle()
        assert seen == []
        clock.advance(1)
        await settle()
        assert seen == ["first"]
        clock.advance(1_000)
        await settle()
        assert seen == ["first", "second"]


async def test_cancel_tells_the_truth():
    clock = dwell.SimulatedClock(NOW)

    seen = []
    async with Timer(clock=clock) as timer:
        early = timer.after("1s", seen.append, "early")
        assert early.cancel() is True
        assert early.cancel() is False
        late = timer.after("1s", seen.append, "late")
        await settle()
        assert late.cancel() is True
        kept = timer.after("1s", seen.append, "kept")
        await settle()
        clock.advance(1_000)
        while not seen:
            await settle()
        assert kept.cancel() is False
    assert seen == ["kept"]


async def test_every_keeps_its_rate_and_never_piles_up():
    clock = dwell.SimulatedClock(NOW)

    begun, gate = [], asyncio.Event()

    async def work():
        begun.append(clock.now_ms() - NOW)
        await gate.wait()

    async with Timer(clock=clock) as timer:
        call = timer.every("10s", work)
        await settle()
        clock.advance(10_000)
        await settle()
        # It runs over the next two times of its rate, which are then left out.
        clock.advance(25_000)
        await settle()
        assert begun == [10_000]
        gate.set()
        await settle()
        assert call.due_ms == NOW + 40_000
        clock.advance(5_000)
        await settle()
        assert begun == [10_000, 40_000]
        assert call.cancel() is True
        clock.advance(100_000)
        await settle()
        assert begun == [10_000, 40_000]


async def test_a_recurring_call_can_be_cancelled_while_it_runs():
    clock = dwell.SimulatedClock(NOW)

    begun, gate = [], asyncio.Event()

    async def work():
        begun.append(1)
        await gate.wait()

    async with Timer(clock=clock) as timer:
        call = timer.every("10s", work)
        await settle()
        clock.advance(10_000)
        await settle()
        assert call.cancel() is True
        assert call.cancel() is False
        gate.set()
        await settle()
        clock.advance(50_000)
        await settle()
        assert begun == [1]


def test_an_exception_is_logged_and_stops_nothing(caplog):
    seen = []

    def fail():
        raise ValueError("broken function")

    async def fail_too():
        raise ValueError("broken coroutine")

    with caplog.at_level(logging.ERROR), Timer(threads=1) as timer:
        timer.after(0, fail)
        timer.after(0, fail_too)
        every = timer.every("1ms", lambda: seen.append(1) or 1 / 0)
        until(lambda: len(seen) >= 3)
        every.cancel()
    assert "broken function" in caplog.text
    assert "broken coroutine" in caplog.text


def test_wrong_arguments_are_logged_and_stop_nothing(caplog):
    seen = []

    async def note():
        seen.append("note")

    with caplog.at_level(logging.ERROR), Timer() as timer:
        timer.after(0, note, "one argument too many")
        every = timer.every("1ms", note, "one argument too many")
        until(lambda: caplog.text.count("TypeError") >= 3)
        assert every.cancel() is True
        timer.after(0, note)
        until(lambda: seen)
    assert seen == ["note"]


def test_what_cannot_begin_is_logged_and_stops_nothing(caplog, monkeypatch):
    seen = []
    with caplog.at_level(logging.ERROR), Timer() as timer:

        def without_threads(*args):
            monkeypatch.undo()
            raise RuntimeError("no more threads")

        monkeypatch.setattr(ThreadPool, "submit", without_threads)
        timer.after(0, seen.append, "lost")
        until(lambda: "no more threads" in caplog.text)
        timer.after(0, seen.append, "later")
        until(lambda: seen)
    assert seen == ["later"]


async def test_a_store_that_fails_is_asked_again(caplog, monkeypatch):
    clock, seen = dwell.SimulatedClock(NOW), []
    with caplog.at_level(logging.ERROR):
        async with Timer(clock=clock) as timer:

            async def fail(*args, **named):
                monkeypatch.undo()
                raise MemoryError

            monkeypatch.setattr(MemoryStore, "take", fail)
            await settle()
            timer.after("1s", seen.append, "x")
            await settle()
            clock.advance(1_000)
            while not seen:
                await settle()
    assert "MemoryError" in caplog.text


async def test_plain_functions_run_in_threads_and_coroutines_in_the_loop():
    seen = {}

    def plain():
        seen["plain"] = threading.current_thread()

    async def coroutine():
        seen["coroutine"] = threading.current_thread()

    async def coroutine_of(name):
        seen[name] = threading.current_thread()

    async with Timer() as timer:
        timer.after(0, plain)
        timer.after(0, coroutine)
        timer.after(0, lambda: coroutine_of("hidden"))
        await until_async(lambda: len(seen) >= 3)
    assert seen["plain"] is not threading.current_thread()
    assert seen["coroutine"] is seen["hidden"] is threading.current_thread()


def test_many_threads_plan_many_calls():
    seen = []
    with Timer() as timer:

        def plan():
            for n in range(500):
                timer.after(0.001, seen.append, n)

        threads = [threading.Thread(target=plan) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: len(seen) == 2_000, seconds=60)
    assert sorted(seen) == sorted([*range(500)] * 4)


def test_close_waits_for_what_runs_and_drops_what_waits():
    seen, begun = [], threading.Event()

    def slow(word):
        begun.set()
        time.sleep(0.05)
        seen.append(word)

    with Timer() as timer:
        timer.after(0, functools.partial(slow, "ran"))
        waiting = timer.after("1h", slow, "never")
        begun.wait()
    assert seen == ["ran"]
    assert waiting.cancel() is False
    with pytest.raises(dwell.StoreClosed):
        timer.after(0, slow, "late")


async def test_close_drops_what_waits_for_a_thread():
    seen, begun, gate = [], threading.Event(), threading.Event()

    def slow(n):
        begun.set()
        gate.wait(60)
        seen.append(n)

    async with Timer(threads=1) as timer:
        calls = [timer.after(0, slow, n) for n in range(8)]
        while not begun.is_set() or timer._pool._work.qsize() < 7:
            await settle()
        assert [call.cancel() for call in calls[:2]] == [False, True]
        asyncio.get_running_loop().call_later(0.01, gate.set)
    assert not any(call.cancel() for call in calls)
    assert seen == [0]


@pytest.mark.parametrize("bad", [-1, "soon", None])
def test_bad_times(bad):
    with Timer() as timer:
        with pytest.raises(dwell.InvalidTime):
            timer.after(bad, print)
        with pytest.raises(dwell.InvalidTime):
            timer.every(bad, print)
        with pytest.raises(dwell.InvalidTime):
            timer.every(0, print)
        with pytest.raises(dwell.InvalidTime):
            timer.at(bad, print)


async def test_what_is_cancelled_leaves_nothing_behind():
    async with Timer() as timer:
        calls = [timer.after("1h", print) for _ in range(100)]
        await settle()
        assert (await timer._spans._queue.stats()).topics["timer"].delayed == 100
        assert all(call.cancel() for call in calls)
        await settle()
        assert (await timer._spans._queue.stats()).topics["timer"].delayed == 0
        assert timer._calls == {}
