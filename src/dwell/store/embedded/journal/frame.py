"""A frame is the output of one pass of the group commit: a header and some records.

::

    0       4       8             16            24            32            40
    +-------+-------+-------------+-------------+-------------+-------------+----------
    | magic | crc   | length      | position    | previous    | durable     | records ...
    +-------+-------+-------------+-------------+-------------+-------------+----------

All numbers are little-endian. ``crc`` is the CRC-32 of everything after it; ``length`` counts the
records' bytes, always a multiple of 8; ``position`` is where the frame begins in the journal, so
that bytes of another time or place are never taken for a frame; ``previous`` is where the frame
before it ends (less than ``position`` when it is in the segment before); ``durable`` is the
position up to which everything was on the disk before this frame was written.

Where no whole frame follows, reading continues at a later frame whose ``previous`` is this place:
the rest of the segment was left empty. Otherwise reading stops. If any later frame says that this
place was already durable, a promise was broken: the store is damaged. If none does, the frame was
being written when the machine stopped and was never answered, so it is cut off.

Rule for changes: a new layout gets a new magic and a new number in ``FORMAT`` (folder.py); code
that reads the old layout stays, with a file of it in tests/data.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dwell.store.embedded.disk import Buffer

MAGIC = 0x314C5744  # "DWL1"
_HEADER = struct.Struct("<IIQQQQ")
_AFTER_CRC = struct.Struct("<QQQQ")
HEADER_BYTES = _HEADER.size


class Frame(NamedTuple):
    """A whole frame: where it is, where its records are in the buffer, what was durable."""

    position: int
    start: int
    end: int
    previous: int
    durable: int


def header(position: int, previous: int, durable: int, records: Sequence[Buffer]) -> bytes:
    """Return the header of a frame of these records."""
    length = sum(map(len, records))
    crc = zlib.crc32(_AFTER_CRC.pack(length, position, previous, durable))
    for record in records:
        crc = zlib.crc32(record, crc)
    return _HEADER.pack(MAGIC, crc, length, position, previous, durable)


def frame_at(data: memoryview, offset: int, position: int) -> Frame | None:
    """Return the frame that begins at ``offset`` of a segment; None without a whole frame there."""
    start = offset + HEADER_BYTES
    if start > len(data):
        return None
    magic, crc, length, own_position, previous, durable = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or own_position != position or start + length > len(data):
        return None
    if zlib.crc32(data[offset + 8 : start + length]) != crc:
        return None
    return Frame(position, start, start + length, previous, durable)


def frames_in(data: memoryview, parts: Iterable[tuple[int, int]], position: int) -> Iterator[Frame]:
    """Yield every whole frame that begins in some parts, at any offset.

    ``data`` begins at ``position`` of the journal; a part is its first offset and its end.
    """
    for first, end in parts:
        first = -(-first // 8) * 8
        words = np.frombuffer(data[first:end], np.uint32, max(end - first, 0) // 8 * 2)[::2]
        for index in np.flatnonzero(words == MAGIC).tolist():
            offset = first + index * 8
            if frame := frame_at(data, offset, position + offset):
                yield frame
