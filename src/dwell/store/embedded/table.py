"""The table: one row a message, in columns; about 50 bytes of memory each, bodies on disk.

==============  =====  ============================================================================
column          bytes  meaning
==============  =====  ============================================================================
due_ms          8      when it may be taken (epoch)
seq             8      arrival number, from 1; never used again, so (row, seq) names one message
position        8      where its blob is in the journal
topic           4      number of its topic
priority        4      lower first
lease_ms        4      its own lease, 0 for its topic's
size_bytes      4      of its blob: id, extra and body together
id_bytes        2      of its id at the start of the blob, 0 when the queue made the id
extra_bytes     2      of its key and headers after the id
max_attempts    2      its own, 0 for its topic's
attempt         2      takes since it was put or kicked
state           1      State; 0 for a free row
takes           4      takes in all of this row's life, so that no receipt is ever made twice
lease_until_ms  8      end of the lease; means nothing unless the state is LEASED
expires_ms      8      0 for never
owner           4      number of the owner that holds it; means nothing unless LEASED
id_hash         8      of the caller's id and the topic
id_check        4      more bits of the same
==============  =====  ============================================================================

Rows are given out by the state machine alone, so that a replay gives the same ones.
"""

from typing import TYPE_CHECKING

import numpy as np

from dwell.message import I64, U8, U16, U32, U64, State
from dwell.store.embedded.columns import Columns

if TYPE_CHECKING:
    from collections.abc import Callable

_STATES = len(State)

TYPES: dict[str, type[np.generic]] = {
    "due_ms": np.int64,
    "seq": np.uint64,
    "position": np.int64,
    "topic": np.uint32,
    "priority": np.uint32,
    "lease_ms": np.uint32,
    "size_bytes": np.uint32,
    "id_bytes": np.uint16,
    "extra_bytes": np.uint16,
    "max_attempts": np.uint16,
    "attempt": np.uint16,
    "state": np.uint8,
    "takes": np.uint32,
    "lease_until_ms": np.int64,
    "expires_ms": np.int64,
    "owner": np.uint32,
    "id_hash": np.uint64,
    "id_check": np.uint32,
}


class Table(Columns):
    """The rows, which of them are free, and how many messages each topic has in each state."""

    due_ms: I64
    seq: U64
    position: I64
    topic: U32
    priority: U32
    lease_ms: U32
    size_bytes: U32
    id_bytes: U16
    extra_bytes: U16
    max_attempts: U16
    attempt: U16
    state: U8
    takes: U32
    lease_until_ms: I64
    expires_ms: I64
    owner: U32
    id_hash: U64
    id_check: U32

    def __init__(self) -> None:
        super().__init__(TYPES)
        self.top = 0
        self._free = np.zeros(1024, dtype=np.uint32)
        self._free_count = 0
        self._counts = np.zeros((64, _STATES), dtype=np.int64)

    def next_free(self, count: int) -> U32:
        """Return the rows that :meth:`allocate` would give: those freed last, then new ones."""
        reused = min(count, self._free_count)
        old = self._free[self._free_count - reused : self._free_count]
        if reused == count:
            return old.copy()
        new = np.arange(self.top, self.top + count - reused, dtype=np.uint32)
        return np.concatenate([old, new]) if reused else new

    def allocate(self, count: int) -> U32:
        """Take free rows out of the free list, or make new ones."""
        rows = self.next_free(count)
        reused = min(count, self._free_count)
        self._free_count -= reused
        self.reserve(self.top + count - reused)
        self.top += count - reused
        return rows

    def claim(self, rows: U32) -> None:
        """Take exactly these rows, whatever they held; the free list must be made anew later."""
        self.reserve(int(rows.max()) + 1)
        self.top = max(self.top, int(rows.max()) + 1)

    def free(self, rows: U32) -> None:
        """Give rows back; their state must be GONE by now."""
        needed = self._free_count + len(rows)
        if needed > len(self._free):
            grown = np.zeros(max(needed, 2 * len(self._free)), dtype=np.uint32)
            grown[: self._free_count] = self._free[: self._free_count]
            self._free = grown
        self._free[self._free_count : needed] = rows
        self._free_count = needed

    def free_rows(self) -> U32:
        """Return the free rows below ``top``, in the order of the free list."""
        return self._free[: self._free_count]

    def restore_free(self, rows: U32) -> None:
        """Set the free list, when a snapshot is read."""
        self._free = np.array(rows, dtype=np.uint32) if len(rows) else np.zeros(1024, np.uint32)
        self._free_count = len(rows)

    def move(self, rows: U32, after: State) -> None:
        """Change the state of distinct rows, and the counts with it."""
        before = self.state[rows]
        topics = self.topic[rows]
        self.state[rows] = after
        if _same(topics) and _same(before):
            counts = self._counts_of(int(topics[0]))
            counts[before[0]] -= len(rows)
            counts[after] += len(rows)
            return
        self._counts_of(int(topics.max()))
        np.subtract.at(self._counts, (topics, before), 1)
        np.add.at(self._counts, (topics, np.uint8(after)), 1)

    def count(self, topic: int, *states: State) -> int:
        """Return how many messages of a topic are in some states."""
        return int(self._counts_of(topic)[list(states)].sum())

    def total(self, *states: State) -> int:
        """Return how many messages are in some states."""
        return int(self._counts[:, list(states)].sum())

    def recount(self) -> None:
        """Count anew, when a snapshot was read."""
        counted = self._counted()
        self._counts_of(len(counted))
        self._counts[:] = 0
        self._counts[: len(counted)] = counted

    def miscounts(self) -> I64:
        """Return by topic and state how many more are counted than there are."""
        counted = self._counted()
        self._counts_of(len(counted))
        more = self._counts.copy()
        more[: len(counted)] -= counted
        more[:, State.GONE] = 0
        return more

    def _counted(self) -> I64:
        state, topic = self.state[: self.top], self.topic[: self.top]
        live = state != State.GONE
        topics = int(topic.max(initial=0)) + 1
        key = topic[live].astype(np.int64) * _STATES + state[live]
        return np.bincount(key, minlength=topics * _STATES).reshape(topics, _STATES)

    def rows_where(self, test: "Callable[[slice], np.ndarray]") -> U32:
        """Return the rows for which ``test(part)`` is true, looking at a part at a time."""
        step = 1 << 20
        found = [
            np.flatnonzero(test(slice(start, min(start + step, self.top)))) + start
            for start in range(0, self.top, step)
        ]
        return np.concatenate(found).astype(np.uint32) if found else np.zeros(0, np.uint32)

    def _counts_of(self, topic: int) -> I64:
        if topic >= len(self._counts):
            grown = np.zeros((max(topic + 1, 2 * len(self._counts)), _STATES), dtype=np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        counts: I64 = self._counts[topic]
        return counts


def _same(column: np.ndarray) -> bool:
    return bool((column == column[0]).all())
