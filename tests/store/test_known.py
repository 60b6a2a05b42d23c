"""Known ids against two dictionaries, over growth, ends, ids of one hash, and a snapshot."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.store.embedded.ids import IdHasher
from dwell.store.embedded.known import KnownIds
from dwell.store.embedded.limits import Limits
from tools.parts import indexed_rows

_IDS = 300
_STEP = st.tuples(
    st.sampled_from(["put", "ack", "cancel", "save"]),
    st.lists(st.integers(0, _IDS), min_size=1, max_size=60, unique=True),
    st.integers(0, 50),
    st.integers(0, 200),
)


def keys_of(numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return keys of which many share the first place in the index, and some the whole hash."""
    hashes = [(number % 7) + (number // 3 << 40) for number in numbers]
    return np.array(hashes, dtype=np.uint64), np.array(numbers, dtype=np.uint32)


class Twin:
    """Known ids, and what they are to know: rows and entries of ids, and the ends of memories."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.known = KnownIds(limits)
        # Room for few, so that what is over is thrown away again and again.
        self.known.capacity = 64
        self.lives: dict[int, tuple[int, int]] = {}
        self.ends_ms: dict[int, int] = {}
        self.next_row = 0

    def put(self, numbers: list[int], now_ms: int, _: int) -> None:
        numbers = [number for number in numbers if number not in self.lives]
        rows = np.arange(self.next_row, self.next_row + len(numbers), dtype=np.uint32)
        self.next_row += len(numbers)
        entries = self.known.add(*keys_of(numbers), rows, now_ms)
        for number, row, entry in zip(numbers, rows.tolist(), entries.tolist(), strict=True):
            self.lives[number] = (row, entry)

    def ack(self, numbers: list[int], now_ms: int, span_ms: int) -> None:
        numbers = [number for number in numbers if number in self.lives]
        ended = np.array([self.lives.pop(number) for number in numbers], np.uint32).reshape(-1, 2)
        until_ms = np.full(len(numbers), now_ms + span_ms, dtype=np.int64)
        self.known.end(ended[:, 1], ended[:, 0], until_ms, now_ms)
        for number in numbers:
            self.ends_ms[number] = max(self.ends_ms.get(number, 0), now_ms + span_ms)

    def cancel(self, numbers: list[int], now_ms: int, _: int) -> None:
        ended = [self.lives.pop(number) for number in numbers if number in self.lives]
        rows, entries = np.array(ended, np.uint32).reshape(-1, 2).T
        self.known.end(entries, rows, 0, now_ms)

    def save(self, _: list[int], now_ms: int, __: int) -> None:
        again = KnownIds(self.limits)
        numbers = list(self.lives)
        again.expect(len(numbers))
        rows = np.array([self.lives[number][0] for number in numbers], np.uint32)
        entries = again.add(*keys_of(numbers), rows, 0).tolist()
        again.remember(*self.known.remembered(now_ms))
        for number, row, entry in zip(numbers, rows.tolist(), entries, strict=True):
            self.lives[number] = (row, entry)
        self.known = again

    def agree(self, now_ms: int) -> None:
        keys = keys_of(list(range(_IDS + 1)))
        rows, found = self.known.find(*keys)
        expected = [self.lives.get(number, (0, 0))[0] for number in range(_IDS + 1)]
        assert rows.tolist() == expected
        assert found.tolist() == [number in self.lives for number in range(_IDS + 1)]
        assert self.known.exist(*keys, now_ms).tolist() == [
            number in self.lives or self.ends_ms.get(number, 0) > now_ms
            for number in range(_IDS + 1)
        ]
        assert sorted(indexed_rows(self.known)) == sorted(row for row, _ in self.lives.values())


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEP, max_size=25), st.sampled_from((2, 16, 1024)), st.sampled_from((1, 100)))
def test_an_id_lives_and_is_remembered(
    steps: list[tuple[str, list[int], int, int]], slots: int, few: int
) -> None:
    # A table grows while it is used, again and again.
    twin, now_ms = Twin(Limits(index_slots=slots, index_step=1, few_ids=few)), 1_000
    for verb, numbers, later_ms, span_ms in steps:
        now_ms += later_ms
        getattr(twin, verb)(numbers, now_ms, span_ms)
        twin.agree(now_ms)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_all_is_found_while_the_index_grows(seed: int) -> None:
    """A few ids at a time, so that it takes many puts until a table has moved."""
    chance = random.Random(seed)
    twin = Twin(Limits(index_slots=2, index_step=1, few_ids=chance.choice((1, 100))))
    for now_ms in range(120):
        verb = chance.choices(("put", "cancel", "ack"), (8, 1, 1))[0]
        numbers = chance.sample(range(_IDS + 1), chance.randrange(1, 6))
        getattr(twin, verb)(numbers, now_ms, 3)
        twin.agree(now_ms)


def test_entries_are_used_again() -> None:
    known, count = KnownIds(), 1_000
    for turn in range(50):
        rows = np.arange(count, dtype=np.uint32)
        hashes = rows.astype(np.uint64) * np.uint64(turn + 1) << np.uint64(3)
        entries = known.add(hashes, rows, rows, 10 * turn)
        known.end(entries, rows, np.full(count, 10 * turn + 15), 10 * turn)
    # Two turns are remembered at a time, and room doubles.
    assert known.capacity < 8 * count


def test_who_lost_an_id_does_not_end_it() -> None:
    """A repair may leave two messages with one id; the newer one has it."""
    known, rows = KnownIds(), np.array([5, 9], np.uint32)
    key = keys_of([1])
    old = known.add(*key, rows[:1], 0)
    new = known.add(*key, rows[1:], 0)
    known.end(old, rows[:1], 0, 0)
    assert known.find(*key)[0] == [9]
    known.end(new, rows[1:], 0, 0)
    assert not known.find(*key)[1]


async def test_messages_whose_ids_have_one_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = IdHasher.hash

    def poor(*args: object) -> tuple[np.ndarray, np.ndarray]:
        hashes, checks = whole(*args)
        return hashes & np.uint64(1), checks

    monkeypatch.setattr(IdHasher, "hash", poor)
    ids = [f"id-{number}" for number in range(50)]

    async with dwell.open(tmp_path / "store") as queue:
        for _ in range(2):
            await queue.put_many("t", ids, ids=ids, on_conflict="replace")
            assert [one.body.decode() for one in await queue.get("t", ids)] == ids
            taken = await queue.take("t", 30)
            assert await queue.ack(taken) == [dwell.Result.ACKED] * 30
            assert len(await queue.cancel("t", ids)) == 50
    async with dwell.open(tmp_path / "store") as queue:
        again = await queue.put_many("t", ids, ids=ids)
        assert [put.result for put in again].count(dwell.Result.KEPT) == 30
