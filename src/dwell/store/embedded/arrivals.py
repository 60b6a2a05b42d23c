"""Arrivals: an index from arrival number to row, for lookups by number.

The table stores the arrival of each row, but not the reverse: most stores are never asked by
number, and an index would cost memory for each message. So it is made at the first such lookup, and
kept from then on. It may name rows that hold another message by now; the table tells.

Arrivals have no gaps, so a segment is a column of rows indexed by arrival: 4 bytes a message. When
most messages of a segment are gone, only the rest is kept, with their places.
"""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dwell.message import U32, U64, Rows
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.table import Table

_BITS = np.uint64(18)
#: How many arrivals a segment has.
SEGMENT = 1 << 18
_PLACE_MASK = np.uint64(SEGMENT - 1)
#: How many rows are read in a part.
_PART = 1 << 16
#: A segment stays dense while at least one in this many of its messages is left.
_SPARSE = 4
#: How many segments of each kind are searched for dead entries whenever a new one is made.
_LOOKS = 2


class _Segment:
    """The rows of some arrivals; ``places`` has the place of each, None if all are in sequence."""

    __slots__ = ("places", "rows")

    def __init__(self, rows: U32, places: U32 | None = None) -> None:
        self.rows = rows
        self.places = places

    @classmethod
    def of(cls, places: U32, rows: U32) -> "_Segment":
        """Return a segment with these rows at these places, which are in order."""
        if _SPARSE * len(rows) < SEGMENT:
            return cls(rows, places)
        whole = cls.new()
        whole.rows[places] = rows
        return whole

    @classmethod
    def new(cls) -> "_Segment":
        """Return a segment to be filled."""
        return cls(np.zeros(SEGMENT, dtype=np.uint32))

    def find(self, places: U32) -> U32:
        """Return the rows at some places; a place without a row gets an arbitrary one."""
        if self.places is None:
            return self.rows[places]
        found: U32 = self.rows[np.minimum(self.places.searchsorted(places), len(self.rows) - 1)]
        return found


class Arrivals:
    """The index of a table, by arrival. It is complete once :meth:`fill` has ended."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._segments: dict[int, _Segment] = {}
        # Dense segments have their own queue: among many sparse segments they would wait long.
        self._whole: deque[int] = deque()
        self._sparse: deque[int] = deque()
        self.is_whole = False

    def fill(self) -> Iterator[None]:
        """Note the messages that are there, a part at a time.

        Between two parts messages may arrive, which :meth:`add` notes, and others may go.
        """
        parts: dict[int, list[tuple[U32, U32]]] = {}
        for start in range(0, self._table.top, _PART):
            for number, places, rows in self._in_order(np.arange(start, start + _PART)):
                parts.setdefault(number, []).append((places, rows))
            yield
        for number, many in parts.items():
            self._join(number, *map(np.concatenate, zip(*many, strict=True)))
            yield
        self.is_whole = True

    def _in_order(self, rows: Rows) -> Iterator[tuple[int, U32, U32]]:
        """Yield the places of each segment, in order, and their rows, of some existing rows."""
        table = self._table
        rows = rows[rows < table.top]
        rows = rows[table.are_messages(rows)]
        seqs, ordered = table.seq[rows], rows.astype(np.uint32)
        # Rows that arrived in order are usually in order here.
        if (seqs[1:] < seqs[:-1]).any():
            order = np.argsort(seqs, kind="stable")
            seqs, ordered = seqs[order], ordered[order]
        numbers, places = seqs >> _BITS, (seqs & _PLACE_MASK).astype(np.uint32)
        firsts = np.flatnonzero(np.diff(numbers, prepend=np.uint64(2**63)))
        for first, end in pairwise([*firsts.tolist(), len(numbers)]):
            yield int(numbers[first]), places[first:end], ordered[first:end]

    def _join(self, number: int, places: U32, rows: U32) -> None:
        """Add rows to a segment, which may already have some that came during the fill."""
        if number in self._segments:
            self._open(number).rows[places] = rows
            return
        if (places[1:] < places[:-1]).any():
            order = np.argsort(places, kind="stable")
            places, rows = places[order], rows[order]
        self._keep(number, _Segment.of(places, rows))

    @property
    def size(self) -> int:
        """The number of entries that fit."""
        return sum(len(segment.rows) for segment in self._segments.values())

    def add(self, first: int, rows: Rows) -> None:
        """Note newly arrived messages, with arrivals from ``first`` on."""
        at = 0
        while at < len(rows):
            number, place = divmod(first + at, SEGMENT)
            count = min(len(rows) - at, SEGMENT - place)
            self._open(number).rows[place : place + count] = rows[at : at + count]
            at += count

    def find(self, seqs: U64) -> Rows:
        """Return the row of each existing arrival; others get the row of another message."""
        rows = np.zeros(len(seqs), dtype=np.intp)
        numbers, places = seqs >> _BITS, (seqs & _PLACE_MASK).astype(np.uint32)
        for number in distinct(numbers).tolist():
            segment = self._segments.get(number)
            if segment is not None:
                asked = numbers == number
                rows[asked] = segment.find(places[asked])
        return rows

    def _open(self, number: int) -> _Segment:
        """Return a segment that can be filled: the newest, or a new one."""
        segment = self._segments.get(number)
        if segment is None:
            self._tidy()
            segment = _Segment.new()
            self._keep(number, segment)
        elif segment.places is not None:
            whole = _Segment.new()
            whole.rows[segment.places] = segment.rows
            segment = self._segments[number] = whole
        return segment

    def _keep(self, number: int, segment: _Segment) -> None:
        self._segments[number] = segment
        (self._whole if segment.places is None else self._sparse).append(number)

    def _tidy(self) -> None:
        """Check some segments in turn, and keep only the entries that still exist."""
        for waiting in (self._whole, self._sparse):
            for _ in range(min(_LOOKS, len(waiting))):
                self._look(waiting.popleft())

    def _look(self, number: int) -> None:
        segment, table = self._segments.pop(number), self._table
        places = segment.places
        if places is None:
            places = np.arange(SEGMENT, dtype=np.uint32)
        is_there = table.seq[segment.rows] == places + np.uint64(number * SEGMENT)
        is_there &= table.are_messages(segment.rows)
        if is_there.all():
            self._keep(number, segment)
        elif is_there.any():
            self._keep(number, _Segment.of(places[is_there], segment.rows[is_there]))
