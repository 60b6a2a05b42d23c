"""Dates: times that are added to a rule, and times and days that are left out.

Both are kept as numbers in arrays, as two thousand rules are kept.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from datetime import date, datetime, timedelta
from heapq import merge
from typing import NamedTuple

from dwell.calendar.walls import Walls, Zone

_DAY = timedelta(days=1)


class Bounds(NamedTuple):
    """From when to when a rule lists times; ``until_ms`` is the last moment, where one is named."""

    begin: datetime
    until: datetime
    until_ms: int | None = None


class LeftOut:
    """Moments and whole days that are left out."""

    def __init__(self, moments_ms: Collection[int], days: Collection[date]) -> None:
        self._moments_ms = array("q", sorted(moments_ms))
        self._days = array("l", sorted(day.toordinal() for day in days))

    def has(self, ms: int) -> bool:
        """Tell whether a single moment is left out."""
        return _has(self._moments_ms, ms)

    def has_day(self, day: date) -> bool:
        """Tell whether a whole day is left out."""
        return _has(self._days, day.toordinal())


class Dated:
    """The wall-clock times of a rule within its bounds, with the added and without the left out.

    ``added_ms`` are moments, and not left out. The second of two times that look the same has its
    ``fold``.
    """

    def __init__(
        self,
        zone: Zone,
        walls: Walls | None,
        bounds: Bounds,
        added_ms: Collection[int],
        left_out: LeftOut,
    ) -> None:
        self._zone, self._walls, self._bounds = zone, walls, bounds
        self._added_ms = array("q", sorted(added_ms, key=zone.wall))
        self._left_out = left_out

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        return merge(self._ruled(start, stop, 1), map(self._zone.wall, self._added(start, stop)))

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        added = map(self._zone.wall, self._added(start, stop)[::-1])
        return merge(self._ruled(start, stop, -1), added, reverse=True)

    def _added(self, start: datetime, stop: datetime) -> Sequence[int]:
        first = bisect_left(self._added_ms, start, key=self._zone.wall)
        return self._added_ms[first : bisect_right(self._added_ms, stop, key=self._zone.wall)]

    def _ruled(self, start: datetime, stop: datetime, step: int) -> Iterator[datetime]:
        start, stop = max(start, self._bounds.begin), min(stop, self._bounds.until)
        while self._walls is not None and start <= stop:
            for wall in (self._walls.ahead if step > 0 else self._walls.back)(start, stop):
                # Of a day that is left out, the first time is enough to know.
                if self._left_out.has_day(wall.date()):
                    midnight = datetime(wall.year, wall.month, wall.day)
                    if step > 0:
                        start = midnight + _DAY
                    else:
                        stop = midnight - timedelta.resolution
                    break
                if self._is_kept(self._zone.shifted(wall)):
                    yield wall
            else:
                return

    def _is_kept(self, ms: int) -> bool:
        until_ms = self._bounds.until_ms
        return (until_ms is None or ms <= until_ms) and not self._left_out.has(ms)


def _has(numbers: Sequence[int], number: int) -> bool:
    at = bisect_left(numbers, number)
    return at < len(numbers) and numbers[at] == number
