"""Dialects: lines of cron as other systems write them, read as meant or refused with advice."""

import re
from collections.abc import Mapping, Sequence

#: Lines that have a name, as in crontab(5) of Debian.
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

#: Names in the order of crontab(5), where Sunday is 0 and January 1.
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

#: Patterns of lines for other systems, and the equivalent that is expected here.
_FOREIGN = [
    (r"@every\s+(\S+)", 'every="{0}" in place of a line'),
    (r"@reboot", "a time: a queue does not start with a machine"),
    (r"(?:CRON_)?TZ=(\S+)\s.*", 'zone="{0}" beside the five fields'),
    (r"rate\(([0-9]+) +([smhd])[a-z]+\)", 'every="{0}{1}" in place of a line'),
    (r"cron\(.*\)", "five fields without cron(); weekdays are 0 to 7 from Sunday, and no year"),
    (r".*\bW([0-9]+)\b.*", "{0}W for the weekday nearest to that day"),
    (r".*\b([0-9]+W)\b(?!/).*", "one day from 1W to 31W in place of {0}"),
    (r".*\b(L-[0-9]+)\b(?!/).*", "a day of the month from L-1 to L-30 in place of {0}"),
    (r".*\bL([0-7])\b.*", "{0}L for the last such weekday of a month"),
]
#: The unit and the size of each field; a line of five has no seconds.
_FIELDS = (("s", 60), ("m", 60), ("h", 24), ("d", 31), ("", 12), ("", 7))
#: The first and the last value of each field, and the names of its values.
FIELDS: Mapping[str, tuple[int, int, Sequence[str]]] = {
    "second": (0, 59, ()),
    "minute": (0, 59, ()),
    "hour": (0, 23, ()),
    "day": (1, 31, ()),
    "month": (1, 12, MONTHS),
    "weekday": (0, 6, DAYS),
}
_VALUE = "(?:[a-z]{3}|[0-9]{1,4})"
_RANGE = re.compile(f"({_VALUE})-({_VALUE})(?:/0*([1-9][0-9]{{0,3}}))?", re.IGNORECASE)
#: A step may follow these. After anything else the library drops the step in silence.
_STEPPED = re.compile(rf"[*?]|{_VALUE}(?:-{_VALUE})?", re.IGNORECASE)
_LAST_BY_NAME = re.compile(f"({'|'.join(DAYS)})L", re.IGNORECASE)


def as_read(line: str) -> list[str]:
    """Return the fields of a line in the words that are read.

    A named line is written out, ``?`` means any day, a range of one value is that value, a range
    that wraps around is the list of its values, and ``friL`` is ``5L``.
    """
    fields = _NAMED.get(line.strip().lower(), line).split()
    # The day of the month and the weekday, in a line with seconds or without.
    days = (len(fields) - 3, len(fields) - 1)
    of_fields = [*FIELDS.values()][-len(fields) :]
    for at, (field, values) in enumerate(zip(fields, of_fields, strict=False)):
        if field == "?" and at in days:
            fields[at] = "*"
        else:
            fields[at] = ",".join(_part(part, *values) for part in field.split(","))
    return fields


def has_wrapping_step(line: str) -> bool:
    """Tell whether a line has a step in a range of one value, or in a range that wraps around."""
    found = map(_RANGE.fullmatch, re.split(r"[,\s]+", line))
    return any(one and one[3] and _any_number(one[1]) >= _any_number(one[2]) for one in found)


def _part(part: str, least: int, most: int, names: Sequence[str]) -> str:
    """Return a part of a field in the words that are read."""
    if names is DAYS and (found := _LAST_BY_NAME.fullmatch(part)):
        return f"{_number(found[1], 0, DAYS)}L"
    if (found := _RANGE.fullmatch(part)) is None:
        return part
    first, last = (_number(found[at], least, names) for at in (1, 2))
    if (first, most) == (7, 6) and last < first:
        # Sunday has two numbers.
        first = 0
    if first == last:
        # The library would go on to the end of the field.
        return found[1]
    if first > most or last < least:
        return part
    step = int(found[3] or 1)
    if first < last:
        return f"{first}-{last}/{step}"
    values = [*range(first, most + 1), *range(least, last + 1)]
    return ",".join(map(str, values[::step]))


def hint(line: str) -> str | None:
    """Return the expected form for a line of another system, or None."""
    for pattern, expected in _FOREIGN:
        if found := re.fullmatch(pattern, line.strip(), re.IGNORECASE):
            return expected.format(*found.groups())
    if "?" in line:
        return "* in place of ?, which is known as a day of the month or weekday alone"
    return None


def odd_step(line: str) -> str | None:
    """Return the expected form for a step after something that has none, or None."""
    for part in re.split(r"[,\s]+", line):
        before, slash, _ = part.partition("/")
        if slash and not _STEPPED.fullmatch(before):
            return f"a step after *, a value or a range in place of {part!r:.40}"
    return None


def long_step(line: str) -> str | None:
    """Return the expected form for a step that is longer than its field, or None."""
    fields = line.split()
    for field, (unit, size) in zip(fields, _FIELDS[-len(fields) :], strict=False):
        for step in re.findall(r"/([0-9]+)", field):
            if int(step) > size:
                other = f', or every="{step:.9}{unit}"' if unit else ""
                return f"a step of at most {size} in place of /{step:.9}{other}"
    return None


def _number(text: str, least: int, names: Sequence[str]) -> int:
    """Return the number of a value, -1 without one; ``least`` is the number of the first name."""
    if text.isdecimal():
        return int(text)
    return names.index(text.lower()) + least if text.lower() in names else -1


def _any_number(text: str) -> int:
    return max(_number(text, 0, DAYS), _number(text, 1, MONTHS))
