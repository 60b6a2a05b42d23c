"""Recurrences: rules of RFC 5545 (``FREQ=MONTHLY;BYDAY=-1FR``), in a time zone.

A recurrence lists wall-clock times. A time that clocks skip moves later by the size of the step
(RFC 5545, 3.3.5), and a repeated time means its first occurrence.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from math import prod
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr

from dwell.calendar.days import Days
from dwell.calendar.months import Months
from dwell.calendar.walls import LAST, OnTheWall, Zone
from dwell.errors import InvalidSchedule

_MOST_COUNT = 10_000
_MOST_INTERVAL = 100_000
#: How many times a day may have: each of them is made when a rule is read.
_MOST_TIMES = 288
_EXPECTED = "expected one rule of RFC 5545 such as FREQ=MONTHLY;BYDAY=-1FR"

#: The parts that a rule of each frequency may have, with its times of day. RFC 5545 allows more,
#: but then a rule may never fire, and finding that out takes a walk through all years.
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
#: Properties that calendars export together with a rule.
_FOREIGN = {"DTSTART", "DTEND", "DURATION", "EXDATE", "EXRULE", "RDATE"}
#: Numbers that count from the first or from the last.
_COUNTED = {"BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYSETPOS"}
#: Which days a rule of days or less picks.
_DAYS = {"BYDAY", "BYMONTH", "BYMONTHDAY", "WKST"}
#: Parts that select days of a month or a year; a rule without them fires on the day of its begin.
_DAYS_OF_YEARS = {"BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYEASTER"}
_WEEK = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Recurrence(OnTheWall):
    """A rule in a zone, which begins at a moment."""

    def __init__(self, text: str, zone: ZoneInfo, begin_ms: int) -> None:
        there = Zone(zone)
        # Wall-clock times have no fractions of a second.
        begin = there.wall(-(-begin_ms // 1000) * 1000)
        parts = _parts(text, zone)
        count = int(parts.pop("COUNT", 0))
        until = parts.pop("UNTIL", None)
        last = LAST if until is None else _time_of(until, text)
        super().__init__(there, _parsed(text, parts, begin), begin, last)
        if count:
            # The counted times are walked once, so later walks need not start at the begin.
            walls = self._walls.ahead(begin, self._stop(begin))
            counted = list(islice((w for w in walls if there.shifted(w) >= begin_ms), count))
            self._until = counted[-1] if counted else begin


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
        text.strip().upper().removeprefix("RRULE:").removesuffix(";"),
    )
    # A whole text of a calendar has several lines, and names with a colon.
    lines = {re.split("[;:=]", line)[0] for line in plain.split()}
    parts = dict(part.partition("=")[::2] for part in plain.split(";"))
    if problem := _problem(parts | dict.fromkeys(_FOREIGN & lines, "")):
        raise InvalidSchedule(f"rrule: got {text!r:.80}, expected {problem}")
    return parts


def _problem(parts: dict[str, str]) -> str | None:
    """Return the expected form of a rule whose parts are not valid, or None."""
    if foreign := _FOREIGN & parts.keys():
        return f"one rule, without {min(foreign)}: start, end and zone are words of the schedule"
    allowed = _ALLOWED.get(parts.get("FREQ", ""))
    if allowed is None:
        return f"a FREQ of {', '.join(_ALLOWED)}; every is for seconds"
    if unknown := sorted(parts.keys() - allowed):
        return f"no {unknown[0]:.20} with FREQ={parts['FREQ']}, but {', '.join(sorted(allowed))}"
    for name, most in (("COUNT", _MOST_COUNT), ("INTERVAL", _MOST_INTERVAL)):
        value = parts.get(name, "1")
        if not (value.isascii() and value.isdecimal() and 0 < int(value[:20]) <= most):
            return f"{name} from 1 to {most}"
    if problem := _bad_number(parts):
        return problem
    times = [parts.get(name, "").count(",") + 1 for name in ("BYHOUR", "BYMINUTE", "BYSECOND")]
    if prod(times) > _MOST_TIMES:
        return f"at most {_MOST_TIMES} times a day by BYHOUR, BYMINUTE and BYSECOND"
    months = [int(month) for month in parts.get("BYMONTH", "").split(",") if month.isdecimal()]
    longest = max((_MONTH_DAYS[month - 1] for month in months if 0 < month < 13), default=31)
    days = re.findall(r"[0-9]+", parts.get("BYMONTHDAY", "1"))
    if all(int(day[:5]) > longest for day in days):
        return "a BYMONTHDAY that one of the months has"
    return None


def _bad_number(parts: dict[str, str]) -> str | None:
    """Return the expected form for a number that RFC 5545 forbids, or None.

    The library that parses rules accepts these numbers, and gives them another meaning.
    """
    for name in _COUNTED & parts.keys():
        if any(re.fullmatch(r"[+-]?0+[A-Z]*", number) for number in parts[name].split(",")):
            return f"{name} without 0: the first is 1, and the last is -1"
    is_counted = re.search("[0-9]", parts.get("BYDAY", ""))
    if is_counted and (parts["FREQ"] not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in parts):
        where = "FREQ=MONTHLY or FREQ=YEARLY without BYWEEKNO"
        return f"BYDAY without a number, such as MO: a number needs {where}"
    return None


def _parsed(text: str, parts: Mapping[str, str], begin: datetime) -> Days | Months:
    """Return the wall-clock times of a rule without end; raises InvalidSchedule."""
    try:
        _read(parts, begin)
        full = _completed(parts, begin)
        if parts["FREQ"] in ("MONTHLY", "YEARLY"):
            months = Months(_read(full, begin), full, begin)
            months.check()
            return months
        # Some impossible rules fail only at the first step. Without its days a rule has a first
        # step soon, or none.
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
    """Return the parts of a rule, completed from its begin."""
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
