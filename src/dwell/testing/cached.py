"""A file with two contents: in the system's memory and on the disk.

Written bytes are in memory at once. They are on the disk for good once they are synced; until then
each sector of the disk may have its old content, or the content after any of the writes since.
"""

import gc
import os
import random
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from dwell.store.embedded.system import Buffer

SECTOR_BYTES = 512
_BLOCK_BYTES = 4096
_ZEROS = bytes(_BLOCK_BYTES)
_MANY = 1_000


class _Change(NamedTuple):
    """A change since the last sync: a write, or with ``data`` None a new size."""

    offset: int
    data: bytes | None

    @property
    def end(self) -> int:
        return self.offset + len(self.data or b"")


class CachedFile:
    """A file in memory (``fd`` is a real descriptor), and its content that is surely on disk."""

    #: How many files there are, and from how many on a collection of unused files is worthwhile.
    _open: ClassVar[int] = 0
    _collect_at: ClassVar[int] = _MANY

    def __init__(self, data: bytes = b"") -> None:
        if CachedFile._open >= CachedFile._collect_at:
            # Errors hold on to files by their tracebacks until the garbage is collected.
            gc.collect()
            CachedFile._collect_at = max(_MANY, 2 * CachedFile._open)
        self.fd = os.memfd_create("file", os.MFD_CLOEXEC)
        CachedFile._open += 1
        self.size_bytes = len(data)
        self._write_sparse(data)
        #: How many names and descriptors it has; without any its space is freed.
        self.holders = 0
        self.lock_fd = -1
        self._safe = bytearray(data)
        self._changes: list[_Change] = []

    def _write_sparse(self, data: bytes) -> None:
        """Write the parts that are not zeros, so that the rest stays unallocated."""
        os.ftruncate(self.fd, len(data))
        for offset in range(0, len(data), _BLOCK_BYTES):
            block = data[offset : offset + _BLOCK_BYTES]
            if block != _ZEROS[: len(block)]:
                os.pwrite(self.fd, block, offset)

    @property
    def room_bytes(self) -> int:
        """How much space it takes."""
        return room_of(self.size_bytes)

    @property
    def is_safe(self) -> bool:
        """Whether a power cut would leave it unchanged."""
        return not self._changes and self._safe == self.data()

    def data(self) -> bytes:
        """Return its content in memory."""
        return os.pread(self.fd, self.size_bytes, 0)

    def unsynced(self) -> list[tuple[int, int]]:
        """Return the ranges written since the last sync."""
        return [(change.offset, change.end) for change in self._changes if change.data]

    def write(self, data: Buffer, offset: int) -> None:
        """Write to memory."""
        os.pwrite(self.fd, data, offset)
        self.size_bytes = max(self.size_bytes, offset + len(data))
        self._changes.append(_Change(offset, bytes(data)))

    def resize(self, size_bytes: int) -> None:
        """Shorten it in memory, or lengthen it with zeros."""
        os.ftruncate(self.fd, size_bytes)
        self.size_bytes = size_bytes
        self._changes.append(_Change(size_bytes, None))

    def sync(self) -> None:
        """Copy the changed sectors from memory to the disk."""
        for change in self._changes:
            if change.data is None:
                _resize(self._safe, change.offset)
            else:
                # The disk takes whole sectors.
                start = change.offset // SECTOR_BYTES * SECTOR_BYTES
                end = -(-change.end // SECTOR_BYTES) * SECTOR_BYTES
                data = os.pread(self.fd, end - start, start)
                _resize(self._safe, max(len(self._safe), start + len(data)))
                self._safe[start : start + len(data)] = data
        _resize(self._safe, self.size_bytes)
        self._changes.clear()

    def fail_sync(self, chance: random.Random, *, drop: bool) -> None:
        """Copy some of it to the disk, and count all of it as synced, as the system does.

        With ``drop`` the system also forgets the parts that did not reach the disk.
        """
        self._safe = self.survivor(chance)
        self._changes.clear()
        if drop:
            kept = bytes(self._safe[: self.size_bytes]).ljust(self.size_bytes, b"\0")
            os.pwrite(self.fd, kept, 0)

    def survivor(self, chance: random.Random) -> bytearray:
        """Return one possible content of the disk after a power cut."""
        kind = chance.random()
        if not self._changes or kind < 0.2:
            return bytearray(self._safe)
        part = 1.0 if kind < 0.35 else chance.random()
        last = len(self._changes)
        # Sizes change in order; written data reaches the disk sector by sector, in any order.
        sizes_until = last if part == 1 else chance.randrange(last + 1)
        landed: dict[int, int] = {}
        data = bytearray(self._safe)
        for index, change in enumerate(self._changes):
            if change.data is not None:
                if index < sizes_until:
                    _resize(data, max(len(data), change.end))
                for start, stop in _sectors(change.offset, min(change.end, len(data))):
                    sector = start // SECTOR_BYTES
                    if sector not in landed:
                        # The disk has the sector as it was after this many of the changes.
                        some = chance.randrange(last) if chance.random() < 0.3 else 0
                        landed[sector] = last if chance.random() < part else some
                    if index < landed[sector]:
                        data[start:stop] = change.data[start - change.offset : stop - change.offset]
            elif index < sizes_until:
                _resize(data, change.offset)
        return data

    def only_synced(self) -> "CachedFile":
        """Return a file with only the content that is surely on disk."""
        return CachedFile(bytes(self._safe))

    def lose_power(self, chance: random.Random) -> "CachedFile":
        """Return the file after a power cut."""
        return CachedFile(bytes(self.survivor(chance)))

    def copied(self) -> "CachedFile":
        """Return a copy of this file, with the same parts unsynced."""
        other = CachedFile(self.data())
        other._safe, other._changes = bytearray(self._safe), list(self._changes)
        return other

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            CachedFile._open -= 1
            os.close(self.fd)


class ScratchFile(CachedFile):
    """A file without a name, which is never on the disk; only allocated parts take space."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        os.ftruncate(self.fd, size_bytes)
        self.taken_bytes = 0

    @property
    def room_bytes(self) -> int:
        """How much space it takes."""
        return self.taken_bytes


def room_of(size_bytes: int) -> int:
    """Return how much space a file of this size takes on the disk."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def _resize(data: bytearray, size_bytes: int) -> None:
    if size_bytes < len(data):
        del data[size_bytes:]
    else:
        data.extend(bytes(size_bytes - len(data)))


def _sectors(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Split a range into parts that lie in one sector each."""
    while start < end:
        stop = min(start // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES, end)
        yield start, stop
        start = stop
