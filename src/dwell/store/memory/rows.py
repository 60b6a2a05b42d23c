"""What the store in memory holds: a row a message, and the rows of each topic.

Heaps delete lazily. A row gets a new ``serial`` whenever it moves, which makes the entries that
were pushed for it before worthless; a heap that holds more worthless entries than good ones is
built anew, so that timers which are set and cancelled all day do not pile up.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat, starmap
from typing import TypeAlias

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.puts import Puts
from dwell.batch.sweep import Wanted
from dwell.errors import IdExists, TopicFull
from dwell.message import U64, State, TopicSettings, decode_extra
from dwell.store.bounds import within
from dwell.store.memory.lanes import Lanes, Turns

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


@dataclass(slots=True, eq=False)
class Topic:
    """The messages of a topic; ``counts`` is by state, that of GONE means nothing."""

    name: str
    settings: TopicSettings = field(default_factory=TopicSettings)
    rows: dict[str, Row] = field(default_factory=dict)
    ready: list[Entry] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0] * len(State))
    remembered: dict[str, int] = field(default_factory=dict)
    lanes: Lanes[Row] | None = None
    turns: Turns | None = None

    def pending(self) -> int:
        """Return how many messages wait, for their due or for a taker."""
        return self.counts[State.DELAYED] + self.counts[State.READY]

    def room(self, ids: Sequence[str], on_conflict: str) -> int:
        """Return how many messages may be created; raises when the batch is to be refused."""
        if on_conflict == "error":
            self._check_new(ids)
        limit = self.settings.max_pending
        if not limit:
            return len(ids)
        room = max(limit - self.pending(), 0)
        if self.settings.on_full == "refuse":
            remembered = self.remembered if on_conflict == "keep" else ()
            new = {id_ for id_ in ids if id_ not in self.rows and id_ not in remembered}
            if len(new) > room:
                raise TopicFull(
                    f"topic {self.name!r}: {self.pending()} messages are pending and max_pending "
                    f"is {limit}, so {len(new)} more are refused"
                )
        return room

    def _check_new(self, ids: Sequence[str]) -> None:
        """Raise IdExists when an id of a batch is there already, or stands in the batch twice."""
        seen: set[str] = set()
        for id_ in ids:
            if id_ in self.rows or id_ in seen:
                raise IdExists(f"topic {self.name!r}: id {id_!r:.80} exists")
            seen.add(id_)

    def configure(self, settings: TopicSettings) -> None:
        """Set what holds from now on; what is ready stands anew where that matters."""
        of = self.settings
        self.settings = settings
        if (settings.ordered, settings.fair) == (of.ordered, of.fair):
            return
        rows = [row for row in self.rows.values() if row.state is State.READY]
        self.ready = []
        self.lanes = Lanes(self.rows.values()) if settings.ordered else None
        self.turns = Turns() if settings.fair else None
        for row in sorted(rows, key=Row.order):
            self.push_ready(row)

    @property
    def takeable(self) -> int:
        """How many rows are ready, but for those of which it is known that nobody may take them."""
        return self.counts[State.READY] - (self.lanes.parked if self.lanes else 0)

    def follow(self, row: Row, before: State, serial: int) -> int:
        """Note that a row has moved; return how many more may be taken by that."""
        more = bool(self.settings.most_leased and before is State.LEASED is not row.state)
        if self.lanes is not None:
            is_open, following = self.lanes.follow(row, serial)
            more |= is_open
            if following is not None:
                self.push_ready(following)
        return int(more)

    def push_ready(self, row: Row) -> None:
        """Let a row be taken in its turn."""
        first = row.order() if self.turns is None else (0, self.turns.next(row.key), row.arrival)
        heapq.heappush(self.ready, (*first, row.serial, row))
        if len(self.ready) > 2 * self.counts[State.READY] + SLACK:
            self.ready = [entry for entry in self.ready if entry[4].serial == entry[3]]
            heapq.heapify(self.ready)

    def ready_rows(self) -> Iterator[Row]:
        """Yield the rows that are ready, in no order."""
        parked = self.lanes.entries() if self.lanes is not None else ()
        for *_, serial, row in (*self.ready, *parked):
            if row.serial == serial:
                yield row

    def first_ready(self, limit: int) -> list[Row]:
        """Return the rows whose turn comes first, and leave them in their places."""
        good = (entry for entry in self.ready if entry[4].serial == entry[3])
        if self.lanes is None:
            return [entry[4] for entry in heapq.nsmallest(limit, good)]
        rows = (entry[4] for entry in sorted(good))
        return list(islice(self.lanes.firsts(rows), limit))

    def takeable_of(self, rows: Sequence[Row]) -> list[Row]:
        """Return those of some ready rows that a take may give by their ids."""
        if self.lanes is None:
            return list(rows)
        ready = sorted(self.ready_rows(), key=Row.order)
        firsts = set(map(id, self.lanes.firsts(ready)))
        return [row for row in rows if id(row) in firsts]

    def urgent(self, priority: int) -> int:
        """Return how many ready rows come before those of a priority."""
        return sum(row.priority < priority for row in self.ready_rows())

    def pop_ready(self) -> Row | None:
        """Return the row whose turn it is."""
        while self.ready:
            entry = heapq.heappop(self.ready)
            *_, serial, row = entry
            if row.serial != serial or (self.lanes is not None and not self.lanes.admit(row)):
                continue
            if self.turns is not None:
                self.turns.take(entry[1])
            return row
        return None


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
