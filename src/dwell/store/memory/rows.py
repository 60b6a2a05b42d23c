"""The data of the store in memory: a row a message, and the rows of each topic.

Heaps delete lazily. A row gets a new ``serial`` whenever it moves, and another ``place`` among the
ready rows, which outdates its earlier entries; a heap with more outdated entries than valid entries
is rebuilt, so that frequent setting and cancelling of timers does not fill it up.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, repeat, starmap
from typing import TypeAlias

import numpy as np

from dwell.batch.batch import BATCH_ARRAYS, Batch
from dwell.batch.puts import PUT_ARRAYS, Puts
from dwell.batch.schema import arrays_from
from dwell.batch.sweep import Wanted
from dwell.errors import IdExists, TopicFull
from dwell.message import U64, State, TopicSettings, decode_extra
from dwell.store.bounds import within
from dwell.store.memory.lanes import Lanes

#: How many outdated entries a heap may hold before it is checked.
SLACK = 64

#: The entry of a ready row in a heap: its sort key, its place then, and the row.
Entry: TypeAlias = "tuple[int, int, int, int, Row]"


@dataclass(slots=True, eq=False)
class Row:
    """One message and its position.

    ``until_ms``, ``take`` and ``owner`` count only while it is leased, ``place`` while it is ready.
    """

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
    place: int = 0
    turn: int = -1

    @property
    def size_bytes(self) -> int:
        """Its size in an answer."""
        return len(self.id) + len(self.extra) + len(self.body)

    def is_expired(self, now_ms: int) -> bool:
        """Tell whether the message was not taken in time."""
        return 0 < self.expires_ms <= now_ms

    def move_to(self, due_ms: int) -> None:
        """Set the due; an expiry that is not after it is cleared."""
        self.due_ms = due_ms
        self.expires_ms = 0 if self.is_expired(due_ms) else self.expires_ms

    def is_used_up(self) -> bool:
        """Tell whether no attempt is left."""
        return self.attempt >= (self.max_attempts or self.topic.settings.max_attempts)

    @property
    def key(self) -> str | None:
        """The key of its put."""
        return decode_extra(self.extra).key if self.extra else None

    @property
    def is_begun(self) -> bool:
        """Whether it was taken, and is not done."""
        if self.state is State.LEASED:
            return True
        return self.attempt > 0 and self.state in (State.DELAYED, State.READY)

    def order(self) -> tuple[int, int, int]:
        """Return the sort key of a topic's messages."""
        return self.priority, self.due_ms, self.arrival

    def own_lease_ms(self) -> int:
        """Return the lease for a take without a lease of its own."""
        return self.lease_ms or self.topic.settings.lease_ms

    def is_in(self, wanted: Wanted) -> bool:
        """Tell whether a sweep returns this message."""
        return wanted.has(self.topic.name, self.state, self.due_ms, self.extra)

    def deadline_ms(self) -> int:
        """Return the time of this row's next change; 0 for never."""
        if self.state is State.LEASED:
            return self.until_ms
        if self.state is State.DELAYED and not 0 < self.expires_ms < self.due_ms:
            return self.due_ms
        return self.expires_ms if self.state in (State.DELAYED, State.READY) else 0


@dataclass(slots=True, eq=False)
class Topic:
    """The messages of a topic; ``counts`` is by state, and its value for GONE is meaningless."""

    name: str
    settings: TopicSettings = field(default_factory=TopicSettings)
    rows: dict[str, Row] = field(default_factory=dict)
    ready: list[Entry] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0] * len(State))
    remembered: dict[str, int] = field(default_factory=dict)
    #: The results of acked messages, and until when they are kept.
    results: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    lanes: Lanes[Row] | None = None
    places: Iterator[int] = field(default_factory=partial(count, 1))

    def pending(self) -> int:
        """Return how many messages wait, for their due or for a taker."""
        return self.counts[State.DELAYED] + self.counts[State.READY]

    @property
    def is_idle(self) -> bool:
        """Whether it has no messages, memories or settings."""
        has_any = self.rows or self.remembered or self.results
        return not has_any and self.settings == TopicSettings()

    def room(self, ids: Sequence[str], on_conflict: str, on_full: str | None = None) -> int:
        """Return how many messages may be created; raises if the batch must be refused.

        ``on_full`` is that of the topic, if none is given.
        """
        if on_conflict == "error":
            self._check_new(ids)
        limit = self.settings.max_pending
        if not limit:
            return len(ids)
        room = max(limit - self.pending(), 0)
        if (on_full or self.settings.on_full) == "refuse":
            remembered = self.remembered if on_conflict == "keep" else ()
            new = {id_ for id_ in ids if id_ not in self.rows and id_ not in remembered}
            if len(new) > room:
                raise TopicFull(
                    f"topic {self.name!r}: {self.pending()} messages are pending and max_pending "
                    f"is {limit}, so {len(new)} more are refused"
                )
        return room

    def _check_new(self, ids: Sequence[str]) -> None:
        """Raise IdExists when an id of a batch exists already, or is repeated in the batch."""
        seen: set[str] = set()
        for id_ in ids:
            if id_ in self.rows or id_ in seen:
                raise IdExists(f"topic {self.name!r}: id {id_!r:.80} exists")
            seen.add(id_)

    def forget(self, id_: str, until_ms: int) -> None:
        """Forget what is remembered of an id until this time."""
        if self.remembered.get(id_) == until_ms:
            del self.remembered[id_]
        if id_ in self.results and self.results[id_][0] == until_ms:
            del self.results[id_]

    def configure(self, settings: TopicSettings) -> None:
        """Set the settings; ready rows are placed again if that matters."""
        of = self.settings
        self.settings = settings
        if (settings.ordered, settings.fair) == (of.ordered, of.fair):
            return
        rows = [row for row in self.rows.values() if row.state is State.READY]
        for row in rows:
            row.place, row.turn = 0, -1
        self.ready = []
        self.lanes = None
        if settings.ordered or settings.fair:
            self.lanes = Lanes(settings, self.rows.values(), self.places)
        for row in sorted(rows, key=Row.order if settings.ordered or not settings.fair else by_due):
            self._place(row)

    @property
    def takeable(self) -> int:
        """How many rows may be taken, as far as keys allow."""
        return self.counts[State.READY] - (self.lanes.parked if self.lanes else 0)

    def follow(self, row: Row, before: State) -> int:
        """Note that a row has moved; return how many other rows may be taken because of that."""
        more = bool(self.settings.most_leased and before is State.LEASED is not row.state)
        return int(self._place(row) or more)

    def _place(self, row: Row) -> bool:
        """Queue a ready row for its turn; tell whether another row may be taken because of that."""
        if self.lanes is not None:
            is_open, standing = self.lanes.follow(row)
        else:
            row.place = next(self.places) if row.state is State.READY else 0
            is_open, standing = False, row if row.place else None
        if standing is not None:
            first = standing.order()
            if self.lanes is not None and self.lanes.are_fair:
                first = 0, standing.turn, standing.arrival
            heapq.heappush(self.ready, (*first, standing.place, standing))
            if len(self.ready) > 2 * self.counts[State.READY] + SLACK:
                self.ready = list(self._entries())
                heapq.heapify(self.ready)
        return is_open

    def _entries(self) -> Iterator[Entry]:
        """Yield the entries of the rows that a take may reach, in no order."""
        return (entry for entry in self.ready if entry[4].place == entry[3])

    def ready_rows(self) -> Iterator[Row]:
        """Yield the rows that are ready, in no order."""
        yield from (entry[4] for entry in self._entries())
        if self.lanes is not None:
            yield from self.lanes.entries()

    def first_ready(self, limit: int) -> list[Row]:
        """Return the rows whose turn comes first, without removing them."""
        entries = heapq.nsmallest(limit, self._entries())
        if self.lanes is None or not self.lanes.are_fair:
            return [entry[4] for entry in entries]
        found = [entry[1:3] + entry[4:] for entry in entries]
        for _, turn, *_, row in entries:
            behind = self.lanes.behind(row, limit)
            found += ((turn + at, row.arrival, row) for at, row in enumerate(behind, 1))
        return [row for *_, row in heapq.nsmallest(limit, found)]

    def takeable_of(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that a take by id may give, out of some ready rows."""
        return [row for row in rows if self.lanes is None or self.lanes.may_go(row)]

    def spend_turn(self, row: Row, *, by_id: bool) -> None:
        """Note that a row was taken; the row has moved already."""
        if self.lanes is not None:
            self.lanes.spend_turn(row, by_id=by_id)

    def urgent(self, priority: int) -> int:
        """Return how many ready rows precede the given priority."""
        return sum(row.priority < priority for row in self.ready_rows())

    def pop_ready(self) -> Row | None:
        """Return the row whose turn it is."""
        while self.ready:
            *_, place, row = heapq.heappop(self.ready)
            if row.place == place:
                return row
        return None


def by_due(row: Row) -> tuple[int, int]:
    """Return the sort key of messages of one state."""
    return row.due_ms, row.arrival


def rows_of(topic: "Topic", ids: list[str], arrivals: list[int], puts: Puts) -> Iterator[Row]:
    """Yield a row for each message of a put."""
    columns = zip(
        ids,
        arrivals,
        puts.bodies,
        puts.extras if puts.extras is not None else repeat(b""),
        *(getattr(puts, name).tolist() for name in PUT_ARRAYS),
        strict=False,
    )
    return starmap(partial(Row, topic), columns)


def fitting(rows: list[Row]) -> list[Row]:
    """Return the first rows, as many as fit in one answer."""
    return rows[: within(np.array([row.size_bytes for row in rows], np.int64))]


def _value(row: Row, column: str) -> int:
    """Return the value of a row for a column of a batch."""
    value: int = row.arrival if column == "numbers" else getattr(row, column)
    return value


def batch_of(rows: Sequence[Row], receipts: U64 | None) -> Batch:
    """Return the messages of some rows."""
    return Batch(
        topics=[row.topic.name for row in rows],
        ids=[row.id for row in rows],
        bodies=[row.body for row in rows],
        extras=[row.extra for row in rows],
        **arrays_from(rows, BATCH_ARRAYS, _value),
        errors={at: row.error for at, row in enumerate(rows) if row.error is not None},
        receipts=receipts,
    )
