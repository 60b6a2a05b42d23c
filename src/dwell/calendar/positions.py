"""Positions: of the times in each step of a recurrence, the first, the last or others (BYSETPOS).

The steps are minutes, hours, days or weeks. A step counts in full, also the one in which the rule
begins: what comes before the begin has a position too.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from dwell.calendar.walls import Walls

_SIZES = {
    "MINUTELY": timedelta(minutes=1),
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(days=7),
}
#: A moment of the weekday 0, at which minutes, hours, days and weeks begin.
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
        for _, step in groupby(self._walls.ahead(*self._steps(start, stop)), self._begin):
            yield from (wall for wall in self._picked(list(step)) if start <= wall <= stop)

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        for _, step in groupby(self._walls.back(*self._steps(start, stop)), self._begin):
            picked = self._picked(list(step)[::-1])
            yield from (wall for wall in picked[::-1] if start <= wall <= stop)

    def _steps(self, start: datetime, stop: datetime) -> tuple[datetime, datetime]:
        """Return the begin of the first step and the end of the last one."""
        return self._begin(start), self._begin(stop) + self._size - timedelta.resolution

    def _begin(self, wall: datetime) -> datetime:
        return wall - (wall - self._first) % self._size

    def _picked(self, step: list[datetime]) -> list[datetime]:
        size = len(step)
        places = {place - 1 if place > 0 else size + place for place in self._positions}
        return [step[place] for place in sorted(places) if 0 <= place < size]
