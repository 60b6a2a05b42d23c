"""A snapshot: the whole state at one place of the journal, so that a start need not read it all.

::

    | magic | crc of meta | meta length | meta (MessagePack) | arrays, each at a multiple of 64 |

``meta`` says for every array its name, type, length, offset and CRC-32. A snapshot is written under
another name, synced, and then takes its name; the one before is kept until the next, so that one
damaged file does no harm.
"""

import contextlib
import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np

from dwell.errors import StoreDamaged
from dwell.message import U64, TopicSettings
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.table import TYPES

_MAGIC = 0x31535744  # "DWS1"
_HEADER = struct.Struct("<IIQ")
_ALIGN = 64
#: The one column that is not kept: the bits of the id are, in its place.
_ENTRY = "id_entry"
_LEARN_STEP = 1 << 16


class Array(msgspec.Struct, frozen=True, array_like=True):
    """Where an array of a snapshot is."""

    name: str
    dtype: str
    count: int
    offset: int
    crc: int


class Meta(msgspec.Struct, frozen=True):
    """Everything in a snapshot that is not an array."""

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
    """Return where the snapshot of a position is."""
    return folder / f"snapshot-{position:016d}.dws"


def snapshot_positions(disk: Disk, folder: Path) -> list[int]:
    """Return the positions of the snapshots that are there, oldest first."""
    names = [Path(name) for name in disk.names(folder)]
    found = [n.stem.removeprefix("snapshot-") for n in names if n.suffix == ".dws"]
    return sorted(int(number) for number in found)


class Snapshot:
    """A snapshot being made: the state must stand still in :meth:`write`, not in what follows.

    ``new`` is the name that it has until it is finished; ``fd`` and ``size_bytes`` are its file's.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        machine: Machine,
        position: int,
        now: int,
        new: Path | None = None,
    ) -> None:
        self._disk = disk
        self._path = snapshot_path(folder, position)
        self.new = new or self._path.with_suffix(".new")
        self.fd = -1
        self.size_bytes = 0
        table = machine.table
        hashes, notes = machine.known.remembered(now)
        self._arrays = {
            **{name: getattr(table, name)[: table.top] for name in TYPES if name != _ENTRY},
            **_keys(machine),
            "free": table.free_rows(),
            "remembered_hashes": hashes,
            "remembered_notes": notes,
        }
        self._dtypes = [(name, a.dtype.str, len(a)) for name, a in self._arrays.items()]
        topics = machine.topics
        self._meta = Meta(
            position=position,
            time_ms=now,
            top=table.top,
            next_seq=machine.next_seq,
            next_event=machine.events.next_position,
            totals=machine.events.totals.tolist(),
            topics=[(name, topics.settings(name)) for name in topics.names],
            owners=dict(machine.owners),
            errors=dict(machine.errors),
            arrays=[],
        )

    def write(self) -> None:
        """Write the arrays; this copies them to the system's memory and waits for no disk."""
        crcs = [0] * len(self._dtypes)
        # Real checksums and offsets make the meta a little longer than these zeros do.
        size = len(self._encode(self._places(crcs, 0))) + 1024
        self._start = size + -size % _ALIGN
        places = self._places(crcs, self._start)
        self.size_bytes = places[-1].offset + _size_of(places[-1]) + _ALIGN
        self.fd = self._disk.create(self.new, self.size_bytes)
        try:
            for place in places:
                if place.count:
                    data = self._arrays[place.name].data.cast("B")
                    self._disk.write(self.fd, [data], place.offset)
        except BaseException:
            self.abandon()
            raise
        finally:
            # Nothing may look at the columns when these grow.
            self._arrays = {}

    def finish(self) -> None:
        """Add the checksums, sync, and let the snapshot take its name; or leave nothing of it."""
        try:
            self.seal()
            self._disk.sync(self.fd)
        except BaseException:
            self.abandon()
            raise
        self._disk.close(self.fd)
        self._disk.rename(self.new, self._path)

    def abandon(self) -> None:
        """Leave nothing of a snapshot that was written and will not be finished."""
        self._disk.close(self.fd)
        self.fd = -1
        with contextlib.suppress(OSError):
            self._disk.remove(self.new)

    def seal(self) -> None:
        """Add the checksums."""
        data = self._disk.map(self.fd)
        view = memoryview(data)
        places = self._places([0] * len(self._dtypes), self._start)
        crcs = [zlib.crc32(view[p.offset : p.offset + _size_of(p)]) for p in places]
        meta = self._encode(self._places(crcs, self._start))
        head = _HEADER.pack(_MAGIC, zlib.crc32(meta), len(meta))
        view.release()
        self._disk.write(self.fd, [head + meta], 0)

    def column(self, name: str) -> np.ndarray:
        """Return a column as it was written."""
        places = self._places([0] * len(self._dtypes), self._start)
        place = next(place for place in places if place.name == name)
        data = self._disk.map(self.fd)
        return np.frombuffer(data, dtype=place.dtype, count=place.count, offset=place.offset)

    def _places(self, crcs: list[int], start: int) -> list[Array]:
        places = []
        for (name, dtype, count), crc in zip(self._dtypes, crcs, strict=True):
            places.append(Array(name, dtype, count, start, crc))
            start += _size_of(places[-1])
            start += -start % _ALIGN
        return places

    def _encode(self, arrays: list[Array]) -> bytes:
        return msgspec.msgpack.encode(msgspec.structs.replace(self._meta, arrays=arrays))


def load(disk: Disk, folder: Path, position: int, machine: Machine) -> Meta:
    """Read a snapshot into an empty machine; raises StoreDamaged.

    Wheels and ready runs are left for :meth:`Machine.rebuild`.
    """
    meta, arrays = _read(disk, folder, position)
    _fill(machine, meta, arrays)
    return meta


def verify(disk: Disk, folder: Path, position: int) -> None:
    """Read a snapshot and do nothing with it; raises StoreDamaged."""
    _read(disk, folder, position)


def _read(disk: Disk, folder: Path, position: int) -> tuple[Meta, dict[str, np.ndarray]]:
    path = snapshot_path(folder, position)
    fd = disk.open(path)
    try:
        data = memoryview(disk.map(fd))
    except ValueError:
        raise StoreDamaged(f"{path}: is empty") from None
    finally:
        disk.close(fd)
    meta = _read_meta(path, data)
    return meta, {place.name: _array(path, data, place) for place in meta.arrays}


def _fill(machine: Machine, meta: Meta, arrays: dict[str, np.ndarray]) -> None:
    table = machine.table
    table.reserve(meta.top)
    table.top = meta.top
    for name in TYPES:
        if name != _ENTRY:
            _copy_sparse(getattr(table, name), arrays[name])
    table.restore_free(arrays["free"])
    for name, settings in meta.topics:
        machine.topics.configure(name, settings)
    table.recount()
    _learn(machine, arrays)
    machine.owners = dict(meta.owners)
    machine.errors = dict(meta.errors)
    machine.next_seq = meta.next_seq


def _keys(machine: Machine) -> dict[str, np.ndarray]:
    """Return the hashes and checks of callers' ids as columns of the table."""
    entries = machine.table.id_entry[: machine.table.top]
    known = machine.known
    if not entries.any():
        nothing: U64 = np.zeros(len(entries), dtype=np.uint64)
        return {"id_hash": nothing, "id_check": nothing.astype(np.uint32)}
    at = entries.astype(np.intp)
    return {"id_hash": known.hash[at], "id_check": known.check[at]}


def _learn(machine: Machine, arrays: dict[str, np.ndarray]) -> None:
    """Know the ids of the messages, and those that are remembered."""
    table, known = machine.table, machine.known
    own = table.rows_where(lambda part: (table.id_bytes[part] > 0) & (table.state[part] > 0))
    hashes, notes = arrays["remembered_hashes"], arrays["remembered_notes"]
    known.expect(len(own) + len(hashes))
    for start in range(0, len(own), _LEARN_STEP):
        rows = own[start : start + _LEARN_STEP]
        table.id_entry[rows] = known.add(arrays["id_hash"][rows], arrays["id_check"][rows], rows, 0)
    for start in range(0, len(hashes), _LEARN_STEP):
        part = slice(start, start + _LEARN_STEP)
        known.remember(hashes[part], notes[part])


def _copy_sparse(column: np.ndarray, values: np.ndarray, step: int = 1 << 16) -> None:
    """Copy, but leave pages of zeros untouched: they take no memory."""
    for start in range(0, len(values), step):
        part = values[start : start + step]
        if part.any():
            column[start : start + len(part)] = part


def _read_meta(path: Path, data: Buffer) -> Meta:
    try:
        magic, crc, length = _HEADER.unpack_from(data)
        raw = data[_HEADER.size : _HEADER.size + length]
        if magic == _MAGIC and zlib.crc32(raw) == crc:
            return msgspec.msgpack.decode(raw, type=Meta)
    except (struct.error, msgspec.DecodeError):
        pass
    raise StoreDamaged(f"{path}: its head cannot be read")


def _array(path: Path, data: memoryview, place: Array) -> np.ndarray:
    raw = data[place.offset : place.offset + _size_of(place)]
    if len(raw) != _size_of(place) or zlib.crc32(raw) != place.crc:
        raise StoreDamaged(f"{path}: its array {place.name} is damaged at offset {place.offset}")
    return np.frombuffer(raw, dtype=place.dtype)


def _size_of(place: Array) -> int:
    return place.count * np.dtype(place.dtype).itemsize
