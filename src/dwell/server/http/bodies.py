"""Bodies of messages as received, in JSON or MessagePack; a body over the limit is not unpacked.

A few bytes can unpack to many objects: a megabyte of empty maps takes 64 MB.
"""

from typing import Any

import msgspec

from dwell.errors import InvalidBody, InvalidInput
from dwell.message import MAX_BODY_BYTES
from dwell.server.http.schemas.requests import NewMessage, PackedMessage
from dwell.wire.rows import body_of

#: How a number with a fraction begins in MessagePack, and by how many bytes it may be longer there
#: than in JSON, where it is three at least.
_FRACTIONS = {b"\xcb": 6, b"\xca": 2}
#: The header of a text in MessagePack can be longer than two quotes: by a byte from 256 characters
#: on, and by a few for a very long text. Nothing else is longer than in JSON.
_FEWEST_OF_A_LONG_TEXT, _HEAD_BYTES = 256, 8
#: How many signs JSON may write for a byte of a text.
_ESCAPED = 6


def unpacked(raw: msgspec.Raw, field: str, *, packed: bool) -> Any:
    """Return the value of a body, None without a body; raises InvalidBody for a large one."""
    check_written(raw, field)
    data = bytes(raw)
    if not data:
        return None
    if packed:
        longer = sum(data.count(sign) * more for sign, more in _FRACTIONS.items())
        _check(len(data) - longer - len(data) // _FEWEST_OF_A_LONG_TEXT - _HEAD_BYTES, field)
        return msgspec.msgpack.decode(data)
    is_text = data.startswith(b'"')
    _check(len(data) // _ESCAPED if is_text else len(data), field)
    return msgspec.json.decode(data)


def check_written(raw: msgspec.Raw, field: str) -> None:
    """Refuse a body that is too large however it is written, before a copy of it is made."""
    _check(len(memoryview(raw)) // _ESCAPED, field)


def body_of_row(row: NewMessage, at: int) -> object:
    """Return the body of the message at a place: text, bytes or another value of JSON."""
    field = f"messages[{at}].body"
    is_packed, begin = isinstance(row, PackedMessage), bytes(memoryview(row.body)[:1])
    try:
        if row.body_base64 is None and (begin == b'"' or (is_packed and begin)):
            return unpacked(row.body, field, packed=is_packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBody(f"{field}: {error}") from None
    try:
        return body_of(row)
    except InvalidInput as error:
        raise type(error)(f"messages[{at}]: {error}") from None


def _check(size_bytes: int, field: str) -> None:
    if size_bytes > MAX_BODY_BYTES:
        raise InvalidBody(
            f"{field}: got {size_bytes} bytes or more, expected at most {MAX_BODY_BYTES}"
        )
