"""Clocks: the times of a day when a rule fires."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from itertools import product

from dwell.calendar.parts import numbers

DAY_MINUTES = 24 * 60
_MINUTE = timedelta(minutes=1)


class Clock:
    """The times at some minutes and seconds of each day; ``minutes`` count from midnight."""

    def __init__(
        self, hours: Collection[int], minutes: Collection[int], seconds: Collection[int]
    ) -> None:
        self.minutes = array("H", sorted(h * 60 + m for h, m in product(hours, minutes)))
        self._seconds = sorted(seconds)

    @cached_property
    def has_minute(self) -> bytes:
        """For each minute of a day, whether there are times in it."""
        found = bytearray(DAY_MINUTES)
        for minute in self.minutes:
            found[minute] = True
        return bytes(found)

    def on(
        self, day: int, minutes: Sequence[int] | None, start: datetime, stop: datetime, step: int
    ) -> Iterator[datetime]:
        """Yield the times of a day from ``start`` to ``stop``, the last first if ``step`` is -1.

        ``day`` is its proleptic Gregorian ordinal; ``minutes`` are some of the minutes, or None for
        all of them.
        """
        minutes = self.minutes if minutes is None else minutes
        midnight = datetime.fromordinal(day)
        low, high = (start - midnight) // _MINUTE, (stop - midnight) // _MINUTE
        if low >= 0 or high < DAY_MINUTES:
            minutes = minutes[bisect_left(minutes, low) : bisect_right(minutes, high)]
        for minute in minutes[::step]:
            for second in self._seconds[::step]:
                wall = midnight + timedelta(minutes=minute, seconds=second)
                if start <= wall <= stop:
                    yield wall


def clock_of(parts: Mapping[str, str]) -> Clock:
    """Return the times of a day that a rule allows; one without an hour or minute allows all."""
    return _read(parts.get("BYHOUR"), parts.get("BYMINUTE"), parts["BYSECOND"])


@lru_cache(maxsize=256)
def clock(hours: Collection[int], minutes: Collection[int], seconds: Collection[int]) -> Clock:
    """Return a clock: most rules have the same times, and many rules are kept."""
    return Clock(hours, minutes, seconds)


@lru_cache(maxsize=256)
def _read(by_hour: str | None, by_minute: str | None, by_second: str) -> Clock:
    hours = range(24) if by_hour is None else numbers(by_hour)
    minutes = range(60) if by_minute is None else numbers(by_minute)
    return clock(frozenset(hours), frozenset(minutes), frozenset(numbers(by_second)))
