"""Lanes: the keys of an ordered topic, of each of which one message is taken at a time.

The front of a lane is its message that was taken and is not done, or else one that stands among the
ready ones. The others are parked as soon as they come to be taken, and the first of them is put
back among the ready ones when the front is gone. None of it is on the disk: it follows from the
messages.
"""

import heapq

import numpy as np

from dwell.message import Rows, State
from dwell.store.embedded.columns import Columns
from dwell.store.embedded.table import Table

#: Parked entries that mean nothing which a topic may have.
_SPARE = 4_096


class Kept(Columns):
    """What is known of rows beside the table, while some topic asks for it.

    ``lane`` is a number of the message's key, 0 for none; ``turn`` is what it is taken by in a fair
    topic; ``is_parked`` whether it is ready, and behind another of its lane.
    """

    lane: np.ndarray
    turn: np.ndarray
    is_parked: np.ndarray

    def __init__(self) -> None:
        super().__init__({"lane": np.int64, "turn": np.int64, "is_parked": np.bool_})


class Lanes:
    """The lanes of one topic."""

    def __init__(self, table: Table, kept: Kept) -> None:
        self._table = table
        self._kept = kept
        self._fronts: dict[int, int] = {}
        self._heaps: dict[int, list[tuple[int, int, int, int]]] = {}
        self._entries = 0
        #: How many ready messages nobody may take.
        self.parked = 0

    def begin(self, rows: Rows) -> None:
        """Let those of the topic's messages be fronts that were taken and are not done."""
        lanes = self._kept.lane[rows]
        begun = rows[(lanes != 0) & self._are_begun(rows)]
        leased = self._table.state[begun] == State.LEASED
        for some in (begun[~leased], begun[leased]):
            self._fronts.update(zip(self._kept.lane[some].tolist(), some.tolist(), strict=True))

    def sift(self, rows: Rows) -> Rows:
        """Return those of the rows, which are ready and in order, that may be taken.

        They are the fronts of their lanes from now on; the others are parked.
        """
        lanes = self._kept.lane[rows].tolist()
        fronts, going = self._fronts, np.ones(len(rows), dtype=bool)
        for at, (row, lane) in enumerate(zip(rows.tolist(), lanes, strict=True)):
            if lane and fronts.setdefault(lane, row) != row:
                if self._is_before(row, fronts[lane]):
                    fronts[lane] = row
                else:
                    self._park(row, lane)
                    going[at] = False
        return rows if going.all() else rows[going]

    def _is_before(self, row: int, front: int) -> bool:
        """Tell whether a row comes before the front of its lane, which nobody has taken."""
        return not self._is_begun(front) and self._key(row) < self._key(front)

    def _park(self, row: int, lane: int) -> None:
        heapq.heappush(self._heaps.setdefault(lane, []), self._key(row))
        self._kept.is_parked[row] = True
        self.parked += 1
        self._entries += 1
        if self._entries > 2 * self.parked + _SPARE:
            self._throw_away()

    def _throw_away(self) -> None:
        heaps = {lane: list(filter(self._is_good, heap)) for lane, heap in self._heaps.items()}
        self._heaps = {lane: heap for lane, heap in heaps.items() if heap}
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._entries = sum(map(len, self._heaps.values()))

    def firsts(self, rows: Rows, ready: Rows) -> np.ndarray:
        """Tell which of some rows may be taken, of all ``ready`` ones of the topic."""
        table, lanes = self._table, self._kept.lane
        beside = ready[np.isin(lanes[ready], lanes[rows])]
        columns = (table.seq[beside], table.due_ms[beside], table.priority[beside])
        first: dict[int, int] = {}
        for row in beside[np.lexsort(columns)].tolist():
            first.setdefault(lanes.item(row), row)
        for lane in set(lanes[rows].tolist()):
            front = self._fronts.get(lane)
            if front is not None and self._is_begun(front):
                first[lane] = front
        return np.array([not lanes[row] or first[lanes.item(row)] == row for row in rows.tolist()])

    def parked_rows(self) -> dict[int, list[int]]:
        """Return the parked rows that wait for each row that is a front."""
        return {
            self._fronts[lane]: [entry[-1] for entry in heap if self._is_good(entry)]
            for lane, heap in self._heaps.items()
        }

    def enter(self, rows: Rows) -> None:
        """Let messages that were taken be the fronts of their lanes."""
        self._fronts.update(zip(self._kept.lane[rows].tolist(), rows.tolist(), strict=True))

    def follow(self, rows: Rows) -> tuple[int, list[int]]:
        """Note that messages have changed; ``is_parked`` of them is false by now.

        Return how many lanes have another front, and which of these were parked.
        """
        opened, following = 0, []
        lanes, begun = self._kept.lane[rows].tolist(), self._are_begun(rows).tolist()
        for row, lane, is_begun in zip(rows.tolist(), lanes, begun, strict=True):
            if not lane or is_begun or self._fronts.get(lane) != row:
                continue
            opened += 1
            is_ready = self._table.state.item(row) == State.READY
            after = self._next(lane, row if is_ready else None)
            if after is not None:
                self._fronts[lane] = after
                following.append(after)
            elif not is_ready:
                del self._fronts[lane]
        return opened, following

    def _next(self, lane: int, before: int | None) -> int | None:
        """Return the first parked row of a lane, if it comes before some other."""
        heap = self._heaps.get(lane)
        if heap is None:
            return None
        while heap and not self._is_good(heap[0]):
            heapq.heappop(heap)
            self._entries -= 1
        if heap and before is not None and self._key(before) < heap[0]:
            return None
        first = heapq.heappop(heap)[-1] if heap else None
        if first is not None:
            self._entries -= 1
            self.parked -= 1
            self._kept.is_parked[first] = False
        if not heap:
            del self._heaps[lane]
        return first

    def _key(self, row: int) -> tuple[int, int, int, int]:
        table = self._table
        return table.priority.item(row), table.due_ms.item(row), table.seq.item(row), row

    def _is_good(self, entry: tuple[int, int, int, int]) -> bool:
        row = entry[-1]
        return self._kept.is_parked.item(row) and self._key(row) == entry

    def _is_begun(self, row: int) -> bool:
        """Tell whether a message was taken and is not done."""
        state = self._table.state.item(row)
        return state == State.LEASED or (state in _WAITING and self._table.attempt.item(row) > 0)

    def _are_begun(self, rows: Rows) -> np.ndarray:
        """Tell which messages were taken and are not done."""
        state = self._table.state[rows]
        waiting = (state == State.DELAYED) | (state == State.READY)
        begun: np.ndarray = (state == State.LEASED) | (waiting & (self._table.attempt[rows] > 0))
        return begun


_WAITING = (State.DELAYED, State.READY)


def lane_of(key: str | None) -> int:
    """Return the number of a key's lane; keys that share one are taken one at a time together.

    Python's own hash is keyed by what only this process knows, so nobody can make them share one.
    """
    return 0 if key is None else hash(key) or 1
