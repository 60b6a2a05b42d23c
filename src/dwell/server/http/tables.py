"""Tables of Arrow streams, read so that a small stream cannot unpack to a large table."""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

from dwell.errors import BatchTooLarge, InvalidInput
from dwell.given import columns
from dwell.queue.tablecolumns import check_schema, pyarrow
from dwell.wire.problems import MOST_DETAIL_CHARS

#: The type of a message's header, as the flatbuffers of Arrow number it.
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3

#: The first bytes of a file (Arrow IPC, random access).
_FILE = b"ARROW1\0\0"
#: The limit of the metadata that describe the columns, or a record batch.
_MOST_METADATA_BYTES = 1024 * 1024
#: The limit of record batches in a stream; each of them costs more than its rows.
_MOST_PARTS = 1000


async def loaded() -> None:
    """Load the package without blocking the event loop: loading takes 0.2 s."""
    if not _Loaded.is_whole:
        await asyncio.get_running_loop().run_in_executor(None, _load)


class _Loaded:
    """Whether the package and its lazy imports are loaded."""

    is_whole = False


def _load() -> None:
    # The first array imports pandas if it is installed, which takes 0.5 s.
    pyarrow().array([0])
    _Loaded.is_whole = True


def table_of(data: bytes | memoryview) -> Any:
    """Return the table of a stream or a file; raises InvalidInput if it is broken or too large.

    Each record batch costs some objects for every column, so the names and the types are checked
    before any of them is read.
    """
    pa = pyarrow()
    if data[: len(_FILE)] == _FILE:
        # A file is a stream between this and a table of its contents.
        data = data[len(_FILE) :]
    try:
        _refuse_compressed(pa, data)
        with pa.ipc.open_stream(data) as reader:
            check_schema(reader.schema)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"arrow: {str(error)[:MOST_DETAIL_CHARS]}") from None
    columns.check_count(len(table), "arrow")
    return table


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
    """Yield the position of each field of a table, 0 for an absent field."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    size = struct.unpack_from("<H", data, vtable)[0]
    for number in range(5):
        at = 4 + 2 * number
        offset = struct.unpack_from("<H", data, vtable + at)[0] if at + 2 <= size else 0
        yield table + offset if offset else 0
