"""Words of schedules: reads the options of callers into the fields of a schedule."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from typing import Any

from msgspec.structs import replace

from dwell.calendar import WEEKDAYS, DaysOff, stated_zone
from dwell.calendar.translation import translated
from dwell.errors import InvalidInput, InvalidSchedule
from dwell.given import values
from dwell.queue.schedules.schedule import Schedule

_CHOICES = {
    "misfire": ("skip", "once", "all"),
    "overlap": ("queue", "skip", "replace"),
    "when_off": ("skip", "before", "after"),
}


def _text(word: str) -> Callable[[object, int], str]:
    def read(value: object, now_ms: int) -> str:
        if not isinstance(value, str):
            raise values.refusal(InvalidSchedule, word, value, "text")
        return value

    return read


def _span(word: str) -> Callable[[object, int], int]:
    return lambda value, now_ms: values.delay_ms(value, word)


def _moment(word: str) -> Callable[[object, int], int]:
    return lambda value, now_ms: values.due_ms(value, now_ms, word)


def _choice(word: str) -> Callable[[object, int], object]:
    def read(value: object, now_ms: int) -> object:
        if value not in _CHOICES[word]:
            allowed = f"one of {', '.join(_CHOICES[word])}"
            raise values.refusal(InvalidSchedule, word, value, allowed)
        return value

    return read


def _days(value: object, now_ms: int) -> tuple[str, ...]:
    """Return days in order, each once: weekdays, then dates."""
    allowed = "a list of weekdays and dates"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise values.refusal(InvalidSchedule, "days_off", value, allowed)
    days = set[str]()
    for one in value:
        if not isinstance(one, (str, date)) or isinstance(one, datetime):
            raise values.refusal(InvalidSchedule, "days_off", one, "a weekday or a date")
        days.add(one.lower() if isinstance(one, str) else one.isoformat())
    weekdays = [day for day in WEEKDAYS if day in days]
    found = (*weekdays, *sorted(days.difference(weekdays)))
    DaysOff(found, "skip")
    return found


#: A line of cron with its zone, as cronie's variable and robfig/cron have it.
_ZONED = re.compile(r"(?:CRON_TZ|TZ)=(\S+)\s+(.*)", re.DOTALL)
#: For each option its field in a schedule, and the function that reads it.
_READERS: dict[str, tuple[str, Callable[[Any, int], object]]] = {
    "topic": ("topic", lambda value, _: values.topic(value)),
    "body": ("body", lambda value, _: values.body(value)),
    "cron": ("cron", _text("cron")),
    "every": ("every_ms", _span("every")),
    "rrule": ("rrule", _text("rrule")),
    "zone": ("zone", _text("zone")),
    "start": ("start_ms", _moment("start")),
    "end": ("end_ms", _moment("end")),
    "days_off": ("days_off", _days),
    "when_off": ("when_off", _choice("when_off")),
    "jitter": ("jitter_ms", _span("jitter")),
    "misfire": ("misfire", _choice("misfire")),
    "overlap": ("overlap", _choice("overlap")),
    "grace": ("grace_ms", _span("grace")),
    "key": ("key", lambda value, _: values.key(value)),
    "headers": ("headers", lambda value, _: values.headers(value)),
    "priority": ("priority", lambda value, _: values.priority(value)),
    "lease": ("lease_ms", lambda value, _: values.lease_ms(value)),
    "max_attempts": ("max_attempts", lambda value, _: values.max_attempts(value)),
    "ttl": ("ttl_ms", lambda value, _: values.positive_ms(value, "ttl")),
}
_RULES = {"cron", "every", "rrule"}
#: Options without a default, for which None is invalid.
_NEEDED = {"topic", "body"}


def made(
    name: str, topic: str, body: object, words: Mapping[str, object], now_ms: int, app: str = ""
) -> Schedule:
    """Return the schedule for options; raises InvalidInput."""
    name = values.topic(name, "name")
    new = Schedule(name=name, topic=values.topic(topic), body=values.body(body), app=app)
    return changed(new, words, now_ms)


def changed(old: Schedule, words: Mapping[str, object], now_ms: int) -> Schedule:
    """Return a schedule with the given options changed; raises InvalidInput.

    None restores the default of an option. A new rule replaces the old rule.
    """
    if unknown := sorted(words.keys() - _READERS.keys() - {"dialect"}):
        raise InvalidInput(f"schedule: got {unknown[0]!r}, expected {', '.join(_READERS)}")
    words = _in_crontab(_in_stated_zone(words))
    plain = Schedule(name=old.name, topic=old.topic, body=old.body)
    fields: dict[str, Any] = {}
    if any(words.get(rule) is not None for rule in _RULES):
        fields = {_READERS[rule][0]: None for rule in _RULES}
    for word, value in words.items():
        field, read = _READERS[word]
        is_default = value is None and word not in _NEEDED
        fields[field] = getattr(plain, field) if is_default else read(value, now_ms)
    new = replace(old, **fields)
    if "zone" in words and new.zone == "UTC" and new.rrule is not None:
        # The zone in a recurrence's text, new or old, takes precedence over the default.
        new = replace(new, zone=stated_zone(new.rrule) or "UTC")
    new.check()
    return new


def _in_crontab(words: Mapping[str, object]) -> Mapping[str, object]:
    """Return the words with a line of another dialect as one of crontab(5)."""
    own = dict(words)
    dialect, cron = own.pop("dialect", None), own.get("cron")
    if dialect is None or cron is None:
        if dialect not in (None, "crontab"):
            raise InvalidSchedule(f"dialect: got {dialect!r:.80} without cron, expected both")
        return own
    own["cron"] = translated(_text("cron")(cron, 0), _text("dialect")(dialect, 0))
    return own


def _in_stated_zone(words: Mapping[str, object]) -> Mapping[str, object]:
    """Return the words with the zone of a line such as ``CRON_TZ=Asia/Tokyo 0 9 * * *``.

    The zone in the text of a recurrence gives way to another that the caller names.
    """
    rrule, cron = words.get("rrule"), words.get("cron")
    if isinstance(cron, str) and (found := _ZONED.fullmatch(cron.strip())):
        zone, line = found.groups()
        if words.get("zone") not in (None, "UTC", zone):
            given = words.get("zone")
            raise InvalidSchedule(f"zone: got {given!r:.80} and {zone!r:.80} in cron, expected one")
        return {**words, "cron": line, "zone": zone}
    if not isinstance(rrule, str) or words.get("zone") not in (None, "UTC"):
        return words
    zone = stated_zone(rrule)
    return words if zone is None else {**words, "zone": zone}
