"""Counting the rows of the table: by due, by waiting time, and by owner.

The columns are long, so a pass over them goes part by part, and other tasks run in between.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np

from dwell.batch.prefixes import Prefixes
from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder
from dwell.message import I64, State
from dwell.store.base import Store
from dwell.store.embedded.core import Core
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.sweeping import listed_topics
from dwell.store.embedded.table import Table
from dwell.store.embedded.timekeeper import Timekeeper

#: How many rows are counted before other tasks run: about a millisecond.
_AT_ONCE = 1 << 18
_NEVER = 2**62
#: How many names are compared before other tasks run, and the part of a pair that is the topic.
_NAMES_AT_ONCE, _TOPIC = 1000, 0xFFFFFFFF


class Counting(Store):
    """The verbs that count the messages of an embedded store."""

    core: Core
    _machine: Machine
    _table: Table
    _time: Timekeeper

    async def count_due(self, topics: Sequence[str], spans: Spans) -> I64:
        """Return how many delayed messages fall due in each span (see the contract)."""
        self._time.look()
        counts, table = spans.none(), self._table
        async for part in self._parts():
            fits: np.ndarray = table.state[part] == State.DELAYED
            if topics:
                fits &= listed_topics(self._machine, topics)[table.topic[part]]
            counts += spans.counted(table.due_ms[part][fits])
        return counts

    async def oldest_ready(self) -> dict[str, int]:
        """Return the due of the message that has waited longest, by topic."""
        self._time.look()
        if not self._table.total(State.READY):
            return {}
        names, table = self._machine.topics.names, self._table
        oldest = np.full(len(names), _NEVER)
        async for part in self._parts():
            ready = np.flatnonzero(table.state[part] == State.READY)
            numbers = table.topic[part][ready]
            known = numbers < len(oldest)
            np.minimum.at(oldest, numbers[known], table.due_ms[part][ready][known])
        found = np.flatnonzero(oldest < _NEVER).tolist()
        return {names[number]: int(oldest[number]) for number in found}

    async def holders(self, limit: int, prefixes: tuple[str, ...] = ALL_TOPICS) -> list[Holder]:
        """Return the owners with messages under lease."""
        self._time.look()
        table = self._table
        if not table.total(State.LEASED):
            return []
        rows = table.rows_where(lambda part: table.state[part] == State.LEASED)
        owners, topics = table.owner[rows].astype(np.int64), table.topic[rows].astype(np.int64)
        pairs, where, counts = np.unique(
            owners << 32 | topics, return_inverse=True, return_counts=True
        )
        until_ms = np.full(len(pairs), _NEVER)
        np.minimum.at(until_ms, where, table.lease_until_ms[rows])
        names = {number: name for name, number in self._machine.owners.items()}
        of_topics = list(map(self._machine.topics.names.__getitem__, (pairs & _TOPIC).tolist()))
        # The rest is of the moment when the rows were read.
        most = np.argsort(-counts, kind="stable")
        if prefixes != ALL_TOPICS:
            most = most[(await _covered(of_topics, prefixes))[most]]
        return [
            Holder(
                names.get(int(pairs[at]) >> 32, ""),
                of_topics[at],
                int(counts[at]),
                int(until_ms[at]),
            )
            for at in most[:limit].tolist()
        ]

    async def condition(self) -> dict[str, int | str]:
        """Return how the journal, the snapshots, the event log and the disk are."""
        return {**self.core.condition(), "damaged_messages": await self._count_damaged()}

    async def _count_damaged(self) -> int:
        """Return how many messages lie in damaged parts of the journal."""
        journal, table, count = self.core.journal, self._table, 0
        damages = [
            (number * journal.segment_bytes + first, number * journal.segment_bytes + end)
            for number, segment in journal.segments.items()
            for first, end in segment.damage
        ]
        if not damages:
            return 0
        async for part in self._parts():
            start = table.position[part]
            stop = start + np.maximum(table.size_bytes[part], 1)
            is_there = np.zeros(len(start), dtype=bool)
            for first, end in damages:
                is_there |= (start < end) & (stop > first)
            count += int((is_there & (table.state[part] != State.GONE)).sum())
        return count

    async def _parts(self) -> AsyncIterator[slice]:
        start = 0
        while start < self._table.top:
            yield slice(start, min(start + _AT_ONCE, self._table.top))
            start += _AT_ONCE
            await asyncio.sleep(0)


async def _covered(names: list[str], prefixes: tuple[str, ...]) -> np.ndarray:
    """Return which names begin with one of some prefixes."""
    covered, found = Prefixes(prefixes), list[bool]()
    for at in range(0, len(names), _NAMES_AT_ONCE):
        found += map(covered.cover, names[at : at + _NAMES_AT_ONCE])
        await asyncio.sleep(0)
    return np.array(found, dtype=bool)
