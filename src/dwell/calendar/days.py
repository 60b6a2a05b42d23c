"""Days: recurrences whose steps are minutes, hours, days or weeks, a day at a time.

The times of a day follow from the day alone. So a walk in either direction takes some microseconds
for a day without times, and need not start at the begin of the rule.
"""

from bisect import bisect_left
from calendar import isleap, monthrange
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime

from dwell.calendar.clock import DAY_MINUTES, clock_of
from dwell.calendar.parts import WEEKDAYS, picked, weekdays

#: How many steps a day has; a day is one, and so is a week.
_UNITS = {"MINUTELY": DAY_MINUTES, "HOURLY": 24, "DAILY": 1, "WEEKLY": 1}


class Days:
    """The wall-clock times of a recurrence whose parts are complete, by days."""

    def __init__(self, parts: Mapping[str, str], begin: datetime) -> None:
        self._interval = int(parts.get("INTERVAL", 1))
        self._units = _UNITS[parts["FREQ"]]
        weeks_begin = WEEKDAYS.index(parts.get("WKST", "MO"))
        self._weeks_begin = weeks_begin if parts["FREQ"] == "WEEKLY" else None
        self._clock = clock_of(parts)
        self._weekdays = weekdays(parts["BYDAY"])
        # Empty allows all.
        self._months = picked(parts.get("BYMONTH", ""))
        self._monthdays = picked(parts.get("BYMONTHDAY", ""))
        self._yeardays = picked(parts.get("BYYEARDAY", ""))
        minute = begin.hour * 60 + begin.minute
        unit = minute * self._units // DAY_MINUTES
        self._begin = self._number(begin.toordinal()) + unit

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        for day in range(start.toordinal(), stop.toordinal() + 1):
            if self._is_on(day):
                yield from self._clock.on(day, self._minutes(day), start, stop, 1)

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        for day in range(stop.toordinal(), start.toordinal() - 1, -1):
            if self._is_on(day):
                yield from self._clock.on(day, self._minutes(day), start, stop, -1)

    def _minutes(self, day: int) -> Sequence[int]:
        """Return the minutes of a day that are in its steps."""
        minutes = self._clock.minutes
        if self._interval == 1 or self._units == 1:
            return minutes
        units = range(self._first(day), self._units, self._interval)
        if self._units == DAY_MINUTES:
            return [minute for minute in units if self._clock.has_minute[minute]]
        size = DAY_MINUTES // self._units
        places = ((bisect_left(minutes, unit * size), unit * size + size) for unit in units)
        return [m for at, end in places for m in minutes[at : bisect_left(minutes, end)]]

    def _first(self, day: int) -> int:
        """Return the number of the first step in a day, or too high a number without one."""
        return (self._begin - self._number(day)) % self._interval

    def _number(self, day: int) -> int:
        """Return the number of a day's week or of its first step; some day is the first of all."""
        if self._weeks_begin is not None:
            return (day - 1 - self._weeks_begin) // 7
        return day * self._units

    def _is_on(self, day: int) -> bool:
        if (day - 1) % 7 not in self._weekdays or self._first(day) >= self._units:
            return False
        if not (self._months or self._monthdays or self._yeardays):
            return True
        found = date.fromordinal(day)
        if self._months and found.month not in self._months:
            return False
        if self._yeardays and self._yeardays.isdisjoint(_both_numbers_of_year(found)):
            return False
        return not self._monthdays or not self._monthdays.isdisjoint(_both_numbers(found))


def _both_numbers(day: date) -> tuple[int, int]:
    """Return the number of a day in its month, counted from the start and from the end."""
    return day.day, day.day - 1 - monthrange(day.year, day.month)[1]


def _both_numbers_of_year(day: date) -> tuple[int, int]:
    """Return the number of a day in its year, counted from the start and from the end."""
    number = day.toordinal() - date(day.year - 1, 12, 31).toordinal()
    return number, number - 366 - isleap(day.year)
