"""Months: recurrences whose steps are months or years, a step at a time.

The library that knows weeks of a year and Easter computes one step only. It would walk to the year
9999 for a rule that never fires, and cannot walk backwards. It lists days, which many rules have in
common; only for positions (BYSETPOS) it lists their times as well.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from dateutil.rrule import rrule, rrulestr

from dwell.calendar.clock import clock_of
from dwell.calendar.parts import written

#: So many steps are more than the years that there are.
_NO_SECOND_STEP = 200_000
_MIDNIGHT = {"BYHOUR": "0", "BYMINUTE": "0", "BYSECOND": "0"}


class Months:
    """The wall-clock times of a recurrence whose parts are complete, by months or years."""

    def __init__(self, parts: Mapping[str, str], begin: datetime) -> None:
        self._is_yearly = parts["FREQ"] == "YEARLY"
        self._months = int(parts.get("INTERVAL", 1)) * (12 if self._is_yearly else 1)
        self._begin = self._number(begin)
        self._clock = None if "BYSETPOS" in parts else clock_of(parts)
        listed = {**parts, "INTERVAL": str(_NO_SECOND_STEP)}
        self._text = written(listed if self._clock is None else {**listed, **_MIDNIGHT})
        _rule(self._text)

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        for month in self._steps(start, stop):
            yield from self._of_step(month, start, stop, 1)

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        for month in reversed(self._steps(start, stop)):
            yield from self._of_step(month, start, stop, -1)

    def _steps(self, start: datetime, stop: datetime) -> range:
        passed = (self._number(start) - self._begin) // self._months
        return range(self._begin + passed * self._months, self._number(stop) + 1, self._months)

    def _number(self, wall: datetime) -> int:
        """Return the number of the month that begins the step."""
        return wall.year * 12 + (0 if self._is_yearly else wall.month - 1)

    def _of_step(
        self, month: int, start: datetime, stop: datetime, step: int
    ) -> Iterator[datetime]:
        if self._clock is None:
            walls = _walls(self._text, month)
            yield from walls[bisect_left(walls, start) : bisect_right(walls, stop)][::step]
            return
        days = _days(self._text, month)
        first, last = bisect_left(days, start.toordinal()), bisect_right(days, stop.toordinal())
        for day in days[first:last][::step]:
            yield from self._clock.on(day, None, start, stop, step)


def read_rule(text: str, begin: datetime) -> rrule:
    """Return the rule of the library that a text is; raises what the library does."""
    if len(text.split()) != 1:
        raise ValueError("got spaces")
    rule = rrulestr(f"RRULE:{text}", dtstart=begin)
    assert isinstance(rule, rrule)
    return rule


@lru_cache(maxsize=256)
def _rule(text: str) -> rrule:
    return read_rule(text, datetime(1970, 1, 1))


@lru_cache(maxsize=4)
def _walls(text: str, month: int) -> Sequence[datetime]:
    """Return the times of the step that a month begins.

    Walks that restart after each day off are often in the same step. Few are kept, as a year may
    have a hundred thousand.
    """
    return list(_rule(text).replace(dtstart=datetime(month // 12, month % 12 + 1, 1)))


@lru_cache(maxsize=256)
def _days(text: str, month: int) -> Sequence[int]:
    """Return the days of a step by their ordinals."""
    return array("l", [day.toordinal() for day in _walls(text, month)])
