"""Rows in and out: messages as objects, as the queue takes them and as callers read them."""

import asyncio
import codecs
import io
from collections.abc import Generator, Iterable, Iterator
from itertools import repeat

import msgspec

from dwell.batch.events import EVENT_COLUMNS, KIND_WORDS, Events
from dwell.errors import BatchTooLarge, InvalidInput
from dwell.given import columns
from dwell.message import MAX_BATCH_MESSAGES, Message
from dwell.server.http.body import Data
from dwell.server.http.call import decoded
from dwell.server.http.media import Media
from dwell.server.http.messageheaders import NONE
from dwell.server.http.schemas.answers import EventRow
from dwell.server.http.schemas.requests import NewMessage, PackedMessage
from dwell.server.parts import in_turns
from dwell.wire.rows import Shown, shown
from dwell.wire.unknown import explained


class _New(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message whose headers are unpacked when their size was checked.

    It cannot be part of a cycle, so the garbage collector does not track it.
    """

    headers: msgspec.Raw = NONE  # type: ignore[assignment]


class _Packed(PackedMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The same in MessagePack."""

    headers: msgspec.Raw = NONE  # type: ignore[assignment]


_NEW_ROWS = _New | list[_New]
_PACKED_ROWS = _Packed | list[_Packed]
_decoder = msgspec.json.Decoder(_New)


class _Counted(_New, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message whose decoding fails beyond the limit of a batch.

    A message in memory is a hundred times as large as the shortest message in a request.
    """

    def __post_init__(self) -> None:
        _counted.append(None)
        columns.check_count(len(_counted), "messages")


#: The cost of an event in a turn of the event loop.
_EVENT_BYTES = 128
#: The limit of a message as written: JSON may escape each byte of a body with six characters.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
#: The limit of lines in NDJSON; most of them may be blank.
_MOST_LINES = 10 * MAX_BATCH_MESSAGES
#: How much of a body is checked for UTF-8 at a time.
_PIECE_BYTES = 1024 * 1024

_COUNTED_ROWS = _Counted | list[_Counted]
_counted: list[None] = []


def rows_of(data: Data, form: Media) -> list[NewMessage]:
    """Return the messages of a body, up to the limit of a batch.

    Raises InvalidInput and BatchTooLarge.
    """
    steps = _steps(data, form)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: list[NewMessage] = done.value
            return found


async def rows_in_turns(data: Data, form: Media) -> list[NewMessage]:
    """Return the messages of a body; a large one is read in passes, with other tasks between."""
    if len(data) <= MAX_MESSAGE_BYTES:
        return rows_of(data, form)
    steps, found = _steps(data, form), list[NewMessage]()
    is_over = False
    while not is_over:
        try:
            next(steps)
        except StopIteration as done:
            found, is_over = done.value, True
        await asyncio.sleep(0)
    return found


def _steps(data: Data, form: Media) -> Generator[None, None, list[NewMessage]]:
    """Read the messages of a body, and pause after each pass."""
    if form is Media.MSGPACK:
        columns.check_count(_packed_count(data), "messages")
        yield from _check_sizes(data, form)
        found = decoded(data, _PACKED_ROWS, form)
    else:
        # A body is stored as written, so nothing else would check its bytes.
        braces = _checked_utf8(data)
        yield
        if form is Media.NDJSON:
            return lines_of(data)
        yield from _check_sizes(data, form)
        # Bodies may contain braces, so too many braces only mean that the rows must be counted.
        is_many = braces > MAX_BATCH_MESSAGES
        found = _counted_rows(data) if is_many else decoded(data, _NEW_ROWS, form)
    return found if isinstance(found, list) else [found]


class _Any(msgspec.Struct, gc=False):
    """An object whose fields are ignored; used to count the objects of a body."""

    def __post_init__(self) -> None:
        _counted.append(None)
        columns.check_count(len(_counted), "messages")


def _check_sizes(data: Data, form: Media) -> Iterator[None]:
    """Refuse a message that is too large in every encoding.

    Otherwise an error message would quote all of it. Raises InvalidInput and BatchTooLarge.
    """
    if len(data) <= MAX_MESSAGE_BYTES:
        return
    _counted.clear()
    if not isinstance(decoded(data, _ANY_ROWS, form), list):
        _check_size(len(data), 0)
    yield
    for at, raw in enumerate(decoded(data, list[msgspec.Raw], form)):
        _check_size(len(memoryview(raw)), at)
    yield


def _check_size(size_bytes: int, at: int) -> None:
    if size_bytes > MAX_MESSAGE_BYTES:
        allowed = f"at most {MAX_MESSAGE_BYTES} of one message"
        raise BatchTooLarge(f"messages[{at}]: got {size_bytes} bytes, expected {allowed}")


def _counted_rows(data: Data) -> NewMessage | list[NewMessage]:
    _counted.clear()
    try:
        found: NewMessage | list[NewMessage] = decoded(data, _COUNTED_ROWS, Media.JSON)
    except InvalidInput:
        columns.check_count(len(_counted), "messages")
        raise
    return found


def _packed_count(data: Data) -> int:
    """Return the number of values in a list of MessagePack; 0 if it is not a list."""
    width = {0xDC: 2, 0xDD: 4}.get(data[0] if data else 0, 0)
    return int.from_bytes(data[1 : 1 + width])


_ANY_ROWS = _Any | list[_Any]


def _checked_utf8(data: Data) -> int:
    """Return the number of opening braces in a text, without a copy of the whole.

    Raises InvalidInput if it is not UTF-8.
    """
    if isinstance(data, bytes) and data.isascii():
        return data.count(b"{")
    decoder, braces = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        for at in range(0, len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            braces += piece.count(b"{")
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"body: {error}") from None
    return braces


def lines_of(data: Data) -> list[NewMessage]:
    """Return the messages of NDJSON; raises InvalidInput naming the line, and BatchTooLarge."""
    rows: list[NewMessage] = []
    # BytesIO does not copy bytes, and memory pages can be read as a file.
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    file.seek(0)
    for number, line in enumerate(iter(file.readline, b""), 1):
        if number > _MOST_LINES:
            told = f"{_MOST_LINES} lines, expected {MAX_BATCH_MESSAGES} or fewer with a message"
            raise BatchTooLarge(f"messages: got more than {told}")
        _check_size(len(line), len(rows))
        if line.strip():
            columns.check_count(len(rows) + 1, "messages")
            try:
                rows.append(_decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                told = explained(error, NewMessage)
                raise InvalidInput(f"line {number}: {told}") from None
    return rows


# --- out --------------------------------------------------------------------------------------


def message_rows(batch: Iterable[Message], *, packed: bool = False) -> list[Shown]:
    """Return messages as objects; ``packed`` keeps bodies as binary data."""
    return [shown(message, packed=packed) for message in batch]


async def event_rows(events: Events) -> list[EventRow]:
    """Return events as objects; yields to other tasks."""
    lists = events.lists
    at = EVENT_COLUMNS.index("kind")
    lists[at] = [KIND_WORDS[code] for code in lists[at]]
    rows = zip(*lists, strict=True)
    return [EventRow(*row) async for row in in_turns(rows, repeat(_EVENT_BYTES))]


def as_lines(rows: Iterable[object]) -> bytes:
    """Return objects as NDJSON."""
    return msgspec.json.Encoder().encode_lines(rows)
