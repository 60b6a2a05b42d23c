"""A topic of the store in memory: its rows, and which of them are taken next."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from dwell.errors import IdExists, TopicFull
from dwell.message import State, TopicSettings
from dwell.store.memory.lanes import Lanes, Turns
from dwell.store.memory.rows import SLACK, Entry, Row


@dataclass(slots=True, eq=False)
class Topic:
    """The messages of a topic; ``counts`` is by state, that of GONE means nothing."""

    name: str
    settings: TopicSettings = field(default_factory=TopicSettings)
    rows: dict[str, Row] = field(default_factory=dict)
    ready: list[Entry] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0] * len(State))
    remembered: dict[str, int] = field(default_factory=dict)
    lanes: Lanes | None = None
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
