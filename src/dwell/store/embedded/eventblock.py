"""A block of events: the layout of the event log on disk.

::

    0       4       8               16              24        32
    +-------+-------+---------------+---------------+---------+------+---------+-----+
    | magic | crc   | length        | first event   | count   | meta | columns | ids |
    +-------+-------+---------------+---------------+---------+------+---------+-----+

``crc`` is the CRC-32 of everything after it; ``meta`` is a length (4 bytes) and the topics' names
by number in MessagePack; the columns are listed in _COLUMNS, ``count`` values each.
"""

import struct
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

from dwell.batch.blobs import Blobs, LazyIds, Same, are_texts
from dwell.batch.events import EVENT_ARRAYS, Events
from dwell.message import U16, Kind
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.disk import Buffer
from dwell.store.embedded.distinct import distinct

_MAGIC = 0x31455744  # "DWE1"
HEADER = struct.Struct("<IIQQQ")
_COLUMNS: dict[str, type[np.generic]] = {
    "time_ms": np.int64,
    "due_ms": np.int64,
    "seq": np.uint64,
    "row": np.uint32,
    "topic": np.uint32,
    "attempt": np.uint16,
    "id_bytes": np.uint16,
    "kind": np.uint8,
}


class Part:
    """The events of one record, not yet written."""

    __slots__ = ("columns", "count", "kind", "reader", "time_ms")

    def __init__(
        self, kind: Kind, time_ms: int, columns: dict[str, np.ndarray], reader: BlobReader | None
    ) -> None:
        self.kind = kind
        self.time_ms = time_ms
        self.columns = columns
        self.reader = reader
        self.count = len(columns["row"])


def encoded(first: int, parts: Sequence[Part], topic_names: Sequence[str]) -> list[Buffer]:
    """Return the events of some parts as a block; the first event has number ``first``."""
    columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    counts = [part.count for part in parts]
    columns["time_ms"] = np.repeat(np.array([p.time_ms for p in parts], np.int64), counts)
    columns["kind"] = np.repeat(np.array([p.kind for p in parts], np.uint8), counts)
    names = {number: topic_names[number] for number in distinct(columns["topic"]).tolist()}
    meta = msgspec.msgpack.encode(names)
    buffers: list[Buffer] = [len(meta).to_bytes(4, "little"), meta]
    for name, dtype in _COLUMNS.items():
        buffers.append(columns[name].astype(dtype, copy=False).view(np.uint8).data)
    readers = [part.reader for part in parts if part.reader]
    if readers:
        buffers.append(BlobReader.joined(readers).ids())
    rest = struct.pack("<QQQ", sum(map(len, buffers)), first, sum(counts))
    crc = zlib.crc32(rest)
    for buffer in buffers:
        crc = zlib.crc32(buffer, crc)
    return [struct.pack("<II", _MAGIC, crc) + rest, *buffers]


def block_at(data: Buffer, at: int, check: bool) -> tuple[int, int, int] | None:
    """Return first event, count and end of the block at ``at``; None when no whole one is there."""
    if at + HEADER.size > len(data):
        return None
    magic, crc, length, first, count = HEADER.unpack_from(data, at)
    end = at + HEADER.size + length
    if magic != _MAGIC or end > len(data):
        return None
    if check and zlib.crc32(memoryview(data)[at + 8 : end]) != crc:
        return None
    return first, count, end


def decoded(payload: bytes, first: int, count: int) -> Events:
    """Return the events of a block from the data after its header."""
    meta_bytes = int.from_bytes(payload[:4], "little")
    names = msgspec.msgpack.decode(payload[4 : 4 + meta_bytes], type=dict[int, str])
    at = 4 + meta_bytes
    columns: dict[str, np.ndarray] = {}
    for name, dtype in _COLUMNS.items():
        columns[name] = np.frombuffer(payload, dtype=dtype, count=count, offset=at)
        at += columns[name].nbytes
    return Events(
        positions=np.arange(first, first + count, dtype=np.int64),
        topics=_topics(columns["topic"], names),
        ids=LazyIds(columns["row"], columns["seq"], _own(payload, at, columns["id_bytes"])),
        **{name: columns[name] for name in EVENT_ARRAYS if name in columns},
    )


def _topics(numbers: np.ndarray, names: dict[int, str]) -> Sequence[str]:
    if len(names) == 1:
        (name,) = names.values()
        return Same(name, len(numbers))
    return [names[number] for number in numbers.tolist()]


def _own(payload: bytes, at: int, sizes: U16) -> Sequence[bytes] | None:
    """Return the ids that callers chose, empty where the queue made one."""
    if not sizes.any():
        return None
    own = Blobs.packed(payload[at:], sizes.astype(np.int64))
    # The ids were read from the journal, where damage may be repaired only after this.
    return own if are_texts(own) else list(map(_as_text, own))


def _as_text(damaged: bytes) -> bytes:
    return damaged.decode("utf-8", "backslashreplace").encode()
