"""The compactor: snapshots the state, deletes segments that nobody needs, copies forward the rest.

A segment can go when it lies before the last two snapshots and held no blob of a living message at
the older one. One that holds few is emptied first: its blobs are appended again, as a record.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from dwell.message import Rows, State
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.snapshot import Snapshot, snapshot_path, snapshot_positions
from dwell.store.embedded.table import TYPES

_ROW_BYTES = sum(np.dtype(dtype).itemsize for dtype in TYPES.values())
#: A segment of which less than this part still lives is copied forward.
_LIVING_PART = 0.25
_COPY_BYTES = 1 << 20


class Compactor:
    """Decides when a snapshot is due, makes it, and frees the disk behind it.

    It is made when the machine stands where the newest snapshot does, at position ``covered``;
    ``living`` says how much lived then in each segment.
    """

    def __init__(
        self, disk: Disk, folder: Path, journal: Journal, machine: Machine, covered: int
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._journal = journal
        self._machine = machine
        self.covered = covered
        self._next = covered
        self.living = living_bytes(machine, journal.segment_bytes)
        self._begun = covered, self.living

    @property
    def is_due(self) -> bool:
        """Whether the journal since the last snapshot outweighs what one would write."""
        tail = self._journal.position - self._next
        segment = self._journal.segment_bytes
        return tail >= segment and tail >= self._machine.table.top * _ROW_BYTES

    def postpone(self) -> None:
        """Wait for another segment before the next try."""
        self._next = self._journal.position

    def finish(self, now_ms: int) -> None:
        """Make a snapshot of a store that is about to close, if there is anything new."""
        if self._journal.position != self.covered:
            self._machine.events.sync()
            snapshot, unneeded = self._begin(now_ms)
            self._journal.sync()
            self._finish(snapshot)
            self._remove_old_snapshots()
            for number in unneeded:
                self._disk.remove(self._journal.release(number))

    def start_anew(self, now_ms: int) -> None:
        """Make a snapshot of a store that was repaired, and only then forget all others."""
        self.covered = -1
        self.finish(now_ms)
        self._remove_old_snapshots(keep=1)

    async def run(
        self,
        now_ms: int,
        write: Callable[[Record], None],
        flush_events: Callable[[int], Awaitable[None]],
    ) -> None:
        """Make a snapshot, free what the one before it made free, and empty what is nearly so."""
        events = self._machine.events
        until = events.cut()
        snapshot, unneeded = self._begin(now_ms)
        try:
            # It may take its name only when all that it holds is in the journal for good.
            await flush_events(until)
            await asyncio.to_thread(events.sync)
            await asyncio.to_thread(self._journal.sync)
        except Exception:
            snapshot.abandon()
            raise
        await asyncio.to_thread(self._finish, snapshot)
        # Freeing a large file takes the system milliseconds, which nobody should wait for.
        await asyncio.to_thread(self._remove_old_snapshots)
        for number in unneeded:
            path = self._journal.release(number)
            await asyncio.to_thread(self._disk.remove, path)
        for number in self._nearly_empty():
            await self._empty(number, now_ms, write)

    def _begin(self, now_ms: int) -> tuple[Snapshot, list[int]]:
        """Return the snapshot of now, and the segments that nobody needs once it is finished.

        Those hold no blob that was alive at the snapshot before, so that a start from either of the
        two finds every blob that its replay still looks at.
        """
        bound = self.covered // self._journal.segment_bytes
        unneeded = [n for n in sorted(self._journal.segments) if n < bound and n not in self.living]
        position = self._journal.cut()
        snapshot = Snapshot(self._disk, self._folder, self._machine, position, now_ms)
        snapshot.write()
        self._next = position
        self._begun = position, living_bytes(self._machine, self._journal.segment_bytes)
        return snapshot, unneeded

    def _finish(self, snapshot: Snapshot) -> None:
        """Let the snapshot that was begun take its name: only then it is one to start from."""
        snapshot.finish()
        self.covered, self.living = self._begun

    def _remove_old_snapshots(self, keep: int = 2) -> None:
        for old in snapshot_positions(self._disk, self._folder)[:-keep]:
            self._disk.remove(snapshot_path(self._folder, old))

    def _nearly_empty(self) -> list[int]:
        """Return the segments behind the snapshot of which little still lives."""
        bound = self.covered // self._journal.segment_bytes
        little = _LIVING_PART * self._journal.segment_bytes
        return [n for n, living in self.living.items() if n < bound and living < little]

    async def _empty(self, number: int, now_ms: int, write: Callable[[Record], None]) -> None:
        """Copy the living blobs of a segment forward, a part at a time."""
        table, size = self._machine.table, self._journal.segment_bytes
        rows = table.rows_where(
            lambda part: (
                (table.state[part] != State.GONE) & (table.position[part] // size == number)
            )
        )
        part_rows = max(_COPY_BYTES * len(rows) // size, 64)
        for start in range(0, len(rows), part_rows):
            self._copy(rows[start : start + part_rows], number, now_ms, write)
            await self._journal.committed()

    def _copy(self, rows: Rows, number: int, now_ms: int, write: Callable[[Record], None]) -> None:
        table = self._machine.table
        # Some may have gone, or been replaced, since they were found.
        still = table.position[rows] // self._journal.segment_bytes == number
        rows = rows[still & (table.state[rows] != State.GONE)]
        if not len(rows):
            return
        sizes = table.size_bytes[rows]
        blobs = BlobReader(
            self._journal, table.position[rows], sizes, np.zeros_like(rows), np.zeros_like(rows)
        ).bodies()
        columns: dict[str, np.ndarray] = {"rows": rows, "size_bytes": sizes}
        write(Record(RecordKind.COPY, now_ms, columns, blobs=b"".join(blobs)))


def living_bytes(machine: Machine, segment_bytes: int) -> dict[int, int]:
    """Return how many bytes of living messages each segment holds, at least one a message."""
    table = machine.table
    state = table.state[: table.top]
    rows = np.flatnonzero(state != State.GONE)
    numbers = table.position[rows] // segment_bytes
    first = int(numbers.min(initial=0))
    weights = np.maximum(table.size_bytes[rows], 1)
    sums = np.bincount(numbers - first, weights=weights).tolist() if len(rows) else []
    return {first + index: int(size) for index, size in enumerate(sums) if size}
