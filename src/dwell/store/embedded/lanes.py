"""Lanes: the keys of an ordered topic; one message of each key is taken at a time.

The front of a lane is its message that was taken and is not done, or else one ready message. The
others are parked when a take reaches them, and the first of them becomes ready again when the front
is gone. Nothing of this is on the disk: it follows from the messages.
"""

import heapq
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import chain, compress, repeat
from operator import not_
from typing import Any

import numpy as np

from dwell.message import I64, Rows, State
from dwell.store.embedded.columns import Columns
from dwell.store.embedded.distinct import distinct, runs_of
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.table import Table


class Kept(Columns):
    """Columns in addition to the table, kept while some topic needs them.

    ``lane`` is a number for the message's key, 0 for none; ``turn`` is the order in a fair topic;
    ``parking`` is the number of its entry among the parked messages of its lane, or 0.
    """

    lane: np.ndarray
    turn: np.ndarray
    parking: np.ndarray

    def __init__(self) -> None:
        super().__init__({"lane": np.int64, "turn": np.int64, "parking": np.int64})


#: A parked message; its bytes sort as the messages do. As tuples, the entries of a million messages
#: would have the collector of garbage pass through all of them again and again, and take 220 MB.
_ENTRY = np.dtype(
    [("priority", ">u4"), ("due_ms", ">u8"), ("seq", ">u8"), ("row", ">u4"), ("number", ">u8")]
)
_ROW_AND_NUMBER = struct.Struct(">20xIQ")
#: The heap of a lane without parked messages, and what stands for its first entry.
_EMPTY: list[bytes] = []
_NO_ENTRY = bytes(_ENTRY.itemsize)


class Lanes:
    """The lanes of one topic."""

    def __init__(self, table: Table, kept: Kept, limits: Limits) -> None:
        self._spare = limits.spare_parked
        self._table = table
        self._kept = kept
        self._fronts: dict[int, int] = {}
        # For lanes with several messages taken and not done when the topic became ordered.
        self._begun: dict[int, set[int]] = {}
        self._heaps: defaultdict[int, list[bytes]] = defaultdict(list)
        # While outdated entries are thrown away: the lanes to look at, and the rest of one heap,
        # which is looked at from its end, so that it stays a heap.
        self._unseen: list[int] = []
        self._rest: list[bytes] = []
        self._rest_lane = 0
        self._entries = self._last_number = 0
        #: How many ready messages cannot be taken.
        self.parked = 0

    def free(self, most: int) -> int:
        """Free at most ``most`` parked entries and fronts; return how many."""
        freed = 0
        while (self._rest or self._heaps) and freed < most:
            if not self._rest:
                _, self._rest = self._heaps.popitem()
            count = len(self._rest)
            del self._rest[freed - most :]
            freed += count - len(self._rest) + (not self._rest)
        while self._fronts and freed < most:
            self._fronts.popitem()
            freed += 1
        return freed

    def begin(self, rows: Rows) -> None:
        """Make the topic's messages that were taken and are not done the fronts of their lanes."""
        lanes = self._kept.lane[rows]
        begun = (lanes != 0) & self._table.are_begun(rows)
        for row, lane in zip(rows[begun].tolist(), lanes[begun].tolist(), strict=True):
            front = self._fronts.setdefault(lane, row)
            if front != row:
                self._begun.setdefault(lane, {front}).add(row)
        for lane, some in self._begun.items():
            self._fronts[lane] = self._first_begun(some)

    def _first_begun(self, rows: Iterable[int]) -> int:
        """Return which of several taken messages of a lane holds the others back.

        It is a leased message, if there is one, or else the first in order.
        """
        state = self._table.state.item
        leased = (row for row in rows if state(row) == State.LEASED)
        front = next(leased, None)
        return min(map(self._key, rows))[-1] if front is None else front

    def sift(self, rows: Rows) -> Rows:
        """Return the rows that may be taken, from ready rows in order.

        They become the fronts of their lanes; the others are parked.
        """
        lanes = self._kept.lane[rows]
        going = np.equal(lanes, 0)
        going[~going] = self._are_fronts(rows[~going], lanes[~going])
        if going.all():
            return rows
        self._park(rows[~going], lanes[~going])
        first: Rows = rows[going]
        return first

    def stand(self, rows: Rows) -> Rows:
        """Do the same with rows that have just become ready, and park the fronts they precede.

        They take over the turns of those.
        """
        names = self._kept.lane[rows].tolist()
        before = dict(zip(names, map(self._fronts.get, names), strict=True))
        going = self.sift(rows)
        turn = self._kept.turn
        for row, lane in zip(going.tolist(), self._kept.lane[going].tolist(), strict=True):
            front = before[lane] if lane else None
            if front is not None and front != row:
                turn[row], turn[front] = turn[front], 0
                self._park(np.array([front]), np.array([lane]))
        return going

    def _are_fronts(self, rows: Rows, lanes: I64) -> np.ndarray:
        """Make rows the fronts of lanes without one, or with a later one; tell which."""
        names = lanes.tolist()
        fronts = np.fromiter(map(self._fronts.setdefault, names, rows.tolist()), np.intp, len(rows))
        going: np.ndarray = fronts == rows
        behind = np.flatnonzero(~going)
        if len(behind) and self._go_before(rows[behind], lanes[behind], fronts[behind]):
            going = np.fromiter(map(self._fronts.get, names), np.intp, len(rows)) == rows
        return going

    def _go_before(self, rows: Rows, lanes: I64, fronts: Rows) -> bool:
        """Make rows the fronts of lanes where they precede the front; tell whether any does."""
        before = np.flatnonzero(self._are_before(rows, fronts) & ~self._table.are_begun(fronts))
        for row, lane in zip(rows[before].tolist(), lanes[before].tolist(), strict=True):
            # Another row of its lane may precede it by now.
            if self._is_before(row, self._fronts[lane]):
                self._fronts[lane] = row
        return len(before) > 0

    def _are_before(self, rows: Rows, others: Rows) -> np.ndarray:
        """Tell which rows come before others, one by one."""
        table = self._table
        before: np.ndarray = table.seq[rows] < table.seq[others]
        for column in (table.due_ms, table.priority):
            one, other = column[rows], column[others]
            before &= one == other
            before |= one < other
        return before

    def _park(self, rows: Rows, lanes: I64) -> None:
        # A row that was moved away and back may occur among the ready twice.
        new = self._kept.parking[rows] == 0
        rows, lanes = rows[new], lanes[new]
        table = self._table
        numbers = np.arange(self._last_number + 1, self._last_number + len(rows) + 1)
        entries = np.empty(len(rows), _ENTRY)
        for name, column in (("row", rows), ("number", numbers)):
            entries[name] = column
        for name in ("priority", "due_ms", "seq"):
            entries[name] = getattr(table, name)[rows]
        heaps = map(self._heaps.__getitem__, lanes.tolist())
        _do(heapq.heappush, heaps, entries.view(f"V{_ENTRY.itemsize}").tolist())
        self._kept.parking[rows] = numbers
        self._last_number += len(rows)
        self.parked += len(rows)
        self._entries += len(rows)
        if self._rest or self._unseen or self._entries > 2 * self.parked + self._spare:
            # More than were added: so it comes to an end, in parts that hold up nobody.
            self._throw_away(len(rows) + 1 + self._spare)

    def _throw_away(self, most: int) -> None:
        """Throw outdated entries away, out of ``most`` entries and lanes at most."""
        if not (self._rest or self._unseen):
            self._unseen = list(self._heaps)
        while most > 0 and (self._rest or self._unseen):
            if not self._rest:
                self._rest_lane = self._unseen.pop()
                self._rest = self._heaps.pop(self._rest_lane, [])
                most -= 1
            some = self._rest[-most:] if most else []
            del self._rest[len(self._rest) - len(some) :]
            most -= len(some)
            if good := list(filter(self._is_good, some)):
                _do(heapq.heappush, repeat(self._heaps[self._rest_lane]), good)
            self._entries -= len(some) - len(good)

    def firsts(self, rows: Rows, parts: Iterable[Rows]) -> np.ndarray:
        """Tell which of some ready rows may be taken.

        ``parts`` are all ready rows of the topic; it is read only as far as needed.
        """
        lanes = self._kept.lane[rows]
        may_go: np.ndarray = lanes == 0
        names = distinct(lanes[~may_go])
        fronts = np.fromiter(map(self._fronts.get, names.tolist(), repeat(-1)), np.intp, len(names))
        is_held = fronts >= 0
        is_held[is_held] = self._table.are_begun(fronts[is_held])
        # The message that was taken and is not done is the only one of its key, if it is ready.
        may_go |= np.isin(rows, fronts[is_held])
        # Parked messages come behind the front of their lane.
        free = np.isin(lanes, names[~is_held]) & (self._kept.parking[rows] == 0)
        first = self._first_of_each(rows[free])
        may_go |= np.isin(rows, self._unpreceded(first, parts))
        return may_go

    def _first_of_each(self, rows: Rows) -> Rows:
        """Return the first of some rows in each lane, by lane."""
        table, lanes = self._table, self._kept.lane[rows]
        order = np.lexsort((table.seq[rows], table.due_ms[rows], table.priority[rows], lanes))
        first: Rows = rows[order][runs_of(lanes[order])[0]]
        return first

    def _unpreceded(self, firsts: Rows, parts: Iterable[Rows]) -> Rows:
        """Return which rows, one of each lane and by lane, come before all others of it."""
        for part in parts if len(firsts) else ():
            names, lanes = self._kept.lane[firsts], self._kept.lane[part]
            at = np.minimum(names.searchsorted(lanes), len(names) - 1)
            beside = (names[at] == lanes) & (self._kept.parking[part] == 0)
            part, at = part[beside], at[beside]
            are_first = np.ones(len(firsts), dtype=bool)
            are_first[at[self._are_before(part, firsts[at])]] = False
            firsts = firsts[are_first]
            if not len(firsts):
                break
        return firsts

    def parked_rows(self) -> dict[int, list[int]]:
        """Return the parked rows behind each row that is a front."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for lane, heap in chain(self._heaps.items(), self._rest_items()):
            found[self._fronts[lane]] += self._good_rows(heap).tolist()
        return found

    def _rest_items(self) -> list[tuple[int, list[bytes]]]:
        return [(self._rest_lane, self._rest)] if self._rest else []

    @property
    def size(self) -> int:
        """How many parked entries there are, including outdated entries."""
        return self._entries

    def parked_rows_of(self) -> Rows:
        """Return the rows that are parked, in no order."""
        return self._good_rows(chain(self._rest, *self._heaps.values()))

    def _good_rows(self, entries: Iterable[bytes]) -> Rows:
        rows, numbers = _rows_and_numbers(entries)
        parked: Rows = rows[self._kept.parking[rows] == numbers]
        return parked

    def enter(self, rows: Rows) -> None:
        """Make messages that are about to be taken by id the fronts of their lanes."""
        self._fronts.update(zip(self._kept.lane[rows].tolist(), rows.tolist(), strict=True))

    def unpark(self, rows: Rows) -> None:
        """Unpark rows, so that they no longer wait for the fronts of their lanes."""
        self.parked -= int(np.count_nonzero(self._kept.parking[rows]))
        self._kept.parking[rows] = 0

    def follow(self, rows: Rows) -> tuple[int, list[int]]:
        """Note that messages have changed, which were unparked before the change.

        Return how many lanes have another front, and which new fronts were parked.
        """
        lanes = self._kept.lane[rows]
        opened, following = self._follow_begun(rows, lanes) if self._begun else (0, [])
        closed = (lanes != 0) & ~self._table.are_begun(rows)
        rows, lanes = rows[closed], lanes[closed]
        fronts = np.fromiter(map(self._fronts.get, lanes.tolist(), repeat(-1)), np.intp, len(rows))
        closed = fronts == rows
        rows, lanes = rows[closed], lanes[closed]
        popped = self._following(rows, lanes)
        following += popped
        self.unpark(np.array(following, np.intp))
        self._entries -= len(popped)
        return opened + len(rows), following

    def _follow_begun(self, rows: Rows, lanes: I64) -> tuple[int, list[int]]:
        """Do so for lanes with several taken messages; a single one left is an ordinary front."""
        opened, following = 0, []
        for lane in set(lanes.tolist()) & set(self._begun):
            some = self._begun[lane]
            some -= set(rows[(lanes == lane) & ~self._table.are_begun(rows)].tolist())
            if not some:
                # The last of them was the front.
                del self._begun[lane]
                continue
            front = self._fronts[lane]
            if front not in some or self._table.state.item(front) != State.LEASED:
                front = self._first_begun(some)
            if front != self._fronts[lane]:
                self._fronts[lane] = front
                opened += 1
                if self._kept.parking[front]:
                    following.append(front)
        return opened, following

    def _following(self, rows: Rows, lanes: I64) -> list[int]:
        """Make the first parked rows the fronts of lanes, in place of these rows; return them."""
        names = lanes.tolist()
        heaps = list(map(self._heaps.get, names, repeat(_EMPTY)))
        following, numbers = _rows_and_numbers(heap[0] if heap else _NO_ENTRY for heap in heaps)
        is_empty = numbers == 0
        is_done = self._table.state[rows] != State.READY
        # A lane whose entries are in two heaps just now is looked at by itself.
        is_one = (lanes != self._rest_lane) | (not self._rest)
        is_last = is_done & is_one & is_empty
        is_simple = is_done & is_one & ~is_empty & (self._kept.parking[following] == numbers)
        # A row that is ready again is compared with the parked rows; outdated entries are skipped.
        for at in np.flatnonzero(~(is_last | is_simple)).tolist():
            following[at] = self._next(rows.item(at), names[at])
        following[is_last] = -1
        simple = is_simple.tolist()
        _do(self._fronts.__delitem__, compress(names, is_last.tolist()))
        _do(heapq.heappop, compress(heaps, simple))
        self._fronts.update(
            zip(compress(names, simple), following[is_simple].tolist(), strict=True)
        )
        _do(self._heaps.pop, compress(names, map(not_, heaps)), repeat(None))
        new: list[int] = following[(following != rows) & (following >= 0)].tolist()
        return new

    def _next(self, row: int, lane: int) -> int:
        """Return the new front of a lane, -1 for none; ``row``, the old one, may be ready again."""
        heap = self._heap_of(lane)
        is_ready = self._table.state.item(row) == State.READY
        if heap and not (is_ready and self._is_before(row, _ROW_AND_NUMBER.unpack(heap[0])[0])):
            row = _ROW_AND_NUMBER.unpack(heapq.heappop(heap))[0]
        elif not is_ready:
            del self._fronts[lane]
            return -1
        self._fronts[lane] = row
        return row

    def _heap_of(self, lane: int) -> list[bytes]:
        """Return the heap with the first parked message of a lane on top; empty without any."""
        heaps = [self._heaps.get(lane, _EMPTY), *(h for at, h in self._rest_items() if at == lane)]
        for heap in heaps:
            while heap and not self._is_good(heap[0]):
                heapq.heappop(heap)
                self._entries -= 1
        return min(filter(None, heaps), default=_EMPTY)

    def _key(self, row: int) -> tuple[int, int, int, int]:
        table = self._table
        return table.priority.item(row), table.due_ms.item(row), table.seq.item(row), row

    def _is_before(self, row: int, other: int) -> bool:
        return self._key(row) < self._key(other)

    def _is_good(self, entry: bytes) -> bool:
        row, number = _ROW_AND_NUMBER.unpack(entry)
        return bool(self._kept.parking.item(row) == number)


def _rows_and_numbers(entries: Iterable[bytes]) -> tuple[Rows, I64]:
    found = np.frombuffer(b"".join(entries), _ENTRY)
    return found["row"].astype(np.intp), found["number"].astype(np.int64)


def _do(what: Callable[..., object], *each: Iterable[Any]) -> None:
    """Call a function for each of some values, with the loop in C."""
    deque(map(what, *each), maxlen=0)
