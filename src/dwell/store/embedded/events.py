"""The event log: the history of each message, in order, stored apart from the journal.

Events follow from the journal, so they are written without a sync: a replay makes lost events
again, with the same positions. A snapshot lets the replay start later, so all written events are
synced before a snapshot relies on them. Unwritten events are read from memory.

The log is not guaranteed. Damaged or missing events cause a warning, and are dropped with all
earlier events: the log is whole from :attr:`EventLog.first_position` on.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from dwell.batch.events import Events
from dwell.errors import DiskFull, StoreDamaged
from dwell.message import I64, U16, Kind, Rows
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.disk import Disk, is_no_room
from dwell.store.embedded.eventblock import HEADER, Part, decoded, encoded
from dwell.store.embedded.eventfile import EventFile, event_numbers, event_path
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.table import Table

_KINDS = max(Kind) + 1
#: How many blocks of events wait in memory for room on the disk before the oldest are dropped.
_MOST_WAITING = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Block:
    """Events that are written together."""

    first: int
    count: int
    parts: list[Part]


class EventLog:
    """Gathers events in memory and writes them in blocks; the oldest files go first.

    ``most_bytes`` is its size limit on disk; a full disk makes it keep less.
    """

    def __init__(
        self, disk: Disk, folder: Path, journal: Journal, most_bytes: int, limits: Limits = LIMITS
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._journal = journal
        self._most_bytes = most_bytes
        self._limits = limits
        self._parts: deque[Part] = deque()
        self._unwritten = 0
        self._cuts: deque[int] = deque()
        self._files: list[EventFile] = []
        # Files that left the log, but may be in use by a thread.
        self._dropped: list[EventFile] = []
        self._last: Events | None = None
        self.next_position = 0
        self.totals: I64 = np.zeros(_KINDS, dtype=np.int64)
        self.topic_names: list[str] = []

    @property
    def written_position(self) -> int:
        """The position of the first event that is not in a file yet."""
        return self.next_position - self._unwritten

    @property
    def first_position(self) -> int:
        """The position of the oldest event that is kept."""
        return next((file.first for file in self._files if len(file)), self.written_position)

    def add(self, kind: Kind, time_ms: int, rows: Rows, table: Table) -> None:
        """Add an event for each of these rows, with the current values of the table."""
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
        if np.count_nonzero(id_bytes):
            none: U16 = np.zeros(len(rows), dtype=np.uint16)
            position, sizes = table.position[rows], table.size_bytes[rows]
            reader = BlobReader(self._journal, position, sizes, id_bytes, none)
        self._parts.append(Part(kind, time_ms, columns, reader))
        self._unwritten += len(rows)
        self.next_position += len(rows)
        self.totals[kind] += len(rows)

    # --- writing --------------------------------------------------------------------------------

    def is_full(self, parts: int | None = None) -> bool:
        """Tell whether the waiting events fill a block, in events or in small parts.

        Joining many small parts takes time too, which would delay messages that fall due.
        """
        limits = self._limits
        most = limits.block_parts if parts is None else parts
        return self._unwritten >= limits.block_events or len(self._parts) >= most

    def is_coarse(self, block: Block) -> bool:
        """Tell whether the work of writing a block is mostly NumPy's, which suits a thread."""
        return block.count > self._limits.coarse_events * len(block.parts)

    def cut(self) -> int:
        """End the current block here, and return the position.

        A snapshot of now can use the log only if a block ends at the snapshot's position.
        """
        self._cuts.append(self.next_position)
        return self.next_position

    def flush(self) -> None:
        """Write the unwritten events; all must be committed."""
        for block in self.blocks(self.next_position):
            while True:
                try:
                    size_bytes = self.write(block)
                    break
                except (OSError, DiskFull) as error:
                    if not is_no_room(error) or not self.make_room():
                        raise
                self.remove_dropped()
            self.written(block, size_bytes)
        self.remove_dropped()

    def blocks(self, until: int) -> Iterator[Block]:
        """Yield the events up to a position, which must be committed, in blocks to be written.

        Each goes to :meth:`write` and then to :meth:`written`, before the next.
        """
        while self._cuts and self._cuts[0] <= until:
            yield from self._block(self._cuts.popleft())
        yield from self._block(until)

    def _block(self, until: int) -> Iterator[Block]:
        limits = self._limits
        while parts := self._parts_until(until, limits.block_events)[: limits.block_parts]:
            yield Block(self.written_position, sum(part.count for part in parts), parts)

    def _parts_until(self, until: int, most: int) -> list[Part]:
        """Return the unwritten parts up to a position: about ``most`` events, or all of a verb."""
        position, parts = self.written_position, []
        most += position
        for part in self._parts:
            if position + part.count > until or position >= most:
                break
            position += part.count
            parts.append(part)
        return parts

    @property
    def needs_file(self) -> bool:
        """Whether the next block needs a new file, which waits for the disk."""
        return not self._files or self._files[-1].size_bytes > self._limits.event_file_bytes

    def _make_file(self, first: int) -> None:
        path = event_path(self._folder, first)
        self._files.append(EventFile(path, first, self._disk.create(path, 0)))

    def write(self, block: Block) -> int:
        """Write a block, in any thread, but one at a time; return its size in bytes."""
        if self.needs_file:
            self._make_file(block.first)
        buffers = encoded(block.first, block.parts, self.topic_names)
        return self._files[-1].write(self._disk, buffers)

    def make_room(self) -> bool:
        """Drop the oldest file because the disk is full; tell whether one was left to drop."""
        is_spare = len(self._files) > 1
        if is_spare:
            self._drop_first()
        return is_spare

    def written(self, block: Block, size_bytes: int) -> None:
        """Note that a block is in its file and can be read from now on."""
        for _ in block.parts:
            self._parts.popleft()
        self._unwritten -= block.count
        self._files[-1].written(block.first, block.count, size_bytes)
        while len(self._files) > 1 and sum(f.size_bytes for f in self._files) > self._most_bytes:
            self._drop_first()

    def wait_for_room(self) -> None:
        """Keep unwritable events in memory, up to a limit."""
        most = _MOST_WAITING * self._limits.block_events
        if self._unwritten <= most and len(self._parts) <= _MOST_WAITING * self._limits.block_parts:
            return
        half = sum(part.count for part in islice(self._parts, len(self._parts) // 2))
        self.give_up(self.written_position + half)

    def give_up(self, until: int) -> None:
        """Drop all events before a position, because there is no room for them."""
        first = self.first_position
        while self._parts and self.written_position + self._parts[0].count <= until:
            self._unwritten -= self._parts.popleft().count
        self._cuts = deque(cut for cut in self._cuts if cut > self.written_position)
        self._forget("no room for it", first, self.written_position)

    def sync(self) -> None:
        """Sync the written events, before a snapshot relies on them; in any thread.

        No file may be removed during the sync. After an error the log must not be written again.
        """
        for file in list(self._files):
            if file.is_dirty:
                file.is_dirty = False
                self._disk.sync(file.fd)

    # --- reading --------------------------------------------------------------------------------

    def read(self, position: int, limit: int, until: int) -> Events:
        """Return at most ``limit`` events from ``position`` on, and before ``until``.

        All of them must be committed. Damaged events are dropped.
        """
        parts: list[Events] = []
        position = max(position, self.first_position)
        while limit and position < until:
            block = self._block_with(position, until)
            if block is None:
                # The block was damaged; later events must not appear to follow directly.
                if parts:
                    break
                position = max(position, self.first_position)
                continue
            start = position - int(block.positions[0])
            parts.append(block[start : start + min(limit, until - position)])
            position += len(parts[-1])
            limit -= len(parts[-1])
        return Events.joined(parts)

    def _block_with(self, position: int, until: int) -> Events | None:
        """Return the block that holds a position; None when it was damaged and dropped."""
        last = self._last
        if last is not None and last.positions[0] <= position <= last.positions[-1]:
            return last
        if position >= self.written_position:
            return self._unwritten_from(position, until)
        file = next(file for file in self._files if len(file) and position < file.end)
        try:
            self._last = file.read(self._disk, position)
        except StoreDamaged as damage:
            self._forget(str(damage), self.first_position, file.end_of(position))
            return None
        return self._last

    def _unwritten_from(self, position: int, until: int) -> Events:
        """Return the events that wait in memory, but not from long before ``position`` on."""
        first = self.written_position
        parts: list[Part] = []
        for part in self._parts_until(until, until):
            if not parts and first + part.count <= position:
                first += part.count
                continue
            parts.append(part)
            if len(parts) >= self._limits.block_parts:
                break
        count = sum(part.count for part in parts)
        data = b"".join(encoded(first, parts, self.topic_names))
        return decoded(data[HEADER.size :], first, count)

    # --- files ----------------------------------------------------------------------------------

    def open(self, next_position: int, totals: Sequence[int]) -> None:
        """Find the existing blocks, and drop events from ``next_position`` on.

        The replay makes those again.
        """
        self.next_position = next_position
        self.totals[: len(totals)] = totals
        numbers = event_numbers(self._disk, self._folder)
        for number in numbers:
            path = event_path(self._folder, number)
            file = EventFile(path, number, self._disk.open(path))
            # Only the last file can have been cut short; the others are checked when they are read.
            file.load(self._disk, next_position, check=number == numbers[-1])
            self._files.append(file)
        self._dropped += [file for file in self._files if not len(file)]
        self._files = [file for file in self._files if len(file)]
        if numbers and numbers[0] < next_position:
            self._forget_gaps(numbers[0])
        if self._files:
            self._disk.truncate(self._files[-1].fd, self._files[-1].size_bytes)
        self.remove_dropped()

    def _forget_gaps(self, first: int) -> None:
        """Drop the events before a gap; the log must end where the replay begins.

        The log began with the event ``first``.
        """
        gaps = [file.first for file in self._files if file.first != file.number]
        gaps += [file.first for file in self._files[:1] if file.number != first]
        gaps += [b.first for a, b in pairwise(self._files) if a.end != b.number]
        if not self._files or self._files[-1].end != self.next_position:
            gaps.append(self.next_position)
        if gaps:
            self._forget("events are missing", first, max(gaps))

    def _forget(self, why: str, first: int, before: int) -> None:
        """Drop events from one up to another, where a block begins, and log the reason."""
        for file in self._files:
            file.forget(before)
        self._last = None
        while self._files and not len(self._files[0]):
            self._drop_first()
        words = "%s: %s: the event log begins at %d now, and not at %d"
        _log.warning(words, self._folder, why, before, first)

    def files_until(self, position: int) -> list[tuple[Path, int]]:
        """Return each file with events before a position where a block ends, and its bytes."""
        sizes = [(file.path, file.size_until(position)) for file in self._files]
        return [(path, size) for path, size in sizes if size]

    def close(self) -> None:
        """Close the files; the next replay makes the unwritten events again."""
        for file in self._files + self._dropped:
            self._disk.close(file.fd)
        self._files, self._dropped = [], []

    def _drop_first(self) -> None:
        self._dropped.append(self._files.pop(0))
        self._last = None

    def remove_dropped(self) -> None:
        """Delete the dropped files, in any thread, but never during a sync."""
        while self._dropped:
            file = self._dropped.pop()
            self._disk.close(file.fd)
            self._disk.remove(file.path)
