"""Positions: of the times in each step of a recurrence, the first, the last or others (BYSETPOS).

The steps are minutes, hours, days or weeks. A step counts in full, also when the rule begins in the
middle of it: times before the begin have positions too.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby

from dwell.calendar.walls import Walls

_SIZES = {
    "MINUTELY": timedelta(minutes=1),
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(days=7),
}
#: A moment of the weekday 0 when a minute, an hour, a day and a week begin.
_MONDAY = datetime(1900, 1, 1)


class Positions:
    """The wall-clock times of others at some positions in their steps.

    Positions count from 1, or from the last one down from -1; ``weeks_begin`` is a weekday from 0.
    """

    def __init__(
        self, walls: Walls, frequency: str, positions: Sequence[int], weeks_begin: int
    ) -> None:
        self._walls = walls
        self._positions = sorted(positions)
        self._size = _SIZES[frequency]
        # Weeks may begin on any day; the other steps do so as well at its midnight.
        self._first = _MONDAY + timedelta(days=weeks_begin)

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        for step in self._steps(start, stop, 1):
            yield from (wall for wall in step if start <= wall <= stop)

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        for step in self._steps(start, stop, -1):
            yield from (wall for wall in reversed(step) if start <= wall <= stop)

    def of_week(self, begin: datetime) -> Sequence[datetime]:
        """Return what is picked of a week, in order."""
        return self._picked(list(self._walls.ahead(begin, self._end(begin))))

    def _steps(self, start: datetime, stop: datetime, way: int) -> Iterator[Sequence[datetime]]:
        """Yield what is picked of each step, from the begin of the first to the end of the last."""
        first, last = self._begin(start), self._begin(stop)
        if self._size == _SIZES["WEEKLY"]:
            weeks = range((last - first) // self._size + 1)
            for number in weeks[::way]:
                yield _of_week(self, first + number * self._size)
            return
        walk = self._walls.ahead if way > 0 else self._walls.back
        for _, step in groupby(walk(first, self._end(last)), self._begin):
            yield self._picked(list(step)[::way])

    def _end(self, begin: datetime) -> datetime:
        return begin + self._size - timedelta.resolution

    def _begin(self, wall: datetime) -> datetime:
        return wall - (wall - self._first) % self._size

    def _picked(self, step: list[datetime]) -> list[datetime]:
        size = len(step)
        places = {place - 1 if place > 0 else size + place for place in self._positions}
        return [step[place] for place in sorted(places) if 0 <= place < size]


@lru_cache(maxsize=4)
def _of_week(positions: Positions, begin: datetime) -> Sequence[datetime]:
    """Return the picked times of a week; walks often restart in the same one."""
    return positions.of_week(begin)
