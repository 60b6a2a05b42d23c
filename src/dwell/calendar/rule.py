"""Rules: a line of cron, a recurrence of RFC 5545, or a span that repeats."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from itertools import count
from typing import Protocol

from dwell.calendar.daysoff import DaysOff
from dwell.calendar.walls import OnTheWall
from dwell.calendar.workingdays import without
from dwell.calendar.zones import zone_of
from dwell.errors import InvalidSchedule
from dwell.message import MAX_CRON_CHARS


class Rule(Protocol):
    """When something happens: moments in epoch milliseconds, in order, all of them different."""

    def following(self, ms: int) -> Iterator[int]:
        """Yield the moments after one, in order."""

    def before(self, ms: int) -> int | None:
        """Return the last moment that is not after the given one, or None."""


class Every:
    """A span that repeats, from the epoch or another moment on, independent of time zones."""

    def __init__(self, span_ms: int, from_ms: int = 0) -> None:
        self._span_ms = span_ms
        self._from_ms = from_ms

    def following(self, ms: int) -> Iterator[int]:
        """Yield the moments after one, in order."""
        return count(max(self._at(ms) + self._span_ms, self._from_ms), self._span_ms)

    def before(self, ms: int) -> int | None:
        """Return the last moment that is not after one, or None before the first."""
        return None if ms < self._from_ms else self._at(ms)

    def _at(self, ms: int) -> int:
        return ms - (ms - self._from_ms) % self._span_ms


def every(span_ms: int, from_ms: int | None) -> Rule:
    """Return a span that repeats; without a start it is aligned to the epoch.

    Raises InvalidSchedule.
    """
    if span_ms < 1:
        raise InvalidSchedule(f"every: got {span_ms} ms, expected 1 ms or more")
    return Every(span_ms, from_ms or 0)


def missing() -> list[str]:
    """Return the packages that read rules and are not installed here."""
    return [name for name in ("cronsim", "dateutil") if find_spec(name) is None]


def rule_of(kind: str, text: str, zone: str, from_ms: int, days_off: DaysOff | None = None) -> Rule:
    """Return the rule of a text, in a zone; ``kind`` is ``cron`` or ``rrule``.

    A recurrence begins at ``from_ms`` unless it states its begin, and is in ``zone`` unless that is
    UTC and it states another one. Raises InvalidSchedule if the text cannot be read, or the package
    that reads it is not installed.
    """
    where = zone_of(zone)
    try:
        if kind == "cron":
            if len(text) > MAX_CRON_CHARS:
                raise InvalidSchedule(f"cron: got {len(text)} characters, at most {MAX_CRON_CHARS}")
            from dwell.calendar.cron import Cron

            return _working(Cron(text, where), days_off)
        from dwell.calendar.recurrence import Recurrence

        return _working(Recurrence(text, where, from_ms), days_off)
    except ImportError as error:
        raise InvalidSchedule(f"{kind}: needs pip install 'dwell[schedules]': {error}") from None


def _working(rule: OnTheWall, off: DaysOff | None) -> Rule:
    return rule if off is None else rule.with_walls(partial(without, off), off.has)
