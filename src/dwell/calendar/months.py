"""Months: recurrences whose steps are months or years, a step at a time.

The library that knows weeks of a year and Easter computes one step only. It would walk to the year
9999 for a rule that never fires, and cannot walk backwards.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from dateutil.rrule import rrule

#: So many steps are more than the years that there are.
_NO_SECOND_STEP = 200_000


class Months:
    """The wall-clock times of a recurrence whose parts are complete, by months or years."""

    def __init__(self, rule: rrule, parts: Mapping[str, str], begin: datetime) -> None:
        self._rule = rule
        self._is_yearly = parts["FREQ"] == "YEARLY"
        self._months = int(parts.get("INTERVAL", 1)) * (12 if self._is_yearly else 1)
        self._begin = self._number(begin)

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        for month in self._steps(start, stop):
            walls = self._of_step(month)
            for place in range(bisect_left(walls, start), bisect_right(walls, stop)):
                yield walls[place]

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        for month in reversed(self._steps(start, stop)):
            walls = self._of_step(month)
            for place in reversed(range(bisect_left(walls, start), bisect_right(walls, stop))):
                yield walls[place]

    def check(self) -> None:
        """Raise the error of the library at the first step, if any."""
        _listed(self, self._begin)

    def _steps(self, start: datetime, stop: datetime) -> range:
        passed = (self._number(start) - self._begin) // self._months
        return range(self._begin + passed * self._months, self._number(stop) + 1, self._months)

    def _number(self, wall: datetime) -> int:
        """Return the number of the month that begins the step."""
        return wall.year * 12 + (0 if self._is_yearly else wall.month - 1)

    def _of_step(self, month: int) -> Sequence[datetime]:
        try:
            return _listed(self, month)
        except IndexError:
            # So many days after Easter are not in each year.
            return []

    def listed(self, month: int) -> Sequence[datetime]:
        """Return all times of the step that a month begins; raises what the library does."""
        begin = datetime(month // 12, month % 12 + 1, 1)
        return list(self._rule.replace(dtstart=begin, interval=_NO_SECOND_STEP))


@lru_cache(maxsize=4)
def _listed(months: Months, month: int) -> Sequence[datetime]:
    """Return the times of a step: walks that begin anew after each day off are often in the same.

    Few are kept, as a year may have a hundred thousand.
    """
    return months.listed(month)
