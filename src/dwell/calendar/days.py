"""Days: recurrences whose steps are minutes, hours, days or weeks, a day at a time.

Whether a day has a moment, and which, follows from the day alone. So a walk in either direction
takes some microseconds for a day without any, and nobody has to begin where the rule does.
"""

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta

_DAY_MINUTES = 24 * 60
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
#: How many steps a day has; a day is one, and so is a week.
_UNITS = {"MINUTELY": _DAY_MINUTES, "HOURLY": 24, "DAILY": 1, "WEEKLY": 1}


class Days:
    """What a recurrence shows on the wall, whose parts are complete."""

    def __init__(self, parts: Mapping[str, str], begin: datetime) -> None:
        self._interval = int(parts.get("INTERVAL", 1))
        self._units = _UNITS[parts["FREQ"]]
        weeks_begin = _WEEKDAYS.index(parts.get("WKST", "MO"))
        self._weeks_begin = weeks_begin if parts["FREQ"] == "WEEKLY" else None
        self._within = _minutes_within(parts, self._units)
        self._seconds = sorted(set(_numbers(parts["BYSECOND"])))
        self._weekdays = {_WEEKDAYS.index(day) for day in re.findall("[A-Z]+", parts["BYDAY"])}
        self._months = set(_numbers(parts.get("BYMONTH", "1,2,3,4,5,6,7,8,9,10,11,12")))
        # That there is a day 0 says nothing to the library which reads rules.
        self._monthdays = set(_numbers(parts.get("BYMONTHDAY", "0"))) - {0}
        minute = begin.hour * 60 + begin.minute
        unit = minute * self._units // _DAY_MINUTES
        self._begin = self._number(begin.toordinal()) + unit

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield what is on the wall from ``start`` to ``stop``, in order."""
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
        units = range(first, self._units, self._interval)
        for minute in [m for unit in units for m in self._within[unit]][::direction]:
            if low <= minute <= high:
                for second in self._seconds[::direction]:
                    wall = midnight + timedelta(minutes=minute, seconds=second)
                    if start <= wall <= stop:
                        yield wall

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
        return not self._monthdays or not self._monthdays.isdisjoint(_both_numbers(found))


def _minutes_within(parts: Mapping[str, str], units: int) -> list[list[int]]:
    """Return the minutes of a day that a rule allows, by the steps of the day they are in."""
    hours = set(_numbers(parts["BYHOUR"])) if "BYHOUR" in parts else set(range(24))
    minutes = set(_numbers(parts["BYMINUTE"])) if "BYMINUTE" in parts else set(range(60))
    found: list[list[int]] = [[] for _ in range(units)]
    for minute in range(_DAY_MINUTES):
        if minute // 60 in hours and minute % 60 in minutes:
            found[minute * units // _DAY_MINUTES].append(minute)
    return found


def _minute(span: timedelta) -> int:
    return span // timedelta(minutes=1)


def _both_numbers(day: date) -> tuple[int, int]:
    """Return the number of a day in its month, and the one from the month's end on."""
    return day.day, day.day - 1 - monthrange(day.year, day.month)[1]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
