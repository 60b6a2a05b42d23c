"""Schedules of Amazon EventBridge as a source, as its command line prints them in JSON.

``aws scheduler get-schedule`` prints one schedule, and ``aws events list-rules`` many rules. Their
fields are described in the API references of EventBridge Scheduler and EventBridge.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from dwell.calendar.epoch import from_ms
from dwell.calendar.walls import Zone
from dwell.calendar.zones import zone_of
from dwell.clock import Clock
from dwell.errors import InvalidInput, InvalidSchedule, InvalidUrl
from dwell.given import values
from dwell.takeover.entries import Entry, moment_of, name_for, opened, options_of, path_of

#: The prefix of such addresses.
PREFIX = "eventbridge:"
_FORM = "eventbridge:FILE[?prefix=NAME], FILE - for standard input"
_DEFAULT = "eventbridge"
_RATE = re.compile(r"rate\((\d{1,9}) +(minute|hour|day)s?\)", re.ASCII)
_AT = re.compile(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)", re.ASCII)
#: Words in an input that EventBridge Scheduler replaces.
_REPLACED = "<aws.scheduler."
_BLANK = re.compile(r"\s*")


class _Window(msgspec.Struct, rename="pascal"):
    mode: str = "OFF"
    maximum_window_in_minutes: int = 0


class _Sqs(msgspec.Struct, rename="pascal"):
    message_group_id: str | None = None


class _Target(msgspec.Struct, rename="pascal"):
    arn: str = ""
    id: str = ""
    input: str | None = None
    input_path: str | None = None
    input_transformer: Any = None
    sqs_parameters: _Sqs | None = None


class _Item(msgspec.Struct, rename="pascal"):
    """A schedule or a rule; times are text or epoch seconds."""

    name: str
    arn: str = ""
    schedule_expression: str | None = None
    schedule_expression_timezone: str = "UTC"
    state: str = "ENABLED"
    group_name: str = "default"
    event_bus_name: str | None = None
    event_pattern: str | None = None
    creation_date: str | float | None = None
    start_date: str | float | None = None
    end_date: str | float | None = None
    flexible_time_window: _Window | None = None
    target: _Target | None = None
    targets: list[_Target] = []

    @property
    def is_rule(self) -> bool:
        """Whether it is a rule of an event bus, not a schedule of EventBridge Scheduler."""
        return self.event_bus_name is not None or ":rule/" in self.arn


class EventBridge:
    """Schedules and rules in a file; each goes to the topic of its target's name, or ``topic``."""

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        rest, options = options_of(url, ("prefix",))
        self._path = path_of(rest, PREFIX, _FORM)
        self._prefix = options.get("prefix", _DEFAULT)
        self._clock = clock
        self._topic = None if topic is None else values.topic(topic)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of all schedules; raises InvalidUrl for a file that is not JSON."""
        with opened(self._path) as file:
            documents = list(_documents(file.read()))
        found = [item for document in documents for item in _items(document)]
        for number, one in enumerate(found, 1):
            try:
                item = msgspec.convert(one, type=_Item)
            except msgspec.ValidationError as error:
                yield Entry(f"entry {number}", reason=f"entry: {error}")
                continue
            yield from self._entries_of(item)

    def _entries_of(self, item: _Item) -> Iterator[Entry]:
        """Yield an entry for each target of a schedule or a rule, or one without targets."""
        targets = item.targets or [item.target or _Target()]
        if item.is_rule:
            where, prefix, text = f"rule {item.name}", f"{self._prefix}-rule", item.name
        else:
            text = f"{item.group_name}:{item.name}"
            where, prefix = f"schedule {text}", self._prefix
        for target in targets:
            own = f":{target.id}" if len(targets) > 1 else ""
            try:
                yield self._entry(where + own, name_for(prefix, text + own), item, target)
            except InvalidInput as error:
                yield Entry(where + own, reason=str(error))

    def _entry(self, where: str, name: str, item: _Item, target: _Target) -> Entry:
        """Return the entry of one target; raises InvalidInput."""
        expression = item.schedule_expression
        if expression is None:
            if item.event_pattern is not None:
                return Entry(where, name, reason="matches events, without a schedule", is_over=True)
            told = "expected one: list-schedules prints none, get-schedule does"
            raise InvalidSchedule(f"ScheduleExpression: got none, {told}")
        if not item.state.startswith(("ENABLED", "DISABLED")):
            raise InvalidSchedule(f"State: got {item.state!r:.80}, expected ENABLED or DISABLED")
        is_paused = item.state == "DISABLED"
        topic = self._topic or _topic_of(target)
        entry = Entry(where, name, topic, _body(item, target), _words(target), is_paused=is_paused)
        if found := _AT.fullmatch(expression):
            return _once(entry, found[1], item, self._clock.now_ms())
        return entry._replace(words={**entry.words, **_times(expression, item)})


def _documents(data: bytes) -> Iterator[Any]:
    """Yield the values of JSON in a file, one after the other; raises InvalidUrl."""
    try:
        text, decoder, at = data.decode(), json.JSONDecoder(), 0
        while (at := _end(_BLANK.match(text, at))) < len(text):
            value, at = decoder.raw_decode(text, at)
            yield value
    except (ValueError, RecursionError) as error:
        raise InvalidUrl(f"from: got a file that is not JSON: {error}") from None


def _end(found: "re.Match[str] | None") -> int:
    assert found is not None
    return found.end()


def _items(value: Any) -> Iterator[Any]:
    """Yield the schedules and rules of a value: of a list, of an answer with many, or its own."""
    if isinstance(value, list):
        for one in value:
            yield from _items(one) if isinstance(one, dict) else (one,)
        return
    many = None
    if isinstance(value, dict):
        many = value.get("Rules", value.get("Schedules"))
    yield from many if isinstance(many, list) else (value,)


def _topic_of(target: _Target) -> str:
    """Return the name of what a target is: of a queue, a function or a call."""
    return re.split("[:/]", target.arn)[-1] or _DEFAULT


def _words(target: _Target) -> dict[str, object]:
    words: dict[str, object] = {}
    if target.arn:
        words["headers"] = {"eventbridge-target": target.arn}
    if target.sqs_parameters is not None:
        words["key"] = target.sqs_parameters.message_group_id
    return words


def _body(item: _Item, target: _Target) -> bytes:
    """Return what the target gets: its input, or the event of a schedule without id and time."""
    if target.input_path is not None or target.input_transformer is not None:
        raise InvalidInput("Input: got InputPath or InputTransformer, expected a fixed Input")
    if target.input is not None:
        if not item.is_rule and _REPLACED in target.input:
            told = "expected none of its words, which nothing replaces here"
            raise InvalidInput(f"Input: got {_REPLACED}...>, {told}")
        return values.body(target.input)
    event = {"version": "0", "detail-type": "Scheduled Event", "resources": [item.arn]}
    if item.is_rule:
        return values.body({**event, "source": "aws.events", "detail": {}})
    return values.body({**event, "source": "aws.scheduler", "detail": "{}"})


def _times(expression: str, item: _Item) -> dict[str, object]:
    """Return the words that say when a schedule fires; raises InvalidSchedule."""
    words: dict[str, object] = {
        "start": _moment(item.start_date, "StartDate"),
        "end": _moment(item.end_date, "EndDate"),
    }
    window = item.flexible_time_window
    if window is not None and window.mode != "OFF":
        words["jitter"] = f"{window.maximum_window_in_minutes}m"
    if found := _RATE.fullmatch(expression):
        # It begins when it is made, or at its start.
        start = words["start"] or _moment(item.creation_date, "CreationDate")
        return {**words, "every": f"{found[1]}{found[2][0]}", "start": start}
    if not expression.startswith("cron("):
        allowed = "cron(...), rate(5 minutes) or at(2030-01-31T09:00:00)"
        raise InvalidSchedule(f"ScheduleExpression: got {expression!r:.80}, expected {allowed}")
    zone = item.schedule_expression_timezone
    return {**words, "cron": expression, "dialect": "eventbridge", "zone": zone}


def _once(entry: Entry, wall: str, item: _Item, now_ms: int) -> Entry:
    """Return the entry of a schedule with a single moment; raises InvalidSchedule."""
    zone = zone_of(item.schedule_expression_timezone)
    try:
        due_ms = Zone(zone).shifted(datetime.fromisoformat(wall))
    except (ValueError, OverflowError):
        raise InvalidSchedule(f"at: got {wall!r}, expected a time that exists") from None
    if due_ms <= now_ms:
        at = from_ms(due_ms).astimezone(zone).isoformat()
        return entry._replace(reason=f"was at {at}", is_over=True)
    if entry.is_paused:
        raise InvalidSchedule("State: got DISABLED, and a single message cannot be paused")
    return entry._replace(due_ms=due_ms)


def _moment(value: str | float | None, field: str) -> datetime | None:
    """Return a time of the command line, which prints text or, in version 1, epoch seconds."""
    if value is None:
        return None
    if isinstance(value, str):
        return moment_of(value, field)
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidSchedule(f"{field}: got {value!r:.80}, expected a time") from None
