"""The event log: what happened to each message, in order, beside the journal.

Events follow from the journal, so they are written without a sync: what a crash loses is made again
by the replay, with the same positions. A file is a row of blocks (see :mod:`eventblock`).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dwell.message import I64, U16, Kind, Rows
from dwell.store.base import Events
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.eventblock import HEADER, Part, block_at, decoded, encoded
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.table import Table

_BLOCK_EVENTS = 131_072
_BLOCK_PARTS = 256
_COARSE_EVENTS = 500
_FILE_BYTES = 32 * 1024 * 1024
_KINDS = max(Kind) + 1


@dataclass(frozen=True, slots=True)
class Block:
    """Events that are to be written, and where: file, its descriptor, and offset."""

    first: int
    count: int
    parts: list[Part]
    number: int
    fd: int
    offset: int

    @property
    def is_coarse(self) -> bool:
        """Whether to write it is more NumPy's work than Python's, and so may run beside others."""
        return self.count > _COARSE_EVENTS * len(self.parts)


class EventLog:
    """Gathers events in memory and writes them in blocks; the oldest files go first."""

    def __init__(self, disk: Disk, folder: Path, journal: Journal, most_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._journal = journal
        self._most_bytes = most_bytes
        self._parts: deque[Part] = deque()
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

    def add(self, kind: Kind, time_ms: int, rows: Rows, table: Table) -> None:
        """Note that something happens to these rows, as the table has them now."""
        id_bytes: U16 = table.id_bytes[rows]
        columns: dict[str, np.ndarray] = {
            "row": rows.astype(np.uint32),
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
        self._parts.append(Part(kind, time_ms, columns, reader))
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

    def flush(self) -> None:
        """Write what is unwritten; it must all be committed."""
        for block in self.blocks(self.next_position):
            self.written(block, self.write(block))

    def blocks(self, until: int) -> Iterator[Block]:
        """Yield what is to be written up to a position, which must be committed, in blocks.

        Each goes to :meth:`write` and then to :meth:`written`, before the next.
        """
        while self._cuts and self._cuts[0] <= until:
            yield from self._block(self._cuts.popleft())
        yield from self._block(until)

    def _block(self, until: int) -> Iterator[Block]:
        first = position = self.next_position - self._unwritten
        parts = []
        for part in self._parts:
            if position + part.count > until:
                break
            position += part.count
            parts.append(part)
        if parts:
            number = self._number_for(first)
            yield Block(first, position - first, parts, number, *self._files[number])

    def write(self, block: Block) -> int:
        """Write a block, in any thread, but one at a time; return its size in bytes."""
        buffers = encoded(block.first, block.parts, self.topic_names)
        self._disk.write(block.fd, buffers, block.offset)
        return sum(map(len, buffers))

    def written(self, block: Block, size_bytes: int) -> None:
        """Note that a block is in its file, where it can be read from now on."""
        for _ in block.parts:
            self._parts.popleft()
        self._unwritten -= block.count
        self._blocks.append((block.first, block.count, block.number, block.offset))
        self._files[block.number] = (block.fd, block.offset + size_bytes)
        self._drop_old()

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
        while (block := block_at(data, at, check)) is not None and block[0] < self.next_position:
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

    def _number_for(self, first: int) -> int:
        """Return the file that takes the next block; it has the number of its first event."""
        number = max(self._files, default=-1)
        if number < 0 or self._files[number][1] > _FILE_BYTES:
            number = first
            self._files[number] = (self._disk.create(self._path(first), 0), 0)
        return number

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
        length = HEADER.unpack(self._disk.read_part(fd, HEADER.size, at))[2]
        return decoded(self._disk.read_part(fd, length, at + HEADER.size), first, count)
