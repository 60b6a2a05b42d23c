"""Working days: the times of a rule without those on days off, or with these on other days."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import groupby

from dwell.calendar.daysoff import MOST_IN_A_ROW, DaysOff
from dwell.calendar.walls import HORIZON, LAST, Bounded, Walls

_DAY = timedelta(days=1)


def without(off: DaysOff, rule: Bounded) -> Bounded:
    """Return the times of a rule on the days that are not off."""
    # Some are moved over the begin or the end.
    span = abs(off.step) * MOST_IN_A_ROW * _DAY
    walls = WorkingDays(rule.walls, off, rule.begin, rule.until)
    return Bounded(walls, rule.begin - span, min(rule.until + span, LAST))


class WorkingDays:
    """The wall-clock times of others, from a begin to an end, with none on a day off."""

    def __init__(self, walls: Walls, off: DaysOff, begin: datetime, until: datetime) -> None:
        self._walls, self._off = walls, off
        self._begin, self._until = begin, until

    def ahead(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times from ``start`` to ``stop``, in order."""
        return self._moved(start, stop, 1) if self._off.step else self._left(start, stop, 1)

    def back(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield the same, the last first."""
        return self._moved(start, stop, -1) if self._off.step else self._left(start, stop, -1)

    def _inner(self, start: datetime, stop: datetime, step: int) -> Iterator[datetime]:
        start, stop = max(start, self._begin), min(stop, self._until)
        if start > stop:
            return iter(())
        return (self._walls.ahead if step > 0 else self._walls.back)(start, stop)

    def _left(self, start: datetime, stop: datetime, step: int) -> Iterator[datetime]:
        last = start if step > 0 else stop
        while True:
            for wall in self._inner(start, stop, step):
                if self._off.has(wall.date()):
                    if abs(wall - last) > HORIZON:
                        return
                    # Of a day that is off, the first time is enough to know.
                    day = self._off.after(wall.date(), step)
                    start, stop = (_midnight(day), stop) if step > 0 else (start, _end(day))
                    break
                last = wall
                yield wall
            else:
                return

    def _moved(self, start: datetime, stop: datetime, step: int) -> Iterator[datetime]:
        # The days before the first one, or after the last one, may be moved into the span.
        first, last = start.date(), stop.date()
        if self._off.step > 0:
            first = self._off.after(first - _DAY, -1)
        else:
            last = self._off.after(last + _DAY)
        found = self._inner(_midnight(first), _end(last), step)
        for day, walls in groupby(found, lambda wall: self._off.after(wall.date(), self._off.step)):
            for wall in sorted({_on(day, wall) for wall in walls})[::step]:
                if start <= wall <= stop:
                    yield wall


def _on(day: date, wall: datetime) -> datetime:
    """Return a time on another day, where it does not come a second time."""
    return wall if wall.date() == day else datetime.combine(day, wall.time().replace(fold=0))


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)


def _end(day: date) -> datetime:
    return _midnight(day) + _DAY - timedelta.resolution
