"""Cron: five fields as in crontab(5), or six with seconds first, in a time zone.

When clocks change, lines that name hours and minutes run as in Debian's cron: a run in a skipped
hour happens right after it, and a run in a repeated hour happens once. Lines with a ``*`` in
minutes or hours follow elapsed time.
"""

from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import product
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dwell.calendar.dialects import as_read, hint, long_step
from dwell.calendar.epoch import from_ms
from dwell.calendar.walls import HORIZON, LAST, OnTheWall, Zone
from dwell.errors import InvalidSchedule

_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)


class Cron(OnTheWall):
    """A line of cron in a zone."""

    def __init__(self, line: str, zone: ZoneInfo) -> None:
        plain = as_read(line)
        try:
            read = CronSim(plain, from_ms(0))
        except (CronSimError, ValueError) as error:
            allowed = hint(line) or f'five fields such as "0 9 * * mon-fri": {error}'
            raise InvalidSchedule(f"cron: got {line!r:.80}, expected {allowed}") from None
        if steps := long_step(plain):
            raise InvalidSchedule(f"cron: got {line!r:.80}, expected {steps}")
        there = Zone(zone)
        super().__init__(there, _Lines(read), there.wall(0) - _DAY, LAST)
        minutes, hours = read.parts[1:3]
        self._names_time = not (minutes.startswith("*") or hours.startswith("*"))

    def moments(self, wall: datetime) -> Sequence[int]:
        """Return the moments when the line fires for a wall-clock time."""
        return [self._zone.first(wall)] if self._names_time else self._zone.all(wall)

    def _ahead(self, start: datetime) -> Iterator[datetime]:
        # Days end it that have been without a time for long.
        return self._walls.ahead(start, LAST)


class _Lines:
    """The times on the wall that a line lists: none after a gap of 50 years."""

    def __init__(self, read: CronSim) -> None:
        self._read = read
        self._hours, self._minutes = sorted(read.hours), sorted(read.minutes)
        self._seconds = sorted(read.seconds)

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        for day in self._days(start.date(), stop.date(), 1):
            yield from self._of_day(day, start, stop, 1)

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        for day in self._days(stop.date(), start.date(), -1):
            yield from self._of_day(day, start, stop, -1)

    def _days(self, day: date, last: date, step: int) -> Iterator[date]:
        end = _end(day, last, step)
        while (end - day).days * step >= 0:
            if day.month not in self._read.months:
                first, size = day.replace(day=1), monthrange(day.year, day.month)[1]
                day = first + size * _DAY if step > 0 else first - _DAY
                continue
            if self._read.match_day(day):
                yield day
                end = _end(day, last, step)
            day += step * _DAY

    def _of_day(self, day: date, start: datetime, stop: datetime, step: int) -> Iterator[datetime]:
        # Hours of the first and the last day that are outside need no look at their minutes.
        least = start.hour if day == start.date() else 0
        most = stop.hour if day == stop.date() else 23
        hours = [hour for hour in self._hours[::step] if least <= hour <= most]
        for hour, minute in product(hours, self._minutes[::step]):
            at = datetime(day.year, day.month, day.day, hour, minute)
            if start - _MINUTE < at <= stop:
                for second in self._seconds[::step]:
                    wall = at.replace(second=second)
                    if start <= wall <= stop:
                        yield wall


def _end(day: date, last: date, step: int) -> date:
    """Return up to where the next day is looked for: the last day, and at most 50 years."""
    return day + step * HORIZON if abs(last - day) > HORIZON else last
