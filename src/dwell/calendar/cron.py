"""Cron: five fields as in crontab(5), or six with seconds first, in a time zone.

Lines that name hours and minutes are made as Debian's cron does when clocks change: what would run
in an hour that is left out runs at once when it is over, and what would run in an hour that comes
twice runs once. Lines with a ``*`` in minutes or hours follow the time that goes by.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dwell.calendar.epoch import LAST_MS, from_ms, to_ms
from dwell.errors import InvalidSchedule

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_STEP_MS = _HOUR_MS // 4
_HORIZON_MS = 50 * 366 * _DAY_MS


class _Lost(Exception):
    """A walk goes round in circles."""


class _Walk(CronSim):
    """A walk that ends also where it would go over a change of clocks again for ever.

    Backwards that is where an island left out a day, forwards where clocks were set back over
    midnight.
    """

    _steps = 0
    _mark: tuple[datetime, int] | None = None

    def advance_month(self) -> None:
        """Take one step of the search for the next moment."""
        self._look()
        super().advance_month()

    def reverse_month(self) -> None:
        """Take one step of the search for the moment before."""
        self._look()
        super().reverse_month()

    def _look(self) -> None:
        """Raise _Lost at a place where the walk has been: from there it does the same again."""
        here = (self.dt, self.dt.fold)
        if here == self._mark:
            raise _Lost
        self._steps += 1
        if self._steps & (self._steps - 1) == 0:
            self._mark = here


class Cron:
    """A line of cron in a zone."""

    def __init__(self, line: str, zone: ZoneInfo) -> None:
        self._line = line
        self._zone = zone
        try:
            CronSim(line, from_ms(0).astimezone(zone))
        except (CronSimError, ValueError) as error:
            allowed = 'five fields such as "0 9 * * mon-fri"'
            raise InvalidSchedule(f"cron: got {line!r:.80}, expected {allowed}: {error}") from None

    def before(self, ms: int) -> int | None:
        """Return the last moment that is not after one, or None where there is none."""
        try:
            return self._found_back(ms)
        except _Lost:
            return self._found_ahead(ms)

    def _found_back(self, ms: int) -> int | None:
        """Return that moment; raises _Lost where there is no way back to it."""
        # Backwards a change of clocks is not what it is forwards, so it only says where to begin.
        for near in _Walk(self._line, from_ms(ms).astimezone(self._zone), reverse=True):
            last = None
            for moment in self.following(max(to_ms(near) - _HOUR_MS, 0)):
                if moment > ms:
                    break
                last = moment
            if last is not None:
                return last
            if to_ms(near) < _DAY_MS:
                break
        return None

    def _found_ahead(self, ms: int) -> int | None:
        """Return that moment by looking ahead, from ever further back and then ever nearer."""
        span_ms = _HOUR_MS
        while (found := self._after(ms - span_ms)) is None or found > ms:
            if span_ms > min(ms, _HORIZON_MS):
                return None
            span_ms *= 4
        while found < ms:
            middle = (found + ms) // 2
            later = self._after(middle)
            if later is None or later > ms:
                ms = middle
            else:
                found = later
        return found

    def _after(self, ms: int) -> int | None:
        return next(self.following(max(ms, 0)), None)

    def following(self, ms: int) -> Iterator[int]:
        """Yield the moments after one, in order; there are none after a gap of 50 years."""
        walk = self._walk(ms)
        while (found := next(walk, None)) is not None:
            change_ms = self._change_between(ms, found)
            # A walk by whole hours over a change of half an hour passes over what stands at the
            # full hour, so what is behind a change is looked for from there, too.
            starts = (
                () if change_ms is None else range(change_ms, change_ms + 2 * _HOUR_MS, _STEP_MS)
            )
            other = min((next(self._walk(start, ms), found) for start in starts), default=found)
            if other < found:
                found, walk = other, self._walk(other)
            ms = found
            yield found

    def _walk(self, ms: int, last_ms: int | None = None) -> Iterator[int]:
        """Yield what a walk from a moment on meets, after ``last_ms`` or that moment."""
        last_ms = ms if last_ms is None else last_ms
        while ms < LAST_MS:
            walk = _Walk(self._line, from_ms(ms).astimezone(self._zone))
            try:
                for found in walk:
                    # What is said in the time of a zone can lie before where it began, or come
                    # twice.
                    if (found_ms := to_ms(found)) > last_ms:
                        last_ms = found_ms
                        yield found_ms
                return
            except _Lost:
                # It goes on behind the change.
                ms = max(to_ms(walk.dt), ms) + _STEP_MS

    def _change_between(self, low: int, high: int) -> int | None:
        """Return when the clocks are set between two moments, by the millisecond, if they are."""
        before = self._offset(low)
        if before == self._offset(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset(middle) == before else (low, middle)
        return high

    def _offset(self, ms: int) -> timedelta | None:
        return from_ms(ms).astimezone(self._zone).utcoffset()
