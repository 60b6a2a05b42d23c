"""What can be taken: the rows of ready messages, topic by topic, in the order of their turns.

What leaves a topic otherwise than by a take (it is cancelled, or taken by its id) stays in the runs
until its turn comes, and is recognised and thrown away then.
"""

from collections.abc import Sequence

import numpy as np

from dwell.message import I64, U32, Rows, State
from dwell.store.bounds import within
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.runs import Chunk
from dwell.store.embedded.table import Table
from dwell.store.embedded.topics import Topics


class Ready:
    """The ready messages of all topics; a topic is named by its number."""

    def __init__(self, table: Table, topics: Topics, limits: Limits) -> None:
        self._table = table
        self._topics = topics
        self._limits = limits

    def add(self, rows: Rows) -> tuple[U32, I64]:
        """Take in messages that are ready now; return their topics, and how many are of each."""
        topics = self._table.topic[rows]
        if (topics == topics[0]).all():
            self.push(int(topics[0]), rows)
            return topics[:1], np.array([len(rows)])
        order = np.argsort(topics, kind="stable")
        topics, chunk = topics[order], self._chunk_of(rows[order])
        starts = np.flatnonzero(np.diff(topics, prepend=np.uint32(~topics[0])))
        ends = np.append(starts[1:], len(rows))
        self._topics.ready_later(topics[starts], chunk, starts, ends)
        return topics[starts], ends - starts

    def push(self, topic: int, rows: Rows) -> None:
        """Take in ready messages of one topic."""
        table, runs = self._table, self._topics.runs(topic)
        runs.push(self._chunk_of(rows))
        # What left otherwise than by a take is still there, and means nothing.
        spare = runs.size - self._limits.spare_entries
        if spare > 0 and spare > 2 * table.count(topic, State.READY):
            rows = np.concatenate([self._still_ready(chunk) for chunk in runs.entries()])
            self._topics.empty_runs(topic)
            self.push(topic, distinct(rows))

    def counts(self, topics: Sequence[str]) -> dict[int, int]:
        """Return how many messages of each topic can be taken, without those that have none."""
        found: dict[int, int] = {}
        for name in topics:
            number = self._topics.find(name)
            if number is not None and not self._topics.settings_of(number).paused:
                count = self._table.count(number, State.READY)
                if count:
                    found[number] = count
        return found

    def pop_first(self, counts: dict[int, int], limit: int) -> Rows:
        """Return the first messages, topic after topic; the caller must take them.

        ``counts`` is what :meth:`counts` returned, and ``limit`` at most as many as those are.
        """
        found: list[Rows] = []
        room_bytes = self._limits.answer_bytes
        for number, count in counts.items():
            if not limit or room_bytes <= 0:
                break
            found.append(self.pop(number, limit, room_bytes))
            if len(found[-1]) < min(limit, count):
                # It was cut short for its size; what is left of it goes before other topics.
                break
            limit -= len(found[-1])
            room_bytes -= int(self._table.size_bytes[found[-1]].sum())
        return np.concatenate([_NO_ROWS, *found]) if len(found) != 1 else found[0]

    def pop(self, topic: int, limit: int, most_bytes: int | None = None) -> Rows:
        """Return the first messages of one topic; the caller must take them."""
        rows = self._pop(topic, limit)
        most_bytes = self._limits.answer_bytes if most_bytes is None else most_bytes
        count = within(self._table.size_bytes[rows], most_bytes)
        if count < len(rows):
            self.push(topic, rows[count:])
        return rows[:count]

    def _pop(self, topic: int, limit: int) -> Rows:
        runs = self._topics.runs(topic)
        found: list[Rows] = []
        missing, last = limit, None
        while missing and (chunk := runs.pop(missing)) is not None:
            rows = self._still_ready(chunk)
            # One message may stand here again, right behind, when it was moved away and back.
            again = rows[1:] == rows[:-1]
            if again.any():
                rows = rows[np.append(True, ~again)]
            if found and len(rows) and rows[0] == last:
                rows = rows[1:]
            if not len(rows):
                continue
            last = rows[-1]
            found.append(rows)
            missing -= len(rows)
        return np.concatenate(found) if len(found) != 1 else found[0]

    def peek(self, topic: int, limit: int) -> Rows:
        """Return the first messages of one topic, and leave them in their places."""
        rows = self.pop(topic, limit)
        self.push(topic, rows)
        return rows

    def urgent(self, name: str, priority: int) -> int:
        """Return how many messages of a topic come before those of a priority."""
        number = self._topics.find(name)
        if number is None or not self._table.count(number, State.READY):
            return 0
        chunks = self._topics.runs(number).entries()
        parts = (c.part(slice(int(c.priority.searchsorted(priority)))) for c in chunks)
        rows = [self._still_ready(part) for part in parts if len(part)]
        return len(distinct(np.concatenate(rows))) if rows else 0

    def _still_ready(self, chunk: Chunk) -> Rows:
        """Return the rows of the entries that still mean something."""
        rows, table = chunk.rows.astype(np.intp), self._table
        good = table.state[rows] == State.READY
        good &= table.seq[rows] == chunk.seq
        good &= table.due_ms[rows] == chunk.due_ms
        good &= table.priority[rows] == chunk.priority
        return rows if good.all() else rows[good]

    def _chunk_of(self, rows: Rows) -> Chunk:
        table = self._table
        return Chunk(
            rows.astype(np.uint32), table.priority[rows], table.due_ms[rows], table.seq[rows]
        )


_NO_ROWS: Rows = np.zeros(0, dtype=np.intp)
