"""The snapshot reader: reads a snapshot into a machine, a part of the rows at a time.

The file is mapped, and each part is released after it was read, so that a start needs little memory
beside the state itself. Checksums are computed in a thread of their own.
"""

import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from dwell.errors import StoreDamaged
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.snapshot import (
    ENTRY,
    ERRORS,
    HEADER,
    KEYS,
    MAGIC,
    REMEMBERED,
    Array,
    Meta,
    size_of,
    snapshot_path,
)
from dwell.store.embedded.table import TYPES

#: How many rows, and how many bytes, are read in a part.
_ROWS, _BYTES = 1 << 16, 4 << 20
#: Up to this many bytes a thread is not worthwhile.
_SMALL_BYTES = 16 << 20
_PAGE = 4096


class SnapshotReader:
    """The snapshot at a position; raises StoreDamaged when its head or its size is wrong."""

    def __init__(self, disk: Disk, folder: Path, position: int) -> None:
        self._disk = disk
        self._path = snapshot_path(folder, position)
        fd = disk.open(self._path)
        try:
            self._map = disk.map(fd)
        except ValueError:
            raise StoreDamaged(f"{self._path}: is empty") from None
        finally:
            disk.close(fd)
        self._data = memoryview(self._map)
        self.meta = self._read_meta()
        for place in self.meta.arrays:
            if place.offset + size_of(place) > len(self._data):
                raise self._damaged(place)
        self._damage: StoreDamaged | None = None
        self._last_owner = 0

    def _read_meta(self) -> Meta:
        try:
            magic, crc, length = HEADER.unpack_from(self._data)
            raw = self._data[HEADER.size : HEADER.size + length]
            if magic == MAGIC and zlib.crc32(raw) == crc:
                return msgspec.msgpack.decode(raw, type=Meta)
        except (struct.error, msgspec.DecodeError):
            pass
        raise StoreDamaged(f"{self._path}: its head cannot be read")

    def _damaged(self, place: Array) -> StoreDamaged:
        words = f"its array {place.name} is damaged at offset {place.offset}"
        return StoreDamaged(f"{self._path}: {words}")

    # --- checksums ------------------------------------------------------------------------------

    def verify(self) -> None:
        """Compare the checksums; raises StoreDamaged."""
        self._compare()
        if self._damage is not None:
            raise self._damage

    def _compare(self) -> None:
        for place in self.meta.arrays:
            crc, end = 0, place.offset + size_of(place)
            for start in range(place.offset, end, _BYTES):
                stop = min(start + _BYTES, end)
                crc = zlib.crc32(self._data[start:stop], crc)
                self._release(start, stop)
            if crc != place.crc:
                self._damage = self._damaged(place)
                return

    def _release(self, start: int, stop: int) -> None:
        first = start // _PAGE * _PAGE
        if stop > first:
            self._disk.release(self._map, first, stop - first)

    # --- reading --------------------------------------------------------------------------------

    def load(self, machine: Machine) -> Meta:
        """Read it into an empty machine; raises StoreDamaged, DiskFull or MemoryError.

        Wheels and ready runs are left for :meth:`Machine.rebuild`.
        """
        if len(self._data) <= _SMALL_BYTES:
            self.verify()
            self._fill(machine)
            return self.meta
        checking = threading.Thread(target=self._compare, name="dwell-checksums")
        checking.start()
        try:
            self._fill_rows(machine)
        finally:
            checking.join()
        if self._damage is not None:
            raise self._damage
        self._fill_rest(machine)
        return self.meta

    def _fill(self, machine: Machine) -> None:
        self._fill_rows(machine)
        self._fill_rest(machine)

    def _fill_rows(self, machine: Machine) -> None:
        """Read the rows and the ids, of which nothing may be trusted before the checksums."""
        table, known, top = machine.table, machine.known, self.meta.top
        table.reserve(top)
        columns = {
            place.name: self._array(place)
            for place in self.meta.arrays
            if place.name in TYPES or place.name in KEYS
        }
        table.top = top
        remembered = [self._arrays(name) for name in REMEMBERED]
        known.expect(self._count_own(columns) + sum(map(len, remembered[0])))
        for part in table.parts(_ROWS, groups=0):
            for name in TYPES:
                # Pages of zeros that are left untouched take no memory.
                if name != ENTRY and (values := columns[name][part]).any():
                    getattr(table, name)[part] = values
                    table.has_expiries |= name == "expires_ms"
            self._last_owner = max(self._last_owner, int(columns["owner"][part].max(initial=0)))
            rows = np.flatnonzero(_are_own(columns, part))
            if len(rows):
                hashes, checks = (columns[name][part][rows] for name in KEYS)
                rows += part.start
                table.id_entry[rows] = known.add(hashes, checks, rows, 0)
            for name, column in columns.items():
                self._release_part(name, part, column.itemsize)
        for hashes, notes in zip(*remembered, strict=True):
            for start in range(0, len(hashes), _ROWS):
                known.remember(hashes[start : start + _ROWS], notes[start : start + _ROWS])

    def _release_part(self, name: str, part: slice, item_bytes: int) -> None:
        place = next(place for place in self.meta.arrays if place.name == name)
        start = place.offset + part.start * item_bytes
        self._release(start, place.offset + part.stop * item_bytes)

    def _count_own(self, columns: dict[str, np.ndarray]) -> int:
        """Return how many rows have an id of the caller's."""
        parts = (slice(at, at + _ROWS) for at in range(0, self.meta.top, _ROWS))
        return sum(int(np.count_nonzero(_are_own(columns, part))) for part in parts)

    def _fill_rest(self, machine: Machine) -> None:
        """Read everything but the rows."""
        meta, table = self.meta, machine.table
        table.restore_free(np.concatenate([*self._arrays("free"), _NONE]))
        machine.topics.restore(meta.topics)
        table.recount()
        machine.owners = dict(meta.owners)
        # A row may still have the number of an owner that was dropped.
        machine.next_owner = max([*meta.owners.values(), self._last_owner]) + 1
        # Formats before 3 have them in the meta.
        machine.errors.note(meta.errors)
        for part in self._errors():
            machine.errors.note(part)
        machine.next_seq = meta.next_seq
        for calls in (machine.calls, machine.takes):
            calls.restore(self._rest(), meta.time_ms)

    def _errors(self) -> Iterator[dict[int, str]]:
        for array in self._arrays(ERRORS):
            data = array.data
            while len(data):
                end = 4 + int.from_bytes(data[:4], "little")
                yield msgspec.msgpack.decode(data[4:end], type=dict[int, str])
                data = data[end:]

    def _rest(self) -> dict[str, np.ndarray]:
        """Return the arrays that are neither of rows nor of ids."""
        known = {*TYPES, *KEYS, *REMEMBERED, "free", ERRORS}
        return {p.name: self._array(p) for p in self.meta.arrays if p.name not in known}

    def _arrays(self, name: str) -> list[np.ndarray]:
        return [self._array(place) for place in self.meta.arrays if place.name == name]

    def _array(self, place: Array) -> np.ndarray:
        raw = self._data[place.offset : place.offset + size_of(place)]
        return np.frombuffer(raw, dtype=place.dtype)


_NONE = np.zeros(0, dtype=np.uint32)


def _are_own(columns: dict[str, np.ndarray], part: slice) -> np.ndarray:
    """Tell which rows of a part have an id of the caller's."""
    are_own: np.ndarray = (columns["id_bytes"][part] > 0) & (columns["state"][part] > 0)
    return are_own
