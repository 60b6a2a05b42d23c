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
state           1      State; 0 for a free row; DONE for the result of an acked message
takes           4      number of its latest take, or, until then, where its put is in the journal
lease_until_ms  8      end of the lease if LEASED, when it died if DEAD; else it means nothing
expires_ms      8      0 for never; for a result, until when it is kept
owner           4      number of the owner that holds it; means nothing unless LEASED
id_entry        4      where the caller's id is among the known ids
==============  =====  ============================================================================

Only the state machine allocates rows, so that a replay gives the same rows.
"""

from collections.abc import Iterator

import numpy as np

from dwell.message import I64, U8, U16, U32, U64, Rows, State
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.pool import Pool
from dwell.store.embedded.scratch import Scratch

#: The state of a row that is no message any more: the result of its ack is kept in its blob, which
#: holds nothing else, until its expiry.
DONE = len(State)
_STATES = len(State) + 1
#: Up to this many values a list is quicker than NumPy.
_FEW = 64
#: How many rows are summed before other tasks run.
_AT_ONCE = 500_000

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
    "id_entry": np.uint32,
}
#: The columns that lie together in a scratch file: those that a search through all rows reads, 16
#: bytes a row, and the others, 64 bytes.
_SEARCHED = ("due_ms", "topic", "state")
_TOGETHER = (_SEARCHED, tuple(name for name in TYPES if name not in _SEARCHED))


class Table(Pool):
    """The rows, and how many messages each topic has in each state.

    The state of a row must be GONE before it is freed.
    """

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
    id_entry: U32

    def __init__(self, limits: Limits = LIMITS, scratch: Scratch | None = None) -> None:
        super().__init__(TYPES, scratch, _TOGETHER, limits.most_rows)
        self._counts = np.zeros((64, _STATES), dtype=np.int64)
        #: Whether any row may have an expiry: most stores have none, and need not look.
        self.has_expiries = False

    def move(self, rows: Rows, after: int) -> None:
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

    def count(self, topic: int, *states: int) -> int:
        """Return how many messages of a topic are in some states."""
        counts = self._counts_of(topic)
        return sum(counts.item(state) for state in states)

    def total(self, *states: int) -> int:
        """Return how many messages are in some states."""
        return int(self._counts[:, list(states)].sum())

    def counts(self, topics: int, *states: int) -> I64:
        """Return how many messages each of the first topics has in each of some states."""
        self._counts_of(topics)
        counts: I64 = self._counts[:topics, list(states)]
        return counts

    def sizes_by_topic(self) -> Iterator[I64]:
        """Yield how many bytes the messages of each topic have, a part of the rows at a time."""
        for rows in self.parts(_AT_ONCE, groups=2):
            live = self.state[rows] != State.GONE
            sizes = np.bincount(self.topic[rows][live], self.size_bytes[rows][live])
            yield sizes.astype(np.int64)

    def are_messages(self, rows: Rows | U32 | slice) -> np.ndarray:
        """Tell which rows have a message."""
        state = self.state[rows]
        messages: np.ndarray = (state != State.GONE) & (state != DONE)
        return messages

    def are_begun(self, rows: Rows | slice) -> np.ndarray:
        """Tell which messages were taken and are not done."""
        state = self.state[rows]
        waiting = (state == State.DELAYED) | (state == State.READY)
        begun: np.ndarray = (state == State.LEASED) | (waiting & (self.attempt[rows] > 0))
        return begun

    def recount(self) -> None:
        """Rebuild the counts, after a snapshot was read."""
        counted = self._counted()
        self._counts_of(len(counted))
        self._counts[:] = 0
        self._counts[: len(counted)] = counted

    def _counted(self) -> I64:
        found = np.zeros(_STATES, dtype=np.int64)
        for part in self.parts(_AT_ONCE):
            state = self.state[part]
            live = state != State.GONE
            keys = self.topic[part][live].astype(np.int64) * _STATES + state[live]
            counts = np.bincount(keys, minlength=len(found))
            counts[: len(found)] += found
            found = counts
        topics = -(-len(found) // _STATES)
        return np.append(found, np.zeros(topics * _STATES - len(found), np.int64)).reshape(
            topics, _STATES
        )

    def _counts_of(self, topic: int) -> I64:
        if topic >= len(self._counts):
            grown = np.zeros((max(topic + 1, 2 * len(self._counts)), _STATES), dtype=np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        counts: I64 = self._counts[topic]
        return counts


def _same(column: np.ndarray) -> bool:
    if len(column) > _FEW:
        return bool((column == column[0]).all())
    values = column.tolist()
    return bool(values.count(values[0]) == len(values))
