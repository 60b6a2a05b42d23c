"""Chains: rows in many groups, each a chain of blocks, which lie in an area once they are many."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dwell.message import U32
from dwell.store.embedded.area import Area
from dwell.store.embedded.scratch import Scratch

#: Rows of a block, a page of memory.
_BLOCK = 1024
_ITEM_BYTES = 4


@dataclass(slots=True)
class _Chain:
    """The numbers of the blocks, and how many rows the last of them has."""

    blocks: deque[int] = field(default_factory=deque)
    last: int = _BLOCK

    @property
    def count(self) -> int:
        return (len(self.blocks) - 1) * _BLOCK + self.last


class Chains:
    """Rows by group. A push never lacks room on the disk: then its blocks stay in memory."""

    def __init__(self, scratch: Scratch | None, most: int) -> None:
        self._scratch, self._most = scratch, most
        self._area: Area | None = None
        self._chains: dict[int, _Chain] = {}
        #: The rows of the blocks in the area, one block behind the other, and of the others.
        self._rows: U32 = np.zeros(0, dtype=np.uint32)
        self._others: dict[int, U32] = {}
        self._free: list[int] = []
        self.count = 0
        if scratch is not None:
            scratch.at_close(self._let_go)

    def _let_go(self) -> None:
        if self._area is None:
            return
        self._chains, self._free, self.count = {}, [], 0
        self._rows, self._area = np.zeros(0, dtype=np.uint32), None

    def __bool__(self) -> bool:
        return bool(self._chains)

    def __iter__(self) -> Iterator[int]:
        return iter(self._chains)

    def push(self, group: int, rows: U32) -> None:
        """Add rows to a group."""
        chain = self._chains.get(group)
        if chain is None:
            chain = self._chains[group] = _Chain()
        self.count += len(rows)
        at = 0
        while at < len(rows):
            if chain.last == _BLOCK:
                chain.blocks.append(self._new_block())
                chain.last = 0
            count = min(len(rows) - at, _BLOCK - chain.last)
            block = self._block(chain.blocks[-1])
            block[chain.last : chain.last + count] = rows[at : at + count]
            chain.last += count
            at += count

    def pop(self, group: int, most: int) -> U32:
        """Remove and return the first rows of a group, about ``most``, or all; it must exist."""
        chain, found = self._chains[group], list[U32]()
        left = most
        while chain.blocks and left > 0:
            number = chain.blocks.popleft()
            count = _BLOCK if chain.blocks else chain.last
            found.append(self._block(number)[:count].copy())
            self._give_back(number)
            left -= count
        if not chain.blocks:
            del self._chains[group]
        self.count -= most - left
        return np.concatenate(found) if found else np.zeros(0, dtype=np.uint32)

    def size_of(self, group: int) -> int:
        """Return how many rows a group has, 0 if it does not exist."""
        chain = self._chains.get(group)
        return 0 if chain is None else chain.count

    def parts(self) -> "list[U32]":
        """Return the rows of all groups, a block each."""
        return [
            self._block(number)[: chain.last if number == chain.blocks[-1] else _BLOCK]
            for chain in self._chains.values()
            for number in chain.blocks
        ]

    def clear(self) -> None:
        """Remove all rows."""
        for chain in self._chains.values():
            for number in chain.blocks:
                self._give_back(number)
        self._chains, self.count = {}, 0

    def _block(self, number: int) -> U32:
        if number < 0:
            return self._others[number]
        return self._rows[number * _BLOCK : (number + 1) * _BLOCK]

    def _new_block(self) -> int:
        if self._free:
            return self._free.pop()
        if self._grow():
            return self._free.pop()
        number = -1 - len(self._others)
        self._others[number] = np.empty(_BLOCK, dtype=np.uint32)
        return number

    def _give_back(self, number: int) -> None:
        # A block of memory is used again as well: there are few, unless the disk was full.
        self._free.append(number)

    def _grow(self) -> bool:
        """Make more blocks in the area, if there is to be one."""
        scratch, have = self._scratch, len(self._rows)
        if scratch is None or len(self._others) * _BLOCK < scratch.least_rows:
            return False
        capacity = min(have + max(scratch.step_rows, _BLOCK), self._most) // _BLOCK * _BLOCK
        if capacity <= have:
            return False
        area = scratch.grown(self._area, self._most * _ITEM_BYTES, capacity * _ITEM_BYTES)
        if area is None:
            return False
        self._area, self._rows = area, area.array(np.uint32, 0, capacity)
        self._free.extend(range(capacity // _BLOCK - 1, have // _BLOCK - 1, -1))
        return True
