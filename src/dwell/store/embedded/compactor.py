"""The compactor: snapshots the state, deletes segments that nobody needs, copies forward the rest.

A segment can go when it lies before the last two snapshots and held no blob of a living message at
the older one. One that holds few is emptied first: its blobs are appended again, as a record.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

import numpy as np

from dwell.errors import DiskFull
from dwell.message import Rows, State
from dwell.store.bounds import within
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.disk import Disk, is_no_room
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.snapshot import (
    Snapshot,
    bytes_by_segment,
    snapshot_path,
    snapshot_positions,
)
from dwell.store.embedded.table import TYPES
from dwell.store.embedded.thread import in_thread

_log = logging.getLogger(__name__)

_ROW_BYTES = sum(np.dtype(dtype).itemsize for dtype in TYPES.values())
#: What a snapshot has for a row at the most: a hash too, and a place in the free list.
_KEPT_ROW_BYTES = _ROW_BYTES + 16
#: What it has for an id that is remembered, of which there are as many as are known at the most.
_KEPT_ID_BYTES = 16
#: What it has for a message of a numbered request.
_KEPT_CALL_BYTES = 21
#: What a snapshot may write for each record that no start has to replay then.
_RECORD_BYTES = 8192
#: What a snapshot takes beside its rows, more or less.
_HEAD_BYTES = 16 * 1024
#: A segment of which less than this part still lives is copied forward.
_LIVING_PART = 0.25
#: The part of a segment that was written, or of the messages that have gone, that is much.
_MUCH_PART = 64
#: More than the record of a copy has for each message beside its blob.
_COPIED_BYTES = 16


class Writer(Protocol):
    """What the compactor asks of the core."""

    def write(self, record: Record) -> None:
        """Append a record and apply it."""

    def flush_events(self, until: int) -> Awaitable[None]:
        """Write the events up to a position, and return when all that is written is committed."""

    def sync_events(self) -> Awaitable[None]:
        """Make the events that are written safe."""

    def sync_journal(self) -> Awaitable[None]:
        """Make the journal safe as far as it is written."""


class Compactor:
    """Decides when a snapshot is due, makes it, and frees the disk behind it.

    It is made when the machine stands where the newest snapshot does, at position ``covered``;
    ``living`` says how much lived then in each segment.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        journal: Journal,
        machine: Machine,
        covered: int,
        now_ms: int,
        limits: Limits = LIMITS,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._journal = journal
        self._machine = machine
        self._limits = limits
        self.covered = covered
        #: Where the last try was made, and how many messages lived then.
        self._next, self._lived = covered, machine.table.used
        self._next_applied = machine.applied
        #: When the last snapshot was begun; a store that was opened has first to catch up.
        self._began_ms = now_ms
        self.living = living_bytes(machine, journal.segment_bytes)
        #: Whether the last try came to its end.
        self._has_ended = True
        there = snapshot_positions(disk, folder)
        #: Those that were refused at the start, which one before them made up for.
        self._damaged = {position for position in there if position > covered}
        #: The sizes of the snapshots that are there, by their positions.
        self._sizes = {p: disk.size_bytes(snapshot_path(folder, p)) for p in there}

    @property
    def snapshot_bytes(self) -> int:
        """How many bytes the newest snapshot has; 0 when there is none."""
        return self._sizes.get(max(self._sizes, default=0), 0)

    def is_due(self, now_ms: int) -> bool:
        """Tell whether the journal since the last snapshot outweighs what one would write."""
        tail = self._journal.position - self._next
        table_bytes = self._machine.table.top * _ROW_BYTES
        is_long = tail >= self._journal.segment_bytes and tail >= table_bytes
        return is_long or self._is_slow(max(table_bytes, self.snapshot_bytes), now_ms)

    def _is_slow(self, size_bytes: int, now_ms: int) -> bool:
        """Tell whether to replay so many records takes long, beside so large a snapshot.

        After a try that failed only bytes count, so that a full disk is not written on again and
        again.
        """
        records, limits = self._machine.applied - self._next_applied, self._limits
        is_early = 0 <= now_ms - self._began_ms < limits.snapshot_every_ms
        is_much = records >= limits.snapshot_records and records * _RECORD_BYTES >= size_bytes
        return is_much and self._has_ended and not is_early

    @property
    def can_free(self) -> bool:
        """Whether another try may free more than the last."""
        is_done = self._has_ended and self._journal.position == self._next
        return not is_done or bool(self._unneeded())

    @property
    def may_well_free(self) -> bool:
        """Whether that is likely: much has gone since, or the last saw what the next frees."""
        written = self._journal.position - self._next
        living = self._machine.table.used
        return (
            written > self._journal.segment_bytes // _MUCH_PART
            or self._lived - living > living // _MUCH_PART
            or (self._has_ended and bool(self._unneeded()))
        )

    def kept_bytes(self, more: int = 0) -> int:
        """Return how many bytes have to stay free for snapshots.

        Two must fit, as the next is made before the last but one goes; those on the disk count.
        They are as large as with ``more`` messages, each with an id of its own, and some.
        """
        rows = self._machine.table.top + more + 2 * self._limits.room_rows
        machine = self._machine
        beside = machine.errors.size_bytes + _KEPT_ID_BYTES * (machine.known.used + more)
        beside += _KEPT_CALL_BYTES * machine.calls.size
        two = 2 * (rows * _KEPT_ROW_BYTES + beside + _HEAD_BYTES)
        return max(two - sum(self._sizes.values()), 0)

    def postpone(self) -> None:
        """Wait for another segment before the next try."""
        self._next, self._lived = self._journal.position, self._machine.table.used
        self._next_applied = self._machine.applied

    def finish(self, now_ms: int) -> None:
        """Make a snapshot of a store that is about to close, if there is anything new.

        All that it holds must be committed, and the events of it flushed.
        """
        if self._journal.position == self.covered:
            return
        self._machine.events.sync()
        self._journal.sync()
        unneeded = self._unneeded()
        snapshot = self._begin(now_ms)
        try:
            snapshot.create()
            for part in snapshot.parts():
                snapshot.write(part)
            self._end(snapshot)
        except BaseException:
            snapshot.abandon()
            raise
        self._remove_old_snapshots()
        for number in unneeded:
            self._disk.remove(self._journal.release(number))

    def start_anew(self, now_ms: int) -> None:
        """Make a snapshot of a store that was repaired, and only then forget all others."""
        self.covered = -1
        self.finish(now_ms)
        self._remove_old_snapshots(keep=1)

    async def run(self, now_ms: int, writer: Writer) -> None:
        """Make a snapshot, free what the one before it made free, and empty what is nearly so."""
        self._has_ended = False
        unneeded = self._unneeded()
        if self._journal.position != self.covered:
            await self._snap(now_ms, writer)
        elif unneeded:
            # A second snapshot of the same place has the same name: it makes the newest no safer.
            await in_thread(self._remove_old_snapshots, 1)
        # Freeing a large file takes the system milliseconds, which nobody should wait for.
        for number in unneeded:
            await in_thread(self._disk.remove, self._journal.release(number))
        # Nor is there room before the committer has closed them.
        await self._journal.committed()
        self._has_ended = True
        await self._empty(self._nearly_empty(), now_ms, writer)

    async def _snap(self, now_ms: int, writer: Writer) -> None:
        """Make a snapshot in threads, and remove those that it makes old."""
        until = self._machine.events.cut()
        snapshot = self._begin(now_ms)
        try:
            await self._create(snapshot)
            for part in snapshot.parts():
                await in_thread(snapshot.write, part)
            # It may take its name only when all that it holds is in the journal for good.
            await self._flush(until, writer)
            await writer.sync_events()
            await writer.sync_journal()
            await in_thread(self._end, snapshot)
        except BaseException:
            snapshot.abandon()
            raise
        await in_thread(self._remove_old_snapshots)

    async def _flush(self, until: int, writer: Writer) -> None:
        """Have events written up to a position, or given up where a snapshot would fail for them.

        Without a snapshot nothing is freed, and then there would never be room for them again.
        """
        try:
            await writer.flush_events(until)
        except DiskFull:
            self._machine.events.give_up(until)
            await in_thread(self._machine.events.remove_dropped)

    def _unneeded(self) -> list[int]:
        """Return the segments that nobody needs once the next snapshot is finished.

        Those hold no blob that was alive at the snapshot before, so that a start from either of the
        two finds every blob that its replay still looks at.
        """
        bound = self.covered // self._journal.segment_bytes
        return [n for n in sorted(self._journal.segments) if n < bound and n not in self.living]

    def _begin(self, now_ms: int) -> Snapshot:
        position = self._journal.cut()
        self.postpone()
        self._began_ms = now_ms
        return Snapshot(self._disk, self._folder, self._machine, position, now_ms, self._limits)

    async def _create(self, snapshot: Snapshot) -> None:
        """Make the file of a snapshot, for which older things go if the disk is full."""
        while True:
            try:
                return await in_thread(snapshot.create)
            except (OSError, DiskFull) as error:
                if not is_no_room(error):
                    raise
                if len(snapshot_positions(self._disk, self._folder)) > 1:
                    await in_thread(self._remove_old_snapshots, 1)
                elif self._machine.events.make_room():
                    await in_thread(self._machine.events.remove_dropped)
                else:
                    raise

    def _end(self, snapshot: Snapshot) -> None:
        """Let a snapshot that is written take its name: only then it is one to start from."""
        snapshot.seal()
        living = snapshot.living_bytes(self._journal.segment_bytes)
        snapshot.finish()
        self.covered, self.living = snapshot.position, living
        self._damaged.discard(snapshot.position)
        self._sizes[snapshot.position] = snapshot.size_bytes

    def _remove_old_snapshots(self, keep: int = 2) -> None:
        """Remove all but the newest that are whole and have their names for good."""
        there = snapshot_positions(self._disk, self._folder)
        whole = [p for p in there if p <= self.covered and p not in self._damaged]
        for old in [p for p in there if p not in whole[-keep:]]:
            self._disk.remove(snapshot_path(self._folder, old))
            self._sizes.pop(old, None)

    def _nearly_empty(self) -> list[int]:
        """Return the segments behind the snapshot of which little still lives.

        On a full disk no more of them than leave room for verbs, those with the least first.
        """
        bound = self.covered // self._journal.segment_bytes
        little, room = _LIVING_PART * self._journal.segment_bytes, self._journal.room
        left = math.inf if room.is_on_disk else min(little, room.left_bytes) / 2
        found = []
        for number, living in sorted(self.living.items(), key=lambda item: item[1]):
            left -= living
            if number < bound and living < little and left >= 0:
                found.append(number)
        return found

    async def _empty(self, numbers: list[int], now_ms: int, writer: Writer) -> None:
        """Copy the living blobs of segments forward, a part at a time."""
        numbers = await self._whole(numbers)
        rows = await self._rows_in(numbers)
        most_bytes = min(self._limits.copy_bytes, self._journal.room.most_record_bytes // 2)
        while len(rows):
            if self._journal.is_short:
                await self._journal.lengthened()
            count = within(
                self._machine.table.size_bytes[rows] + np.int64(_COPIED_BYTES), most_bytes
            )
            self._copy(rows[:count], numbers, now_ms, writer)
            rows = rows[count:]
            await self._journal.committed()

    async def _whole(self, numbers: list[int]) -> list[int]:
        """Return those of some segments that are not damaged: a copy of that would pass for whole.

        The others are kept for a repair.
        """
        segments = [self._journal.segments[number] for number in numbers]
        await self._journal.check_segments(segments)
        for segment in segments:
            for first, _ in segment.damage:
                _log.warning("%s: damaged from offset %d; it is kept", segment.path, first)
        return [segment.number for segment in segments if not segment.damage]

    async def _rows_in(self, numbers: list[int]) -> Rows:
        """Return the rows whose blobs lie in some segments, in the order of these."""
        found = [np.zeros(0, np.intp)]
        step = self._limits.snapshot_rows
        # The table may grow meanwhile, but what is new lies in none of them.
        for start in range(0, self._machine.table.top if numbers else 0, step):
            found.append(self._lying_in(np.arange(start, start + step), numbers))
            await asyncio.sleep(0)
        rows = np.concatenate(found)
        return rows[np.argsort(self._machine.table.position[rows], kind="stable")]

    def _lying_in(self, rows: Rows, numbers: list[int]) -> Rows:
        """Return those rows whose blobs lie in some segments."""
        table = self._machine.table
        rows = rows[rows < table.top]
        rows = rows[table.state[rows] != State.GONE]
        lying: Rows = rows[
            np.isin(table.position[rows] // self._journal.segment_bytes, numbers, kind="table")
        ]
        return lying

    def _copy(self, rows: Rows, numbers: list[int], now_ms: int, writer: Writer) -> None:
        table = self._machine.table
        # Some may have gone, or been replaced, since they were found.
        rows = self._lying_in(rows, numbers)
        if not len(rows):
            return
        sizes = table.size_bytes[rows]
        blobs = BlobReader(
            self._journal, table.position[rows], sizes, np.zeros_like(rows), np.zeros_like(rows)
        ).bodies()
        columns: dict[str, np.ndarray] = {"rows": rows, "size_bytes": sizes}
        writer.write(Record(RecordKind.COPY, now_ms, columns, blobs=b"".join(blobs)))


def living_bytes(machine: Machine, segment_bytes: int) -> dict[int, int]:
    """Return how many bytes of living messages each segment holds, at least one a message."""
    table, top = machine.table, machine.table.top
    columns = (table.state[:top], table.position[:top], table.size_bytes[:top])
    return bytes_by_segment(*columns, segment_bytes)
