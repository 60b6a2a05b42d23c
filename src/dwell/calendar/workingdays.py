"""Working days: the times of a rule without those on days off, or with these on other days."""

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from heapq import merge
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
        self._last: tuple[date, tuple[date, date]] | None = None

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
        low, high = self._sources(start, stop)
        while True:
            for wall in self._inner(low, high, step):
                first, last = self._row(wall.date())
                if first == last:
                    yield wall
                    continue
                yield from self._of_row(first, last, (start, stop), step)
                # The walk goes on after, or before, all days of this row.
                low, high = (
                    (_midnight(last + _DAY), high) if step > 0 else (low, _end(first - _DAY))
                )
                break
            else:
                return

    def _sources(self, start: datetime, stop: datetime) -> tuple[datetime, datetime]:
        """Return from when to when times may be moved into a span."""
        first, last = self._row(start.date())
        low = start if first == last else _midnight(first)
        first, last = self._row(stop.date())
        return low, stop if first == last else _end(last)

    def _row(self, day: date) -> tuple[date, date]:
        """Return the first and the last day whose times go where those of a day go."""
        known = self._last
        if known is None or known[0] != day:
            step = self._off.step
            target = self._off.after(day, step)
            other = self._off.after(target - step * _DAY, -step) + step * _DAY
            self._last = known = day, (min(target, other), max(target, other))
        return known[1]

    def _of_row(
        self, first: date, last: date, span: tuple[datetime, datetime], step: int
    ) -> Iterator[datetime]:
        """Yield the times of a row on its day that is not off, and make no others."""
        target = last if self._off.step > 0 else first
        start, stop = max(span[0], _midnight(target)), min(span[1], _end(target))
        if start > stop:
            return
        days = [first + number * _DAY for number in range((last - first).days + 1)]
        times = [self._on(day, target, start.time(), stop.time(), step) for day in days]
        for (wall, _), _ in groupby(merge(*times, reverse=step < 0), lambda one: (one, one.fold)):
            yield wall

    def _on(
        self, day: date, target: date, start: time, stop: time, step: int
    ) -> Iterator[datetime]:
        """Yield the times of a day on another one, where none comes a second time."""
        low, high = datetime.combine(day, start), datetime.combine(day, stop)
        for wall in self._inner(low, high, step):
            moved = datetime.combine(target, wall.time().replace(fold=0))
            yield wall if day == target else moved


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)


def _end(day: date) -> datetime:
    return _midnight(day) + _DAY - timedelta.resolution
