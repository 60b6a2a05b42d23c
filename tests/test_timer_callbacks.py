"""Callbacks that do anything Python allows, drawn from a seed: none harms the timer or another."""

import asyncio
import logging
import os
import random
import signal
import threading

import pytest

import dwell
from dwell.errors import InvalidInput, StoreClosed
from dwell.timer import Timer
from tests.waiting import until, until_async

#: How many callbacks are drawn in all, twenty a run.
DRAWN = int(os.environ.get("DWELL_CALLBACKS", "300"))
EACH = 20
TICKS = 4


class Odd(BaseException):
    """An exception that is no Exception."""


RAISED = {
    "StopIteration": StopIteration,
    "GeneratorExit": GeneratorExit,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "Odd": Odd,
    "ValueError": ValueError,
    "CancelledError": asyncio.CancelledError,
    "group": lambda: BaseExceptionGroup("g", [Odd()]),
}
ACTS = [*RAISED, "value", "awaitable", "cancels", "cancels itself", "plans", "generator", "close"]


async def nothing():
    await asyncio.sleep(0)


class Run:
    """One drawn set of callbacks on one timer, beside one that only counts."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.clock = dwell.SimulatedClock()
        self.ran = {}

    def plan(self, timer, number):
        """Plan a callback; return how often it has to run within the ticks."""
        act, is_async = self.chance.choice(ACTS), self.chance.random() < 0.5
        self.ran[number] = 0

        def do():
            self.ran[number] += 1
            if act in RAISED:
                raise RAISED[act]()
            if act == "cancels":
                calls[0].cancel()
            if act == "plans":
                timer.after("1h", nothing)
            if act == "close":
                with pytest.raises(RuntimeError, match="cannot close it"):
                    timer.__exit__(None, None, None)
            if act == "generator":
                return (n for n in range(3))
            return nothing() if act == "awaitable" and not is_async else act

        async def coroutine():
            if act == "cancels itself":
                asyncio.current_task().cancel()
            answer = do()
            await nothing()
            return answer

        function = coroutine if is_async else do
        if self.chance.random() < 0.5:
            calls = [timer.after("1s", function)]
            return 1
        calls = [timer.every("1s", function)]
        return 1 if act == "cancels" else TICKS

    async def go(self):
        beats = []
        async with Timer(clock=self.clock, threads=2) as timer:
            timer.every("1s", lambda: beats.append(1))
            expected = {number: self.plan(timer, number) for number in range(EACH)}
            for tick in range(1, TICKS + 1):
                await self._settle(beats, 0)
                self.clock.advance(1_000)
                await self._settle(beats, tick)
                due = {n: min(tick, most) for n, most in expected.items()}
                while self.ran != due:
                    assert all(self.ran[n] <= due[n] for n in due), (self.ran, due)
                    await asyncio.sleep(0.001)
        assert self.ran == expected

    async def _settle(self, beats, tick):
        await until_async(lambda: len(beats) >= tick)
        for _ in range(20):
            await asyncio.sleep(0.0005)


@pytest.mark.parametrize("start", range(0, DRAWN // EACH, 5))
def test_drawn_callbacks_run_as_often_as_planned(start, caplog):
    with caplog.at_level(logging.CRITICAL + 1, "dwell"):
        for seed in range(start, start + 5):
            asyncio.run(asyncio.wait_for(Run(seed).go(), 120))


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_step_of_the_wall_clock_moves_no_span(jump_ms):
    class Stepped(dwell.RealClock):
        off_ms = 0

        def now_ms(self):
            return super().now_ms() + self.off_ms

    clock, beats, far = Stepped(), [], []
    with Timer(clock=clock) as timer:
        timer.every("20ms", beats.append, 1)
        timer.after("10m", far.append, 1)
        point = timer.at(clock.now_ms() + 600_000, far.append, 2)
        until(lambda: len(beats) >= 3)
        clock.off_ms = jump_ms
        before = len(beats)
        until(lambda: len(beats) >= before + 3)
        if jump_ms > 0:
            # A point in time is another matter: it has come.
            until(lambda: far)
        assert far == ([2] if jump_ms > 0 else [])
        assert point.cancel() is (jump_ms < 0)


def test_an_exit_in_a_coroutine_ends_nothing():
    beats, left = [], []

    async def leave():
        left.append(len(beats))
        raise SystemExit

    with Timer() as timer:
        timer.after("1ms", leave)
        timer.every("1ms", beats.append, 1)
        until(lambda: left and len(beats) > left[0] + 2)


def test_a_timer_is_used_again():
    timer, seen = Timer(), []
    for word in ("once", "twice"):
        with timer:
            timer.after("1ms", seen.append, word)
            until(lambda word=word: word in seen)
    with pytest.raises(StoreClosed):
        timer.after("1ms", print)


def test_a_timer_is_opened_once_at_a_time_and_not_closed_from_within():
    errors = []
    with Timer() as timer:
        with pytest.raises(RuntimeError, match="open already"), timer:
            pass

        def leave():
            try:
                timer.__exit__(None, None, None)
            except RuntimeError as error:
                errors.append(str(error))

        timer.after("1ms", leave)
        until(lambda: errors)
    assert "cannot close it" in errors[0]


def generator():
    yield


@pytest.mark.parametrize("function", [5, None, generator])
def test_what_runs_nothing_is_refused(function):
    with Timer() as timer:
        for plan in (timer.after, timer.every):
            with pytest.raises(InvalidInput, match="function: got"):
                plan("1s", function)
        with pytest.raises(InvalidInput, match="function: got"):
            timer.at(0, function)


class Endless:
    """Fails once, and can never be shown."""

    def __init__(self):
        self.runs = 0

    def __repr__(self):
        return f"Endless({self!r})"

    def run(self):
        self.runs += 1
        if self.runs == 1:
            raise ValueError("once")

    async def run_later(self):
        self.run()


@pytest.mark.parametrize("name", ["run", "run_later"])
def test_a_function_that_cannot_be_shown_runs_again(name):
    one = Endless()
    with Timer() as timer:
        timer.every("5ms", getattr(one, name))
        until(lambda: one.runs >= 3)


def test_a_function_that_cancels_all_while_the_timer_closes_does_not_break_that():
    began, ended = threading.Event(), []

    async def tidy():
        began.set()
        await asyncio.sleep(0.05)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)
        ended.append(1)

    with Timer() as timer:
        timer.after("1ms", tidy)
        began.wait()
    assert ended


def test_a_signal_that_comes_upon_a_plan_may_plan_too():
    planned = []
    with Timer() as timer:

        def plan(number, frame):
            planned.append(timer.after("1h", print))

        before = signal.signal(signal.SIGALRM, plan)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
        try:
            while len(planned) < 200:
                timer.after("1h", print).cancel()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        ran = threading.Event()
        timer.after("1ms", ran.set)
        ran.wait()
