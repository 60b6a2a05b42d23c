"""Days: recurrences whose steps are minutes, hours, days or weeks, a day at a time.

The times of a day follow from the day alone. So a walk in either direction takes some microseconds
for a day without times, and need not start at the begin of the rule.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from calendar import isleap, monthrange
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import compress

_DAY_MINUTES = 24 * 60
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
#: How many steps a day has; a day is one, and so is a week.
_UNITS = {"MINUTELY": _DAY_MINUTES, "HOURLY": 24, "DAILY": 1, "WEEKLY": 1}


class Days:
    """The wall-clock times of a recurrence whose parts are complete, by days."""

    def __init__(self, parts: Mapping[str, str], begin: datetime) -> None:
        self._interval = int(parts.get("INTERVAL", 1))
        self._units = _UNITS[parts["FREQ"]]
        weeks_begin = _WEEKDAYS.index(parts.get("WKST", "MO"))
        self._weeks_begin = weeks_begin if parts["FREQ"] == "WEEKLY" else None
        self._minutes, self._has_minute = _minutes_of(parts.get("BYHOUR"), parts.get("BYMINUTE"))
        self._seconds = sorted(set(_numbers(parts["BYSECOND"])))
        self._weekdays = {_WEEKDAYS.index(day) for day in re.findall("[A-Z]+", parts["BYDAY"])}
        self._months = set(_numbers(parts.get("BYMONTH", "1,2,3,4,5,6,7,8,9,10,11,12")))
        # That there is a day 0 says nothing to the library which reads rules.
        self._monthdays = set(_numbers(parts.get("BYMONTHDAY", "0"))) - {0}
        self._yeardays = set(_numbers(parts.get("BYYEARDAY", "0"))) - {0}
        minute = begin.hour * 60 + begin.minute
        unit = minute * self._units // _DAY_MINUTES
        self._begin = self._number(begin.toordinal()) + unit

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        for day in range(start.toordinal(), stop.toordinal() + 1):
            yield from self._of_day(day, start, stop, 1)

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        for day in range(stop.toordinal(), start.toordinal() - 1, -1):
            yield from self._of_day(day, start, stop, -1)

    def _of_day(
        self, day: int, start: datetime, stop: datetime, direction: int
    ) -> Iterator[datetime]:
        first = (self._begin - self._number(day)) % self._interval
        if first >= self._units or not self._is_on(day):
            return
        midnight = datetime.fromordinal(day)
        low, high = _minute(start - midnight), _minute(stop - midnight)
        minutes = self._minutes_of_day(first)
        minutes = minutes[bisect_left(minutes, low) : bisect_right(minutes, high)]
        for minute in minutes[::direction]:
            for second in self._seconds[::direction]:
                wall = midnight + timedelta(minutes=minute, seconds=second)
                if start <= wall <= stop:
                    yield wall

    def _minutes_of_day(self, first: int) -> Sequence[int]:
        """Return the minutes of a day on which a step is the first one."""
        if self._interval == 1 or self._units == 1:
            return self._minutes
        units = range(first, self._units, self._interval)
        if self._units == _DAY_MINUTES:
            return [minute for minute in units if self._has_minute[minute]]
        size, minutes = _DAY_MINUTES // self._units, self._minutes
        places = ((bisect_left(minutes, unit * size), unit * size + size) for unit in units)
        return [m for at, end in places for m in minutes[at : bisect_left(minutes, end)]]

    def _number(self, day: int) -> int:
        """Return the number of a day's week or of its first step; some day is the first of all."""
        if self._weeks_begin is not None:
            return (day - 1 - self._weeks_begin) // 7
        return day * self._units

    def _is_on(self, day: int) -> bool:
        if (day - 1) % 7 not in self._weekdays:
            return False
        found = date.fromordinal(day)
        if found.month not in self._months:
            return False
        if self._yeardays and self._yeardays.isdisjoint(_both_numbers_of_year(found)):
            return False
        return not self._monthdays or not self._monthdays.isdisjoint(_both_numbers(found))


@lru_cache(maxsize=256)
def _minutes_of(by_hour: str | None, by_minute: str | None) -> tuple[Sequence[int], bytes]:
    """Return the minutes of a day that a rule allows, and for each whether it is among them.

    Most rules say the same of them, and many rules are kept, so that these have them in common.
    """
    hours = range(24) if by_hour is None else set(_numbers(by_hour))
    minutes = range(60) if by_minute is None else set(_numbers(by_minute))
    has_minute = bytes(
        minute // 60 in hours and minute % 60 in minutes for minute in range(_DAY_MINUTES)
    )
    return array("H", compress(range(_DAY_MINUTES), has_minute)), has_minute


def _minute(span: timedelta) -> int:
    return span // timedelta(minutes=1)


def _both_numbers(day: date) -> tuple[int, int]:
    """Return the number of a day in its month, counted from the start and from the end."""
    return day.day, day.day - 1 - monthrange(day.year, day.month)[1]


def _both_numbers_of_year(day: date) -> tuple[int, int]:
    """Return the number of a day in its year, counted from the start and from the end."""
    number = day.toordinal() - date(day.year - 1, 12, 31).toordinal()
    return number, number - 366 - isleap(day.year)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
