"""Parts: the text of a rule of RFC 5545 as its parts, such as FREQ and BYDAY.

Many rules have the same parts, so that each is checked once and then known.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import lru_cache
from math import prod

from dwell.errors import InvalidSchedule

_MOST = {"COUNT": 10_000, "INTERVAL": 100_000}
#: How many times a day may have: each of them is made when a rule is read.
_MOST_TIMES = 288

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
#: Lines of a calendar that are not part of its rule.
_LINES = {"DTSTART", "EXDATE", "RDATE"}
#: The largest number of parts that count from the first or, below 0, from the last; and the numbers
#: that others may have.
_COUNTED = {"BYMONTHDAY": 31, "BYYEARDAY": 366, "BYWEEKNO": 53, "BYSETPOS": 366}
_RANGES = {"BYSECOND": range(60), "BYMINUTE": range(60), "BYHOUR": range(24)}
_RANGES["BYMONTH"] = range(1, 13)
#: Easter is from 22 March to 25 April, and each of these days from it is in the same year.
_RANGES["BYEASTER"] = range(-80, 251)
TIMES = {"BYSECOND", "BYMINUTE", "BYHOUR"}
#: The form of the parts of a rule of days or less, whatever the numbers in them.
_NUMBERS = re.compile(r"[+-]?[0-9]+(?:,[+-]?[0-9]+)*")
_COUNTED_NAMES = re.compile(
    r"[+-]?[0-9]*(?:MO|TU|WE|TH|FR|SA|SU)(?:,[+-]?[0-9]*(?:MO|TU|WE|TH|FR|SA|SU))*"
)
_NAMES = re.compile(r"(?:MO|TU|WE|TH|FR|SA|SU)(?:,(?:MO|TU|WE|TH|FR|SA|SU))*")
_PLAIN = dict.fromkeys(_ANY | {"BYMONTHDAY", "BYYEARDAY"}, _NUMBERS)
_PLAIN |= {
    "FREQ": re.compile("[A-Z]+"),
    "BYDAY": _NAMES,
    "WKST": re.compile("MO|TU|WE|TH|FR|SA|SU"),
}
#: Parts that select days of a month or a year; a rule without them fires on the day of its begin.
_DAYS_OF_YEARS = {"BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYEASTER"}
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parts_of(text: str) -> dict[str, str]:
    """Return the parts of a rule; raises InvalidSchedule."""
    if not text.isascii():
        raise InvalidSchedule(f"rrule: got {text!r:.80}, expected ASCII characters alone")
    plain = text.upper().removeprefix("RRULE:").removesuffix(";")
    said = [part.partition("=")[::2] for part in plain.split(";")]
    parts = dict(said)
    problem = "each part once" if len(parts) < len(said) else None
    if len(said) > 1 and "" in parts:
        problem = "a part such as BYHOUR=9 after each semicolon"
    if problem := problem or _problem(parts):
        raise InvalidSchedule(f"rrule: got {text!r:.80}, expected {problem}")
    return parts


def written(parts: Mapping[str, str]) -> str:
    """Return the text of some parts."""
    return ";".join(f"{name}={value}" for name, value in parts.items())


def _problem(parts: dict[str, str]) -> str | None:
    """Return the expected form of a rule whose parts are not valid, or None."""
    if lines := _LINES & parts.keys():
        return f"one rule, without {min(lines)}: that is a line of its own, with a colon"
    allowed = _ALLOWED.get(parts.get("FREQ", ""))
    if allowed is None:
        return f"a FREQ of {', '.join(_ALLOWED)}; every is for seconds"
    if {"RSCALE", "SKIP"} & parts.keys():
        return "no RSCALE or SKIP (RFC 7529); BYMONTHDAY=-1 is the last day of each month"
    if unknown := parts.keys() - allowed:
        return f"no {min(unknown):.20} with FREQ={parts['FREQ']}, but {', '.join(sorted(allowed))}"
    if {"COUNT", "UNTIL"} <= parts.keys():
        return "COUNT or UNTIL, and not both"
    if not _COUNTED_NAMES.fullmatch(parts.get("BYDAY", "MO")):
        return "a BYDAY of weekdays such as MO,TU, with a number such as -1FR"
    is_counted = re.search("[0-9]", parts.get("BYDAY", ""))
    if is_counted and (parts["FREQ"] not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in parts):
        where = "FREQ=MONTHLY or FREQ=YEARLY without BYWEEKNO"
        return f"BYDAY without a number, such as MO: a number needs {where}"
    most_weeks = 5 if parts["FREQ"] == "MONTHLY" or "BYMONTH" in parts else 53
    for name, text in parts.items():
        if problem := _bad_number(name, text, most_weeks):
            return problem
    times = [parts[name].count(",") + 1 for name in TIMES & parts.keys()]
    if prod(times) > _MOST_TIMES:
        return f"at most {_MOST_TIMES} times a day by BYHOUR, BYMINUTE and BYSECOND"
    if "BYMONTHDAY" in parts and "BYMONTH" in parts:
        months = [int(month) for month in parts["BYMONTH"].split(",") if month.isdecimal()]
        longest = max((_MONTH_DAYS[month - 1] for month in months), default=31)
        if all(int(day) > longest for day in re.findall("[0-9]+", parts["BYMONTHDAY"])):
            return "a BYMONTHDAY that one of the months has"
    return None


@lru_cache(maxsize=1024)
def _bad_number(name: str, text: str, most_weeks: int) -> str | None:
    """Return the expected form for a number that RFC 5545 forbids, or None.

    The library that parses rules accepts most of these numbers, and leaves them out or gives them
    another meaning.
    """
    if most := _MOST.get(name):
        is_number = text.isascii() and text.isdecimal() and 0 < int(text[:20]) <= most
        return None if is_number else f"{name} from 1 to {most}"
    if most := most_weeks if name == "BYDAY" else _COUNTED.get(name):
        if all(0 < int(number[:20]) <= most for number in re.findall("[0-9]+", text)):
            return None
        return f"{name} from 1 for the first to {most}, or from -1 for the last to -{most}"
    allowed = _RANGES.get(name)
    if allowed and any(int(one[:20]) not in allowed for one in re.findall("[+-]?[0-9]+", text)):
        return f"{name} from {allowed[0]} to {allowed[-1]}"
    return None


@lru_cache(maxsize=1024)
def is_plain(name: str, text: str) -> bool:
    """Tell whether a part of a rule of days or less has the usual form, whatever its numbers."""
    return _PLAIN[name].fullmatch(text) is not None


def numbers(text: str) -> set[int]:
    """Return the numbers of a part."""
    return {int(number) for number in text.split(",")}


@lru_cache(maxsize=256)
def picked(text: str) -> AbstractSet[int]:
    """Return the days or months that a part picks; most rules have it in common."""
    # That there is a day 0 says nothing to the library which reads rules.
    return frozenset(numbers(text) - {0} if text else ())


@lru_cache(maxsize=256)
def weekdays(text: str) -> AbstractSet[int]:
    """Return the weekdays that a part picks, from 0 for Monday."""
    return frozenset(WEEKDAYS.index(day) for day in re.findall("[A-Z]+", text))


def completed(parts: Mapping[str, str], begin: datetime) -> dict[str, str]:
    """Return the parts of a rule, completed from its begin."""
    freq, own = parts["FREQ"], dict[str, str]()
    if freq == "YEARLY" and not parts.keys() & _DAYS_OF_YEARS:
        own = {"BYMONTH": str(begin.month), "BYMONTHDAY": str(begin.day)}
    elif freq == "MONTHLY" and not parts.keys() & _DAYS_OF_YEARS:
        own = {"BYMONTHDAY": str(begin.day)}
    elif freq == "WEEKLY":
        own = {"BYDAY": WEEKDAYS[begin.weekday()]}
    elif freq in ("MINUTELY", "HOURLY", "DAILY"):
        own = {"BYDAY": ",".join(WEEKDAYS)}
    own["BYSECOND"] = str(begin.second)
    if freq != "MINUTELY":
        own["BYMINUTE"] = str(begin.minute)
    if freq not in ("MINUTELY", "HOURLY"):
        own["BYHOUR"] = str(begin.hour)
    return {**own, **parts}
