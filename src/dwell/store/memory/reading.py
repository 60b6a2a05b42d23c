"""Reading the messages of the store in memory, without a change to it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.events import EventPage
from dwell.batch.outcome import UNKNOWN, Outcome
from dwell.batch.page import Cursor, Page
from dwell.batch.sweep import Sweep, Wanted
from dwell.message import U64, Message, State
from dwell.store.memory.counting import Counting
from dwell.store.memory.receipts import receipts_of, taken_rows
from dwell.store.memory.rows import Row, Topic, batch_of, by_due, fitting
from dwell.store.memory.sweeping import paged, swept


class Reading(Counting):
    """The verbs that only read."""

    _numbered: Mapping[int, Row]
    _first: int

    async def peek(self, topic: str, limit: int) -> Batch:
        """Return the ready messages that a take would give first."""
        self._enter()
        known = self.topics.get(topic)
        rows = known.first_ready(limit) if known is not None else []
        return self._batch(fitting(rows), receipts=False)

    async def held(self, owner: str) -> Batch:
        """Return again the messages that an owner holds."""
        self._enter()
        rows = [row for row in self._taken.values() if row.owner == owner]
        return self._batch(sorted(rows, key=by_due), receipts=True)

    async def held_page(self, owner: str, cursor: Cursor | None, limit: int) -> Page:
        """Return some of the messages that an owner holds, by due."""
        self._enter()
        after = (-1, 0) if cursor is None else (cursor.due_ms, cursor.arrival)
        held = [row for row in self._taken.values() if row.owner == owner and by_due(row) > after]
        rows = fitting(sorted(held, key=by_due)[:limit])
        following = Cursor(*by_due(rows[-1])) if len(rows) < len(held) else None
        return Page(self._batch(rows, receipts=True), following)

    async def get(self, topic: str, ids: Sequence[bytes]) -> list[Message | None]:
        """Return messages by id."""
        self._enter()
        rows = list(self._find(topic, ids))
        found = iter(self._batch([row for row in rows if row is not None], receipts=False))
        return [None if row is None else next(found) for row in rows]

    async def results(self, topic: str, ids: Sequence[bytes]) -> list[Outcome]:
        """Return the outcome of each message."""
        self._enter()
        known = self.topics.get(topic)
        return [UNKNOWN if known is None else _outcome_of(known, id_) for id_ in texts_of(ids)]

    async def named(self, numbers: U64) -> list[tuple[str, str] | None]:
        """Return topic and id of the message of each number."""
        self._enter()
        rows = [self._numbered.get(number) for number in numbers.tolist()]
        return [None if row is None else (row.topic.name, row.id) for row in rows]

    async def versions(self, numbers: U64) -> U64:
        """Return the version of the message of each number, 0 without a message."""
        self._enter()
        rows = [self._numbered.get(number) for number in numbers.tolist()]
        return np.array([0 if row is None else row.serial for row in rows], np.uint64)

    async def taken_from(self, receipts: U64) -> list[str | None]:
        """Return the topic of the message of each receipt, None for a stale receipt."""
        self._enter()
        rows = taken_rows(self._taken, receipts, self.number)
        return [None if row is None else row.topic.name for row in rows]

    async def scan(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return a page of messages of one state, by due."""
        self._enter()
        known = self.topics.get(topic)
        rows = known.rows.values() if known is not None else ()
        page, more = paged(rows, state, cursor, limit)
        return Page(self._batch(page, receipts=False), more, _versions_of(page))

    async def sweep(self, wanted: Wanted, start: int, stop: int, limit: int) -> Sweep:
        """Return messages by place, which is derived from their arrival."""
        self._enter()
        every = [row for topic in self.topics.values() for row in topic.rows.values()]
        # A place is the distance of a message's arrival from the first of this life.
        first = self._first
        places = max((row.arrival for row in every), default=first - 1) + 1 - first
        page, more = swept(every, wanted, start + first, stop + first, limit)
        more = None if more is None else more - first
        return Sweep(self._batch(page, receipts=False), more, places, _versions_of(page))

    async def events(self, position: int, limit: int) -> EventPage:
        """Return events from a position on."""
        self._enter()
        return self._log.page(position, limit, f"{self.number:08x}")

    def _find(
        self, topic: str, ids: Sequence[bytes], versions: U64 | None = None
    ) -> Iterator[Row | None]:
        """Yield each id's row, if it is leased or in that version; looked up one by one."""
        for at, id_ in enumerate(texts_of(ids)):
            known = self.topics.get(topic)
            row = known.rows.get(id_) if known is not None else None
            if row is not None and versions is not None and row.state is not State.LEASED:
                row = row if row.serial == versions[at] else None
            yield row

    def _batch(self, rows: list[Row], *, receipts: bool) -> Batch:
        return batch_of(rows, receipts_of(rows, self.number) if receipts else None)


def _outcome_of(topic: Topic, id_: str) -> Outcome:
    row = topic.rows.get(id_)
    if row is not None:
        return Outcome(str(row.state), error=row.error if row.state is State.DEAD else None)
    if id_ in topic.results:
        return Outcome("done", topic.results[id_][1])
    return Outcome("done") if id_ in topic.remembered else UNKNOWN


def _versions_of(rows: Sequence[Row]) -> U64:
    return np.fromiter((row.serial for row in rows), np.uint64, len(rows))


def texts_of(ids: Sequence[bytes]) -> list[str]:
    """Return ids as texts."""
    return [id_.decode() for id_ in ids]
