"""Remembered ids: those that were acked a short while ago, and count as existing."""

import numpy as np

from dwell.message import I64, U32, U64
from dwell.store.embedded.columns import Columns
from dwell.store.embedded.index import Index

_CHECK_BITS = np.uint64(21)
_CHECK_MASK = np.uint64((1 << 21) - 1)


class Remembered(Columns):
    """From the hash of an id to the end of its memory, in the order of the acks.

    A note is the end (ms) with 21 of the confirming bits below it, so that 85 bits must agree. What
    is over is thrown away when there is no more room, never one by one.
    """

    hash: U64
    note: U64

    def __init__(self) -> None:
        super().__init__({"hash": np.uint64, "note": np.uint64})
        self._count = 0
        self._index = Index(lambda places: self.hash[places])

    def holds(self, hashes: U64, checks: U32, now_ms: int) -> np.ndarray:
        """Tell for each id whether it is still remembered."""
        if not self._count:
            return np.zeros(len(hashes), dtype=bool)
        places, found = self._index.find(hashes)
        if not found.any():
            return found
        notes = self.note[places]
        same = (notes & _CHECK_MASK) == (checks & _CHECK_MASK)
        held: np.ndarray = found & same & (notes >> _CHECK_BITS > np.uint64(now_ms))
        return held

    def add(self, hashes: U64, checks: U32, until_ms: I64, now_ms: int) -> None:
        """Remember distinct ids, each until its time."""
        self._make_room(len(hashes), now_ms)
        notes = until_ms.astype(np.uint64) << _CHECK_BITS | (checks & _CHECK_MASK)
        rows = self._append(hashes, notes)
        old = np.flatnonzero(rows < self._count - len(rows))
        if len(old):
            # Those that were there already last longer, and what was appended means nothing.
            self.note[rows[old]] = np.maximum(self.note[rows[old]], notes[old])
            self.note[self._count - len(rows) + old] = 0

    def entries(self, now_ms: int) -> tuple[U64, U64]:
        """Return the hashes and notes of what is still remembered."""
        hashes, notes = self.hash[: self._count], self.note[: self._count]
        live = notes >= np.uint64(now_ms + 1) << _CHECK_BITS
        return (hashes, notes) if live.all() else (hashes[live], notes[live])

    def restore(self, hashes: U64, notes: U64) -> None:
        """Hold what :meth:`entries` returned."""
        self._count = 0
        self._index.rebuild(np.zeros(0, np.uint32), len(hashes))
        self.reserve(len(hashes))
        self._append(hashes, notes)

    def _append(self, hashes: U64, notes: U64) -> U32:
        """Append entries, and return where those of each hash are, which may be before."""
        first, end = self._count, self._count + len(hashes)
        self.hash[first:end] = hashes
        self.note[first:end] = notes
        self._count = end
        return self._index.add(hashes, np.arange(first, end, dtype=np.uint32))

    def _make_room(self, more: int, now_ms: int) -> None:
        if self._count + more <= self.capacity:
            return
        # Views of the columns must be gone when these grow.
        hashes, notes = (column.copy() for column in self.entries(now_ms))
        self.reserve(2 * (len(hashes) + more))
        if len(hashes) < self._count:
            self.restore(hashes, notes)
