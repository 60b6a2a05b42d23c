"""Recurrences: rules of RFC 5545 (``FREQ=MONTHLY;BYDAY=-1FR``), in a time zone.

A recurrence is what a calendar on the wall shows. A time that clocks leave out is as much later as
they are set forward (RFC 5545, 3.3.5), and one that comes twice is the first.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import islice
from math import prod
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr

from dwell.calendar.epoch import LAST_MS, from_ms, to_ms
from dwell.errors import InvalidSchedule

#: More than a zone's clocks are ever set at once, also where an island left out a day.
_CHANGE = timedelta(hours=26)
_MOST_COUNT = 10_000
_MOST_INTERVAL = 100_000
#: How many times a day may have: each of them is made when a rule is read.
_MOST_TIMES = 288
#: How far a moment may be away: what never fires would else be looked for until the year 9999.
_HORIZON = timedelta(days=50 * 366)
#: How far back the last moment is looked for, near ones first, as walking there takes time.
_LOOKS_BACK = (timedelta(days=2), timedelta(days=64), timedelta(days=2048), _HORIZON)

#: How long one step of a rule is, where it always is as long.
_STEPS = {
    "MINUTELY": timedelta(minutes=1),
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(weeks=1),
}
_EXPECTED = "expected one rule of RFC 5545 such as FREQ=MONTHLY;BYDAY=-1FR"

#: What a rule of each frequency may say beside its times of day. RFC 5545 knows more, by which
#: rules can be written that never fire, and nobody can tell without walking all years.
_ANY = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", "BYMONTH"}
_ANY |= {"BYHOUR", "BYMINUTE", "BYSECOND"}
_ALLOWED = {
    "MINUTELY": _ANY,
    "HOURLY": _ANY,
    "DAILY": _ANY | {"BYMONTHDAY"},
    "WEEKLY": _ANY,
    "MONTHLY": _ANY | {"BYMONTHDAY", "BYSETPOS"},
    "YEARLY": _ANY | {"BYMONTHDAY", "BYSETPOS", "BYYEARDAY", "BYWEEKNO", "BYEASTER"},
}
_SHORTEST_MONTH = 28
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Recurrence:
    """A rule in a zone, which begins at a moment."""

    def __init__(self, text: str, zone: ZoneInfo, begin_ms: int) -> None:
        self._zone = zone
        # What is on the wall has no parts of a second.
        self._begin = self._wall(-(-begin_ms // 1000) * 1000)
        parts = _parts(text, zone)
        self._freq, self._interval = parts["FREQ"], int(parts.get("INTERVAL", 1))
        count = int(parts.pop("COUNT", 0))
        until = parts.pop("UNTIL", None)
        self._rule = _parsed(text, parts, self._begin)
        self._until = datetime.max if until is None else _time_of(until, text)
        if count:
            # So many are walked once; what comes later need not be walked from the beginning.
            walls = self._part(self._begin, self._begin + _HORIZON)
            counted = list(islice((w for w in walls if self._moment(w) >= begin_ms), count))
            self._until = counted[-1] if counted else self._begin

    def following(self, ms: int) -> Iterator[int]:
        """Yield the moments after one, in order, of the 50 years from there on."""
        wall, held = self._wall(ms), list[int]()
        offsets = self._offsets(wall)
        start = max(wall - (max(offsets) - min(offsets)), self._begin)
        for one in self._part(start, start + _HORIZON):
            # What clocks leave out comes later than what stands behind it on the wall, so each is
            # held until nothing that follows on the wall can come before it.
            heappush(held, self._moment(one))
            earliest_ms = to_ms(one.replace(tzinfo=UTC) - max(self._offsets(one)))
            while held and held[0] <= earliest_ms:
                found = heappop(held)
                if found > ms:
                    ms = found
                    yield found
        yield from sorted({found for found in held if found > ms})

    def before(self, ms: int) -> int | None:
        """Return the last moment that is not after one, or None where there is none."""
        wall = self._wall(ms)
        for back in _LOOKS_BACK:
            start = max(self._begin, wall - back)
            near = [found for found in self._between(start, wall + _CHANGE) if found <= ms]
            if near:
                return max(near)
        return None

    def _wall(self, ms: int) -> datetime:
        """Return what a calendar and a clock on the wall show at a moment."""
        return from_ms(min(ms, LAST_MS)).astimezone(self._zone).replace(tzinfo=None)

    def _moment(self, wall: datetime) -> int:
        return to_ms(wall.replace(tzinfo=self._zone).astimezone(UTC))

    def _offsets(self, wall: datetime) -> set[timedelta]:
        """Return how far clocks of the zone are ahead of UTC near a time on the wall."""
        sides = (wall - _CHANGE, wall, wall + _CHANGE)
        found = (side.replace(tzinfo=self._zone).utcoffset() for side in sides)
        return {offset for offset in found if offset is not None}

    def _between(self, start: datetime, stop: datetime) -> Iterator[int]:
        return map(self._moment, self._part(start, stop))

    def _part(self, start: datetime, stop: datetime) -> Iterator[datetime]:
        """Yield what is on the wall from ``start`` to ``stop``.

        The rule is begun so much later, by whole intervals, that it means the same from there on
        and need not be walked from its beginning.
        """
        rule = self._rule.replace(dtstart=self._begun(start), until=min(stop, self._until))
        found: Iterator[datetime] = rule.xafter(start, inc=True)
        return found

    def _begun(self, start: datetime) -> datetime:
        """Return where the rule may begin as well, whole intervals later and before a time."""
        begin, step = self._begin, _STEPS.get(self._freq)
        if step is not None:
            # Those of a week have a margin for its start, and for the days of it that they pick.
            margin = timedelta(days=8) if step >= timedelta(days=1) else timedelta()
            passed = (start - margin - begin) // (step * self._interval) - 1
            return begin + max(passed, 0) * self._interval * step
        if begin.day > _SHORTEST_MONTH:
            return begin
        months = self._interval * (12 if self._freq == "YEARLY" else 1)
        passed = (12 * (start.year - begin.year) + start.month - begin.month) // months - 2
        place = begin.month - 1 + max(passed, 0) * months
        return begin.replace(year=begin.year + place // 12, month=place % 12 + 1)


_UNTIL = "%Y%m%dT%H%M%S"


def _time_of(until: str, text: str) -> datetime:
    """Return the time of an UNTIL; raises InvalidSchedule."""
    try:
        return datetime.strptime(until, _UNTIL)
    except ValueError:
        raise InvalidSchedule(
            f"rrule: got {text!r:.80}, expected an UNTIL such as 20300131T090000Z"
        ) from None


def _parts(text: str, zone: ZoneInfo) -> dict[str, str]:
    """Return the parts of a rule, its UNTIL on the wall; raises InvalidSchedule."""

    def on_the_wall(until: re.Match[str]) -> str:
        if until[3] and until[2] and until[1] > "1900":
            moment = _time_of(f"{until[1]}{until[2]}", text).replace(tzinfo=UTC)
            return f"UNTIL={moment.astimezone(zone):{_UNTIL}}"
        return f"UNTIL={until[1]}{until[2] or 'T235959'}"

    plain = re.sub(
        r"UNTIL=([0-9]{8})(T[0-9]{6})?(Z?)(?![^;])",
        on_the_wall,
        text.upper().removeprefix("RRULE:"),
    )
    parts = dict(part.partition("=")[::2] for part in plain.split(";"))
    if problem := _problem(parts):
        raise InvalidSchedule(f"rrule: got {text!r:.80}, expected {problem}")
    return parts


def _problem(parts: dict[str, str]) -> str | None:
    """Return what a rule would have to be, or None where its parts may be as they are."""
    allowed = _ALLOWED.get(parts.get("FREQ", ""))
    if allowed is None:
        return f"a FREQ of {', '.join(_ALLOWED)}; every is for seconds"
    if unknown := sorted(parts.keys() - allowed):
        return f"no {unknown[0]:.20} with FREQ={parts['FREQ']}, but {', '.join(sorted(allowed))}"
    for name, most in (("COUNT", _MOST_COUNT), ("INTERVAL", _MOST_INTERVAL)):
        value = parts.get(name, "1")
        if not (value.isascii() and value.isdecimal() and 0 < int(value[:20]) <= most):
            return f"{name} from 1 to {most}"
    times = [parts.get(name, "").count(",") + 1 for name in ("BYHOUR", "BYMINUTE", "BYSECOND")]
    if prod(times) > _MOST_TIMES:
        return f"at most {_MOST_TIMES} times a day by BYHOUR, BYMINUTE and BYSECOND"
    months = [int(month) for month in parts.get("BYMONTH", "").split(",") if month.isdecimal()]
    longest = max((_MONTH_DAYS[month - 1] for month in months if 0 < month < 13), default=31)
    days = re.findall(r"[0-9]+", parts.get("BYMONTHDAY", "1"))
    if all(int(day[:5]) > longest for day in days):
        return "a BYMONTHDAY that one of the months has"
    return None


def _parsed(text: str, parts: dict[str, str], begin: datetime) -> rrule:
    """Return a rule without end; raises InvalidSchedule."""
    plain = ";".join(f"{name}={value}" for name, value in parts.items())
    try:
        if len(plain.split()) != 1:
            raise ValueError("got spaces")
        rule = rrulestr(f"RRULE:{plain}", dtstart=begin)
        assert isinstance(rule, rrule)
        # Some of what is impossible is seen at the first step only.
        next(iter(rule), None)
        return rule
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise InvalidSchedule(f"rrule: got {text!r:.80}, {_EXPECTED}: {error}") from None
