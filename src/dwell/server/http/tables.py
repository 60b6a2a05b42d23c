"""Tables: what an Arrow stream holds, read so that a small stream cannot unpack to a large one."""

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dwell.errors import BatchTooLarge, InvalidHeaders, InvalidInput
from dwell.given import columns
from dwell.message import MAX_BATCH_BYTES, MAX_HEADERS

#: What a header of a message is, as the flatbuffers of Arrow number it.
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3

_FORMS = "numbers, text, binary, moments, spans, or a map of text to text"


def pyarrow() -> Any:
    """Return the package; raises InvalidInput. Only who sends or asks for Arrow pays for it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError:
        raise InvalidInput("arrow: the server lacks pyarrow; pip install 'dwell[arrow]'") from None
    return pyarrow


class Table:
    """The columns of a stream; raises InvalidInput for what is broken and for what is too large."""

    def __init__(self, data: bytes | memoryview) -> None:
        pa = self._pa = pyarrow()
        try:
            _refuse_compressed(pa, data)
            with pa.ipc.open_stream(data) as reader:
                self._table = reader.read_all()
            self._table.validate(full=True)
            self.names: list[str] = self._table.column_names
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"arrow: {error}") from None
        columns.check_count(len(self._table), "arrow")
        if len(set(self.names)) != len(self.names):
            raise InvalidInput(f"arrow: got columns {self.names}, expected each name once")

    def column(self, name: str) -> Any:
        """Return a column as an array of whole numbers, or as a list."""
        column = self._table.column(name)
        if not _is_plain(self._pa, column.type):
            raise InvalidInput(f"arrow: column {name!r} is {column.type}, expected {_FORMS}")
        size_bytes = sum(_unpacked_bytes(self._pa, chunk) for chunk in column.chunks)
        if size_bytes > MAX_BATCH_BYTES:
            raise BatchTooLarge(
                f"arrow: column {name!r} has {size_bytes} bytes, "
                f"expected {MAX_BATCH_BYTES} or fewer"
            )
        if self._pa.types.is_integer(column.type) and not column.null_count:
            return column.combine_chunks().to_numpy(zero_copy_only=False)
        if self._pa.types.is_map(column.type):
            _check_headers(column)
        try:
            return [_value(value) for value in column.to_pylist()]
        except (self._pa.ArrowException, ValueError, TypeError, OverflowError, KeyError) as error:
            raise InvalidInput(f"arrow: column {name!r}: {error}") from None


def _check_headers(column: Any) -> None:
    """Refuse more headers than a message may have, before an object is made for each."""
    at = 0
    for chunk in column.chunks:
        counts = np.diff(chunk.offsets.to_numpy())
        if len(counts) and counts.max() > MAX_HEADERS:
            place = int(counts.argmax())
            got = f"headers[{at + place}]: got {counts[place]} headers"
            raise InvalidHeaders(f"{got}, expected at most {MAX_HEADERS}")
        at += len(chunk)


def _value(value: Any) -> Any:
    """Return a value; Arrow says in the type, not in a moment itself, that it is UTC."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return dict(value) if isinstance(value, list) else value


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
        types.is_string_view,
        types.is_binary_view,
    )
    return _is_text(pa, kind) or any(check(kind) for check in checks)


def _is_text(pa: Any, kind: Any) -> bool:
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(kind) for check in checks)


def _unpacked_bytes(pa: Any, chunk: Any) -> int:
    """Return how large values are one by one, where many of them may be the same bytes."""
    if pa.types.is_dictionary(chunk.type):
        sizes = pa.compute.binary_length(chunk.dictionary).take(chunk.indices)
        return pa.compute.sum(sizes).as_py() or 0
    if pa.types.is_string_view(chunk.type) or pa.types.is_binary_view(chunk.type):
        # Each view is 16 bytes, and begins with its length; the buffer may be longer than they are.
        count = 4 * (chunk.offset + len(chunk))
        views = np.frombuffer(chunk.buffers()[1] or b"", dtype="<i4", count=count).reshape(-1, 4)
        return int(views[chunk.offset :, 0].sum(dtype=np.int64))
    return int(chunk.nbytes)


# --- compression ------------------------------------------------------------------------------


def _refuse_compressed(pa: Any, data: bytes | memoryview) -> None:
    """Refuse a stream with compressed buffers: nothing says beforehand how large they are."""
    for message in pa.ipc.MessageReader.open_stream(data):
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
