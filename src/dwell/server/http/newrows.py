"""New messages that came as objects: read in one pass, or one by one where a pass would be long."""

import asyncio
import codecs
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from dwell.errors import BatchTooLarge, InvalidInput
from dwell.given import columns
from dwell.message import MAX_BATCH_MESSAGES
from dwell.server.http.body import Data
from dwell.server.http.call import decoded
from dwell.server.http.media import Media
from dwell.server.http.messageheaders import NONE
from dwell.server.http.schemas.requests import NewMessage, PackedMessage
from dwell.server.parts import ITEM_BYTES, TURN_BYTES
from dwell.wire.unknown import explained

_Piece: TypeAlias = bytes | memoryview


class _New(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message whose headers are unpacked when their size was checked.

    It cannot be part of a cycle, so the garbage collector does not track it.
    """

    headers: msgspec.Raw = NONE  # type: ignore[assignment]


class _Packed(PackedMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The same in MessagePack."""

    headers: msgspec.Raw = NONE  # type: ignore[assignment]


class _Counted(_New, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message whose decoding fails beyond the limit of a batch.

    A message in memory is a hundred times as large as the shortest message in a request.
    """

    def __post_init__(self) -> None:
        _counted.append(None)
        columns.check_count(len(_counted), "messages")


#: The limit of a message as written: JSON may escape each byte of a body with six characters.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
#: A body up to this size is read in one pass; a decoder looks at some 150 MB a second.
AT_ONCE_BYTES = 8 * 1024 * 1024
#: The limit of lines in NDJSON; most of them may be blank.
_MOST_LINES = 10 * MAX_BATCH_MESSAGES
#: How much of a body is checked for UTF-8 at a time.
_PIECE_BYTES = 1024 * 1024

_NEW_ROWS, _COUNTED_ROWS = _New | list[_New], _Counted | list[_Counted]
_PACKED_ROWS = _Packed | list[_Packed]
_counted: list[None] = []

_decoder, _packed_decoder = msgspec.json.Decoder(_New), msgspec.msgpack.Decoder(_Packed)
_skipper, _packed_skipper = msgspec.json.Decoder(msgspec.Raw), msgspec.msgpack.Decoder(msgspec.Raw)
#: The words of a decoder for a value that others follow; then it names the byte.
_FOLLOWED = "trailing characters (byte "
_BLANK = re.compile(rb"[ \t\r\n]*")


async def rows_in_turns(data: Data, form: Media) -> list[NewMessage]:
    """Return the messages of a body, up to the limit of a batch; many bytes are read in turns.

    Raises InvalidInput and BatchTooLarge.
    """
    if form is Media.NDJSON:
        return await _one_by_one(_lines(data), form)
    if len(data) <= AT_ONCE_BYTES:
        return _at_once(data, form)
    view = memoryview(data)
    items = _packed_items(view) if form is Media.MSGPACK else _items(view)
    return await _one_by_one(items, form)


def _at_once(data: Data, form: Media) -> list[NewMessage]:
    found: NewMessage | list[NewMessage]
    if form is Media.MSGPACK:
        columns.check_count(_packed_count(memoryview(data))[0] or 0, "messages")
        found = decoded(data, _PACKED_ROWS, form)
    else:
        # A body is stored as written, so nothing else would check its bytes. It may contain braces,
        # so too many braces only mean that the rows must be counted.
        try:
            is_many = _checked_utf8(data) > MAX_BATCH_MESSAGES
        except UnicodeDecodeError as error:
            raise InvalidInput(f"body: {error}") from None
        found = _counted_rows(data) if is_many else decoded(data, _NEW_ROWS, form)
    return found if isinstance(found, list) else [found]


def _counted_rows(data: Data) -> NewMessage | list[NewMessage]:
    _counted.clear()
    try:
        found: NewMessage | list[NewMessage] = decoded(data, _COUNTED_ROWS, Media.JSON)
    except InvalidInput:
        columns.check_count(len(_counted), "messages")
        raise
    return found


async def _one_by_one(pieces: Iterator[_Piece], form: Media) -> list[NewMessage]:
    """Return messages, each from its own piece of a body; other tasks run in between."""
    rows: list[NewMessage] = []
    left_bytes = TURN_BYTES
    for number, piece in enumerate(pieces):
        # To find a piece takes about as long as to decode it.
        left_bytes -= 2 * len(piece) + ITEM_BYTES
        if left_bytes < 0:
            await asyncio.sleep(0)
            left_bytes = TURN_BYTES
        if len(piece) > MAX_MESSAGE_BYTES:
            allowed = f"at most {MAX_MESSAGE_BYTES} of one message"
            told = f"{_where(form, number)}: got {len(piece)} bytes or more, expected {allowed}"
            raise BatchTooLarge(told)
        if form is Media.NDJSON and piece.isspace():  # type: ignore[union-attr]
            continue
        columns.check_count(len(rows) + 1, "messages")
        try:
            rows.append(_row(piece, form))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            told = f"{_where(form, number)}: {explained(error, NewMessage)}"
            raise InvalidInput(told) from None
        if len(piece) > TURN_BYTES:
            await asyncio.sleep(0)
    return rows


def _row(piece: _Piece, form: Media) -> NewMessage:
    if form is Media.MSGPACK:
        return _packed_decoder.decode(piece)
    _checked_utf8(bytes(piece))
    return _decoder.decode(piece)


def _where(form: Media, number: int) -> str:
    return f"line {number + 1}" if form is Media.NDJSON else f"messages[{number}]"


# --- pieces -----------------------------------------------------------------------------------


def _lines(data: Data) -> Iterator[bytes]:
    """Yield the lines of a body, too long lines only as far as the limit; raises BatchTooLarge."""
    begin = count = 0
    while begin < len(data):
        count += 1
        if count > _MOST_LINES:
            told = f"{_MOST_LINES} lines, expected {MAX_BATCH_MESSAGES} or fewer with a message"
            raise BatchTooLarge(f"messages: got more than {told}")
        most = begin + MAX_MESSAGE_BYTES + 1
        end = data.find(b"\n", begin, most) + 1 or min(most, len(data))
        yield data[begin:end]
        begin = end


def _items(view: memoryview) -> Iterator[memoryview]:
    """Yield the values of a list in JSON as they are written; anything else as one value."""
    at, sign = _next_sign(view, 0)
    if sign != b"[":
        yield view
        return
    at, sign = _next_sign(view, at + 1)
    number, is_over = 0, sign == b"]"
    while not is_over:
        end = _end_of(view, at, number, Media.JSON)
        yield view[at:end]
        at, sign = _next_sign(view, end)
        if sign not in (b",", b"]"):
            raise InvalidInput(f"messages[{number}]: JSON is malformed: expected , or ] after it")
        number, is_over = number + 1, sign == b"]"
        at = at if is_over else _next_sign(view, at + 1)[0]
    at, sign = _next_sign(view, at + 1)
    if sign:
        raise InvalidInput(f"body: JSON is malformed: trailing characters (byte {at})")


def _packed_items(view: memoryview) -> Iterator[memoryview]:
    """Yield the values of a list in MessagePack as they are written; anything else as one value."""
    count, at = _packed_count(view)
    if count is None:
        yield view
        return
    columns.check_count(count, "messages")
    for number in range(count):
        end = _end_of(view, at, number, Media.MSGPACK)
        yield view[at:end]
        at = end
    if at < len(view):
        raise InvalidInput(f"body: MessagePack is malformed: trailing characters (byte {at})")


def _packed_count(view: memoryview) -> tuple[int | None, int]:
    """Return the number of values in a list of MessagePack, and where they begin; None: no list."""
    first = view[0] if view else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F, 1
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    return (int.from_bytes(view[1 : 1 + width]), 1 + width) if width else (None, 0)


def _end_of(view: memoryview, at: int, number: int, form: Media) -> int:
    """Return where the value ends that begins at a place; raises InvalidInput without one.

    The decoder walks over one value only, and says where the next one begins. Of a value that is
    too long it sees the beginning.
    """
    window = view[at : at + MAX_MESSAGE_BYTES + 1]
    skipper: Any = _packed_skipper if form is Media.MSGPACK else _skipper
    try:
        # The rest of the window is blank.
        return at + len(memoryview(skipper.decode(window)))
    except (msgspec.MsgspecError, RecursionError) as error:
        told = str(error)
        if _FOLLOWED in told:
            # In JSON it has read the byte that it names the place behind.
            return at + int(told.rpartition(" ")[2][:-1]) - (form is Media.JSON)
        if "truncated" not in told or at + len(window) == len(view):
            raise InvalidInput(f"messages[{number}]: {told}") from None
    return at + len(window)


def _next_sign(view: memoryview, at: int) -> tuple[int, bytes]:
    """Return the place of the next sign that is not blank, and the sign; at the end none."""
    found = _BLANK.match(view, at)
    assert found is not None
    return found.end(), bytes(view[found.end() : found.end() + 1])


def _checked_utf8(data: Data) -> int:
    """Return the number of opening braces in a text, without a copy of the whole.

    Raises UnicodeDecodeError.
    """
    if isinstance(data, bytes) and data.isascii():
        return data.count(b"{")
    decoder, braces = codecs.getincrementaldecoder("utf-8")(), 0
    for at in range(0, len(data), _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES]
        braces += piece.count(b"{")
        decoder.decode(piece)
    decoder.decode(b"", final=True)
    return braces
