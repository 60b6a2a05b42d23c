"""The rules for a record: when it falls due, where it goes, or that it cancels another.

The first rule that applies counts. The due: the header ``dwell-due-ms`` (epoch milliseconds or ISO
8601), ``dwell-delay`` (a span such as ``30m``), ``dwell-delay-level`` (1 to 18, as in RocketMQ),
``x-delay`` (milliseconds, as in the plugin of RabbitMQ); an expression of JMESPath over the body;
the name of the topic (``orders.delay-30m``, ``delay-level-3``); and the default. The target: the
header ``dwell-to``, an expression over the body, and the default.

Spans count from the time when the record was sent, if the broker tells it, and never from a future
time.
"""

import re
from functools import lru_cache
from typing import Any

import msgspec

from dwell.digits import number_of
from dwell.errors import InvalidInput
from dwell.given import values
from dwell.given.values import Millis
from dwell.message import DEFAULT_PRIORITY, DELAY_LEVELS_MS, MAX_BODY_BYTES, MAX_DELAY_MS
from dwell.queue.query import Query
from dwell.relay import envelope
from dwell.relay.envelope import OURS, TO
from dwell.relay.record import Headers, Record

CANCEL = "dwell-cancel"
#: When a record is due, whenever it is read.
DUE = "dwell-due-ms"
#: The id of the record at the place that a cancel may mean, as its source writes it.
CANCEL_PLACE = "dwell-cancel-place"
ID = "dwell-id"

_SPAN_AT_END = re.compile(r"(?:^|[._-])delay-((?:[0-9]+(?:ms|[smhdw]))+)$")
_LEVEL_AT_END = re.compile(r"(?:^|[._-])delay-level-([0-9]{1,3})$")
_WAYS = (
    "a header dwell-due-ms, dwell-delay, dwell-delay-level or x-delay, a topic such as delay-30m, "
    "--due, --delay or --default-delay"
)


class Held(msgspec.Struct, gc=False):
    """A record to be held until ``due_ms``; ``extra`` is the rest of its message.

    Records of brokers have no other options; other sources set them. 0 is the topic's own, and no
    expiry.
    """

    record: Record
    target: str
    due_ms: int
    extra: bytes
    priority: int = DEFAULT_PRIORITY
    lease_ms: int = 0
    max_attempts: int = 0
    expires_ms: int = 0


class Cancelled(msgspec.Struct, gc=False):
    """A record that cancels another by its id, with a target of its own if any.

    If no message has that id, ``or_id`` is used, if given.
    """

    record: Record
    target: str
    id: str
    or_id: str = ""


class Rules:
    """The rules of a relay for records; raises InvalidInput for invalid expressions.

    ``due`` and ``delay`` are expressions over the body; ``target`` is one as well, ``to`` a name.
    With ``is_named`` the message must name its target.
    """

    def __init__(
        self,
        *,
        to: str | None = None,
        target: str | None = None,
        due: str | None = None,
        delay: str | None = None,
        default_delay_ms: int | None = None,
        is_named: bool = True,
    ) -> None:
        self._is_named = is_named
        self._to = to
        self._target = None if target is None else Query(target)
        self._due = None if due is None else Query(due)
        self._delay = None if delay is None else Query(delay)
        self._default_ms = default_delay_ms
        self._reads_due = self._due is not None or self._delay is not None

    def read(self, record: Record, now_ms: int) -> Held | Cancelled:
        """Return the decision for a record; raises InvalidInput without a due or target.

        The id of the record becomes the id in its own header, if it has one. A refused record keeps
        its headers and its old id: an id is unique in a topic, and refused records of all topics
        become letters of one.
        """
        came_id, came_headers = record.id, record.headers
        try:
            return self._read(record, now_ms)
        except Exception:
            # Of whatever kind the error is, the record becomes a letter.
            record.id, record.headers = came_id, came_headers
            raise

    def _read(self, record: Record, now_ms: int) -> Held | Cancelled:
        if record.broken:
            raise InvalidInput(record.broken)
        said = {
            name: value
            for name, value in record.headers
            if value is not None and (name.startswith(OURS) or name in _BY_HEADER)
        }
        if CANCEL in said:
            # Messages for a sink are held by lane, whatever their target.
            target = "" if self._is_named else self._target_of(said, None)
            names = (name for name in (CANCEL, CANCEL_PLACE) if name in said)
            ids = [values.any_id(_text(said[name]), name).decode() for name in names]
            return Cancelled(record, target, *ids)
        if ID in said:
            record.id = values.own_id(_text(said[ID]), ID).decode()
        if record.body is not None and len(record.body) > MAX_BODY_BYTES:
            # Its error names the value and the limits.
            values.body(record.body)
        content = self._content(record) if self._reads(said) else None
        due_ms = self._due_ms(record, said, content, now_ms)
        target = self._target_of(said, content)
        if said:
            record.headers = envelope.travelling(record.headers)
        return Held(
            record, target, due_ms, envelope.extra_of(record, target if self._is_named else None)
        )

    def _reads(self, said: dict[str, bytes]) -> bool:
        """Tell whether an expression must give the values missing in the headers."""
        reads_target = self._target is not None and TO not in said
        return reads_target or (self._reads_due and _BY_HEADER.keys().isdisjoint(said))

    def _content(self, record: Record) -> object:
        try:
            return msgspec.json.decode(record.body or b"")
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidInput(f"body: is not JSON that can be read ({error})") from None

    def _due_ms(self, record: Record, said: dict[str, bytes], content: object, now_ms: int) -> int:
        from_ms = min(record.at_ms, now_ms) if record.at_ms > 0 else now_ms
        for name in _BY_HEADER if said else ():
            if name in said:
                return _BY_HEADER[name](_text(said[name]), from_ms, now_ms, name)
        if self._due is not None and (found := self._due.value(content)) is not None:
            return values.due_ms(found, now_ms, "due")
        if self._delay is not None and (found := self._delay.value(content)) is not None:
            return from_ms + values.delay_ms(found)
        span_ms = _span_of_topic(record.topic)
        if span_ms is None:
            span_ms = self._default_ms
        if span_ms is None:
            raise InvalidInput(f"due: got none, expected {_WAYS}")
        return from_ms + span_ms

    def _target_of(self, said: dict[str, bytes], content: object) -> str:
        if TO in said:
            found: Any = _text(said[TO])
        elif content is not None and (named := self._named(content)) is not None:
            found = named
        else:
            found = self._to
        if not isinstance(found, str) or not found:
            raise InvalidInput(
                f"target: got {found!r:.80}, expected a name: a header {TO}, --target, or a topic "
                "in the address of --to"
            )
        # Without a broker, it is a topic of the queue's own.
        return found if self._is_named else values.topic(found, "target")

    def _named(self, content: object) -> object:
        return None if self._target is None else self._target.value(content)


def is_said(headers: Headers) -> bool:
    """Tell whether headers set a due, or cancel another record."""
    return any(name in _BY_HEADER or name == CANCEL for name, _ in headers)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Its form shows the value, and is not a valid time, name or id.
        return repr(data)


# --- the ways to say a due ------------------------------------------------------------------------


def _by_due(text: str, _from_ms: int, now_ms: int, name: str) -> int:
    # Milliseconds until the year 2286, which nearly all are, cost a third.
    given = number_of(text, 13) if len(text) == 13 else None
    if given is not None and given <= now_ms + MAX_DELAY_MS:
        return given
    return values.due_ms(text, now_ms, name)


def _by_delay(text: str, from_ms: int, _now_ms: int, name: str) -> int:
    given = number_of(text, 11)
    return from_ms + values.delay_ms(text if given is None else given, name)


def _by_level(text: str, from_ms: int, _now_ms: int, name: str) -> int:
    given = number_of(text, 3)
    return from_ms + values.level_ms(text if given is None else given, DELAY_LEVELS_MS, name)


def _by_plugin(text: str, from_ms: int, _now_ms: int, name: str) -> int:
    span_ms = number_of(text.removeprefix("-"), 15)
    if span_ms is None:
        return from_ms + values.delay_ms(text, name)
    # A negative delay counts as none in the plugin.
    return from_ms + values.delay_ms(Millis(0 if text.startswith("-") else span_ms), name)


_BY_HEADER = {
    DUE: _by_due,
    "dwell-delay": _by_delay,
    "dwell-delay-level": _by_level,
    "x-delay": _by_plugin,
}


@lru_cache(maxsize=4096)
def _span_of_topic(topic: str) -> int | None:
    if found := _SPAN_AT_END.search(topic):
        return values.delay_ms(found[1])
    if found := _LEVEL_AT_END.search(topic):
        return values.level_ms(int(found[1]), DELAY_LEVELS_MS, f"topic {topic!r}")
    return None
