"""The messages that can be taken: rows of ready messages by topic, in order of turns.

A message that leaves a topic without its turn (it is cancelled, or taken by its id) stays in the
runs until its turn comes, and is dropped then.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from dwell.message import I64, U32, Rows, State
from dwell.store.bounds import within
from dwell.store.embedded.admission import Admission
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.runs import Chunk
from dwell.store.embedded.table import Table
from dwell.store.embedded.topics import Topics


class Ready:
    """The ready messages of all topics; a topic is named by its number."""

    def __init__(
        self,
        table: Table,
        topics: Topics,
        admission: Admission,
        forming: Collection[int],
        limits: Limits,
    ) -> None:
        self._forming = forming
        self._table = table
        self._topics = topics
        self._admission = admission
        self._limits = limits

    def add(self, rows: Rows) -> tuple[U32, I64]:
        """Add messages that are ready now; return their topics, and the count of each."""
        if self._admission.is_used:
            rows = self._admission.let_stand(rows)
            if not len(rows):
                return self._table.topic[rows], np.zeros(0, np.int64)
        topics = self._table.topic[rows]
        if (topics == topics[0]).all():
            self.push(int(topics[0]), rows)
            return topics[:1], np.array([len(rows)])
        order = np.argsort(topics, kind="stable")
        topics, rows = topics[order], rows[order]
        starts = np.flatnonzero(np.diff(topics, prepend=np.uint32(~topics[0])))
        ends = np.append(starts[1:], len(rows))
        numbers = topics[starts]
        is_fair = (
            np.isin(numbers, self._admission.fair()) if self._admission.is_used else numbers < 0
        )
        for at in np.flatnonzero(is_fair):
            self.push(int(numbers[at]), rows[starts[at] : ends[at]])
        if not is_fair.all():
            chunk, later = self._chunk_of(None, rows), ~is_fair
            self._topics.ready_later(numbers[later], chunk, starts[later], ends[later])
        return numbers, ends - starts

    def push(self, topic: int, rows: Rows) -> None:
        """Add ready messages of one topic."""
        table, runs = self._table, self._topics.runs(topic)
        runs.push(self._chunk_of(topic, rows))
        # Entries of messages that left without a turn are still there, but outdated.
        spare = runs.size - self._limits.spare_entries
        if spare > 0 and spare > 2 * table.count(topic, State.READY):
            rows = np.concatenate([self._still_ready(topic, chunk) for chunk in runs.entries()])
            self._topics.empty_runs(topic)
            self.push(topic, distinct(rows))

    def counts(self, topics: Sequence[str], now_ms: int) -> dict[int, int]:
        """Return how many messages can be taken, for each topic that has any.

        In an ordered topic fewer may be available.
        """
        found: dict[int, int] = {}
        for name in topics:
            number = self._topics.find(name)
            if (
                number is not None
                and number not in self._forming
                and not self._topics.settings_of(number).paused
            ):
                count = self._table.count(number, State.READY)
                if count and self._admission.is_used:
                    count = self._admission.left(number, count, now_ms)
                if count > 0:
                    found[number] = count
        return found

    def pop_first(self, counts: dict[int, int], limit: int) -> tuple[Rows, bool]:
        """Return the first messages, topic after topic; the caller must take them.

        ``counts`` comes from :meth:`counts`, and ``limit`` is at most their sum. Also tell whether
        to ask again, because a call skips a limited number of messages.
        """
        found: list[Rows] = []
        room_bytes, has_more = self._limits.answer_bytes, False
        for place, (number, count) in enumerate(counts.items()):
            if not limit or room_bytes <= 0:
                break
            if place >= self._limits.taken_topics:
                # The others are left to the next take, or each would hold up all that others do.
                has_more = True
                break
            rows, has_more = self._pop(number, min(limit, count))
            rows, is_cut = self._fitting(number, rows, room_bytes)
            found.append(rows)
            if is_cut or has_more:
                # The rest of this topic comes before other topics.
                break
            limit -= len(rows)
            room_bytes -= int(self._table.size_bytes[rows].sum())
        return _joined(found), has_more

    def _fitting(self, topic: int, rows: Rows, most_bytes: int) -> tuple[Rows, bool]:
        """Return as many rows as fit into an answer, and whether the others were put back."""
        count = within(self._table.size_bytes[rows], most_bytes)
        if count < len(rows):
            self.push(topic, rows[count:])
        return rows[:count], count < len(rows)

    def _pop(self, topic: int, limit: int) -> tuple[Rows, bool]:
        runs, lanes = self._topics.runs(topic), self._admission.lanes(topic)
        found: list[Rows] = []
        missing, last, asked, passed = limit, None, limit, 0
        while missing and (chunk := runs.pop(missing if lanes is None else asked)) is not None:
            rows = self._still_ready(topic, chunk)
            # A message that was moved away and back may occur twice, in adjacent entries.
            again = rows[1:] == rows[:-1]
            if again.any():
                rows = rows[np.append(True, ~again)]
            if found and len(rows) and rows[0] == last:
                rows = rows[1:]
            if not len(rows):
                continue
            last = rows[-1]
            if lanes is not None:
                passed += len(rows)
                rows = lanes.sift(rows)
                if len(rows) > missing:
                    self.push(topic, rows[missing:])
                    rows = rows[:missing]
                # Many wait behind a taken one; asking for each alone would take very long.
                asked = min(2 * asked, self._limits.passed_rows)
            found.append(rows)
            missing -= len(rows)
            if passed >= self._limits.passed_rows:
                break
        has_more = passed >= self._limits.passed_rows and missing > 0
        return _joined(found), has_more

    def peek(self, topic: int, limit: int) -> tuple[Rows, bool]:
        """Return the first messages of one topic, without removing them.

        Also tell whether to ask again, as :meth:`pop_first` does.
        """
        rows, has_more = self._pop(topic, limit)
        rows, _ = self._fitting(topic, rows, self._limits.answer_bytes)
        self.push(topic, rows)
        return rows, has_more

    def urgent(self, name: str, priority: int) -> Iterator[int]:
        """Yield how many messages of a topic precede the given priority, a part at a time."""
        number, table = self._topics.find(name), self._table
        if number is None or not table.count(number, State.READY):
            return
        if number not in self._forming and self._size(number) <= self._limits.few_ready:
            yield int(np.count_nonzero(table.priority[self._rows(number)] < priority))
            return
        for part in table.parts(self._limits.swept_rows):
            fits = (table.topic[part] == number) & (table.state[part] == State.READY)
            yield int(np.count_nonzero(fits & (table.priority[part] < priority)))

    def _size(self, topic: int) -> int:
        """Return how many entries a topic has, including outdated entries."""
        lanes = self._admission.lanes(topic)
        return self._topics.runs(topic).size + (0 if lanes is None else lanes.size)

    def _rows(self, topic: int) -> Rows:
        """Return the ready messages of a topic, whether they can be taken or are parked."""
        lanes, chunks = self._admission.lanes(topic), self._topics.runs(topic).entries()
        found = [_NO_ROWS, *(self._still_ready(topic, chunk) for chunk in chunks)]
        if lanes is not None:
            found.append(lanes.parked_rows_of())
        return distinct(np.concatenate(found))

    def _still_ready(self, topic: int, chunk: Chunk) -> Rows:
        """Return the rows of the entries that are still valid."""
        rows, table = chunk.rows.astype(np.intp), self._table
        priority, due_ms = self._places(topic, rows)
        good = table.state[rows] == State.READY
        good &= table.seq[rows] == chunk.seq
        good &= due_ms == chunk.due_ms
        good &= priority == chunk.priority
        return rows if good.all() else rows[good]

    def _chunk_of(self, topic: int | None, rows: Rows) -> Chunk:
        return Chunk(rows.astype(np.uint32), *self._places(topic, rows), self._table.seq[rows])

    def _places(self, topic: int | None, rows: Rows) -> tuple[U32, I64]:
        """Return the sort keys of messages of one topic, or of several that are not fair."""
        if topic is not None and self._admission.is_fair(topic):
            return np.zeros(len(rows), np.uint32), self._admission.turns(rows)
        return self._table.priority[rows], self._table.due_ms[rows]


_NO_ROWS: Rows = np.zeros(0, dtype=np.intp)


def _joined(found: list[Rows]) -> Rows:
    return np.concatenate([_NO_ROWS, *found]) if len(found) != 1 else found[0]
