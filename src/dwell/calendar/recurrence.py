"""Recurrences: rules of RFC 5545 (``FREQ=MONTHLY;BYDAY=-1FR``), in a time zone.

A recurrence is what a calendar on the wall shows. A time that clocks leave out is as much later as
they are set forward (RFC 5545, 3.3.5), and one that comes twice is the first.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import islice
from math import prod
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr

from dwell.calendar.days import Days
from dwell.calendar.epoch import LAST_MS, from_ms, to_ms
from dwell.calendar.months import Months
from dwell.errors import InvalidSchedule

#: More than a zone's clocks are ever set at once, also where an island left out a day.
_CHANGE = timedelta(hours=26)
_MOST_COUNT = 10_000
_MOST_INTERVAL = 100_000
#: How many times a day may have: each of them is made when a rule is read.
_MOST_TIMES = 288
#: How far a moment may be away: what never fires would else be looked for until the year 9999.
_HORIZON = timedelta(days=50 * 366)
#: The last time on a wall that is looked at.
_LAST = from_ms(LAST_MS).replace(tzinfo=None) + _CHANGE

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
#: Which days a rule of days or less picks.
_DAYS = {"BYDAY", "BYMONTH", "BYMONTHDAY", "WKST"}
#: What says the days of a month or a year; a rule without it fires on the day that it begins.
_DAYS_OF_YEARS = {"BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYEASTER"}
_WEEK = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Recurrence:
    """A rule in a zone, which begins at a moment."""

    def __init__(self, text: str, zone: ZoneInfo, begin_ms: int) -> None:
        self._zone = zone
        # What is on the wall has no parts of a second.
        self._begin = self._wall(-(-begin_ms // 1000) * 1000)
        parts = _parts(text, zone)
        count = int(parts.pop("COUNT", 0))
        until = parts.pop("UNTIL", None)
        self._walls = _parsed(text, parts, self._begin)
        self._until = _LAST if until is None else _time_of(until, text)
        if count:
            # So many are walked once; what comes later need not be walked from the beginning.
            walls = self._walls.ahead(self._begin, self._stop(self._begin))
            counted = list(islice((w for w in walls if self._moment(w) >= begin_ms), count))
            self._until = counted[-1] if counted else self._begin

    def following(self, ms: int) -> Iterator[int]:
        """Yield the moments after one, in order, of the 50 years from there on."""
        wall, held = self._wall(ms), list[int]()
        offsets = self._offsets(wall)
        start = max(wall - (max(offsets) - min(offsets)), self._begin)
        for one in self._walls.ahead(start, self._stop(start)):
            # What clocks leave out comes later than what stands behind it on the wall, so each is
            # held until nothing that follows on the wall can come before it.
            heappush(held, self._moment(one))
            earliest_ms = _as_utc_ms(one - max(self._offsets(one)))
            while held and held[0] <= earliest_ms:
                found = heappop(held)
                if found > ms:
                    ms = found
                    yield found
        yield from sorted({found for found in held if found > ms})

    def before(self, ms: int) -> int | None:
        """Return the last moment that is not after one, or None where there is none."""
        wall, last = self._wall(ms), None
        offsets = self._offsets(wall)
        # What is further ahead on the wall than clocks are set is later.
        stop = min(wall + (max(offsets) - min(offsets)), self._until)
        for one in self._walls.back(max(wall - _HORIZON, self._begin), stop):
            # Nothing that stands before this one comes later than that.
            if last is not None and _as_utc_ms(one - min(self._offsets(one))) <= last:
                break
            found = self._moment(one)
            if found <= ms and (last is None or found > last):
                last = found
        return last

    def _stop(self, start: datetime) -> datetime:
        """Return up to where what begins at a time is walked."""
        return min(self._until, start + _HORIZON if start < _LAST - _HORIZON else _LAST)

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


def _as_utc_ms(wall: datetime) -> int:
    return to_ms(wall.replace(tzinfo=UTC))


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


def _parsed(text: str, parts: Mapping[str, str], begin: datetime) -> Days | Months:
    """Return what a rule without end shows on the wall; raises InvalidSchedule."""
    try:
        _read(parts, begin)
        full = _completed(parts, begin)
        if parts["FREQ"] in ("MONTHLY", "YEARLY"):
            months = Months(_read(full, begin), full, begin)
            months.check()
            return months
        # Some of what is impossible is seen at the first step only. Without its days a rule has a
        # first step soon, or none.
        times = {name: value for name, value in parts.items() if name not in _DAYS}
        next(iter(_read(times, begin)), None)
        return Days(full, begin)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise InvalidSchedule(f"rrule: got {text!r:.80}, {_EXPECTED}: {error}") from None


def _read(parts: Mapping[str, str], begin: datetime) -> rrule:
    plain = ";".join(f"{name}={value}" for name, value in parts.items())
    if len(plain.split()) != 1:
        raise ValueError("got spaces")
    rule = rrulestr(f"RRULE:{plain}", dtstart=begin)
    assert isinstance(rule, rrule)
    return rule


def _completed(parts: Mapping[str, str], begin: datetime) -> dict[str, str]:
    """Return the parts of a rule with those that it has from where it begins."""
    freq, own = parts["FREQ"], dict[str, str]()
    if freq == "YEARLY" and not parts.keys() & _DAYS_OF_YEARS:
        own = {"BYMONTH": str(begin.month), "BYMONTHDAY": str(begin.day)}
    elif freq == "MONTHLY" and not parts.keys() & _DAYS_OF_YEARS:
        own = {"BYMONTHDAY": str(begin.day)}
    elif freq == "WEEKLY":
        own = {"BYDAY": _WEEK[begin.weekday()]}
    elif freq in ("MINUTELY", "HOURLY", "DAILY"):
        own = {"BYDAY": ",".join(_WEEK)}
    own["BYSECOND"] = str(begin.second)
    if freq != "MINUTELY":
        own["BYMINUTE"] = str(begin.minute)
    if freq not in ("MINUTELY", "HOURLY"):
        own["BYHOUR"] = str(begin.hour)
    return {**own, **parts}
