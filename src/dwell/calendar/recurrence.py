"""Recurrences: rules of RFC 5545 (``FREQ=MONTHLY;BYDAY=-1FR``), in a time zone.

A recurrence lists wall-clock times. A time that clocks skip moves later by the size of the step
(RFC 5545, 3.3.5), and a repeated time means its first occurrence. Lines of a calendar add times to
it and leave out others.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import prod
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr

from dwell.calendar.contents import Contents, Stamp, read
from dwell.calendar.dates import Bounds, Dated, LeftOut
from dwell.calendar.days import Days
from dwell.calendar.epoch import LAST_MS, from_ms, to_ms
from dwell.calendar.months import Months
from dwell.calendar.positions import Positions
from dwell.calendar.walls import CHANGE, HORIZON, LAST, OnTheWall, Walls, Zone, ahead_to_gap
from dwell.calendar.zones import zone_of
from dwell.errors import InvalidSchedule

#: How long a rule may be, beside the dates that are added and left out.
_MOST_CHARS = 1_000
_MOST_COUNT = 10_000
#: For how long times are counted: some rules would be walked to the year 9999.
_MOST_COUNTED = timedelta(days=500 * 366)
_MOST_INTERVAL = 100_000
#: How many times a day may have: each of them is made when a rule is read.
_MOST_TIMES = 288
_EXPECTED = "expected one rule of RFC 5545 such as FREQ=MONTHLY;BYDAY=-1FR"

#: The parts that a rule of each frequency may have, as in the table of RFC 5545, 3.3.10.
_ANY = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", "BYMONTH"}
_ANY |= {"BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS"}
_ALLOWED = {
    "MINUTELY": _ANY | {"BYMONTHDAY", "BYYEARDAY"},
    "HOURLY": _ANY | {"BYMONTHDAY", "BYYEARDAY"},
    "DAILY": _ANY | {"BYMONTHDAY"},
    "WEEKLY": _ANY,
    "MONTHLY": _ANY | {"BYMONTHDAY"},
    "YEARLY": _ANY | {"BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYEASTER"},
}
#: Lines of a calendar that stand beside a rule.
_LINES = {"DTSTART", "EXDATE", "RDATE"}
#: The largest number of parts that count from the first or, below 0, from the last; and the numbers
#: that others may have.
_COUNTED = {"BYMONTHDAY": 31, "BYYEARDAY": 366, "BYWEEKNO": 53, "BYSETPOS": 366}
_RANGES = {"BYSECOND": range(60), "BYMINUTE": range(60), "BYHOUR": range(24)}
_RANGES["BYMONTH"] = range(1, 13)
#: Which days a rule of days or less picks, and which of its times.
_DAYS = {"BYDAY", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "WKST", "BYSETPOS"}
#: Parts that list the times of a step, for each size of a step those of the smaller ones as well.
_LISTED = ("BYSECOND", "BYMINUTE", "BYHOUR", "BYDAY")
#: Parts that select days of a month or a year; a rule without them fires on the day of its begin.
_DAYS_OF_YEARS = {"BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYEASTER"}
_WEEK = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Recurrence(OnTheWall):
    """A rule in a zone, which begins at a moment unless its text says when.

    The text may be the lines of a calendar, with times that are added and left out.
    """

    def __init__(self, text: str, zone: ZoneInfo, begin_ms: int) -> None:
        told = read(text)
        zone = _zone_of(told, zone)
        there = Zone(zone)
        if told.begin is None:
            # Wall-clock times have no fractions of a second.
            begin = there.wall(-(-begin_ms // 1000) * 1000)
        else:
            begin, begin_ms = told.begin.wall, there.shifted(told.begin.wall)
        walls, bounds = None, Bounds(begin, begin)
        if told.rule is not None:
            walls, bounds = _ruled(told.rule, there, zone, begin, begin_ms)
        added_ms, left_out = _dates(told, there)
        if added_ms or told.left_out or bounds.until_ms is not None:
            walls = Dated(there, walls, bounds, added_ms, left_out)
            shown = [there.wall(ms) for ms in added_ms]
            begin = min([begin, *shown])
            bounds = Bounds(begin, max([bounds.until, *shown]))
        assert walls is not None
        super().__init__(there, walls, begin, bounds.until)


def _zone_of(told: Contents, zone: ZoneInfo) -> ZoneInfo:
    """Return the zone of a rule: that of its DTSTART, or else its schedule's."""
    stated = None if told.begin is None else told.begin.zone
    if stated is None or stated == zone.key:
        return zone
    if zone.key != "UTC":
        raise InvalidSchedule(f"zone: got {zone.key!r:.80}, expected {stated:.80}, as DTSTART says")
    return zone_of(stated)


def _ruled(
    text: str, there: Zone, zone: ZoneInfo, begin: datetime, begin_ms: int
) -> tuple[Walls, Bounds]:
    """Return the wall-clock times of one rule, and where they end; raises InvalidSchedule."""
    if len(text) > _MOST_CHARS:
        raise InvalidSchedule(f"rrule: got {len(text)} characters, at most {_MOST_CHARS} in a rule")
    parts = _parts(text)
    count = int(parts.pop("COUNT", 0))
    until = parts.pop("UNTIL", None)
    bounds = Bounds(begin, LAST)
    if until is not None:
        bounds = _until(until, text, zone, begin)
    walls = _parsed(text, parts, begin)
    if count:
        # The counted times are walked once, so later walks need not start at the begin.
        most = min(bounds.until, begin + _MOST_COUNTED if begin < LAST - _MOST_COUNTED else LAST)
        ahead = (w for w in ahead_to_gap(walls, begin, most) if there.shifted(w) >= begin_ms)
        counted = list(islice(ahead, count))
        last = counted[-1] if counted else begin
        # A rule that is not counted to its end goes on.
        if len(counted) == count or last < most - HORIZON:
            bounds = bounds._replace(until=last)
    return walls, bounds


def _dates(told: Contents, there: Zone) -> tuple[list[int], LeftOut]:
    """Return the moments that a text adds, and what it leaves out; raises InvalidSchedule."""
    is_dated = told.begin is not None and told.begin.is_date
    for stamp in told.added:
        if stamp.is_date and not is_dated:
            allowed = f"a time such as {stamp.wall:{_UNTIL}}, as DTSTART is no date"
            raise InvalidSchedule(f"rrule: got RDATE {stamp.wall:%Y%m%d}, expected {allowed}")
    left_out = LeftOut(
        [_moment(stamp, there) for stamp in told.left_out if not stamp.is_date],
        [stamp.wall.date() for stamp in told.left_out if stamp.is_date],
    )
    found = {_moment(stamp, there) for stamp in told.added}
    added_ms = [ms for ms in found if not (left_out.has(ms) or left_out.has_day(there.wall(ms)))]
    return added_ms, left_out


def _moment(stamp: Stamp, there: Zone) -> int:
    zone = there if stamp.zone is None else Zone(zone_of(stamp.zone))
    return zone.shifted(stamp.wall)


_UNTIL = "%Y%m%dT%H%M%S"


def _until(until: str, text: str, zone: ZoneInfo, begin: datetime) -> Bounds:
    """Return the bounds of a rule with an UNTIL; raises InvalidSchedule.

    One in UTC is a moment, and clocks that are set may show more or less before it.
    """
    found = re.fullmatch(r"([0-9]{8})(?:(T[0-9]{6})(Z?))?", until)
    try:
        if found is None:
            raise ValueError
        wall = datetime.strptime(f"{found[1]}{found[2] or 'T235959'}", _UNTIL)
    except ValueError:
        raise InvalidSchedule(
            f"rrule: got {text!r:.80}, expected an UNTIL such as 20300131T090000Z"
        ) from None
    if found[2] and found[3] and found[1] > "1900":
        moment = min(wall.replace(tzinfo=UTC), from_ms(LAST_MS))
        shown = moment.astimezone(zone).replace(tzinfo=None)
        return Bounds(begin, shown + CHANGE, to_ms(moment))
    return Bounds(begin, wall)


def _parts(text: str) -> dict[str, str]:
    """Return the parts of a rule; raises InvalidSchedule."""
    plain = text.upper().removeprefix("RRULE:").removesuffix(";")
    said = [part.partition("=")[::2] for part in plain.split(";")]
    parts = dict(said)
    twice = "each part once" if len(parts) < len(said) else None
    if problem := twice or _problem(parts):
        raise InvalidSchedule(f"rrule: got {text!r:.80}, expected {problem}")
    return parts


def _problem(parts: dict[str, str]) -> str | None:
    """Return the expected form of a rule whose parts are not valid, or None."""
    if lines := _LINES & parts.keys():
        return f"one rule, without {min(lines)}: that is a line of its own, with a colon"
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
    longest = max((_MONTH_DAYS[month - 1] for month in months), default=31)
    days = re.findall(r"[0-9]+", parts.get("BYMONTHDAY", "1"))
    if all(int(day[:5]) > longest for day in days):
        return "a BYMONTHDAY that one of the months has"
    return None


def _bad_number(parts: dict[str, str]) -> str | None:
    """Return the expected form for a number that RFC 5545 forbids, or None.

    The library that parses rules accepts most of these numbers, and leaves them out or gives them
    another meaning.
    """
    is_counted = re.search("[0-9]", parts.get("BYDAY", ""))
    if is_counted and (parts["FREQ"] not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in parts):
        where = "FREQ=MONTHLY or FREQ=YEARLY without BYWEEKNO"
        return f"BYDAY without a number, such as MO: a number needs {where}"
    in_a_month = parts["FREQ"] == "MONTHLY" or "BYMONTH" in parts
    for name, most in {**_COUNTED, "BYDAY": 5 if in_a_month else 53}.items():
        for number in re.findall(r"[0-9]+", parts.get(name, "")):
            if not 0 < int(number[:20]) <= most:
                return f"{name} from 1 for the first to {most}, or from -1 for the last to -{most}"
    for name, allowed in _RANGES.items():
        for number in re.findall(r"[+-]?[0-9]+", parts.get(name, "")):
            if int(number[:20]) not in allowed:
                return f"{name} from {allowed[0]} to {allowed[-1]}"
    return None


def _parsed(text: str, parts: Mapping[str, str], begin: datetime) -> Walls:
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
        return _picked(text, Days(full, begin), full)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise InvalidSchedule(f"rrule: got {text!r:.80}, {_EXPECTED}: {error}") from None


def _picked(text: str, days: Days, parts: Mapping[str, str]) -> Walls:
    """Return the times of days at the positions that a rule names; raises InvalidSchedule."""
    if "BYSETPOS" not in parts:
        return days
    frequency = parts["FREQ"]
    listed = _LISTED[: ("MINUTELY", "HOURLY", "DAILY", "WEEKLY").index(frequency) + 1]
    most = prod(len({one.lstrip("+0") for one in parts[name].split(",")}) for name in listed)
    positions = [int(position) for position in parts["BYSETPOS"].split(",")]
    # A step may have fewer times, such as a week at the end of a month, but never more.
    if all(abs(position) > most for position in positions):
        allowed = f"a BYSETPOS of at most {most}, as a step of FREQ={frequency} has no more times"
        raise InvalidSchedule(f"rrule: got {text!r:.80}, expected {allowed}")
    return Positions(days, frequency, positions, _WEEK.index(parts.get("WKST", "MO")))


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
