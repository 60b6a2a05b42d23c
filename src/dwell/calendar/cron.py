"""Cron: five fields as in crontab(5), or six with seconds first, in a time zone.

When clocks change, lines that name hours and minutes run as in Debian's cron: a run in a skipped
hour happens right after it, and a run in a repeated hour happens once. Lines with a ``*`` in
minutes or hours follow elapsed time.
"""

from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache, partial
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dwell.calendar.clock import clock
from dwell.calendar.dialects import as_read, hint, long_step, odd_step
from dwell.calendar.epoch import from_ms
from dwell.calendar.monthdays import Matcher, month_day
from dwell.calendar.walls import HORIZON, LAST, OnTheWall, Zone
from dwell.errors import InvalidSchedule

_DAY = timedelta(days=1)
#: The values of each field, by the names of fields in the errors of the library.
_RANGES = {
    "second": ", allowed are 0 to 59",
    "minute": ", allowed are 0 to 59",
    "hour": ", allowed are 0 to 23",
    "day-of-month": ", allowed are 1 to 31 that the month has, L, LW, L-3 and 15W",
    "month": ", allowed are 1 to 12 and jan to dec",
    "day-of-week": ", allowed are 0 to 7 from Sunday on, and sun to sat",
}


class Cron(OnTheWall):
    """A line of cron in a zone."""

    def __init__(self, line: str, zone: ZoneInfo) -> None:
        there, walls = Zone(zone), _read(line)
        super().__init__(there, walls, there.wall(0) - _DAY, LAST)
        self._names_time = walls.names_time

    def moments(self, wall: datetime) -> Sequence[int]:
        """Return the moments when the line fires for a wall-clock time."""
        return [self._zone.first(wall)] if self._names_time else self._zone.all(wall)

    def _ahead(self, start: datetime) -> Iterator[datetime]:
        # Days end it that have been without a time for long.
        return self._walls.ahead(start, LAST)


class _Lines:
    """The times on the wall that a line lists: none after a gap of 50 years.

    ``names_time`` tells whether it names hours and minutes.
    """

    def __init__(self, read: CronSim, is_on: Matcher) -> None:
        minutes, hours = read.parts[1:3]
        self.names_time = not (minutes.startswith("*") or hours.startswith("*"))
        self._months = read.months
        self._is_on = is_on
        self._clock = clock(*map(frozenset, (read.hours, read.minutes, read.seconds)))

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        for day in self._days(start.date(), stop.date(), 1):
            yield from self._clock.on(day.toordinal(), None, start, stop, 1)

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        for day in self._days(stop.date(), start.date(), -1):
            yield from self._clock.on(day.toordinal(), None, start, stop, -1)

    def _days(self, day: date, last: date, step: int) -> Iterator[date]:
        end, one = _end(day, last, step), step * _DAY
        while (end - day).days * step >= 0:
            if day.month not in self._months:
                first, size = day.replace(day=1), monthrange(day.year, day.month)[1]
                day = first + size * _DAY if step > 0 else first - _DAY
                continue
            if self._is_on(day):
                yield day
                end = _end(day, last, step)
            day += one


@lru_cache(maxsize=4096)
def _read(line: str) -> _Lines:
    """Return the times of a line; schedules in many zones have the same one."""
    if not line.isascii():
        raise InvalidSchedule(f"cron: got {line!r:.80}, expected ASCII characters alone")
    fields = as_read(line)
    day = fields[-3] if len(fields) in (5, 6) else ""
    of_month = {part: month_day(part) for part in day.split(",")}
    own = [matcher for matcher in of_month.values() if matcher is not None]
    others = ",".join(part for part, matcher in of_month.items() if matcher is None)
    if own:
        # The library needs a day in any case.
        fields[-3] = others or "1"
    odd = odd_step(line)
    try:
        read = CronSim(" ".join(fields), from_ms(0))
    except (CronSimError, ValueError) as error:
        told = f"{error}{_RANGES.get(str(error).removeprefix('Bad '), '')}"
        allowed = hint(line) or odd or f'five fields such as "0 9 * * mon-fri": {told}'
        raise InvalidSchedule(f"cron: got {line!r:.80}, expected {allowed}") from None
    if steps := odd or long_step(line):
        raise InvalidSchedule(f"cron: got {line!r:.80}, expected {steps}")
    if not own:
        # A line whose weekday is open has the days of its month, whatever the weekday.
        return _Lines(read, read.match_dom if read.parts[5] == "*" else read.match_day)
    if others:
        own.append(read.match_dom)
    return _Lines(read, partial(_is_on, own, read, day.startswith("*")))


def _is_on(of_month: Sequence[Matcher], read: CronSim, is_starred: bool, day: date) -> bool:
    """Tell whether a line with days that the library does not read runs on a day."""
    is_day, weekday = any(is_it(day) for is_it in of_month), read.parts[5]
    if weekday == "*" or is_day != (is_starred or weekday.startswith("*")):
        return is_day
    return read.match_dow(day)


def _end(day: date, last: date, step: int) -> date:
    """Return up to where the next day is looked for: the last day, and at most 50 years."""
    return day + step * HORIZON if abs(last - day) > HORIZON else last
