"""Rows: one message as an object of JSON (or MessagePack), in and out.

The fields have the words of :meth:`dwell.Queue.put` and :class:`dwell.Message`; a body that is not
text goes as ``body_base64``, or as binary data in MessagePack.
"""

import binascii
import re
from base64 import b64decode, b64encode
from typing import Any, overload

import msgspec

from dwell.errors import InvalidBody
from dwell.given import values
from dwell.given.values import Delay
from dwell.message import Message, State

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line as written; the fields have the names of ``dwell put``."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    body_base64: str | None = None
    id: str | None = None
    delay: str | int | float | None = None
    due: str | int | None = None
    due_ms: int | None = None
    delay_level: int | None = None
    priority: int | None = None
    lease: str | int | float | None = None
    ttl: str | int | float | None = None
    expires: str | int | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    max_attempts: int | None = None


_PLAIN = ("id", "delay_level", "priority", "max_attempts", "expires", "key", "headers")


@overload
def span_of(given: Delay) -> Delay: ...
@overload
def span_of(given: Delay | None) -> Delay | None: ...
def span_of(given: Delay | None) -> Delay | None:
    """Return a span of time; a number without a unit is seconds."""
    if isinstance(given, str) and _SECONDS.fullmatch(given):
        return float(given)
    return given


def words_of(line: Line) -> dict[str, Any]:
    """Return the fields of a line besides its body, as arguments of :meth:`dwell.Queue.put`."""
    plain = {name: getattr(line, name) for name in _PLAIN}
    spans = {name: span_of(getattr(line, name)) for name in ("delay", "lease", "ttl")}
    return {**plain, **spans, "due": line.due_ms if line.due is None else line.due}


def body_of(line: Line) -> bytes | str:
    """Return the body: text as it is, any other JSON as written."""
    raw = bytes(line.body)
    if raw == b"null" and line.body_base64 is not None:
        raw = b""
    if (raw != b"") == (line.body_base64 is not None):
        raise InvalidBody("body: expected either body or body_base64")
    if line.body_base64 is not None:
        return from_base64(line.body_base64)
    return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw


def from_base64(text: str, field: str = "body_base64") -> bytes:
    """Return the bytes of a text in base64; raises InvalidBody."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise values.refusal(InvalidBody, field, text, "base64") from None


def body_fields(body: bytes) -> dict[str, str]:
    """Return a body as the field of a JSON object: ``body``, or ``body_base64`` if not UTF-8."""
    return text_fields("body", body)


def text_fields(name: str, data: bytes | None) -> dict[str, str]:
    """Return bytes as the field of a JSON object, ``<name>_base64`` if not UTF-8; none if None."""
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


class Shown(msgspec.Struct, gc=False):
    """A message as programs read it: the fields of :class:`dwell.Message`."""

    topic: str
    id: str
    due_ms: int
    state: str
    priority: int
    attempt: int
    max_attempts: int
    lease_ms: int
    lease_until_ms: int
    died_ms: int
    expires_ms: int
    key: str | None
    headers: dict[str, str]
    last_error: str | None
    receipt: str | None
    number: int
    body: str | bytes | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET


def shown(message: Message, *, packed: bool = False) -> Shown:
    """Return a message as programs read it; ``packed`` keeps its body as binary data."""
    made = Shown(
        message.topic,
        message.id,
        message.due_ms,
        _STATES[message.state],
        message.priority,
        message.attempt,
        message.max_attempts,
        message.lease_ms,
        message.lease_until_ms,
        message.died_ms,
        message.expires_ms,
        message.key,
        message.headers,
        message.last_error,
        message.receipt,
        message.number,
    )
    try:
        made.body = message.body if packed else message.body.decode()
    except UnicodeDecodeError:
        made.body_base64 = b64encode(message.body).decode()
    return made


def message_object(message: Message) -> dict[str, Any]:
    """Return the same as a dict."""
    fields: dict[str, Any] = msgspec.to_builtins(shown(message))
    return fields


def state_text(state: State) -> str:
    """Return the word for a state."""
    return _STATES[state]


_STATES = {state: state.name.lower() for state in State}
