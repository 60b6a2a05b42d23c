"""Contents: the lines of a calendar that say when something happens (RFC 5545, 3.1 and 3.8.5).

A text is one rule, with or without ``RRULE:``, or several lines: ``DTSTART``, one ``RRULE``, and
any number of ``RDATE`` and ``EXDATE``. A line that begins with a space continues the one before.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from dwell.calendar.zones import zone_of
from dwell.errors import InvalidSchedule
from dwell.message import MAX_RRULE_CHARS

_NAMES = ("DTSTART", "EXDATE", "RDATE", "RRULE")
_LINE = re.compile(r'([A-Za-z-]+)((?:;[A-Za-z-]+=(?:"[^"]*"|[^":;]*))*):(.*)')
_PARAMETER = re.compile(r';([A-Za-z-]+)=(?:"([^"]*)"|([^":;]*))')
_VALUE = re.compile(r"((?!9999)(?:19|[2-9][0-9])[0-9]{6})(?:T([0-9]{6})(Z?))?", re.IGNORECASE)
_SUCH = "20300131T090000"


class Stamp(NamedTuple):
    """A time or a date of a line; ``zone`` exists, or is None in the zone of the rule."""

    wall: datetime
    zone: str | None
    is_date: bool


class Contents(NamedTuple):
    """The contents of a text: its rule, its begin, and the times to add and to leave out."""

    rule: str | None = None
    begin: Stamp | None = None
    added: tuple[Stamp, ...] = ()
    left_out: tuple[Stamp, ...] = ()


class _Line(NamedTuple):
    """A line as it came, without its folds, and the number of its first line in the text."""

    number: int
    text: str

    def refusal(self, expected: str) -> InvalidSchedule:
        return InvalidSchedule(
            f"rrule: got {self.text!r:.80} in line {self.number}, expected {expected}"
        )


# A put asks for the zone and the begin of the text before it makes the rule.
@lru_cache(maxsize=4)
def read(text: str) -> Contents:
    """Return the contents of a text; raises InvalidSchedule.

    The rule itself is not read. A text of one line is a rule, unless it has the name of another.
    """
    # The event loop reads it, so what is too long is not even split.
    if len(text) > MAX_RRULE_CHARS:
        raise InvalidSchedule(f"rrule: got {len(text)} characters, at most {MAX_RRULE_CHARS}")
    is_rule = not text.lstrip()[:7].upper().startswith(_NAMES[:3])
    if is_rule and "\n" not in text:
        return Contents(text.strip())
    lines = list(_unfolded(text))
    if is_rule and len(lines) < 2:
        return Contents(lines[0].text if lines else "")
    added, left_out = list[Stamp](), list[Stamp]()
    found = Contents()
    for line in lines:
        found = _with(found, line, {"RDATE": added, "EXDATE": left_out})
    found = found._replace(added=tuple(added), left_out=tuple(left_out))
    if found.rule is None and (found.begin is None or not found.added):
        raise lines[0].refusal("an RRULE, or a DTSTART with RDATE, in one of the lines")
    if found.rule is None:
        assert found.begin is not None
        # Without a rule the begin is the first of the times.
        return found._replace(added=(found.begin, *found.added))
    return found


def stated_zone(text: str) -> str | None:
    """Return the zone that the DTSTART of a text names, if any; raises InvalidSchedule."""
    begin = read(text).begin
    return None if begin is None else begin.zone


def states_begin(text: str) -> bool:
    """Tell whether a text has a DTSTART; raises InvalidSchedule."""
    return read(text).begin is not None


def _unfolded(text: str) -> Iterator[_Line]:
    first, parts = 1, list[str]()
    for number, line in enumerate(re.split(r"\r?\n", text), 1):
        if parts and line[:1] in (" ", "\t") and line.strip():
            parts.append(line[1:])
        elif line.strip():
            if parts:
                yield _Line(first, "".join(parts))
            first, parts = number, [line.strip() if number == 1 else line]
    if parts:
        yield _Line(first, "".join(parts).rstrip())


def _with(found: Contents, line: _Line, dates: Mapping[str, list[Stamp]]) -> Contents:
    """Return the contents with a further line; its added and left out times go to ``dates``."""
    if line.text[:5].upper() == "FREQ=":
        line = line._replace(text=f"RRULE:{line.text}")
    match = _LINE.fullmatch(line.text)
    name = match[1].upper() if match else ""
    if match is None or name not in _NAMES:
        raise line.refusal(f"one of {', '.join(_NAMES)}, such as EXDATE:{_SUCH}")
    if {"RRULE": found.rule, "DTSTART": found.begin}.get(name) is not None:
        raise line.refusal(f"one {name} in the text")
    if name == "RRULE":
        if match[2]:
            raise line.refusal("RRULE: without parameters")
        return found._replace(rule=match[3].strip())
    stamps = _stamps(line, match)
    if name == "DTSTART":
        if len(stamps) != 1:
            raise line.refusal("one time")
        return found._replace(begin=stamps[0])
    dates[name] += stamps
    return found


def _stamps(line: _Line, match: re.Match[str]) -> tuple[Stamp, ...]:
    said = {one[1].upper(): one[2] or one[3] for one in _PARAMETER.finditer(match[2])}
    if unknown := sorted(said.keys() - {"TZID", "VALUE"}):
        raise line.refusal(f"TZID or VALUE in place of {unknown[0]:.20}")
    kind = said.get("VALUE", "").upper()
    if kind not in ("", "DATE", "DATE-TIME"):
        raise line.refusal(f"a VALUE of DATE or DATE-TIME in place of {kind:.20}")
    if (zone := said.get("TZID")) is not None:
        zone_of(zone, f"rrule: got in line {line.number} the TZID")
    return tuple(_stamp(line, value.strip(), kind, zone) for value in match[3].split(","))


def _stamp(line: _Line, value: str, kind: str, zone: str | None) -> Stamp:
    found = _VALUE.fullmatch(value)
    try:
        if found is None:
            raise ValueError
        wall = datetime.strptime(found[1] + (found[2] or "000000"), "%Y%m%d%H%M%S")
    except ValueError:
        allowed = f"a time such as {_SUCH} or {_SUCH}Z, or a date such as {_SUCH[:8]}"
        raise line.refusal(f"{allowed}, from 1900 to 9998, in place of {value!r:.40}") from None
    if (kind == "DATE") != (found[2] is None):
        allowed = "a date" if kind == "DATE" else "VALUE=DATE before a date, or a time"
        raise line.refusal(f"{allowed} in place of {value!r:.40}")
    if found[3] and zone is not None:
        raise line.refusal(f"a time without Z in place of {value!r:.40}, as TZID names its zone")
    return Stamp(wall, "UTC" if found[3] else zone, found[2] is None)
