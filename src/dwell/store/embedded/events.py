"""The event log: what happened to each message, in order, beside the journal.

Events follow from the journal, so they are written without a sync: what a crash loses is made again
by the replay, with the same positions. A file is a row of blocks::

    0       4       8               16              24        32
    +-------+-------+---------------+---------------+---------+------+---------+-----+
    | magic | crc   | length        | first event   | count   | meta | columns | ids |
    +-------+-------+---------------+---------------+---------+------+---------+-----+

``crc`` is the CRC-32 of everything after it; ``meta`` is a length (4 bytes) and the topics' names
by number in MessagePack; the columns are those of _COLUMNS, ``count`` values each.
"""

import struct
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from dwell.lazy import Blobs, LazyIds, Same
from dwell.message import I64, U16, U32, Kind
from dwell.store.base import Events
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.table import Table

_MAGIC = 0x31455744  # "DWE1"
_HEADER = struct.Struct("<IIQQQ")
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
_BLOCK_EVENTS = 32_768
_BLOCK_PARTS = 256
_FILE_BYTES = 32 * 1024 * 1024
_KINDS = max(Kind) + 1


class _Part:
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


class EventLog:
    """Gathers events in memory and writes them in blocks; the oldest files go first."""

    def __init__(self, disk: Disk, folder: Path, journal: Journal, most_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._journal = journal
        self._most_bytes = most_bytes
        self._parts: deque[_Part] = deque()
        self._unwritten = 0
        self._cuts: deque[int] = deque()
        self._blocks: list[tuple[int, int, int, int]] = []
        self._files: dict[int, tuple[int, int]] = {}
        self._last: Events | None = None
        self.next_position = 0
        self.totals: I64 = np.zeros(_KINDS, dtype=np.int64)
        self.topic_names: list[str] = []

    @property
    def first_position(self) -> int:
        """The position of the oldest event that is kept."""
        return self._blocks[0][0] if self._blocks else self.next_position - self._unwritten

    def add(self, kind: Kind, time_ms: int, rows: U32, table: Table) -> None:
        """Note that something happens to these rows, as the table has them now."""
        id_bytes: U16 = table.id_bytes[rows]
        columns: dict[str, np.ndarray] = {
            "row": rows,
            "due_ms": table.due_ms[rows],
            "seq": table.seq[rows],
            "attempt": table.attempt[rows],
            "topic": table.topic[rows],
            "id_bytes": id_bytes,
        }
        reader = None
        if id_bytes.any():
            none: U16 = np.zeros(len(rows), dtype=np.uint16)
            sizes = id_bytes.astype(np.uint32)
            reader = BlobReader(self._journal, table.position[rows], sizes, id_bytes, none)
        self._parts.append(_Part(kind, time_ms, columns, reader))
        self._unwritten += len(rows)
        self.next_position += len(rows)
        self.totals[kind] += len(rows)

    @property
    def is_full(self) -> bool:
        """Whether enough events wait to be written as a block.

        Joining many small parts takes time too, in which messages that fall due would be late.
        """
        return self._unwritten >= _BLOCK_EVENTS or len(self._parts) >= _BLOCK_PARTS

    def cut(self) -> int:
        """Let a block end here, and return the position.

        A snapshot of now can use the log only if it has a block that ends where the snapshot does.
        """
        self._cuts.append(self.next_position)
        return self.next_position

    def flush(self, until: int | None = None) -> None:
        """Write what is unwritten (up to a position) in blocks; it must all be committed."""
        until = self.next_position if until is None else until
        while self._cuts and self._cuts[0] <= until:
            self._flush_block(self._cuts.popleft())
        self._flush_block(until)

    def _flush_block(self, until: int) -> None:
        first = self.next_position - self._unwritten
        parts = self._pop_parts(until)
        if not parts:
            return
        columns = {
            name: np.concatenate([part.columns[name] for part in parts])
            for name in parts[0].columns
        }
        counts = [part.count for part in parts]
        columns["time_ms"] = np.repeat(np.array([p.time_ms for p in parts], np.int64), counts)
        columns["kind"] = np.repeat(np.array([p.kind for p in parts], np.uint8), counts)
        ids = b"".join([part.reader.ids() for part in parts if part.reader])
        self._write(first, columns, ids)
        self._drop_old()

    def _pop_parts(self, until: int) -> list[_Part]:
        parts, position = [], self.next_position - self._unwritten
        while self._parts and position + self._parts[0].count <= until:
            parts.append(self._parts.popleft())
            position += parts[-1].count
        self._unwritten = self.next_position - position
        return parts

    def read(self, position: int, limit: int) -> Events:
        """Return at most ``limit`` written events from ``position`` on."""
        parts: list[Events] = []
        position = max(position, self.first_position)
        while limit and (block := self._block_with(position)) is not None:
            start = position - int(block.positions[0])
            parts.append(block[start : start + limit])
            position += len(parts[-1])
            limit -= len(parts[-1])
        return Events.joined(parts)

    # --- files ----------------------------------------------------------------------------------

    def open(self, next_position: int, totals: Sequence[int]) -> None:
        """Find the blocks that are there, and forget those from ``next_position`` on.

        The replay makes those again. A log that is damaged begins anew: it is no promise.
        """
        self.next_position = next_position
        self.totals[: len(totals)] = totals
        paths = sorted(self._paths())
        for path in paths:
            self._open_file(path, check=path == paths[-1])
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last[0] + last[1] != next_position:
            for first in list(self._files):
                self._remove(first)

    def files_until(self, position: int) -> list[tuple[Path, int]]:
        """Return each file with events before a position where a block ends, and their bytes."""
        sizes = {number: size for number, (_, size) in self._files.items()}
        for first, _, number, at in reversed(self._blocks):
            if first < position:
                break
            sizes[number] = at
        return [(self._path(number), sizes[number]) for number in sorted(sizes) if sizes[number]]

    def sync(self) -> None:
        """Make what is written safe, before a snapshot counts on it."""
        if self._files:
            self._disk.sync(self._files[max(self._files)][0])

    def close(self) -> None:
        """Close the files; what is unwritten is made again by the next replay."""
        for fd, _ in self._files.values():
            self._disk.close(fd)
        self._files = {}

    def _paths(self) -> list[Path]:
        names = [name for name in self._disk.names(self._folder) if name.startswith("events-")]
        return [self._folder / name for name in names]

    def _open_file(self, path: Path, *, check: bool) -> None:
        # Only the last file can have been cut short; the others are checked when they are read.
        first = int(path.stem.removeprefix("events-"))
        data = self._disk.read(path)
        at = 0
        while (block := _block_at(data, at, check)) is not None and block[0] < self.next_position:
            self._blocks.append((*block[:2], first, at))
            at = block[2]
        fd = self._disk.open(path)
        self._disk.truncate(fd, at)
        self._files[first] = (fd, at)
        if not at:
            self._remove(first)

    def _remove(self, first: int) -> None:
        fd, _ = self._files.pop(first)
        self._disk.close(fd)
        self._disk.remove(self._path(first))
        self._blocks = [block for block in self._blocks if block[2] != first]
        self._last = None

    def _path(self, first: int) -> Path:
        return self._folder / f"events-{first:016d}.dwe"

    def _write(self, first: int, columns: dict[str, np.ndarray], ids: bytes) -> None:
        names = {number: self.topic_names[number] for number in distinct(columns["topic"]).tolist()}
        meta = msgspec.msgpack.encode(names)
        parts: list[Buffer] = [len(meta).to_bytes(4, "little"), meta]
        for name, dtype in _COLUMNS.items():
            parts.append(columns[name].astype(dtype, copy=False).view(np.uint8).data)
        parts.append(ids)
        count, length = len(columns["row"]), sum(map(len, parts))
        rest = struct.pack("<QQQ", length, first, count)
        crc = zlib.crc32(rest)
        for part in parts:
            crc = zlib.crc32(part, crc)
        parts.insert(0, struct.pack("<II", _MAGIC, crc) + rest)
        number = max(self._files, default=-1)
        if number < 0 or self._files[number][1] > _FILE_BYTES:
            number = first
            self._files[number] = (self._disk.create(self._path(first), 0), 0)
        fd, size = self._files[number]
        self._disk.write(fd, parts, size)
        self._files[number] = (fd, size + _HEADER.size + length)
        self._blocks.append((first, count, number, size))

    def _drop_old(self) -> None:
        while len(self._files) > 1 and sum(s for _, s in self._files.values()) > self._most_bytes:
            self._remove(min(self._files))

    def _block_with(self, position: int) -> Events | None:
        """Return the block that holds a position."""
        last = self._last
        if last is not None and last.positions[0] <= position <= last.positions[-1]:
            return last
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle][0] + self._blocks[middle][1] <= position:
                low = middle + 1
            else:
                high = middle
        if low == len(self._blocks):
            return None
        self._last = self._read_block(self._blocks[low])
        return self._last

    def _read_block(self, block: tuple[int, int, int, int]) -> Events:
        first, count, number, at = block
        fd = self._files[number][0]
        length = _HEADER.unpack(self._disk.read_part(fd, _HEADER.size, at))[2]
        return _decode(self._disk.read_part(fd, length, at + _HEADER.size), first, count)


def _block_at(data: bytes, at: int, check: bool) -> tuple[int, int, int] | None:
    """Return first event, count and end of the block at ``at``; None when no whole one is there."""
    if at + _HEADER.size > len(data):
        return None
    magic, crc, length, first, count = _HEADER.unpack_from(data, at)
    end = at + _HEADER.size + length
    if magic != _MAGIC or end > len(data):
        return None
    if check and zlib.crc32(memoryview(data)[at + 8 : end]) != crc:
        return None
    return first, count, end


def _decode(payload: bytes, first: int, count: int) -> Events:
    meta_bytes = int.from_bytes(payload[:4], "little")
    names = msgspec.msgpack.decode(payload[4 : 4 + meta_bytes], type=dict[int, str])
    at = 4 + meta_bytes
    columns: dict[str, np.ndarray] = {}
    for name, dtype in _COLUMNS.items():
        columns[name] = np.frombuffer(payload, dtype=dtype, count=count, offset=at)
        at += columns[name].nbytes
    return Events(
        positions=np.arange(first, first + count, dtype=np.int64),
        time_ms=columns["time_ms"],
        kind=columns["kind"],
        topics=_topics(columns["topic"], names),
        ids=LazyIds(columns["row"], columns["seq"], _own(payload, at, columns["id_bytes"])),
        due_ms=columns["due_ms"],
        attempt=columns["attempt"],
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
    return Blobs.packed(payload[at:], sizes.astype(np.int64))
