"""The parts of an AMQP message other than its body: properties, and headers of any type.

Text headers are headers of the record. The rest is kept as MessagePack in ``Record.properties``: an
array of message_id, delivery_mode, content_type, content_encoding, priority, correlation_id,
reply_to, expiration, timestamp (seconds), type, app_id, and the headers that are not text, each
with its value in AMQP's form.
"""

from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from dwell.relay.rabbitmq import table
from dwell.relay.record import Headers

#: RabbitMQ writes such a message to its disk.
PERSISTENT = 2
#: A header of RabbitMQ about a delivery, not about a message.
_OF_DELIVERY = "x-delivery-count"
_OURS = "dwell-"
_DELAY = "x-delay"
_DEATH = "x-death"
_HEADERS_FLAG = 1 << 13
#: Headers that RabbitMQ takes for more routing keys: their queues have had the message already.
_COPIES = ("CC", "BCC")


class Properties(msgspec.Struct, array_like=True, gc=False):
    """The properties of a message; None for an absent property."""

    message_id: str
    delivery_mode: int | None = PERSISTENT
    content_type: str | None = None
    content_encoding: str | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    timestamp: int | None = None
    type: str | None = None
    app_id: str | None = None
    typed: dict[str, bytes] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Properties).decode


def kept(found: Any, message_id: str, headers: dict[str, Any], *, expires: bool) -> bytes:
    """Return the bytes that a record keeps of the client's properties, and of their headers.

    The ``user_id`` is not sent on: RabbitMQ accepts only the connection's own. ``expires`` tells
    that the expiration is not a delay, so that it applies at the target.
    """
    timestamp = found.timestamp
    return _encode(
        Properties(
            message_id,
            found.delivery_mode,
            found.content_type,
            found.content_encoding,
            found.priority,
            found.correlation_id,
            found.reply_to,
            found.expiration if expires else None,
            None if timestamp is None else int(timestamp.timestamp()),
            found.message_type,
            found.app_id,
            _typed(headers),
        )
    )


def _typed(headers: dict[str, Any]) -> dict[str, bytes]:
    typed = {}
    for name, value in headers.items():
        if isinstance(value, (str, bytes)) or name.startswith(_OURS) or name == _OF_DELIVERY:
            continue
        # A finished delay is negative, as the plugin writes it: it must not count once more.
        is_delay = name == _DELAY and isinstance(value, int)
        typed[name] = table.value(-abs(value) if is_delay else value)
    return typed


def texts(headers: dict[str, Any], *, is_any: bool = False) -> Headers:
    """Return the headers that are texts, or numbers, which convert to text easily.

    Times and decimals are included in headers for a relay itself. Raises ValueError for such a
    header of another type, because its writer meant something by it; with ``is_any`` it is shown.
    """
    found: Headers = []
    for name, value in headers.items():
        if isinstance(value, str):
            found.append((name, value.encode()))
        elif isinstance(value, bytes):
            found.append((name, value))
        elif isinstance(value, (int, float)) and name != _OF_DELIVERY:
            found.append((name, _number(value).encode()))
        elif value is not None and (name.startswith(_OURS) or name == _DELAY):
            text = repr(value) if is_any else _told(name, value)
            found.append((name, text.encode("utf-8", "backslashreplace")))
    return found


def _told(name: str, value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return _number(float(value))
    raise ValueError(f"{name}: got {type(value).__name__}, expected a text or a number")


def _number(value: float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def read(data: bytes) -> Properties | None:
    """Return the properties that a record keeps, if any; raises ValueError for invalid data.

    Anyone may put a message with such a header, and RabbitMQ closes the connection for an invalid
    frame.
    """
    if not data:
        return None
    found = _decode(data)
    for value in found.typed.values():
        table.check(value)
    if found.timestamp is not None:
        table.check_time(found.timestamp)
    return found


def lasting(found: Properties) -> Properties:
    """Return what of the properties that a record keeps is the same each time it is read.

    A message without an id gets another one each time, and the entry of an expired message has
    the time of the reading.
    """
    typed = {name: value for name, value in found.typed.items() if name != _DEATH}
    return msgspec.structs.replace(found, message_id="", typed=typed)


def wire(found: Properties, headers: Headers) -> bytes:
    """Return properties and headers in the form of a frame."""
    flags, parts = 0, list[bytes]()
    for flag, part in (
        (1 << 15, _short(found.content_type)),
        (1 << 14, _short(found.content_encoding)),
        (_HEADERS_FLAG, _table(headers, found.typed)),
        (1 << 12, _octet(found.delivery_mode)),
        (1 << 11, _octet(found.priority)),
        (1 << 10, _short(found.correlation_id)),
        (1 << 9, _short(found.reply_to)),
        (1 << 8, _short(found.expiration)),
        (1 << 7, _short(found.message_id)),
        (1 << 6, None if found.timestamp is None else found.timestamp.to_bytes(8)),
        (1 << 5, _short(found.type)),
        (1 << 3, _short(found.app_id)),
    ):
        if part is not None:
            flags |= flag
            parts.append(part)
    return flags.to_bytes(2) + b"".join(parts)


def _short(given: str | None) -> bytes | None:
    if given is None:
        return None
    data = given.encode()
    return len(data).to_bytes(1) + data


def _octet(given: int | None) -> bytes | None:
    return None if given is None else given.to_bytes(1)


def _table(headers: Headers, typed: dict[str, bytes]) -> bytes | None:
    if not headers and not typed:
        return None
    # A name occurs once in a table: the last counts, and a typed value precedes a text.
    entries = {name: b"V" if one is None else table.text(one) for name, one in headers} | typed
    data = b"".join(table.entry(name, one) for name, one in entries.items() if name not in _COPIES)
    return len(data).to_bytes(4) + data
