"""Counting the rows of the table: by due, by waiting time, and by owner.

The columns are long, so a pass over them goes part by part, and other tasks run in between.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import numpy as np

from dwell.batch.prefixes import Prefixes
from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder, Stats
from dwell.message import I64, Rows, State
from dwell.slices import slices
from dwell.store.base import Store
from dwell.store.embedded.core import Core
from dwell.store.embedded.distinct import distinct, runs_of
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.reading import stats_of
from dwell.store.embedded.sweeping import listed_topics
from dwell.store.embedded.table import Table
from dwell.store.embedded.thread import in_thread
from dwell.store.embedded.timekeeper import Timekeeper

#: How many rows are counted before other tasks run: about a millisecond.
_AT_ONCE = 1 << 18
#: How many rows are grouped by owner, and how many owners are looked through, in the same way.
_LEASED_AT_ONCE, _OWNERS_AT_ONCE = 1 << 16, 50_000
_NEVER = 2**62
#: How many names are compared before other tasks run, and the part of a pair that is the topic.
_NAMES_AT_ONCE, _TOPIC = 1000, 0xFFFFFFFF


class Counting(Store):
    """The verbs that count the messages of an embedded store."""

    core: Core
    _machine: Machine
    _table: Table
    _time: Timekeeper

    async def stats(self) -> Stats:
        """Return the counts."""
        self._time.look()
        return await stats_of(self._machine)

    async def with_ready(self, topics: Sequence[str]) -> list[str]:
        """Return the topics with messages that could be taken now."""
        self._time.look()
        return [topic for topic in topics if self.ready(topic)]

    async def stored_bytes(self) -> dict[str, int]:
        """Return how many bytes the messages of each topic have."""
        self._time.look()
        machine = self._machine
        sizes = np.zeros(0, np.int64)
        for part in machine.table.sizes_by_topic():
            if len(part) > len(sizes):
                sizes, part = part, sizes
            sizes[: len(part)] += part
            await asyncio.sleep(0)
        numbered = machine.topics.numbered()
        return {n: int(sizes[at]) for n, at in numbered.items() if at < len(sizes) and sizes[at]}

    async def count_urgent(self, topic: str, priority: int) -> int:
        """Return how many ready messages of a topic precede the given priority."""
        self._time.look()
        count = 0
        for part in self._machine.ready.urgent(topic, priority):
            count += part
            await asyncio.sleep(0)
        return count

    async def dead_retentions(self) -> dict[str, int]:
        """Return the ``keep_dead_ms`` of each topic that sets it."""
        return self._machine.topics.dead_retentions()

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
        names, owners = list(self._machine.topics.names), self._machine.owners
        found = [_Held.of(table, np.zeros(0, np.intp))]
        async for part in self._parts(_LEASED_AT_ONCE):
            rows = np.flatnonzero(table.state[part] == State.LEASED) + part.start
            found.append(_Held.of(table, rows))
        held = await in_thread(_Held.joined, found)
        numbers = held.pairs & _TOPIC
        most = np.flatnonzero(numbers < len(names))
        if prefixes != ALL_TOPICS:
            topics = distinct(numbers[most])
            covered = await _covered([names[number] for number in topics.tolist()], prefixes)
            most = most[covered[topics.searchsorted(numbers[most])]]
        most = most[:limit]
        of_owners = await _named(owners, (held.pairs[most] >> 32).tolist())
        columns = (numbers[most], held.counts[most], held.until_ms[most])
        rows = zip(of_owners, *(column.tolist() for column in columns), strict=True)
        now = self._machine.topics.names
        # The number of a topic that was dropped may be another's since.
        return [Holder(o, names[n], count, ms) for o, n, count, ms in rows if names[n] == now[n]]

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

    async def _parts(self, at_once: int = _AT_ONCE) -> AsyncIterator[slice]:
        start = 0
        while start < self._table.top:
            yield slice(start, min(start + at_once, self._table.top))
            start += at_once
            await asyncio.sleep(0)


class _Held(NamedTuple):
    """How many messages each owner holds of each topic, and when the first lease ends.

    The owner is the upper half of a pair, the topic the lower.
    """

    pairs: I64
    counts: I64
    until_ms: I64

    @classmethod
    def of(cls, table: Table, rows: Rows) -> "_Held":
        """Count some leased messages."""
        pairs = table.owner[rows].astype(np.int64) << 32 | table.topic[rows]
        return cls(pairs, np.ones(len(rows), np.int64), table.lease_until_ms[rows]).grouped()

    @classmethod
    def joined(cls, parts: "list[_Held]") -> "_Held":
        """Join what was counted in parts, most messages first."""
        held = cls(*map(np.concatenate, zip(*parts, strict=True))).grouped()
        order = np.argsort(-held.counts, kind="stable")
        return cls(*(column[order] for column in held))

    def grouped(self) -> "_Held":
        """Return each pair once."""
        if not len(self.pairs):
            return self
        order = np.argsort(self.pairs, kind="stable")
        starts, _ = runs_of(self.pairs[order])
        return _Held(
            self.pairs[order][starts],
            np.add.reduceat(self.counts[order], starts),
            np.minimum.reduceat(self.until_ms[order], starts),
        )


async def _named(owners: dict[str, int], numbers: list[int]) -> list[str]:
    """Return the names of owners, "" for one that is no longer known."""
    names = dict.fromkeys(numbers, "")
    for some in slices(list(owners.items()), _OWNERS_AT_ONCE):
        names |= {number: name for name, number in some if number in names}
        await asyncio.sleep(0)
    return [names[number] for number in numbers]


async def _covered(names: list[str], prefixes: tuple[str, ...]) -> np.ndarray:
    """Return which names begin with one of some prefixes."""
    covered, found = Prefixes(prefixes), list[bool]()
    for at in range(0, len(names), _NAMES_AT_ONCE):
        found += map(covered.cover, names[at : at + _NAMES_AT_ONCE])
        await asyncio.sleep(0)
    return np.array(found, dtype=bool)
