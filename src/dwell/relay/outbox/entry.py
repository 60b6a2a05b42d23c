"""A row of an outbox, and the message that it becomes, unchanged.

It needs no rules for due and target: a row has its own topic, due and options, all in milliseconds.
So it has a reader of its own, and shares everything else with records from brokers. If a broker
gets it, priority and expiry apply while it waits; lease and attempts concern only workers.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from dwell.errors import (
    InvalidAttempts,
    InvalidBody,
    InvalidHeaders,
    InvalidInput,
    InvalidPriority,
    InvalidTime,
)
from dwell.given import values
from dwell.given.scopedid import scoped_id
from dwell.message import (
    DEFAULT_PRIORITY,
    MAX_ATTEMPTS,
    MAX_BODY_BYTES,
    MAX_HEADERS_BYTES,
    MAX_LEASE_MS,
    MAX_PRIORITY,
    encode_extra,
)
from dwell.relay import envelope
from dwell.relay.record import Record
from dwell.relay.rules import Held

#: The columns in reading order; number, id, topic and due identify the row for its deletion.
COLUMNS = (
    *("seq", "id", "topic", "body", "due_ms", "priority", "lease_ms", "max_attempts"),
    *("expires_ms", "key", "headers"),
)
#: How many bytes of a body, of headers and of other text are read. No message and no letter can
#: have more, and the writer must not be able to use up a relay's memory.
MOST_BODY_BYTES = MAX_BODY_BYTES + 1
MOST_HEADERS_CHARS = 200_000
MOST_TEXT_CHARS = MAX_HEADERS_BYTES + 1

_ROW = "dwell-row"

_headers = msgspec.json.Decoder(dict[str, str])


class Entry(Record, gc=False):
    """A row that was read; :class:`Reader` decodes it."""

    row: tuple[Any, ...] = ()

    @classmethod
    def of(cls, table: str, row: tuple[Any, ...]) -> "Entry":
        """Return a row of a table as a record; its place identifies it for the deletion."""
        return cls("", "", None, place=(*row[:3], row[4]), origin=f"{table}-{row[0]}", row=row)

    @property
    def is_whole(self) -> bool:
        """Whether no column was cut when it was read."""
        most = {"body": MOST_BODY_BYTES, "headers": MOST_HEADERS_CHARS}
        return all(
            len(one) < most.get(name, MOST_TEXT_CHARS)
            for name, one in zip(COLUMNS, self.row, strict=True)
            if isinstance(one, bytes | str)
        )

    def show(self) -> None:
        """Become the content of the row for people: its body, and everything else as text.

        The id is unique among all rows, of other databases too, and the same each time.
        """
        digest = blake2b(repr(self.row).encode("utf-8", "backslashreplace"), digest_size=8)
        body = self.row[3]
        self.topic = ""
        self.id = f"{self.origin}-{digest.hexdigest()}"
        self.body = body if isinstance(body, bytes) else repr(body).encode("utf-8", "replace")
        self.key = None
        rest = {name: one for name, one in zip(COLUMNS, self.row, strict=True) if name != "body"}
        shown = ", ".join(f"{name}={_text(one)!r}" for name, one in rest.items())
        self.headers = [(_ROW, shown.encode("utf-8", "backslashreplace"))]


class Reader:
    """Reads rows; with ``is_named`` the message names its target, for a broker."""

    def __init__(self, *, is_named: bool) -> None:
        self._is_named = is_named

    def read(self, record: Record, now_ms: int) -> Held:
        """Return the message for a row; raises InvalidInput for an invalid row.

        The record of an invalid row becomes the text that people see of it.
        """
        assert isinstance(record, Entry)
        try:
            return self._held(record, now_ms)
        except InvalidInput:
            record.show()
            raise

    def _held(self, record: Entry, now_ms: int) -> Held:
        _, id_, topic, body, due, priority, lease, attempts, expires, key, headers = record.row
        record.topic = values.topic(_text(topic))
        record.id = values.own_id(_text(id_)).decode()
        record.body = _body(body)
        due_ms = _at_ms(due, now_ms, "due_ms")
        priority = _whole(priority, MAX_PRIORITY, "priority", InvalidPriority, DEFAULT_PRIORITY)
        lease_ms = _whole(lease, MAX_LEASE_MS, "lease_ms", InvalidTime)
        attempts = _whole(attempts, MAX_ATTEMPTS, "max_attempts", InvalidAttempts)
        expires_ms = _at_ms(expires, now_ms, "expires_ms") if expires else 0
        key = None if key is None else values.key(_text(key))
        said = None if headers is None else _headers_of(headers)
        if not self._is_named:
            extra = encode_extra(key, said)
            return Held(
                record, record.topic, due_ms, extra, priority, lease_ms, attempts, expires_ms
            )
        # One topic holds the rows for all topics, and an id is unique within its topic.
        record.id = scoped_id(record.topic, record.id)
        record.key = None if key is None else key.encode()
        said = {} if said is None else said
        record.headers = envelope.travelling([(name, one.encode()) for name, one in said.items()])
        extra = envelope.extra_of(record, record.topic)
        return Held(record, record.topic, due_ms, extra, priority, expires_ms=expires_ms)


# --- the columns: of whatever kind a database lets stand in them ----------------------------------


def _text(value: object) -> object:
    """Return text bytes as text; other values are refused by the name of their column."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return value


def _body(value: object) -> bytes:
    if not isinstance(value, bytes | str):
        raise values.refusal(InvalidBody, "body", value, "bytes")
    return values.body(value)


def _at_ms(value: object, now_ms: int, field: str) -> int:
    if not values.is_whole(value):
        raise values.refusal(InvalidTime, field, _text(value), "epoch milliseconds")
    return values.due_ms(value, now_ms, field)


def _whole(
    value: object, most: int, field: str, error: type[InvalidInput], default: int = 0
) -> int:
    if value is None or value == default:
        return default
    return values.whole(value, 0, most, field, error, "a whole number")


def _headers_of(value: object) -> dict[str, str] | None:
    if isinstance(value, bytes | str):
        try:
            value = _headers.decode(value)
        except (msgspec.MsgspecError, UnicodeError) as error:
            allowed = f"a JSON object of texts ({error})"
            raise values.refusal(InvalidHeaders, "headers", value, allowed) from None
    return values.headers(value)
