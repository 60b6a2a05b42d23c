"""Tables: what an Arrow stream holds, read so that a small stream cannot unpack to a large one."""

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from dwell.errors import BatchTooLarge, InvalidHeaders, InvalidInput
from dwell.given import columns, values
from dwell.message import MAX_BATCH_BYTES, MAX_HEADERS
from dwell.wire.problems import MOST_DETAIL_CHARS

#: What a header of a message is, as the flatbuffers of Arrow number it.
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3

#: How many headers the messages of a stream may have together, each of which is some objects.
MOST_HEADERS = 100_000
#: How much may describe the columns, or what a record batch holds.
_MOST_METADATA_BYTES = 1024 * 1024
#: How many record batches a stream may have, of which each costs more than its rows.
_MOST_PARTS = 1000
#: How many rows are read before others have their turn.
_TURN_ROWS = 500

_FORMS = "numbers, text, binary, moments, spans, or a map of text to text"

#: Where Arrow says that a column means something else than its values do.
_EXTENSION = b"ARROW:extension:name"


def pyarrow() -> Any:
    """Return the package; raises InvalidInput. Only who sends or asks for Arrow pays for it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError:
        raise InvalidInput("arrow: the server lacks pyarrow; pip install 'dwell[arrow]'") from None
    return pyarrow


async def loaded() -> None:
    """Return when the package is loaded, which takes 0.2 s of which others have their part."""
    if not _Loaded.is_whole:
        await asyncio.get_running_loop().run_in_executor(None, _load)


class _Loaded:
    """Whether the package and what it loads at its first use are there."""

    is_whole = False


def _load() -> None:
    # The first array looks for pandas, and loads it where it is installed, which takes 0.5 s.
    pyarrow().array([0])
    _Loaded.is_whole = True


class Table:
    """The columns of a stream; raises InvalidInput for what is broken and for what is too large.

    ``check`` is told the names of the columns, and raises InvalidInput for those that are not
    expected. Each record batch costs some objects for every column, so it is asked before any of
    them is read, and so are the types.
    """

    def __init__(self, data: bytes | memoryview, check: Callable[[Sequence[str]], None]) -> None:
        pa = self._pa = pyarrow()
        if bytes(data[:6]) == b"ARROW1":
            raise InvalidInput("arrow: got a file, expected a stream (IPC streaming format)")
        try:
            _refuse_compressed(pa, data)
            with pa.ipc.open_stream(data) as reader:
                self.names: list[str] = reader.schema.names
                self._check_schema(reader.schema, check)
                self._table = reader.read_all()
            self._table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"arrow: {str(error)[:MOST_DETAIL_CHARS]}") from None
        columns.check_count(len(self._table), "arrow")

    def _check_schema(self, schema: Any, check: Callable[[Sequence[str]], None]) -> None:
        if len(set(self.names)) != len(self.names):
            raise InvalidInput(
                f"arrow: got columns {values.shown(self.names)}, expected each name once"
            )
        check(self.names)
        for field in schema:
            _check_field(self._pa, field)

    async def column(self, name: str) -> Any:
        """Return a column as an array of whole numbers, or as a list."""
        pa, column, shown = self._pa, self._table.column(name), values.shown(name)
        if isinstance(column.type, pa.JsonType):
            column = column.cast(column.type.storage_type)
        size_bytes = sum(_unpacked_bytes(self._pa, chunk) for chunk in column.chunks)
        if size_bytes > MAX_BATCH_BYTES:
            raise BatchTooLarge(
                f"arrow: column {shown} has {size_bytes} bytes, expected {MAX_BATCH_BYTES} or fewer"
            )
        if self._pa.types.is_integer(column.type) and not column.null_count:
            return column.combine_chunks().to_numpy(zero_copy_only=False)
        if self._pa.types.is_map(column.type):
            _check_headers(column)
        try:
            micros, found = _in_micros(pa, column), list[Any]()
            rows = _TURN_ROWS // 10 if pa.types.is_map(column.type) else _TURN_ROWS
            for at in range(0, len(column), rows):
                found += map(_value, micros.slice(at, rows).to_pylist())
                await asyncio.sleep(0)
            return found
        except _UNREADABLE:
            raise _refusal(pa, column, name) from None


def _check_field(pa: Any, field: Any) -> None:
    """Refuse a column whose values are not single ones, or headers; raises InvalidInput."""
    kind, shown = field.type, values.shown(field.name)
    extension = (field.metadata or {}).get(_EXTENSION)
    if extension is not None:
        named = values.shown(extension.decode(errors="replace"))
        raise InvalidInput(
            f"arrow: column {shown} is of the extension type {named}, expected {_FORMS}"
        )
    if isinstance(kind, pa.JsonType):
        kind = kind.storage_type
    if not _is_plain(pa, kind):
        raise InvalidInput(f"arrow: column {shown} is {str(kind)[:200]}, expected {_FORMS}")


#: What is raised for a value that Python cannot say; PyArrow's errors are of these classes, too.
_UNREADABLE = (ArithmeticError, KeyError, NotImplementedError, TypeError, ValueError)


def _refusal(pa: Any, column: Any, name: str) -> InvalidInput:
    """Return what is wrong with a column, and in which row."""
    low, high = 0, len(column)
    while high - low > 1:
        # One of the rows from the first half on is bad, or one of the second half is.
        middle = (low + high) // 2
        try:
            list(map(_value, _in_micros(pa, column.slice(low, middle - low)).to_pylist()))
            low = middle
        except _UNREADABLE:
            high = middle
    for at in range(low, high):
        part = column.slice(at, 1)
        try:
            _value(_in_micros(pa, part).to_pylist()[0])
        except _UNREADABLE as error:
            got = " ".join(str(part).split())[:100]
            return InvalidInput(f"arrow: {name}[{at}]: got {got}, expected {_FORMS} ({error})")
    return InvalidInput(f"arrow: column {values.shown(name)} cannot be read as {_FORMS}")


def _in_micros(pa: Any, column: Any) -> Any:
    """Return moments and spans in microseconds, rounded up, so that nothing is early.

    A moment is the same in every zone, and not all zones of other programs are known here.
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        wanted = pa.timestamp("us", kind.tz and "UTC")
        nanos = pa.timestamp("ns", kind.tz and "UTC")
    elif pa.types.is_duration(kind):
        wanted, nanos = pa.duration("us"), pa.duration("ns")
    else:
        return column
    if kind.unit != "ns":
        return column.cast(wanted)
    rest = column.cast(nanos).cast(pa.int64())
    floored = column.cast(wanted, safe=False).cast(pa.int64())
    # The cast cuts towards zero, which is down only after 1970.
    up = pa.compute.greater(rest, pa.compute.multiply(floored, 1000))
    return pa.compute.add(floored, up.cast(pa.int64())).cast(wanted)


def _check_headers(column: Any) -> None:
    """Refuse more headers than a message or a request may have, before any object is made."""
    at = total = 0
    for chunk in column.chunks:
        counts = np.diff(chunk.offsets.to_numpy())
        if len(counts) and counts.max() > MAX_HEADERS:
            place = int(counts.argmax())
            got = f"headers[{at + place}]: got {counts[place]} headers"
            raise InvalidHeaders(f"{got}, expected at most {MAX_HEADERS}")
        at, total = at + len(chunk), total + int(counts.sum())
    if total > MOST_HEADERS:
        raise BatchTooLarge(
            f"headers: got {total} in one request, expected {MOST_HEADERS} or fewer in Arrow"
        )


def _value(value: Any) -> Any:
    """Return a value as the queue knows it; a moment without a zone is one of UTC."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "nanoseconds"):
        return _span(value)
    return dict(value) if isinstance(value, list) else value


def _span(interval: Any) -> timedelta:
    """Return an interval of days and nanoseconds; raises ValueError for one of months."""
    if interval.months:
        raise ValueError("months differ in length")
    return timedelta(days=interval.days, microseconds=-(-interval.nanoseconds // 1000))


def _is_plain(pa: Any, kind: Any) -> bool:
    """Tell whether values of a type are single ones, or headers."""
    types = pa.types
    if types.is_dictionary(kind):
        return _is_text(pa, kind.value_type)
    if types.is_map(kind):
        return _is_text(pa, kind.key_type) and _is_text(pa, kind.item_type)
    checks = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_null,
        types.is_timestamp,
        types.is_duration,
        types.is_fixed_size_binary,
        types.is_date32,
        types.is_date64,
        types.is_decimal,
        types.is_interval,
    )
    return (
        _is_text(pa, kind) or isinstance(kind, pa.UuidType) or any(check(kind) for check in checks)
    )


def _is_text(pa: Any, kind: Any) -> bool:
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return _is_view(pa, kind) or any(check(kind) for check in checks)


def _is_view(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _unpacked_bytes(pa: Any, chunk: Any) -> int:
    """Return how large values are one by one, where many of them may be the same bytes."""
    if pa.types.is_dictionary(chunk.type):
        sizes = _lengths(pa, chunk.dictionary).take(chunk.indices)
        return pa.compute.sum(sizes).as_py() or 0
    if pa.types.is_map(chunk.type):
        parts = [part for part in (chunk.keys, chunk.items) if _is_view(pa, part.type)]
        viewed = sum(_unpacked_bytes(pa, part) for part in parts)
        return int(chunk.nbytes) + viewed
    if _is_view(pa, chunk.type):
        return pa.compute.sum(_lengths(pa, chunk)).as_py() or 0
    return int(chunk.nbytes)


def _lengths(pa: Any, texts: Any) -> Any:
    """Return how many bytes each text has."""
    if not _is_view(pa, texts.type):
        return pa.compute.binary_length(texts)
    # Each view is 16 bytes, and begins with its length; the buffer may be longer than they are.
    count = 4 * (texts.offset + len(texts))
    views = np.frombuffer(texts.buffers()[1] or b"", dtype="<i4", count=count).reshape(-1, 4)
    return pa.array(views[texts.offset :, 0].astype(np.int64))


# --- compression ------------------------------------------------------------------------------


def _refuse_compressed(pa: Any, data: bytes | memoryview) -> None:
    """Refuse a stream with compressed buffers: nothing says beforehand how large they are."""
    for count, message in enumerate(pa.ipc.MessageReader.open_stream(data)):
        if count > _MOST_PARTS:
            raise BatchTooLarge(f"arrow: got more than {_MOST_PARTS} record batches in one stream")
        if message.metadata.size > _MOST_METADATA_BYTES:
            raise InvalidInput(
                f"arrow: got {message.metadata.size} bytes that describe the columns, "
                f"expected at most {_MOST_METADATA_BYTES}"
            )
        if _is_compressed(message.metadata.to_pybytes()):
            raise InvalidInput("arrow: the stream is compressed, expected one that is not")


def _is_compressed(metadata: bytes) -> bool:
    """Tell whether the head of a message, a flatbuffer, names a compression for its body."""
    if b"compression" in metadata.lower():
        # Before the field for it there was a key among the metadata, which is read still.
        return True
    try:
        message = struct.unpack_from("<I", metadata)[0]
        _, kind_at, header_at, *_ = _fields(metadata, message)
        kind = metadata[kind_at] if kind_at else 0
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            return False
        batch = _followed(metadata, header_at)
        if kind == _DICTIONARY_BATCH:
            _, data_at, *_ = _fields(metadata, batch)
            batch = _followed(metadata, data_at)
        _, _, _, compression_at, *_ = _fields(metadata, batch)
        return compression_at != 0
    except (struct.error, IndexError):
        raise InvalidInput("arrow: the head of a message is broken") from None


def _followed(data: bytes, at: int) -> int:
    found: int = at + struct.unpack_from("<I", data, at)[0]
    return found


def _fields(data: bytes, table: int) -> Iterator[int]:
    """Yield where each field of a table stands, 0 for one that it does not have."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    size = struct.unpack_from("<H", data, vtable)[0]
    for number in range(5):
        at = 4 + 2 * number
        offset = struct.unpack_from("<H", data, vtable + at)[0] if at + 2 <= size else 0
        yield table + offset if offset else 0
