"""What time does to very many messages at once is done in parts, between which others go on."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dwell.clock import SimulatedClock
from dwell.queue import Queue
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.wheel import Wheel
from dwell.testing.faults import FaultyDisk
from tests import RUNS
from tests.store.test_limits import queue_on

SMALL = {"timed_rows": 3, "expired_rows": 3, "loaded_rows": 2, "deal_at": 4, "merged_rows": 4}


async def settle(queue: Queue, clock: SimulatedClock) -> int:
    """Let a store do what time asks for, part by part; return how many parts there were."""
    parts = 0
    while True:
        parts += 1
        deadline_ms = await queue.store.tick(clock.now_ms())
        if deadline_ms is None or deadline_ms > clock.now_ms():
            return parts


async def test_dues__many_at_once__become_ready_part_by_part() -> None:
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock, **SMALL) as queue:
        dues = [clock.now_ms() + 1_000 + number % 7 for number in range(40)]
        await queue.put_many("t", [b"x"] * 40, ids=[f"{n:02}" for n in range(40)], due=dues)
        clock.advance(2_000)
        counts = []
        while (ready := (await queue.stats()).topics["t"].ready) < 40:
            counts.append(ready)
        assert len(counts) > 5
        taken = await queue.take("t", 40)
        order = sorted(range(40), key=lambda number: (dues[number], number))
        assert list(taken.ids) == [f"{number:02}" for number in order]


async def test_dues__part_by_part__the_earliest_come_first() -> None:
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock, **SMALL, wheel_runs=2) as queue:
        for number in range(12):
            await queue.put("t", b"x", due=clock.now_ms() + 1_000 - 10 * number)
        clock.advance(2_000)
        taken = [(await queue.take("t", 3)).due_ms.tolist() for _ in range(4)]
        assert taken == sorted(taken)


async def test_leases__many_end_at_once__each_message_comes_again_once() -> None:
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock, **SMALL) as queue:
        await queue.put_many("t", [b"x"] * 40)
        await queue.take("t", 40, lease="5s")
        clock.advance(5_000)
        assert await settle(queue, clock) > 5
        assert (await queue.stats()).topics["t"].ready == 40
        assert (await queue.take("t", 100)).attempt.tolist() == [2] * 40


async def test_expiry__many_expire_at_once__none_is_taken() -> None:
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock, **SMALL) as queue:
        ids = [f"{number}" for number in range(40)]
        await queue.put_many("t", [b"x"] * 40, ids=ids, ttl="5s")
        await queue.put_many("t", [b"y"] * 3, priority=2_000)
        clock.advance(5_000)
        assert len(await queue.take_ids("t", ids[-5:])) == 0
        bodies = []
        while batch := await queue.take("t", 10):
            bodies += batch.bodies
        assert bodies == [b"y"] * 3
        await settle(queue, clock)
        assert (await queue.stats()).topics["t"].dead == 40


async def test_expiry__many_expire_at_once__they_do_part_by_part() -> None:
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock, **SMALL) as queue:
        await queue.put_many("t", [b"x"] * 40, ttl="5s")
        clock.advance(5_000)
        # No other task runs between the parts here.
        assert await settle(queue, clock) > 40 // 3
        assert (await queue.stats()).topics["t"].dead == 40


async def test_parts__clock_goes_back_between_them__nothing_is_early() -> None:
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock, **SMALL) as queue:
        await queue.put_many("t", [b"x"] * 40, delay="1m")
        clock.advance(60_000)
        await queue.stats()
        clock.advance(-30_000)
        assert len(await queue.take("t", 40)) == 0
        assert (await queue.stats()).topics["t"].delayed == 40
        clock.advance(30_000)
        await settle(queue, clock)
        assert len(await queue.take("t", 100)) == 40


@settings(max_examples=60 * RUNS, deadline=None)
@given(
    times=st.lists(st.integers(1, 300_000), min_size=1, max_size=60),
    most=st.integers(1, 7),
    loaded=st.integers(1, 9),
    step_ms=st.integers(1, 100_000),
)
def test_wheel__drawn_times__each_row_comes_once_and_in_time(
    times: list[int], most: int, loaded: int, step_ms: int
) -> None:
    at_ms = np.array(times, np.int64)
    left = at_ms.copy()
    wheel = Wheel(lambda rows: left[rows], Limits(loaded_rows=loaded, deal_at=5, wheel_runs=2))
    for part in np.array_split(np.arange(len(times)), 3):
        wheel.add(part, at_ms[part])
    now_ms, found = 0, list[int]()
    while len(found) < len(times):
        next_ms = wheel.next_ms()
        assert next_ms is not None
        if next_ms > now_ms:
            assert not (left[left > 0] <= now_ms).any(), "due, and not told of"
            now_ms += step_ms
        rows = wheel.pop(now_ms, most)
        if rows is None:
            continue
        assert len(rows) <= most
        assert (at_ms[rows] <= now_ms).all()
        found += rows.tolist()
        left[rows] = 0
    assert sorted(found) == list(range(len(times)))
