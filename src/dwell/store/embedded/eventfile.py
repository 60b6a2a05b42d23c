"""A file of the event log: a row of blocks (see :mod:`eventblock`), and where each begins."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from dwell.batch.events import Events
from dwell.errors import StoreDamaged, StoreError
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.eventblock import HEADER, block_at, decoded


def event_path(folder: Path, number: int) -> Path:
    """Return the path of the file whose first event has number ``number``."""
    return folder / f"events-{number:016d}.dwe"


def event_numbers(disk: Disk, folder: Path) -> list[int]:
    """Return the numbers of the existing files, in order."""
    stems = (Path(name) for name in disk.names(folder) if name.startswith("events-"))
    numbers = (path.stem.removeprefix("events-") for path in stems if path.suffix == ".dwe")
    return sorted(int(number) for number in numbers if number.isdigit())


class EventFile:
    """An open file; 16 bytes of memory a block.

    ``number`` is its first event's number when it was made, ``end`` the number after its last
    event; ``is_dirty`` tells that something was written since the last sync.
    """

    __slots__ = ("_firsts", "_offsets", "end", "fd", "is_dirty", "number", "path", "size_bytes")

    def __init__(self, path: Path, number: int, fd: int) -> None:
        self.path = path
        self.number = number
        self.fd = fd
        self.size_bytes = 0
        self.end = number
        self.is_dirty = False
        self._firsts = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def first(self) -> int:
        """The number of the first event that can be read."""
        return self._firsts[0] if self._firsts else self.end

    def load(self, disk: Disk, until: int, *, check: bool) -> None:
        """Find the blocks up to event ``until``; after a missing one, only the blocks behind it."""
        try:
            data: Buffer = memoryview(disk.map(self.fd))
        except ValueError:
            # An empty file cannot be mapped.
            return
        # The bytes after the last sync may be anything, so they are not read.
        while self.end < until and (block := block_at(data, self.size_bytes, check)) is not None:
            first, count, end = block
            if not self.end <= first < first + count <= until:
                # Blocks come in order, and one ends where the replay begins.
                return
            if first != self.end:
                self.forget(self.end)
            self._add(first, count, end - self.size_bytes)

    def write(self, disk: Disk, buffers: Sequence[Buffer]) -> int:
        """Write a block behind the others, in any thread; return its size in bytes."""
        self.is_dirty = True
        disk.write(self.fd, buffers, self.size_bytes)
        return sum(map(len, buffers))

    def written(self, first: int, count: int, size_bytes: int) -> None:
        """Note that a block was written and can be read from now on."""
        self._add(first, count, size_bytes)

    def _add(self, first: int, count: int, size_bytes: int) -> None:
        self._firsts.append(first)
        self._offsets.append(self.size_bytes)
        self.size_bytes += size_bytes
        self.end = first + count

    def forget(self, before: int) -> None:
        """Drop the blocks that begin before an event."""
        count = bisect_right(self._firsts, before - 1)
        self._firsts, self._offsets = self._firsts[count:], self._offsets[count:]

    def size_until(self, position: int) -> int:
        """Return how many bytes the blocks before an event take, where a block ends."""
        count = bisect_right(self._firsts, position - 1)
        return self._offsets[count] if count < len(self._firsts) else self.size_bytes

    def read(self, disk: Disk, position: int) -> Events:
        """Return the block that holds an event; raises StoreDamaged or StoreError.

        The end of a damaged block is given by :meth:`end_of`.
        """
        index = bisect_right(self._firsts, position) - 1
        offset = self._offsets[index]
        following = self._offsets[index + 1] if index + 1 < len(self) else self.size_bytes
        try:
            data = disk.read_part(self.fd, following - offset, offset)
        except OSError as error:
            raise StoreError(f"{self.path}: {error}") from error
        block = block_at(data, 0, check=True)
        end = self.end_of(position)
        if block is None or block[:2] != (self._firsts[index], end - self._firsts[index]):
            raise StoreDamaged(f"{self.path}: damaged from offset {offset}")
        return decoded(data[HEADER.size :], *block[:2])

    def end_of(self, position: int) -> int:
        """Return the number after the last event of the block that holds an event."""
        index = bisect_right(self._firsts, position)
        return self._firsts[index] if index < len(self._firsts) else self.end
