"""Dialects: lines of cron as other systems write them, read as meant or refused with advice."""

import re

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
    (r"rate\((\d+) +([smhd])\w+\)", 'every="{0}{1}" in place of a line'),
    (r"cron\(.*\)", "five fields without cron(); weekdays are 0 to 7 from Sunday, and no year"),
    (r".*\b(\d+W|W\d+)\b.*", "a day of the month or LW, the last weekday; {0} is not known"),
    (r".*\bL(-\d+)\b.*", "a day of the month or L, the last one; L{0} is not known"),
    (r".*\bL([0-7])\b.*", "{0}L for the last such weekday of a month"),
    (rf".*\b({'|'.join(DAYS)})L\b.*", "a number before L, such as 5L for the last Friday"),
]
#: The unit and the size of each field; a line of five has no seconds.
_FIELDS = (("s", 60), ("m", 60), ("h", 24), ("d", 31), ("", 12), ("", 7))


def as_read(line: str) -> str:
    """Return a line in the words that are read: a named line, and ``?`` for any day."""
    plain = _NAMED.get(line.strip().lower(), line)
    return " ".join("*" if field == "?" else field for field in plain.split())


def hint(line: str) -> str | None:
    """Return the expected form for a line of another system, or None."""
    for pattern, expected in _FOREIGN:
        if found := re.fullmatch(pattern, line.strip(), re.IGNORECASE):
            return expected.format(*found.groups())
    for first, last in re.findall(r"\b([a-z]{3}|[0-9]{1,2})-([a-z]{3}|[0-9]{1,2})\b", line.lower()):
        if _number(first) > _number(last):
            return f"a range from less to more in place of {first}-{last}, such as fri-sun,mon"
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


def _number(text: str) -> int:
    for names in (DAYS, MONTHS):
        if text in names:
            return names.index(text)
    return int(text) if text.isdecimal() else 0
