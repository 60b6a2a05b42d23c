"""What the store in memory holds: a row a message.

Heaps delete lazily. A row gets a new ``serial`` whenever it moves, which makes the entries that
were pushed for it before worthless; a heap that holds more worthless entries than good ones is
built anew, so that timers which are set and cancelled all day do not pile up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat, starmap
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.puts import Puts
from dwell.batch.sweep import Wanted
from dwell.message import U64, State, decode_extra
from dwell.store.bounds import within

if TYPE_CHECKING:
    from dwell.store.memory.topic import Topic

#: How many worthless entries a heap may hold before it is looked at.
SLACK = 64

#: Where a ready row stands in a heap: what it is ordered by, its serial then, and the row.
Entry: TypeAlias = "tuple[int, int, int, int, Row]"


@dataclass(slots=True, eq=False)
class Row:
    """One message and where it is; the last three fields count only while it is leased."""

    topic: "Topic"
    id: str
    arrival: int
    body: bytes
    extra: bytes
    due_ms: int
    priority: int
    lease_ms: int
    max_attempts: int
    expires_ms: int
    state: State = State.GONE
    attempt: int = 0
    error: str | None = None
    serial: int = 0
    until_ms: int = 0
    take: int = 0
    owner: str = ""

    @property
    def size_bytes(self) -> int:
        """How much it is in an answer."""
        return len(self.id) + len(self.extra) + len(self.body)

    def is_expired(self, now_ms: int) -> bool:
        """Tell whether nobody took the message in time."""
        return 0 < self.expires_ms <= now_ms

    def is_used_up(self) -> bool:
        """Tell whether no attempt is left."""
        return self.attempt >= (self.max_attempts or self.topic.settings.max_attempts)

    @property
    def key(self) -> str | None:
        """The key that it was put with."""
        return decode_extra(self.extra).key if self.extra else None

    @property
    def is_begun(self) -> bool:
        """Whether it was taken, and is not done."""
        if self.state is State.LEASED:
            return True
        return self.attempt > 0 and self.state in (State.DELAYED, State.READY)

    def order(self) -> tuple[int, int, int]:
        """Return what the messages of a topic are taken by."""
        return self.priority, self.due_ms, self.arrival

    def own_lease_ms(self) -> int:
        """Return how long a taker has it who asked for nothing else."""
        return self.lease_ms or self.topic.settings.lease_ms

    def is_in(self, wanted: Wanted) -> bool:
        """Tell whether a sweep gives this message."""
        return wanted.has(self.topic.name, self.state, self.due_ms, self.extra)

    def deadline_ms(self) -> int:
        """Return when time itself moves this row next; 0 when it never does."""
        if self.state is State.LEASED:
            return self.until_ms
        if self.state is State.DELAYED and not 0 < self.expires_ms < self.due_ms:
            return self.due_ms
        return self.expires_ms if self.state in (State.DELAYED, State.READY) else 0


def rows_of(topic: "Topic", ids: list[str], arrivals: list[int], puts: Puts) -> Iterator[Row]:
    """Yield a row for each message of a put."""
    columns = zip(
        ids,
        arrivals,
        puts.bodies,
        puts.extras if puts.extras is not None else repeat(b""),
        puts.due_ms.tolist(),
        puts.priority.tolist(),
        puts.lease_ms.tolist(),
        puts.max_attempts.tolist(),
        puts.expires_ms.tolist(),
        strict=False,
    )
    return starmap(partial(Row, topic), columns)


def fitting(rows: list[Row]) -> list[Row]:
    """Return the first rows, as many as one answer holds."""
    return rows[: within(np.array([row.size_bytes for row in rows], np.int64))]


def batch_of(rows: Sequence[Row], receipts: U64 | None) -> Batch:
    """Return the messages of some rows."""
    return Batch(
        topics=[row.topic.name for row in rows],
        ids=[row.id for row in rows],
        bodies=[row.body for row in rows],
        extras=[row.extra for row in rows],
        due_ms=np.array([row.due_ms for row in rows], np.int64),
        priority=np.array([row.priority for row in rows], np.uint32),
        attempt=np.array([row.attempt for row in rows], np.uint16),
        max_attempts=np.array([row.max_attempts for row in rows], np.uint16),
        lease_ms=np.array([row.lease_ms for row in rows], np.uint32),
        until_ms=np.array([row.until_ms for row in rows], np.int64),
        expires_ms=np.array([row.expires_ms for row in rows], np.int64),
        state=np.array([row.state for row in rows], np.uint8),
        numbers=np.array([row.arrival for row in rows], np.uint64),
        errors={at: row.error for at, row in enumerate(rows) if row.error is not None},
        receipts=receipts,
    )
