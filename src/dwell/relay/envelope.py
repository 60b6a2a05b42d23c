"""The form of a record in the queue: a message that people can read, find and cancel.

Key and headers are text, as far as a message can hold them. Other values (bytes that are not text,
a repeated name, no body at all) are kept byte for byte in the header ``dwell-raw``: Base64 of
MessagePack ``[key, [[name, value], ...], has no body]``. It has the text headers too, which are
left out beside it where a message has no room for both. Properties that only one kind of broker
knows are in ``dwell-properties``, in Base64.
"""

import contextlib
from base64 import b64decode, b64encode

import msgspec

from dwell.batch.batch import Batch
from dwell.errors import InvalidHeaders
from dwell.given import values
from dwell.message import MAX_KEY_BYTES, Extra, decode_extra, encode_extra
from dwell.relay.record import Headers, Record

#: The target of a record.
TO = "dwell-to"
#: The record's source and place there, if its id does not contain them.
FROM = "dwell-from"
_RAW = "dwell-raw"
#: What only brokers of one kind know, in Base64.
PROPERTIES = "dwell-properties"

#: The prefix of headers for a relay itself; these are not sent on.
OURS = "dwell-"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[bytes | None, list[tuple[str, bytes | None]], bool])


def extra_of(record: Record, target: str | None) -> bytes:
    """Return a record's key and headers in the form of a message; raises InvalidHeaders."""
    headers = {} if target is None else {TO: target}
    if record.origin not in ("", record.id):
        headers[FROM] = record.origin
    if record.properties:
        headers[PROPERTIES] = b64encode(record.properties).decode()
    key = _text(record.key, MAX_KEY_BYTES)
    is_plain = record.body is not None and (key is not None or record.key is None)
    if not record.headers and is_plain:
        return encode_extra(key, values.headers(headers))
    texts: dict[str, str] = {}
    for name, value in record.headers:
        text = _text(value)
        if text is None or name in headers or name in texts:
            is_plain = False
        else:
            texts[name] = text
    if is_plain:
        return encode_extra(key, values.headers(headers | texts))
    raw = _encoder.encode((record.key, record.headers, record.body is None))
    headers[_RAW] = b64encode(raw).decode()
    with contextlib.suppress(InvalidHeaders):
        return encode_extra(key, values.headers(texts | headers))
    return encode_extra(key, values.headers(headers))


def records_of(batch: Batch, to: str = "") -> list[Record]:
    """Return the records in a batch; the topic of each is its target, or ``to``.

    An unreadable record is ``broken``, because any message of a topic may have such headers. Their
    ids are not read, because most are never needed.
    """
    return [_record_of(*pair, to) for pair in zip(batch.bodies, batch.extras, strict=True)]


def _record_of(body: bytes, data: bytes, to: str) -> Record:
    extra = decode_extra(data)
    said = extra.headers
    record = _plain_record_of(body, extra, to)
    try:
        if _RAW in said:
            data = b64decode(said[_RAW], validate=True)
            record.key, record.headers, has_no_body = _decoder.decode(data)
            record.body = None if has_no_body else body
        if PROPERTIES in said:
            record.properties = b64decode(said[PROPERTIES], validate=True)
    except (ValueError, msgspec.MsgspecError) as error:
        record.broken = f"{_RAW}, {PROPERTIES}: expected what a relay writes there ({error})"
    return record


def _plain_record_of(body: bytes, extra: Extra, to: str) -> Record:
    said = extra.headers
    key = None if extra.key is None else extra.key.encode()
    if len(said) == 1 and TO in said:
        return Record(said[TO], "", body, key)
    headers: Headers = [
        (name, value.encode()) for name, value in said.items() if not name.startswith(OURS)
    ]
    return Record(said.get(TO, to), "", body, key, headers)


def origins_of(batch: Batch) -> list[str]:
    """Return the origin of each message of a batch: its source and place there."""
    pairs = zip(batch.ids, batch.extras, strict=True)
    return [decode_extra(data).headers.get(FROM, id_) for id_, data in pairs]


def travelling(headers: Headers) -> Headers:
    """Return the headers without those for a relay itself."""
    return [header for header in headers if not header[0].startswith(OURS)]


def _text(data: bytes | None, most: int | None = None) -> str | None:
    """Return bytes as a text, or None if they are not text."""
    if data is None or (most is not None and not 0 < len(data) <= most):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
