"""Lateness counts from the due of a message, or from its put where that came later."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dwell.clock import SimulatedClock
from dwell.server.board.recent import lately
from dwell.server.lateputs import LatePuts
from dwell.store.memory import MemoryStore
from tests.http.served import served

YEAR_MS = 365 * 24 * 3_600_000


@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize("wait_ms", [0, 3_000])
async def test_what_was_put_late_is_late_from_its_put(count, wait_ms):
    clock = SimulatedClock()
    async with served(MemoryStore(clock)) as server:
        queue, lateness = server.queue, server.service.lateness
        dues = np.full(count, clock.now_ms() - YEAR_MS)
        await queue.put_many("t", [b""] * count, due=dues)
        # A message that was put in time and waited long is late by all of that.
        await queue.put("t", b"", delay="1s", priority=10**6)
        clock.advance(wait_ms)
        taken = await queue.take("t", count)
        server.service.note_taken(taken)
        await queue.ack(taken)
        assert sum(lateness.counts) == count
        assert lateness.sum == pytest.approx(count * wait_ms / 1000)
        clock.advance(YEAR_MS - wait_ms)
        server.service.note_taken(await queue.take("t", 1))
        assert lateness.sum == pytest.approx(count * wait_ms / 1000 + YEAR_MS / 1000 - 1)


async def test_the_board_counts_from_the_put_too():
    clock = SimulatedClock()
    async with served(MemoryStore(clock)) as server:
        await server.queue.put("t", b"", due=clock.now_ms() - YEAR_MS)
        clock.advance(2_000)
        await server.queue.take("t")
        found = (await lately(server.queue))["t"]
        assert (found.late_p50_ms, found.late_p99_ms) == (2_000, 2_000)


def test_only_so_many_late_puts_are_remembered():
    puts, now_ms = LatePuts(), 10 * YEAR_MS
    for number in range(1, 10_051):
        # Numbers of several shards do not come in order.
        own = number ^ 1
        puts.note(np.array([0]), np.array([3 * own + 3], np.uint64), now_ms + 2_000 * number)
    end_ms = now_ms + 3_000 * 10_050
    assert puts.late_ms(0, 3 * 10_000 + 3, end_ms) == end_ms - (now_ms + 2_000 * 10_001)
    assert puts.late_ms(0, 3 * 10_000 + 4, end_ms) == end_ms
    assert puts.late_ms(0, 6, end_ms) == end_ms


def test_puts_of_one_moment_are_remembered_as_one():
    puts, now_ms = LatePuts(), 10 * YEAR_MS
    for start in range(1, 100_001, 1_000):
        numbers = np.arange(start, start + 1_000, dtype=np.uint64)
        puts.note(np.zeros(1_000, np.int64), numbers, now_ms)
    found = puts.many_late_ms(
        np.zeros(3, np.int64), np.array([1, 100_000, 100_001], np.uint64), now_ms + 5_000
    )
    assert found.tolist() == [5_000, 5_000, now_ms + 5_000]
    assert len(puts) == 1


#: Tens of numbers that are put in some order: how many of each, and at which second.
_PUTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    max_size=8,
    unique_by=lambda put: put[0],
)


@example([(4, 0, 5)], [35, 41])
@given(_PUTS, st.lists(st.integers(1, 110), unique=True))
def test_many_are_as_late_as_each_alone(put, taken):
    puts, now_ms = LatePuts(), 10 * YEAR_MS
    for ten, more, seconds in put:
        numbers = np.arange(10 * ten + 1, 10 * ten + more + 2, dtype=np.uint64)
        puts.note(np.zeros(more + 1, np.int64), numbers, now_ms + 1_000 * seconds)
    end_ms = now_ms + 20_000
    due_ms = np.array([end_ms - number * 500 % 30_000 for number in taken], np.int64)
    found = puts.many_late_ms(due_ms, np.array(taken, np.uint64), end_ms)
    assert found.tolist() == [
        puts.late_ms(due, number, end_ms)
        for due, number in zip(due_ms.tolist(), taken, strict=True)
    ]
