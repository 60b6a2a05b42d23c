"""A stack of numbers: the last pushed numbers are removed first."""

import numpy as np

from dwell.message import U32, Rows
from dwell.store.embedded.area import Area
from dwell.store.embedded.scratch import Scratch

_FIRST_CAPACITY = 1024
_ITEM_BYTES = 4


class Stack:
    """The numbers, in an area if there are many. A push never fails for lack of disk space."""

    def __init__(self, scratch: Scratch | None, most: int) -> None:
        self._scratch, self._most = scratch, most
        self._area: Area | None = None
        first = _FIRST_CAPACITY if scratch is None else min(_FIRST_CAPACITY, scratch.least_rows)
        self._numbers: U32 = np.zeros(first, dtype=np.uint32)
        self._count = 0
        if scratch is not None:
            scratch.at_close(self._let_go)

    def _let_go(self) -> None:
        if self._area is not None:
            self._numbers, self._count, self._area = np.zeros(0, dtype=np.uint32), 0, None

    def __len__(self) -> int:
        return self._count

    def numbers(self) -> U32:
        """Return all numbers, in the order in which they were pushed."""
        return self._numbers[: self._count]

    def last(self, count: int) -> U32:
        """Return the last numbers without removing them."""
        return self._numbers[self._count - count : self._count]

    def drop(self, count: int) -> None:
        """Remove the last numbers."""
        self._count -= count

    def push(self, numbers: U32 | Rows) -> None:
        """Add numbers."""
        needed = self._count + len(numbers)
        if needed > len(self._numbers):
            self._reserve(needed)
        self._numbers[self._count : needed] = numbers
        self._count = needed

    def _reserve(self, needed: int) -> None:
        grown = self._in_area(needed)
        if grown is None:
            grown = np.zeros(max(needed, 2 * len(self._numbers)), dtype=np.uint32)
            grown[: self._count] = self.numbers()
            if self._area is not None and self._scratch is not None:
                self._scratch.retire(self._area)
                self._area = None
        self._numbers = grown

    def _in_area(self, needed: int) -> U32 | None:
        """Return the numbers with more room behind them, or None if an area has no room."""
        scratch = self._scratch
        if scratch is None or not scratch.least_rows < needed <= self._most:
            return None
        capacity = min(-(-needed // scratch.step_rows) * scratch.step_rows, self._most)
        area = scratch.grown(self._area, self._most * _ITEM_BYTES, capacity * _ITEM_BYTES)
        if area is None:
            return None
        numbers: U32 = area.array(np.uint32, 0, capacity)
        if self._area is None:
            numbers[: self._count] = self.numbers()
            self._area = area
        return numbers
