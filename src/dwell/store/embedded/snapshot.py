"""A snapshot: the whole state at one journal position, so that a start reads less.

::

    | magic | crc of meta | meta length | meta (MessagePack) | arrays, each at a multiple of 64 |

``meta`` has for every array its name, type, length, offset and CRC-32; remembered ids may come in
several arrays of one name. A snapshot is written under a temporary name, synced, and then renamed;
the previous snapshot is kept until the next, so that one damaged file does no harm.
"""

import contextlib
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from dwell.message import U64, Rows, State, TopicSettings
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.known import KnownIds, ends_of
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.table import TYPES

MAGIC = 0x31535744  # "DWS1"
HEADER = struct.Struct("<IIQ")
_ALIGN = 64
#: The one column that is not stored: the bits of the id are stored in its place.
ENTRY = "id_entry"
#: The stored columns instead: the hash of the id, and the bits that confirm it.
KEYS: dict[str, type[np.generic]] = {"id_hash": np.uint64, "id_check": np.uint32}
#: Arrays that may come in several parts, and the approximate size of a part.
REMEMBERED = ("remembered_hashes", "remembered_notes")
_REMEMBERED_STEP = 1 << 18
#: Bytes of an array that are read together for its checksum.
_CHECKED_BYTES = 1 << 20
#: Bytes of a snapshot for each remembered id.
_REMEMBERED_BYTES = 16
#: The parts of the errors, each its length (4 bytes) and a MessagePack map by row; and how many
#: errors a part has, because encoding a large map at once would block all tasks.
ERRORS = "errors"
_ERRORS_STEP = 1 << 13
_NOTHING: tuple[U64, ...] = (np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64))


class Array(msgspec.Struct, frozen=True, array_like=True):
    """Where an array of a snapshot is."""

    name: str
    dtype: str
    count: int
    offset: int
    crc: int


class Meta(msgspec.Struct, frozen=True):
    """Everything in a snapshot except the arrays."""

    position: int
    time_ms: int
    top: int
    next_seq: int
    next_event: int
    totals: list[int]
    topics: list[tuple[str, TopicSettings]]
    owners: dict[str, int]
    errors: dict[int, str]
    arrays: list[Array]


def snapshot_path(folder: Path, position: int) -> Path:
    """Return the path of the snapshot at a position."""
    return folder / f"snapshot-{position:016d}.dws"


def snapshot_positions(disk: Disk, folder: Path) -> list[int]:
    """Return the positions of the existing snapshots, oldest first."""
    names = [Path(name) for name in disk.names(folder)]
    found = [n.stem.removeprefix("snapshot-") for n in names if n.suffix == ".dws"]
    return sorted(int(number) for number in found)


class Snapshot:
    """A snapshot in progress, while the state changes: rows are copied a part at a time.

    It shows the state at the moment it was made. Before a row that is not copied yet changes, the
    machine calls :meth:`keep` to save its values; at the end these are written over the copy.

    ``is_copy`` says that no journal follows: then the snapshot has the ids remembered at its
    moment, and none remembered later. ``new`` is its name until it is finished; ``fd`` and
    ``size_bytes`` belong to its file. Make it, write what :meth:`parts` yields, and then
    :meth:`finish` or :meth:`abandon` it.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        machine: Machine,
        position: int,
        now_ms: int,
        limits: Limits = LIMITS,
        new: Path | None = None,
        *,
        is_copy: bool = False,
    ) -> None:
        self.position = position
        self._is_copy = is_copy
        #: For ids acked since then: their hashes, and their memories from before.
        self._memories: list[tuple[U64, U64]] = []
        self._disk = disk
        self._path = snapshot_path(folder, position)
        self.new = new or self._path.with_suffix(".new")
        self.fd = -1
        self.size_bytes = 0
        self._machine = machine
        self._step = limits.snapshot_rows
        self._now_ms = now_ms
        self._top = machine.table.top
        self._copied = 0
        self._is_kept = np.zeros(self._top, dtype=bool)
        self._kept: list[tuple[Rows, dict[str, np.ndarray]]] = []
        self._free = machine.table.free_rows().copy()
        # A copy of the store has no later journal that would correct newer values.
        self._errors = machine.errors.copy()
        self._calls = machine.calls.arrays(now_ms) | machine.takes.arrays(now_ms)
        self._meta = Meta(
            position=position,
            time_ms=now_ms,
            top=self._top,
            next_seq=machine.next_seq,
            next_event=machine.events.next_position,
            totals=machine.events.totals.tolist(),
            topics=machine.topics.listed(),
            owners=machine.owners.copy(),
            errors={},
            arrays=[],
        )
        self._places = self._columns()
        machine.snapshots.append(self)

    def keep(self, rows: Rows) -> None:
        """Save the values of rows that are about to change."""
        rows = rows[(rows >= self._copied) & (rows < self._top)]
        rows = rows[~self._is_kept[rows]]
        if len(rows):
            self._is_kept[rows] = True
            self._kept.append((rows, self._values(rows)))

    def keep_memories(self, known: KnownIds, entries: Rows) -> None:
        """Save the memories of ids that are about to be acked."""
        if self._is_copy:
            self._memories.append(known.notes(entries))

    def create(self) -> None:
        """Make the file; this waits for the disk. Raises OSError or DiskFull.

        The file has room for everything written behind the columns: a write that finds no room
        later wastes the work.
        """
        beside = sum(column.nbytes for column in self._calls.values())
        beside += _REMEMBERED_BYTES * self._machine.known.used + self._machine.errors.size_bytes
        self.fd = self._disk.create(self.new, self.size_bytes + beside)

    def parts(self) -> Iterator[list[tuple[int, Buffer]]]:
        """Yield buffers and their offsets, in steps; the state may change between steps.

        The buffers are not shared, and can be written in any thread.
        """
        for start in range(0, self._top, self._step):
            part = slice(start, min(start + self._step, self._top))
            self._machine.table.read_ahead(part, 2)
            values = self._values(part)
            self._copied = part.stop
            yield [
                (place.offset + start * values[place.name].itemsize, _raw(values[place.name]))
                for place in self._places
                if place.name in values
            ]
        if not self._is_copy:
            self.let_go()
        yield [(self._places[-1].offset, _raw(self._free))]
        yield from self._remembered()
        if self._memories and len((then := self._memories_of_then())[0]):
            yield self._add_remembered(*then)
        yield from self._error_parts()
        yield [self._add(*named) for named in self._calls.items()]

    def write(self, part: list[tuple[int, Buffer]]) -> None:
        """Write a part, in any thread; this waits for no disk."""
        for offset, data in part:
            self._disk.write(self.fd, [data], offset)

    def seal(self) -> None:
        """Write the saved values over newer values, and add the checksums; in any thread."""
        self._restore()
        self._disk.truncate(self.fd, self.size_bytes)
        for index, place in enumerate(self._places):
            crc = 0
            for start in range(0, size_of(place), _CHECKED_BYTES):
                size_bytes = min(_CHECKED_BYTES, size_of(place) - start)
                part = self._disk.read_part(self.fd, size_bytes, place.offset + start)
                crc = zlib.crc32(part, crc)
            self._places[index] = msgspec.structs.replace(place, crc=crc)
        meta = self._encode(self._places)
        head = HEADER.pack(MAGIC, zlib.crc32(meta), len(meta))
        self._disk.write(self.fd, [head + meta], 0)

    def finish(self) -> None:
        """Sync the sealed snapshot, and rename it to its final name."""
        self._disk.sync(self.fd)
        self._close()
        self._disk.rename(self.new, self._path)

    def abandon(self) -> None:
        """Remove a snapshot that will not be finished."""
        self.let_go()
        self._close()
        with contextlib.suppress(OSError):
            self._disk.remove(self.new)

    def _close(self) -> None:
        # Only once: the number may belong to another file by then.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def let_go(self) -> None:
        """Stop reading the machine."""
        if self in self._machine.snapshots:
            self._machine.snapshots.remove(self)

    def living_bytes(self, segment_bytes: int) -> dict[int, int]:
        """Return how many bytes of living messages each segment holds, once it is sealed."""
        living: Counter[int] = Counter()
        for start in range(0, self._top, self._step):
            count = min(self._step, self._top - start)
            state = self.column("state", start, count)
            position = self.column("position", start, count)
            size_bytes = self.column("size_bytes", start, count)
            living.update(bytes_by_segment(state, position, size_bytes, segment_bytes))
        return dict(living)

    def column(self, name: str, start: int, count: int) -> np.ndarray:
        """Return a part of a column as it was written, once it is sealed."""
        place = next(place for place in self._places if place.name == name)
        dtype = np.dtype(place.dtype)
        offset = place.offset + start * dtype.itemsize
        return np.frombuffer(self._disk.read_part(self.fd, count * dtype.itemsize, offset), dtype)

    def _values(self, rows: "Rows | slice") -> dict[str, np.ndarray]:
        """Return copies of the columns of some rows, and the hashes of callers' ids."""
        table, known = self._machine.table, self._machine.known
        values = {name: getattr(table, name)[rows].copy() for name in TYPES if name != ENTRY}
        entries = table.id_entry[rows]
        if entries.any():
            at = entries.astype(np.intp)
            return {**values, "id_hash": known.hash[at], "id_check": known.check[at]}
        return {**values, **{n: np.zeros(len(entries), dtype=d) for n, d in KEYS.items()}}

    def _columns(self) -> list[Array]:
        """Lay out the columns and the free list behind room for the meta."""
        room = len(self._encode([Array("remembered_hashes", "<u8", 2**40, 2**60, 2**32 - 1)] * 64))
        # Remembered ids are written in parts, and a few more parts may be added by then.
        parts = self._machine.known.top // _REMEMBERED_STEP
        start = room + _ALIGN * (parts + len(self._errors) // _ERRORS_STEP)
        places = []
        types = {name: dtype for name, dtype in TYPES.items() if name != ENTRY}
        for name, dtype in {**types, **KEYS}.items():
            places.append(Array(name, np.dtype(dtype).str, self._top, start + -start % _ALIGN, 0))
            start = places[-1].offset + size_of(places[-1])
        places.append(Array("free", "<u4", len(self._free), start + -start % _ALIGN, 0))
        self.size_bytes = places[-1].offset + size_of(places[-1]) + _ALIGN
        return places

    def _remembered(self) -> Iterator[list[tuple[int, Buffer]]]:
        """Yield the ids remembered now, which may be more than then, as a replay finds too.

        Only expired ids can be missing. A copy leaves out ids that were acked since then.
        """
        known, start, found = self._machine.known, 0, _NOTHING
        while start < known.top:
            stop = min(start + self._step, known.top)
            part = known.remembered(self._now_ms, start, stop)
            if self._memories:
                is_older = ~np.isin(part[0], self._later_hashes())
                part = (part[0][is_older], part[1][is_older])
            found = tuple(np.concatenate(both) for both in zip(found, part, strict=True))
            start = stop
            if len(found[0]) >= _REMEMBERED_STEP or (start == known.top and len(found[0])):
                yield self._add_remembered(*found)
                found = _NOTHING
            else:
                yield []

    def _later_hashes(self) -> U64:
        """Return the hashes of the ids that were acked since then."""
        if len(self._memories) > 1:
            hashes, notes = zip(*self._memories, strict=True)
            self._memories = [(np.concatenate(hashes), np.concatenate(notes))]
        return self._memories[0][0]

    def _memories_of_then(self) -> tuple[U64, U64]:
        """Return the memories, as of then, of ids that were acked since."""
        # The first note of an id that was acked twice is from that moment.
        hashes, first = np.unique(self._later_hashes(), return_index=True)
        notes = self._memories[0][1][first]
        lasting = ends_of(notes) > self._now_ms
        return hashes[lasting], notes[lasting]

    def _error_parts(self) -> Iterator[list[tuple[int, Buffer]]]:
        errors = iter(self._errors.items())
        while part := dict(islice(errors, _ERRORS_STEP)):
            told = msgspec.msgpack.encode(part)
            data = len(told).to_bytes(4, "little") + told
            yield [self._add(ERRORS, np.frombuffer(data, np.uint8))]

    def _add_remembered(self, hashes: U64, notes: U64) -> list[tuple[int, Buffer]]:
        return [self._add(*named) for named in zip(REMEMBERED, (hashes, notes), strict=True)]

    def _add(self, name: str, column: np.ndarray) -> tuple[int, Buffer]:
        """Add one more array at the end of the layout; return its offset and data."""
        offset = self.size_bytes + -self.size_bytes % _ALIGN
        self._places.append(Array(name, column.dtype.str, len(column), offset, 0))
        self.size_bytes = offset + column.nbytes
        return offset, _raw(column)

    def _restore(self) -> None:
        places = {place.name: place for place in self._places}
        if not self._kept:
            return
        rows = np.concatenate([rows for rows, _ in self._kept])
        order = np.argsort(rows)
        rows = rows[order]
        for name in self._kept[0][1]:
            column = np.concatenate([values[name] for _, values in self._kept])[order]
            self._write_rows(places[name], rows, column)
        self._kept = []

    def _write_rows(self, place: Array, rows: Rows, values: np.ndarray) -> None:
        """Write values of rows, in order, over a column, a part of the file at a time."""
        size = values.itemsize
        for start in range(0, self._top, self._step):
            first, last = np.searchsorted(rows, (start, start + self._step))
            if first == last:
                continue
            count = min(self._step, self._top - start)
            offset = place.offset + start * size
            part = np.frombuffer(
                bytearray(self._disk.read_part(self.fd, count * size, offset)), dtype=values.dtype
            )
            part[rows[first:last] - start] = values[first:last]
            self._disk.write(self.fd, [_raw(part)], offset)

    def _encode(self, arrays: list[Array]) -> bytes:
        return msgspec.msgpack.encode(msgspec.structs.replace(self._meta, arrays=arrays))


def _raw(column: np.ndarray) -> Buffer:
    raw: Buffer = column.view(np.uint8).data
    return raw


def bytes_by_segment(
    state: np.ndarray, position: np.ndarray, size_bytes: np.ndarray, segment_bytes: int
) -> dict[int, int]:
    """Return how many bytes of living messages each segment holds, at least one a message."""
    rows = np.flatnonzero(state != State.GONE)
    if not len(rows):
        return {}
    numbers = position[rows] // segment_bytes
    first = int(numbers.min())
    sums = np.bincount(numbers - first, weights=np.maximum(size_bytes[rows], 1)).tolist()
    return {first + index: int(size) for index, size in enumerate(sums) if size}


def size_of(place: Array) -> int:
    """Return how many bytes an array has."""
    return place.count * np.dtype(place.dtype).itemsize
