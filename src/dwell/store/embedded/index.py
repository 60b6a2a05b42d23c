"""The index: open addressing with linear probing, a batch at a time, in NumPy.

Each loop handles the whole batch: most keys are done after the first probe, and the rest, ever
fewer, go one place on. A deleted place keeps a mark, so that probing goes past it, but only while
something stands behind it: a mark before an empty place leads nowhere, and becomes empty too. So
marks do not gather, and a table is made anew only when it grows.

A small table is at most a quarter full and a large one half: what a probe costs depends more on
that than on the size.
"""

from collections.abc import Callable

import numpy as np

from dwell.message import I64, U32, U64

_FIRST_CAPACITY = 1024
_FEW = 1 << 18
_EMPTY = np.uint32(0)
_DELETED = np.uint32(0xFFFFFFFF)


class Index:
    """From the hash of an id to the row of its message; hashes stay in the table's own columns.

    A slot holds row + 1. ``hash_of(rows)`` returns the hash of each row.
    """

    def __init__(self, hash_of: Callable[[U32], U64]) -> None:
        self._hash_of = hash_of
        self._slots = np.zeros(_FIRST_CAPACITY, dtype=np.uint32)
        self._used = 0

    def find(self, hashes: U64) -> tuple[U32, np.ndarray]:
        """Return the row of each hash, 0 where there is none, and whether there is one."""
        place = self._place(hashes)
        found = place >= 0
        return np.where(found, self._slots[place] - np.uint32(1), np.uint32(0)), found

    def add(self, hashes: U64, rows: U32) -> U32:
        """Add distinct hashes with their rows, unless they are there; return the row of each."""
        self._reserve(len(rows))
        place, mask = self._first_places(hashes)
        answer, asking, marks = rows.copy(), np.arange(len(rows)), rows + np.uint32(1)
        while len(asking):
            free = self._slots[place] == _EMPTY
            self._slots[place[free]] = marks[free]
            # Where several wanted one free place, the last one has it.
            slots = self._slots[place]
            waiting = slots != marks
            if not waiting.any():
                break
            asking, place, slots = asking[waiting], place[waiting], slots[waiting]
            hit, there = self._holding(slots, hashes[asking])
            answer[asking[hit]] = there[hit]
            asking = asking[~hit]
            marks = rows[asking] + np.uint32(1)
            place = (place[~hit] + 1) & mask
        self._used += int(np.count_nonzero(answer == rows))
        return answer

    def remove(self, hashes: U64, rows: U32) -> None:
        """Remove hashes that are in the index with these rows."""
        if not len(rows):
            return
        place, mask = self._place_of_rows(hashes, rows), len(self._slots) - 1
        self._slots[place] = _DELETED
        while len(place):
            place = place[self._slots[(place + 1) & mask] == _EMPTY]
            self._slots[place] = _EMPTY
            self._used -= len(place)
            place = (place - 1) & mask
            place = place[self._slots[place] == _DELETED]

    def rows(self) -> U32:
        """Return all rows, in no order."""
        rows: U32 = self._slots[(self._slots != _EMPTY) & (self._slots != _DELETED)] - np.uint32(1)
        return rows

    def rebuild(self, rows: U32, more: int = 0) -> None:
        """Hold exactly these rows, with room for ``more``."""
        self._slots = np.zeros(_capacity_for(len(rows) + more), dtype=np.uint32)
        self._used = 0
        step = 1 << 16
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            self.add(self._hash_of(part), part)

    def _place(self, hashes: U64) -> I64:
        """Return where each hash is, -1 where it is not."""
        place, mask = self._first_places(hashes)
        answer = np.full(len(hashes), -1, dtype=np.int64)
        asking = np.arange(len(hashes))
        while len(asking):
            slots = self._slots[place]
            going = slots != _EMPTY
            if not going.any():
                break
            asking, place, slots = asking[going], place[going], slots[going]
            hit, _ = self._holding(slots, hashes[asking])
            answer[asking[hit]] = place[hit]
            asking = asking[~hit]
            place = (place[~hit] + 1) & mask
        return answer

    def _first_places(self, hashes: U64) -> tuple[I64, int]:
        """Return where the path of each hash begins, and the mask that leads it round."""
        mask = len(self._slots) - 1
        return (hashes & np.uint64(mask)).astype(np.int64), mask

    def _holding(self, slots: U32, hashes: U64) -> tuple[np.ndarray, U32]:
        """Tell which slots, none of them empty, hold these hashes, and for which rows."""
        real = slots != _DELETED
        rows = np.where(real, slots - np.uint32(1), np.uint32(0))
        return real & (self._hash_of(rows) == hashes), rows

    def _place_of_rows(self, hashes: U64, rows: U32) -> I64:
        """Return where each row is; each is somewhere on the path of its hash."""
        place, mask = self._first_places(hashes)
        marks = rows + np.uint32(1)
        wrong = np.flatnonzero(self._slots[place] != marks)
        while len(wrong):
            place[wrong] = (place[wrong] + 1) & mask
            wrong = wrong[self._slots[place[wrong]] != marks[wrong]]
        return place

    def _reserve(self, more: int) -> None:
        count = self._used + more
        if count * (4 if count < _FEW else 2) <= len(self._slots):
            return
        self.rebuild(self.rows(), more)


def _capacity_for(count: int) -> int:
    spare = 8 if count < _FEW else 3
    return max(_FIRST_CAPACITY, 1 << (spare * count).bit_length())
