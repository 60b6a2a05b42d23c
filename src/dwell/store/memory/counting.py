"""Counting the rows of the store in memory: by due, by waiting time, and by owner."""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder, Stats, TopicStats
from dwell.message import I64, QUEUE_ID_MARK, State
from dwell.slices import slices
from dwell.store.base import Store
from dwell.store.holding import most_held
from dwell.store.memory.log import EventLog
from dwell.store.memory.rows import Row, Topic

#: How many rows are counted before other tasks run.
_AT_ONCE = 20_000


class Counting(Store):
    """The verbs that count the messages of a store in memory."""

    counts_bytes = True
    topics: dict[str, Topic]
    _taken: Mapping[int, Row]
    _log: EventLog

    def _enter(self) -> int:
        """Apply the passing of time."""
        raise NotImplementedError

    async def with_ready(self, topics: Sequence[str]) -> list[str]:
        """Return the topics with messages that could be taken now."""
        self._enter()
        return [topic for topic in topics if self.ready(topic)]

    async def stats(self) -> Stats:
        """Return the counts."""
        self._enter()
        topics = {name: TopicStats(*topic.counts[1:]) for name, topic in self.topics.items()}
        return Stats(topics, {str(kind): count for kind, count in self._log.totals.items()})

    async def stored_bytes(self) -> dict[str, int]:
        """Return how many bytes the messages of each topic have (see the contract)."""
        self._enter()
        sizes: dict[str, int] = {}
        for name, topic in list(self.topics.items()):
            for rows in slices(list(topic.rows.values()), _AT_ONCE):
                sizes[name] = sizes.get(name, 0) + sum(map(_size_of, rows))
                await asyncio.sleep(0)
            for results in slices(list(topic.results.values()), _AT_ONCE):
                sizes[name] = sizes.get(name, 0) + sum(len(result) for _, result in results)
                await asyncio.sleep(0)
        return sizes

    async def count_urgent(self, topic: str, priority: int) -> int:
        """Return how many ready messages of a topic precede the given priority."""
        self._enter()
        known = self.topics.get(topic)
        return 0 if known is None else known.urgent(priority)

    async def count_due(self, topics: Sequence[str], spans: Spans) -> I64:
        """Return how many delayed messages fall due in each span (see the contract)."""
        self._enter()
        counts = spans.none()
        for name in topics or list(self.topics):
            topic = self.topics.get(name)
            for rows in slices(list(topic.rows.values()) if topic is not None else [], _AT_ONCE):
                delayed = (row.due_ms for row in rows if row.state is State.DELAYED)
                counts += spans.counted(np.fromiter(delayed, np.int64))
                await asyncio.sleep(0)
        return counts

    async def oldest_ready(self) -> dict[str, int]:
        """Return the due of the message that has waited longest, by topic."""
        self._enter()
        waiting = {name: topic for name, topic in self.topics.items() if topic.counts[State.READY]}
        return {
            name: min(row.due_ms for row in topic.ready_rows()) for name, topic in waiting.items()
        }

    async def holders(self, limit: int, prefixes: tuple[str, ...] = ALL_TOPICS) -> list[Holder]:
        """Return the owners with messages under lease."""
        self._enter()
        leases = ((row.owner, row.topic.name, 1, row.until_ms) for row in self._taken.values())
        return most_held(leases, limit, prefixes)


def _size_of(row: Row) -> int:
    own = b"" if row.id.startswith(QUEUE_ID_MARK) else row.id.encode()
    return len(own) + len(row.extra) + len(row.body)
