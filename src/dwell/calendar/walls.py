"""Walls: rules that list wall-clock times, in a time zone.

The moments of these times follow from the zone: when clocks are set, a time may be skipped or come
twice.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple, Protocol, Self
from zoneinfo import ZoneInfo

from dwell.calendar.epoch import LAST_MS, from_ms, to_ms

#: More than a zone's clocks are ever set at once, also where an island left out a day.
CHANGE = timedelta(hours=26)
#: How far ahead a moment is searched for: otherwise a rule that never fires would be walked to the
#: year 9999.
HORIZON = timedelta(days=50 * 366)
#: The last wall-clock time of a search.
LAST = from_ms(LAST_MS).replace(tzinfo=None) + CHANGE


class Walls(Protocol):
    """The times on the wall that a rule lists."""

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""


class Bounded(NamedTuple):
    """Times on the wall, from a first time to a last one."""

    walls: Walls
    begin: datetime
    until: datetime


class Zone:
    """Which moments a time on the wall has in a zone."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone

    def wall(self, ms: int) -> datetime:
        """Return the wall-clock time of a moment."""
        return from_ms(min(ms, LAST_MS)).astimezone(self._zone).replace(tzinfo=None)

    def shifted(self, wall: datetime) -> int:
        """Return the first moment of a time; one left out is as much later as clocks are set."""
        return to_ms(wall.replace(tzinfo=self._zone).astimezone(UTC))

    def first(self, wall: datetime) -> int:
        """Return the first moment of a time or, if it is skipped, of the next time."""
        low, high = self.offsets(wall)
        found = self.shifted(wall)
        if low == high or self.wall(found) == wall:
            return found
        # Before the change clocks show less than this, and after it more.
        before = to_ms(wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)) // 1000
        after = found // 1000
        while after - before > 1:
            middle = (before + after) // 2
            if self.wall(middle * 1000) < wall:
                before = middle
            else:
                after = middle
        return after * 1000

    def all(self, wall: datetime) -> list[int]:
        """Return all moments of a time: none if it is left out, and two if it comes twice."""
        low, high = self.offsets(wall)
        found = [self.shifted(wall)]
        if low == high:
            return found
        again = to_ms(wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC))
        return sorted({ms for ms in (*found, again) if self.wall(ms) == wall})

    def offsets(self, wall: datetime) -> tuple[timedelta, timedelta]:
        """Return how far clocks are ahead of UTC near a time on the wall, at least and at most."""
        return _offsets(self._zone, wall.date())


@lru_cache(maxsize=4096)
def _offsets(zone: ZoneInfo, day: date) -> tuple[timedelta, timedelta]:
    """Return the offsets from UTC near a day; many rules ask for the same days."""
    noon = datetime(day.year, day.month, day.day, 12)
    sides = [noon + side * CHANGE / 2 for side in range(-3, 4)]
    found = [side.replace(tzinfo=zone).utcoffset() or timedelta() for side in sides]
    return min(found), max(found)


class OnTheWall:
    """The moments of times on the wall, from a first time to a last one."""

    def __init__(self, zone: Zone, walls: Walls, begin: datetime, until: datetime) -> None:
        self._zone, self._walls = zone, walls
        self._begin, self._until = begin, until
        self._is_off: Callable[[date], bool] | None = None

    def with_walls(
        self, change: Callable[[Bounded], Bounded], is_off: Callable[[date], bool]
    ) -> Self:
        """Change the times on the wall, and from when to when there are any; return the rule.

        There are no moments on a day that ``is_off``, also where clocks skip a time onto it.
        """
        found = change(Bounded(self._walls, self._begin, self._until))
        self._walls, self._begin, self._until = found
        self._is_off = is_off
        return self

    def moments(self, wall: datetime) -> Sequence[int]:
        """Return the moments of a wall-clock time when the rule fires, in order."""
        return [self._zone.shifted(wall)]

    def following(self, ms: int) -> Iterator[int]:
        """Yield the moments after one, in order."""
        wall, held = self._zone.wall(ms), list[int]()
        low, high = self._zone.offsets(wall)
        start = max(wall - (high - low), self._begin)
        for one in self._ahead(start):
            low, high = self._zone.offsets(one)
            # A time that clocks skip is shifted past later wall-clock times, so each moment is
            # held until no following time can come before it.
            for found in self._kept(one, low == high):
                heappush(held, found)
            earliest_ms = _as_utc_ms(one - high)
            while held and held[0] <= earliest_ms:
                found = heappop(held)
                if found > ms:
                    ms = found
                    yield found
        yield from sorted({found for found in held if found > ms})

    def before(self, ms: int) -> int | None:
        """Return the last moment that is not after the given one, or None."""
        wall, last = self._zone.wall(ms), None
        low, high = self._zone.offsets(wall)
        # A time that is ahead by more than clocks are set is always later.
        stop = min(wall + (high - low), self._until)
        for one in self._walls.back(max(wall - HORIZON, self._begin), stop):
            low, high = self._zone.offsets(one)
            # No earlier wall-clock time comes later than that.
            if last is not None and _as_utc_ms(one - low) <= last:
                break
            for found in self._kept(one, low == high):
                if found <= ms and (last is None or found > last):
                    last = found
        return last

    def _kept(self, wall: datetime, is_plain: bool) -> Sequence[int]:
        """Return the moments of a time, without those that clocks skip onto a day off."""
        found, is_off = self.moments(wall), self._is_off
        if is_plain or is_off is None:
            return found
        return [ms for ms in found if not is_off(self._zone.wall(ms).date())]

    def _ahead(self, start: datetime) -> Iterator[datetime]:
        """Yield the times on the wall from one on, in order."""
        return ahead_to_gap(self._walls, start, self._until)


def ahead_to_gap(walls: Walls, start: datetime, stop: datetime) -> Iterator[datetime]:
    """Yield the times from ``start`` to ``stop``, in order: none after a gap of 50 years."""
    last: datetime | None = start
    while last is not None and start <= stop:
        end, last = min(stop, start + HORIZON if start < LAST - HORIZON else LAST), None
        for last in walls.ahead(start, end):
            yield last
        if last is not None:
            start = last + timedelta.resolution


def _as_utc_ms(wall: datetime) -> int:
    return to_ms(wall.replace(tzinfo=UTC))
