"""Known ids: the callers' ids that count as existing, in use by a message or remembered.

===========  =====  ===============================================================================
column       bytes  meaning
===========  =====  ===============================================================================
hash         8      of the id and its topic
check        4      21 bits more, so that 85 bits must agree
row          4      1 + the row of the message that has it; 0 for none
until_ms     8      until when it is remembered, because a message with it was acked; 0 for never
===========  =====  ===============================================================================

An id keeps its entry from its message to its memory, so that one look into the index tells all of
it, and an ack need not look. Expired memories are dropped together when there is no room left, not
one by one.
"""

from functools import partial

import numpy as np

from dwell.message import I64, U32, U64, Rows
from dwell.store.embedded.index import FIRST_KEY, MOST_KEYS, Index
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.pool import Pool
from dwell.store.embedded.scratch import Scratch

#: A snapshot keeps this many bits of a remembered id, below the time its memory ends.
_CHECK_BITS = 21
_CHECK_MASK = np.uint32((1 << _CHECK_BITS) - 1)
#: All columns lie together in a scratch file, 24 bytes a row; and how many rows there can be in it.
_TOGETHER = ("hash", "until_ms", "check", "row")
_MOST = MOST_KEYS
#: How many entries are searched for expired memories for each entry that is added then.
_LOOKS = 4


class KnownIds(Pool):
    """One entry for each id; hashes and checks are made by :mod:`ids`."""

    hash: U64
    check: U32
    row: U32
    until_ms: I64

    def __init__(self, limits: Limits = LIMITS, scratch: Scratch | None = None) -> None:
        types: dict[str, type[np.generic]] = {
            "hash": np.uint64,
            "check": np.uint32,
            "row": np.uint32,
            "until_ms": np.int64,
        }
        super().__init__(types, scratch, (_TOGETHER,), _MOST)
        self.top = FIRST_KEY
        self.index = Index(self, limits, scratch)
        self._step, self._looked = limits.scratch_step, 0

    def make_room(self, more: int, now_ms: int) -> None:
        """Make room for more ids: drop expired memories, and grow unless these were many.

        Raises DiskFull or MemoryError, changing nothing else.
        """
        self.index.reserve(more)
        if more <= self._room():
            return
        if self.is_in_area:
            # It grows by small steps, so a look at a part is enough, and a whole look takes long.
            self._drop_next(now_ms)
            spare = more
        else:
            self.drop_over(now_ms)
            spare = max(more, self.capacity // 4)
        if self._room() < spare:
            self.reserve(self.capacity + more)

    def drop_over(self, now_ms: int) -> None:
        """Drop the expired memories."""
        self._drop(self.rows_where(partial(self._are_over, now_ms)))

    def _drop_next(self, now_ms: int) -> None:
        """Drop the expired memories among the next entries, in turn."""
        start = self._looked if self._looked < self.top else 0
        part = slice(start, min(start + _LOOKS * self._step, self.top))
        self._looked = part.stop
        over = np.flatnonzero(self._are_over(now_ms, part)) + start
        if len(over):
            self._drop(over)

    def _are_over(self, now_ms: int, part: slice) -> np.ndarray:
        over: np.ndarray = (self.row[part] == 0) & (self.until_ms[part] <= now_ms)
        over &= self.in_use(part)
        return over

    def find(self, hashes: U64, checks: U32) -> tuple[Rows, np.ndarray]:
        """Return the row of each id's message, 0 without one, and whether the message exists."""
        marks = self.row[self.index.find(hashes, checks & _CHECK_MASK)].astype(np.intp)
        found = marks > 0
        return marks - found, found

    def exist(self, hashes: U64, checks: U32, now_ms: int) -> np.ndarray:
        """Tell for each id whether a message has it, or it is still remembered."""
        entries = self.index.find(hashes, checks & _CHECK_MASK)
        known: np.ndarray = (self.row[entries] > 0) | (self.until_ms[entries] > now_ms)
        return known

    def are_remembered(self, hashes: U64, checks: U32, now_ms: int) -> np.ndarray:
        """Tell for each id whether it is remembered."""
        entries = self.index.find(hashes, checks & _CHECK_MASK)
        remembered: np.ndarray = self.until_ms[entries] > now_ms
        return remembered

    def add(self, hashes: U64, checks: U32, rows: Rows, now_ms: int) -> Rows:
        """Assign distinct ids to messages, replacing earlier owners; return their entries."""
        entries = self._entries_of(hashes, checks & _CHECK_MASK, now_ms)
        self.row[entries] = rows + 1
        return entries

    def end(self, entries: Rows, rows: Rows, until_ms: I64 | int, now_ms: int) -> None:
        """Remember the ids of these messages until these times at least."""
        mine = self.row[entries] == rows + 1
        ends: I64 = np.maximum(self.until_ms[entries], until_ms)
        if np.count_nonzero(mine) < len(mine):
            # After the loss of a part of the journal another message may have the id.
            entries, ends = entries[mine], ends[mine]
        self.row[entries] = 0
        self.until_ms[entries] = ends
        over = ends <= now_ms
        if np.count_nonzero(over):
            self._drop(entries[over])

    def keep(self, entries: Rows, rows: Rows, until_ms: I64) -> None:
        """Remember the ids of these rows until these times at least; the rows keep them."""
        mine = self.row[entries] == rows + 1
        entries, until_ms = entries[mine], until_ms[mine]
        self.until_ms[entries] = np.maximum(self.until_ms[entries], until_ms)

    def expect(self, count: int) -> None:
        """Make room for ``count`` more ids."""
        self.reserve(self.top + count)
        self.index.rebuild(self.index.numbers(), count)

    def remembered(self, now_ms: int, start: int = 0, stop: int | None = None) -> tuple[U64, U64]:
        """Return the hashes of the remembered ids, and their ends with the checks below.

        Reads the entries from ``start`` to ``stop``, or all.
        """
        stop = self.top if stop is None else stop
        return self.notes(np.flatnonzero(self.until_ms[start:stop] > now_ms) + start)

    def notes(self, entries: Rows) -> tuple[U64, U64]:
        """Return the hashes of some ids, and their ends with the checks below."""
        ends = self.until_ms[entries].astype(np.uint64) << np.uint64(_CHECK_BITS)
        return self.hash[entries], ends | self.check[entries]

    def remember(self, hashes: U64, notes: U64) -> None:
        """Remember the ids that :meth:`remembered` returned."""
        checks = notes.astype(np.uint32) & _CHECK_MASK
        entries = self._entries_of(hashes, checks, 0)
        self.until_ms[entries] = ends_of(notes)

    def _entries_of(self, hashes: U64, checks: U32, now_ms: int) -> Rows:
        """Return the entries of distinct ids, adding missing ones."""
        self.make_room(len(hashes), now_ms)
        new = self.allocate(len(hashes))
        self.hash[new] = hashes
        self.check[new] = checks
        entries = self.index.add(new)
        had = entries != new
        if had.any():
            self.free(new[had])
        return entries

    def _room(self) -> int:
        return len(self.free_rows()) + self.capacity - self.top

    def _drop(self, entries: Rows) -> None:
        self.index.remove(entries)
        self.until_ms[entries] = 0
        self.free(entries)

    def in_use(self, part: slice) -> np.ndarray:
        """Tell which entries are those of ids that count as existing, or did until they expired."""
        used: np.ndarray = (self.row[part] > 0) | (self.until_ms[part] > 0)
        return used


def ends_of(notes: U64) -> I64:
    """Return until when ids are remembered, from the notes of :meth:`KnownIds.notes`."""
    return (notes >> np.uint64(_CHECK_BITS)).astype(np.int64)
