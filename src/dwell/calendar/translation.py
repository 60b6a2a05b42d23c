"""Translation: lines of cron as other systems count them, in the words of crontab(5).

The systems differ in the number of Sunday, in their fields, in what a day of the month and a
weekday mean together, and in ranges that wrap around. Sources: crontab(5) of Debian, the
CronTrigger tutorial of Quartz 2.5, APScheduler 3.11 (``CronTrigger.from_crontab``), Celery 5.7
(``celery.schedules.crontab``), "Schedule types" of Amazon EventBridge Scheduler, and robfig/cron 3.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dwell.calendar.dialects import FIELDS
from dwell.calendar.monthdays import month_day
from dwell.errors import InvalidSchedule
from dwell.message import MAX_CRON_CHARS

_ANY = ("*", "?")
_FIVE = ("minute", "hour", "day", "month", "weekday")
_PART = re.compile(r"(?P<first>[*?]|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[0-9]{1,4}))?", re.ASCII)
#: The last such weekday of a month, and the third.
_OF_MONTH = re.compile(r"(?P<day>\w+?)(?P<which>L|#[1-5])", re.ASCII | re.IGNORECASE)


class Dialect(NamedTuple):
    """How one system reads a line.

    ``names`` are the fields in order; ``spare`` of them may be left out at an end. ``sunday`` is
    the number of Sunday. With ``are_both`` a day of the month and a weekday must both hold (or one
    of them is left open). With ``wraps`` a range may go from more to less, and with ``starts``
    ``5/15`` begins at 5. With ``has_plain_names`` a name is read alone or in a range of names, and
    the text after it is ignored.
    """

    names: tuple[str, ...]
    sunday: int = 0
    spare: str = ""
    are_both: bool = False
    wraps: bool = False
    starts: bool = False
    has_plain_names: bool = False

    @property
    def lowest(self) -> int:
        """The least number of a weekday."""
        return int(self.sunday == 1)

    def keeps_star(self, field: str) -> bool:
        """Tell whether a step over all days keeps its star, so that both days must hold."""
        return self.are_both and (field == "day" or self.sunday == 0)


DIALECTS: Mapping[str, Dialect | None] = {
    "crontab": None,
    "quartz": Dialect(
        ("second", *_FIVE, "year"), 1, spare="year", are_both=True, wraps=True, starts=True
    ),
    "eventbridge": Dialect((*_FIVE, "year"), 1, are_both=True, starts=True),
    "apscheduler": Dialect(_FIVE, 6, are_both=True, starts=True, has_plain_names=True),
    "celery": Dialect(_FIVE, are_both=True, wraps=True),
    "robfig": Dialect(("second", *_FIVE), spare="second", starts=True),
}


def translated(line: str, name: str) -> str:
    """Return a line of a dialect as a line of crontab(5), with seconds first if it has six fields.

    A line that is too long for any rule is returned as it is. Raises InvalidSchedule for an unknown
    dialect, and if crontab(5) has no equivalent.
    """
    if name not in DIALECTS:
        raise InvalidSchedule(f"dialect: got {name!r:.80}, expected one of {', '.join(DIALECTS)}")
    dialect = DIALECTS[name]
    if dialect is None or len(line) > MAX_CRON_CHARS or line.lstrip().startswith("@"):
        return line
    if not line.isascii():
        raise _refusal(line, name, "ASCII characters alone")
    given = line.removeprefix("cron(").removesuffix(")") if name == "eventbridge" else line
    fields = _fields(given.split(), line, name, dialect)
    year = fields.pop("year", "*")
    if year not in _ANY:
        raise _refusal(line, name, f"* as the year in place of {year}: start and end say that")
    day, weekday = fields["day"], fields["weekday"]
    may_both = day.startswith("*") or (weekday.startswith("*") and dialect.keeps_star("weekday"))
    if dialect.are_both and day not in _ANY and weekday not in _ANY and not may_both:
        rule = 'rrule="FREQ=MONTHLY;BYMONTHDAY=...;BYDAY=..."'
        raise _refusal(line, name, f"a day or a weekday, as both must hold there: {rule}")
    reader = _Reader(line, name, dialect)
    return " ".join(reader.read(field, text) for field, text in fields.items())


def _fields(given: list[str], line: str, name: str, dialect: Dialect) -> dict[str, str]:
    """Return the fields of a line by their names."""
    names = dialect.names
    if len(given) == len(names) - 1 and dialect.spare:
        names = tuple(field for field in names if field != dialect.spare)
    if len(given) != len(names):
        told = " ".join(f"[{one}]" if one == dialect.spare else one for one in dialect.names)
        raise _refusal(line, name, f"the fields {told}")
    return dict(zip(names, given, strict=True))


class _Reader:
    """Reads the fields of one line."""

    def __init__(self, line: str, name: str, dialect: Dialect) -> None:
        self._line, self._name, self._dialect = line, name, dialect

    def read(self, field: str, text: str) -> str:
        """Return a field in the words of crontab(5)."""
        parts = [self._part(field, part) for part in text.split(",")]
        # A part that means any value leaves a day open, whatever else the list has.
        return "*" if "*" in parts else ",".join(parts)

    def _part(self, field: str, part: str) -> str:
        if "?" in part and field not in ("day", "weekday"):
            raise _refusal(self._line, self._name, f"a {field} in place of {part!r:.40}, such as *")
        if part in _ANY:
            return "*"
        if field == "day" and (part.upper() in ("L", "LW") or month_day(part)):
            return part.upper()
        if field == "weekday" and part.upper() == "L":
            return "6"
        if field == "weekday" and (found := _OF_MONTH.fullmatch(part)):
            return f"{self._number(field, found['day'])}{found['which'].upper()}"
        match = _PART.fullmatch(part)
        if match is None:
            raise _refusal(self._line, self._name, f"a {field} in place of {part!r:.40}")
        return self._range(field, match)

    def _range(self, field: str, match: re.Match[str]) -> str:
        first, last, step = match["first"], match["last"], int(match["step"] or 1)
        if not 1 <= step <= FIELDS[field][1] or (first in _ANY and last is not None):
            raise _refusal(self._line, self._name, f"a {field} in place of {match[0]!r:.40}")
        if match["step"] and first not in _ANY and last is None and not self._dialect.starts:
            allowed = f"a step after * or a range in place of {match[0]!r:.40}"
            raise _refusal(self._line, self._name, allowed)
        if self._dialect.has_plain_names and _mixes(first, last, match["step"]):
            allowed = f"names without numbers in place of {match[0]!r:.40}"
            raise _refusal(self._line, self._name, allowed)
        if first in _ANY and step == 1:
            return "*"
        if first in _ANY:
            # In crontab(5) a day that begins with a star must hold together with the other one.
            if field not in ("day", "weekday") or self._dialect.keeps_star(field):
                return f"*/{step}"
            values = self._all(field)
        else:
            values = self._between(field, first, last, match["step"] is not None)
        if field not in ("day", "weekday") and len(values[::step]) == len(self._all(field)):
            # An hour that is named differs from any hour where clocks change.
            return "*"
        return _written(values[::step])

    def _all(self, field: str) -> list[int]:
        """Return all values of a field, in the order of the dialect."""
        least, most, _ = FIELDS[field]
        values = list(range(least, most + 1))
        if field != "weekday":
            return values
        begin = (self._dialect.lowest - self._dialect.sunday) % 7
        return values[begin:] + values[:begin]

    def _between(self, field: str, first: str, last: str | None, has_step: bool) -> list[int]:
        order = self._all(field)
        begin = order.index(self._number(field, first))
        if last is None:
            return order[begin:] if has_step and self._dialect.starts else [order[begin]]
        end = order.index(self._number(field, last))
        if begin <= end:
            return order[begin : end + 1]
        if self._dialect.wraps:
            return order[begin:] + order[: end + 1]
        raise _refusal(self._line, self._name, f"a range from less to more, not {first}-{last}")

    def _number(self, field: str, text: str) -> int:
        """Return the number of a value in crontab(5), where Sunday is 0."""
        least, most, names = FIELDS[field]
        if text.lower() in names:
            return names.index(text.lower()) + least
        number = int(text) if text.isdecimal() else -1
        if field == "weekday":
            lowest = self._dialect.lowest
            if not lowest <= number <= lowest + 6:
                allowed = f"a weekday from {lowest} to {lowest + 6}, or its name"
                raise _refusal(self._line, self._name, f"{allowed}, in place of {text!r:.40}")
            return (number - self._dialect.sunday) % 7
        if not least <= number <= most:
            allowed = f"a {field} from {least} to {most}"
            raise _refusal(self._line, self._name, f"{allowed} in place of {text!r:.40}")
        return number


def _mixes(first: str, last: str | None, step: str | None) -> bool:
    """Tell whether a part has both names and numbers."""
    said = [one for one in (first, last, step) if one is not None]
    return any(map(str.isalpha, said)) and not all(map(str.isalpha, said))


def _written(values: Sequence[int]) -> str:
    """Return values as a range if they are one."""
    first, last = values[0], values[-1]
    if len(values) > 2 and list(values) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ",".join(map(str, values))


def _refusal(line: str, name: str, allowed: str) -> InvalidSchedule:
    return InvalidSchedule(f"cron: got {line!r:.80} of {name}, expected {allowed}")
