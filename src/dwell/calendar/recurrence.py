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

from dwell.calendar.contents import Contents, Stamp, read
from dwell.calendar.dates import Bounds, Dated, LeftOut
from dwell.calendar.days import Days
from dwell.calendar.epoch import LAST_MS, from_ms, to_ms
from dwell.calendar.months import Months, read_rule
from dwell.calendar.parts import TIMES, WEEKDAYS, completed, is_plain, parts_of, written
from dwell.calendar.positions import Positions
from dwell.calendar.walls import CHANGE, HORIZON, LAST, OnTheWall, Walls, Zone
from dwell.calendar.zones import zone_of
from dwell.errors import InvalidSchedule

#: How long a rule may be, without the dates that are added and left out.
_MOST_CHARS = 1_000
#: For how long times are counted: some rules would be walked to the year 9999.
_MOST_COUNTED = timedelta(days=500 * 366)
_EXPECTED = "expected one rule of RFC 5545 such as FREQ=MONTHLY;BYDAY=-1FR"

#: Which days a rule of days or less picks, and which of its times.
_DAYS = {"BYDAY", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "WKST", "BYSETPOS"}
#: Parts that list the times of a step, for each size of a step those of the smaller ones as well.
_LISTED = ("BYSECOND", "BYMINUTE", "BYHOUR", "BYDAY")


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
        if told.added or told.left_out or bounds.until_ms is not None:
            added_ms, left_out = _dates(told, there)
            walls = Dated(there, walls, bounds, added_ms, left_out)
            shown = [there.wall(ms) for ms in added_ms]
            begin = min([begin, *shown])
            bounds = Bounds(begin, max([bounds.until, *shown]))
        assert walls is not None
        super().__init__(there, walls, begin, bounds.until)


def _zone_of(told: Contents, zone: ZoneInfo) -> ZoneInfo:
    """Return the zone of the DTSTART of a rule, or else of its schedule."""
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
    parts = parts_of(text)
    count = int(parts.pop("COUNT", 0))
    until = parts.pop("UNTIL", None)
    bounds = Bounds(begin, LAST)
    if until is not None:
        bounds = _until(until, text, zone, begin)
    walls = _parsed(text, parts, begin)
    if count:
        # The counted times are walked once, so later walks need not start at the begin.
        most = min(bounds.until, begin + _MOST_COUNTED if begin < LAST - _MOST_COUNTED else LAST)
        # A skipped time may become the moment of another time, and may move past later times.
        ahead = OnTheWall(there, walls, begin, most).following(begin_ms - 1)
        counted = list(islice(ahead, count))
        last_ms = counted[-1] if counted else begin_ms
        last = there.wall(last_ms)
        # A rule that is not counted to its end goes on.
        if len(counted) == count or last < most - HORIZON:
            low, high = there.offsets(last)
            bounds = Bounds(begin, last, None if low == high else last_ms)
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


def _parsed(text: str, parts: Mapping[str, str], begin: datetime) -> Walls:
    """Return the wall-clock times of a rule without end; raises InvalidSchedule."""
    try:
        full = completed(parts, begin)
        is_by_months = parts["FREQ"] in ("MONTHLY", "YEARLY")
        if not all(is_plain(name, full[name]) for name in (TIMES if is_by_months else full)):
            # The library tells what is wrong, which takes as long as all the rest.
            read_rule(written(full), begin)
        if is_by_months:
            return Months(full, begin)
        if parts["FREQ"] in ("MINUTELY", "HOURLY"):
            # Some impossible rules fail only at the first step. Without its days a rule has a first
            # step soon, or none.
            times = {name: value for name, value in parts.items() if name not in _DAYS}
            next(iter(read_rule(written(times), begin)), None)
        return _picked(text, Days(full, begin), full)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise InvalidSchedule(f"rrule: got {text!r:.80}, {_EXPECTED}: {error}") from None


def _picked(text: str, days: Days, parts: Mapping[str, str]) -> Walls:
    """Return the times of days at the positions that a rule names; raises InvalidSchedule."""
    if "BYSETPOS" not in parts:
        return days
    frequency = parts["FREQ"]
    listed = _LISTED[: ("MINUTELY", "HOURLY", "DAILY", "WEEKLY").index(frequency) + 1]
    most = prod(len({one.lstrip("+-0") for one in parts[name].split(",")}) for name in listed)
    positions = [int(position) for position in parts["BYSETPOS"].split(",")]
    # A step may have fewer times, such as a week at the end of a month, but never more.
    if all(abs(position) > most for position in positions):
        allowed = f"a BYSETPOS of at most {most}, as a step of FREQ={frequency} has no more times"
        raise InvalidSchedule(f"rrule: got {text!r:.80}, expected {allowed}")
    return Positions(days, frequency, positions, WEEKDAYS.index(parts.get("WKST", "MO")))
