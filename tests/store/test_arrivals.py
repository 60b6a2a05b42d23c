"""Messages of the embedded store by their numbers: dense, and found without a search."""

import asyncio

import numpy as np
import pytest

import dwell
from dwell.message import State
from dwell.store.embedded.arrivals import SEGMENT, Arrivals
from dwell.store.embedded.table import Table


@pytest.fixture
def table():
    return Table()


def made(table: Table) -> Arrivals:
    """Return an index that is whole."""
    arrivals = Arrivals(table)
    for _ in arrivals.fill():
        assert not arrivals.is_whole
    assert arrivals.is_whole
    return arrivals


def put(table: Table, arrivals: Arrivals | None, first: int, count: int) -> np.ndarray:
    rows = table.allocate(count)
    table.seq[rows] = np.arange(first, first + count, dtype=np.uint64)
    table.state[rows] = State.READY
    if arrivals is not None:
        arrivals.add(first, rows)
    return rows


def free(table: Table, rows: np.ndarray) -> None:
    table.state[rows] = State.GONE
    table.free(rows)


def numbers_found(table: Table, arrivals: Arrivals, numbers: np.ndarray) -> list[bool]:
    rows = arrivals.find(numbers)
    return ((table.seq[rows] == numbers) & (table.state[rows] != State.GONE)).tolist()


def check(table: Table, arrivals: Arrivals) -> None:
    """See every message that is there found, and no other."""
    rows = table.rows_where(lambda part: table.state[part] != State.GONE)
    assert (arrivals.find(table.seq[rows]) == rows).all()
    there = set(table.seq[rows].tolist())
    numbers = np.arange(0, int(table.seq.max()) + 1000, 977, dtype=np.uint64)
    assert numbers_found(table, arrivals, numbers) == [n in there for n in numbers.tolist()]


def test_an_index_that_is_made_late_knows_what_one_does_that_was_there(table):
    early = made(table)
    rng = np.random.default_rng(3)
    first = 1
    for round_ in range(30):
        count = int(rng.integers(1, SEGMENT // 3))
        rows = put(table, early, first, count)
        first += count
        gone = rows[rng.random(count) < (0.99 if round_ % 3 else 0.3)]
        free(table, rng.permutation(gone))
        if round_ % 10 == 9:
            check(table, early)
            check(table, made(table))


def test_an_index_takes_no_more_than_what_is_there(table):
    arrivals = made(table)
    kept = []
    for number in range(40):
        rows = put(table, arrivals, 1 + number * SEGMENT, SEGMENT)
        assert arrivals.size <= 4 * SEGMENT + 40
        kept.append(rows[:1] if number % 4 == 0 else rows[:0])
        free(table, rows[len(kept[-1]) :])
    check(table, arrivals)
    check(table, made(table))


def test_an_index_of_nothing(table):
    arrivals = made(table)
    put(table, arrivals, 5, 1)
    strange = np.array([0, 1, 5, 6, 2**62, 2**63 - 1], np.uint64)
    assert numbers_found(table, arrivals, strange) == [False, False, True, False, False, False]


def test_numbers_are_in_a_row_in_each_opening_and_stay_after_it(tmp_path):
    numbers = []
    for _ in range(2):
        with dwell.open(tmp_path / "store") as queue:
            numbers += [queue.put("t", b"x").number for _ in range(3)]
            assert numbers[-3:] == list(range(numbers[-3], numbers[-3] + 3))
            asked = [0, numbers[0] - 1, *numbers, numbers[-1] + 1]
            found = [name is not None for name in queue.named(asked)]
            assert found == [number in numbers for number in asked]
            # The index was made of few, and is filled from here on.
            numbers.append(queue.put("t", b"x").number)
            assert all(queue.named(numbers))
    assert numbers == sorted(numbers)
    assert numbers[4] > numbers[3] + 1
    with dwell.open(tmp_path / "store") as queue:
        (message, *_) = queue.take("t", 2)
        queue.ack(message)
        # What comes in the row of the one that is gone has another number.
        more = queue.put("t", b"x").number
        assert queue.named(numbers[:1]) == [None]
        assert all(queue.named([numbers[1], more]))
        assert queue.put("t", b"x").number == more + 1
        assert all(queue.named([numbers[1], more, more + 1]))


def test_messages_may_come_and_go_while_an_index_is_made(table):
    rng = np.random.default_rng(7)
    rows = put(table, None, 1, 5 * SEGMENT // 2)
    free(table, rng.permutation(rows[rng.random(len(rows)) < 0.5]))
    arrivals, first = Arrivals(table), 5 * SEGMENT // 2 + 1
    for _ in arrivals.fill():
        count = int(rng.integers(1, SEGMENT // 4))
        new = put(table, arrivals, first, count)
        first += count
        there = np.flatnonzero(table.state[: table.top] != State.GONE)
        free(table, np.setdiff1d(rng.choice(there, 1000, replace=False), new[-10:]))
    check(table, arrivals)
    for _ in range(3):
        new = put(table, arrivals, first, SEGMENT)
        first += SEGMENT
    check(table, arrivals)


async def test_a_first_look_by_number_lets_others_have_their_turns(tmp_path):
    async with dwell.open(tmp_path / "store") as queue:
        numbers = []
        for _ in range(60):
            numbers += [put.number for put in await queue.put_many("t", [b"x"] * 10_000)]
        looks = [asyncio.ensure_future(queue.named(numbers[at::200_000])) for at in range(3)]
        turns = 0
        while not all(look.done() for look in looks):
            await asyncio.sleep(0)
            turns += 1
        # A part is 65,536 of them.
        assert turns >= 12
        assert all(None not in look.result() for look in looks)
