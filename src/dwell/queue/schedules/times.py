"""Times: when a schedule fires, between its start and its end."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain, islice, takewhile
from typing import NamedTuple

from dwell.calendar import DaysOff, Rule, every, rule_of, states_begin, zone_of
from dwell.calendar.epoch import LAST_MS, to_ms
from dwell.errors import InvalidSchedule

#: How many moments that were missed are put at a time.
MOST_AT_ONCE = 1000


class Times:
    """The moments of a rule from a start to an end, both included."""

    def __init__(self, rule: Rule, start_ms: int | None, end_ms: int | None) -> None:
        self._rule = rule
        self._start_ms = -1 if start_ms is None else start_ms
        self._end_ms = LAST_MS if end_ms is None else end_ms

    def following(self, ms: int) -> Iterator[int]:
        """Yield the moments after one, in order."""
        found = self._rule.following(max(ms, self._start_ms - 1))
        return takewhile(lambda moment: moment <= self._end_ms, found)

    def after(self, ms: int) -> int | None:
        """Return the first moment after a given one, or None."""
        return next(self.following(ms), None)

    def before(self, ms: int) -> int | None:
        """Return the last moment that is not after a given one, or None."""
        found = self._rule.before(min(ms, self._end_ms))
        return None if found is None or found < self._start_ms else found


class Plan(NamedTuple):
    """The work of a schedule now: moments to put, the last fired moment after that, the next one.

    ``since_ms`` is up to where it had fired. ``fired_ms`` is None when nothing was due; ``next_ms``
    is None at the end of the schedule. ``passed`` are the first moments since then, put or not.
    Moments were left out because of the message of ``waits_ms``; the messages of the moments
    ``replaces`` are replaced by the put one.
    """

    since_ms: int
    moments: list[int]
    fired_ms: int | None
    next_ms: int | None
    passed: Sequence[int] = ()
    waits_ms: int | None = None
    replaces: Sequence[int] = ()


def plan(
    times: Times,
    since_ms: int,
    now_ms: int,
    misfire: str,
    grace_ms: int,
    *,
    ahead_ms: int = 0,
    knows_passed: bool = False,
) -> Plan:
    """Return what is to be done about the moments after ``since_ms``, up to ``ahead_ms`` from now.

    Of several that have passed, ``misfire`` says which are put: ``once`` the last one, ``all`` each
    of them, ``skip`` those that are at most ``grace_ms`` late; at most 1000 at a time. The moments
    that have passed are listed with ``knows_passed``.
    """
    until_ms = now_ms + ahead_ms
    # As a rule there is one, and what comes next is known with it.
    first, second = islice(chain(times.following(since_ms), (None, None)), 2)
    if first is None or first > until_ms:
        return Plan(since_ms, [], None, first)
    if second is None or second > until_ms:
        is_late = misfire == "skip" and now_ms - first > grace_ms
        return Plan(since_ms, [] if is_late else [first], first, second)
    after_ms = max(since_ms, _left_out_ms(times, now_ms, misfire, grace_ms))
    pending = takewhile(lambda moment: moment <= until_ms, times.following(after_ms))
    moments = list(islice(pending, MOST_AT_ONCE))
    fired_ms = moments[-1] if len(moments) == MOST_AT_ONCE else times.before(until_ms)
    assert fired_ms is not None
    passed = takewhile(lambda moment: moment <= fired_ms, times.following(since_ms))
    first_passed = list(islice(passed, MOST_AT_ONCE)) if knows_passed else ()
    return Plan(since_ms, moments, fired_ms, times.after(fired_ms), first_passed)


def _left_out_ms(times: Times, now_ms: int, misfire: str, grace_ms: int) -> int:
    """Return up to when no moment is put that has passed."""
    if misfire == "skip":
        return now_ms - grace_ms - 1
    last_ms = times.before(now_ms) if misfire == "once" else None
    return -1 if last_ms is None else last_ms - 1


def times_of(
    cron: str | None,
    rrule: str | None,
    every_ms: int | None,
    zone: str,
    start_ms: int | None,
    end_ms: int | None,
    off: DaysOff | None = None,
) -> Times:
    """Return when a schedule fires that says so; raises InvalidSchedule.

    Without a start a span stands on the grid of 1970, and a recurrence begins with that year,
    unless its text states its begin.
    """
    rules = {"cron": cron, "rrule": rrule, "every": every_ms}
    given = [name for name, rule in rules.items() if rule is not None]
    if len(given) != 1:
        told = " and ".join(given) or "none"
        raise InvalidSchedule(f"schedule: got {told}, expected one of cron, every and rrule")
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise InvalidSchedule(f"end: got {end_ms}, expected {start_ms}, the start, or later")
    if every_ms is not None:
        if off is not None:
            raise InvalidSchedule("days_off: got every beside it, expected cron or rrule")
        zone_of(zone)
        return Times(every(every_ms, start_ms), start_ms, end_ms)
    is_counted = rrule is not None and "COUNT=" in rrule.upper()
    if is_counted and start_ms is None and not states_begin(rrule or ""):
        raise InvalidSchedule("rrule: got COUNT without a start or DTSTART to count from")
    text, begin_ms = cron or rrule or "", start_ms
    if begin_ms is None:
        begin_ms = _first_ms(zone)
    return Times(rule_of(given[0], text, zone, begin_ms, off), start_ms, end_ms)


@lru_cache(maxsize=1024)
def _first_ms(zone: str) -> int:
    """Return when the year 1970 begins in a zone."""
    return to_ms(datetime(1970, 1, 1, tzinfo=zone_of(zone)))
