"""What only a part of the store in memory knows: found by comparing the parts, and put right.

Every row stands in its topic by id, in one index by number, and where its state says: among the
ready, the taken, or what waits for time. Its topic counts it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dwell.message import State
from dwell.store.base import Stale
from dwell.store.rows import Row, Topic


class Stray(NamedTuple):
    """A row that is not in all of its places; None for a count that is wrong."""

    topic: Topic
    row: Row | None
    problem: str

    def told(self, *, repaired: bool) -> Stale:
        """Return it as callers read it."""
        id_, number = ("", 0) if self.row is None else (self.row.id, self.row.arrival)
        return Stale(self.topic.name, id_, number, self.problem, repaired)


class Strays:
    """The parts of a store in memory, to be compared; the store must stand still meanwhile."""

    def __init__(
        self,
        topics: dict[str, Topic],
        numbered: dict[int, Row],
        taken: dict[int, Row],
        deadlines: list[tuple[int, int, Row]],
    ) -> None:
        self._topics = topics
        self._numbered = numbered
        self._taken = taken
        self._deadlines = deadlines

    def find(self) -> list[Stray]:
        """Return all strays: rows in the order in which they arrived, then counts."""
        bodiless, unknown = self._bodiless(), self._unknown()
        found = [Stray(row.topic, row, "no body") for row in bodiless]
        found += [Stray(row.topic, row, "no message") for row in unknown]
        found += [Stray(row.topic, row, "no state") for row in self._unplaced()]
        found.sort(key=lambda stray: stray.row.arrival if stray.row is not None else 0)
        found += (
            Stray(topic, None, problem)
            for topic in self._topics.values()
            for problem in sorted(_miscounts(topic, bodiless | unknown))
        )
        return found

    def repair(self, strays: list[Stray], move: Callable[[Row, State], None]) -> Counter[str]:
        """Put some strays right, and return how many messages of which topics are ready again.

        A row that has its place by id is whole: it goes where its state says. Others are dropped.
        ``move`` sets a row's state, and everything that follows from it.
        """
        woken: Counter[str] = Counter()
        for _, row, problem in strays:
            if row is not None and (problem != "no state" or row.state is State.GONE):
                self._drop(row, move)
            elif row is not None:
                self._numbered[row.arrival] = row
                if row.state is State.LEASED:
                    self._taken[row.take] = row
                move(row, row.state)
                woken[row.topic.name] += row.state is State.READY
        others = self._bodiless() | self._unknown()
        for topic in {stray.topic for stray in strays if stray.row is None}:
            topic.counts[:] = _tally(topic, others)
        return woken

    def _drop(self, row: Row, move: Callable[[Row, State], None]) -> None:
        move(row, State.GONE)
        for take in [take for take, taken in self._taken.items() if taken is row]:
            del self._taken[take]
        if self._numbered.get(row.arrival) is row:
            del self._numbered[row.arrival]
        if row.topic.rows.get(row.id) is row:
            del row.topic.rows[row.id]

    # --- who is where -------------------------------------------------------------------------

    def _rows(self) -> set[Row]:
        return {row for topic in self._topics.values() for row in topic.rows.values()}

    def _ready(self) -> set[Row]:
        entries = (entry for topic in self._topics.values() for entry in topic.ready)
        return {row for *_, serial, row in entries if row.serial == serial}

    def _timed(self) -> set[Row]:
        return {row for _, serial, row in self._deadlines if row.serial == serial}

    def _bodiless(self) -> set[Row]:
        """Return the rows that a state knows, but not their topic, which has the bodies."""
        return (self._ready() | self._timed() | set(self._taken.values())) - self._rows()

    def _unknown(self) -> set[Row]:
        """Return the rows that nothing but the index by number knows."""
        return set(self._numbered.values()) - self._rows() - self._bodiless()

    def _unplaced(self) -> Iterator[Row]:
        """Yield the rows that are not in the index, or not where their state says."""
        ready, timed = self._ready(), self._timed()
        for row in self._rows():
            is_placed = (
                row.state is not State.GONE
                and self._numbered.get(row.arrival) is row
                and (row.state is not State.READY or row in ready)
                and (row.state is not State.LEASED or self._taken.get(row.take) is row)
                and (not row.deadline_ms() or row in timed)
            )
            if not is_placed:
                yield row


def _miscounts(topic: Topic, others: set[Row]) -> set[str]:
    pairs = list(zip(topic.counts, _tally(topic, others), strict=True))[1:]
    return {
        "no message" if count > tally else "no state" for count, tally in pairs if count != tally
    }


def _tally(topic: Topic, others: set[Row]) -> list[int]:
    """Return how many rows are in each state; ``others``, without a body, are counted still."""
    tally = [0] * len(State)
    for row in (*topic.rows.values(), *(row for row in others if row.topic is topic)):
        tally[row.state] += 1
    return tally
