"""The clocks: the machine's own, and the one that tests move by hand."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import dwell
from dwell.clock import RealClock, SimulatedClock
from dwell.clock.alarm import Alarm


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def sleeper(clock: SimulatedClock, delay_ms: float, woken: list[float]) -> None:
    await clock.sleep(delay_ms)
    woken.append(delay_ms)


def test_real_clock_tells_the_time() -> None:
    before = int(time.time() * 1000)
    now_ms = RealClock().now_ms()
    assert before - 1 <= now_ms <= int(time.time() * 1000) + 1
    assert isinstance(now_ms, int)


async def test_real_clock_sleeps_no_less_than_asked() -> None:
    started = time.monotonic()
    await RealClock().sleep(20)
    assert 0.019 <= time.monotonic() - started < 5


def test_simulated_clock_stands_still_until_moved() -> None:
    clock = SimulatedClock(start_ms=1_000)
    assert (clock.now_ms(), clock.now_ms()) == (1_000, 1_000)
    clock.advance(5)
    assert clock.now_ms() == 1_005
    clock.advance(-50)
    assert clock.now_ms() == 955


async def test_simulated_sleepers_wake_in_order() -> None:
    clock, woken = SimulatedClock(), []
    tasks = [asyncio.create_task(sleeper(clock, ms, woken)) for ms in (30, 10, 20, 10.5)]
    await settle()
    clock.advance(9)
    await settle()
    assert woken == []
    clock.advance(1)
    await settle()
    assert woken == [10]
    clock.advance(100)
    await settle()
    assert woken == [10, 10.5, 20, 30]
    await asyncio.gather(*tasks)


async def test_simulated_sleep_of_nothing_ends_at_once() -> None:
    clock = SimulatedClock()
    await asyncio.wait_for(clock.sleep(0), 1)
    await asyncio.wait_for(clock.sleep(-5), 1)


@pytest.mark.parametrize("turns", range(4))
async def test_an_alarm_is_woken_by_a_move_that_comes_as_it_goes_to_sleep(turns):
    clock = SimulatedClock()
    sleeping = asyncio.create_task(Alarm(clock).sleep(10))
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    clock.advance(10)
    await asyncio.wait_for(sleeping, 30)


async def test_simulated_clock_that_jumps_back_wakes_nobody_early() -> None:
    clock, woken = SimulatedClock(), []
    task = asyncio.create_task(sleeper(clock, 10, woken))
    await settle()
    clock.advance(-5)
    clock.advance(14)
    await settle()
    assert woken == []
    clock.advance(1)
    await task
    assert woken == [10]


async def test_simulated_sleeper_that_was_cancelled_is_passed_over() -> None:
    clock, woken = SimulatedClock(), []
    gone = asyncio.create_task(sleeper(clock, 10, woken))
    stays = asyncio.create_task(sleeper(clock, 10, woken))
    await settle()
    gone.cancel()
    await settle()
    clock.advance(10)
    await stays
    assert gone.cancelled()
    assert woken == [10]


def test_a_simulated_clock_that_another_thread_moves_wakes_a_blocking_take():
    clock = dwell.SimulatedClock()
    with dwell.open("memory:", clock=clock) as queue, ThreadPoolExecutor(1) as pool:
        queue.put("t", b"x", delay="1h")
        taking = pool.submit(queue.take, "t", wait="2h")
        while not queue._queue.waiting:
            time.sleep(0.001)
        clock.advance(3_600_000)
        assert [message.body for message in taking.result(timeout=60)] == [b"x"]
