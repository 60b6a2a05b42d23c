"""The compactor: makes snapshots, deletes unneeded segments, copies live blobs forward.

A segment can be deleted when it lies before the last two snapshots and held no live blob at the
older one. A segment with few live blobs is emptied first: they are appended to the journal again,
as a record.
"""

import asyncio
import logging
import math
from collections import Counter
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
#: The most that a snapshot stores for a row: with a hash, and a place in the free list.
_KEPT_ROW_BYTES = _ROW_BYTES + 16
#: Bytes of a snapshot for each remembered id; as many ids as known are possible.
_KEPT_ID_BYTES = 16
#: Bytes of a snapshot for each message of a numbered request.
_KEPT_CALL_BYTES = 21
#: Bytes that a snapshot may write for each record that a start then need not replay.
_RECORD_BYTES = 8192
#: The approximate size of a snapshot without its rows.
_HEAD_BYTES = 16 * 1024
#: A segment with less than this part of live bytes is copied forward.
_LIVING_PART = 0.25
#: More than one part in this many, of a segment's bytes or of the messages, counts as much.
_MUCH_PART = 64
#: How many rows are counted together.
_COUNTED_ROWS = 1 << 18
#: An upper bound for a copied message in a record, in addition to its blob.
_COPIED_BYTES = 16


class Writer(Protocol):
    """The calls of the core that the compactor needs."""

    def write(self, record: Record) -> None:
        """Append a record and apply it."""

    def flush_events(self, until: int) -> Awaitable[None]:
        """Write the events up to a position; returns when everything written is committed."""

    def sync_events(self) -> Awaitable[None]:
        """Sync the events that were written."""

    def sync_journal(self) -> Awaitable[None]:
        """Sync the journal up to the last write."""


class Compactor:
    """Decides when a snapshot is due, makes it, and frees the disk behind it.

    It is created when the machine is at the position of the newest snapshot, ``covered``;
    ``living`` has the live bytes of each segment at that time.
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
        #: The position of the last attempt, and the number of live messages then.
        self._next, self._lived = covered, machine.table.used
        self._next_applied = machine.applied
        #: When the last snapshot was started; a store just opened has to catch up first.
        self._began_ms = now_ms
        self.living = living_bytes(machine, journal.segment_bytes)
        #: Whether the last attempt was completed.
        self._has_ended = True
        there = snapshot_positions(disk, folder)
        #: Snapshots that the start refused; an earlier one was used in their place.
        self._damaged = {position for position in there if position > covered}
        #: The sizes of the existing snapshots, by position.
        self._sizes = {p: disk.size_bytes(snapshot_path(folder, p)) for p in there}

    @property
    def snapshot_bytes(self) -> int:
        """The size of the newest snapshot in bytes; 0 without one."""
        return self._sizes.get(max(self._sizes, default=0), 0)

    def is_due(self, now_ms: int) -> bool:
        """Tell whether the journal since the last snapshot outweighs the size of a new one."""
        tail = self._journal.position - self._next
        table_bytes = self._machine.table.top * _ROW_BYTES
        is_long = tail >= self._journal.segment_bytes and tail >= table_bytes
        return is_long or self._is_slow(max(table_bytes, self.snapshot_bytes), now_ms)

    def _is_slow(self, size_bytes: int, now_ms: int) -> bool:
        """Tell whether a replay of the new records takes long, compared with the snapshot.

        After a failed attempt only bytes count, so that a full disk is not written again and again.
        """
        records, limits = self._machine.applied - self._next_applied, self._limits
        is_early = 0 <= now_ms - self._began_ms < limits.snapshot_every_ms
        is_much = records >= limits.snapshot_records and records * _RECORD_BYTES >= size_bytes
        return is_much and self._has_ended and not is_early

    @property
    def can_free(self) -> bool:
        """Whether another attempt may free more than the last."""
        is_done = self._has_ended and self._journal.position == self._next
        return not is_done or bool(self._unneeded())

    @property
    def may_well_free(self) -> bool:
        """Whether another attempt is likely to free something.

        Either many messages are gone since, or the last attempt left segments that the next can
        free.
        """
        written = self._journal.position - self._next
        living = self._machine.table.used
        return (
            written > self._journal.segment_bytes // _MUCH_PART
            or self._lived - living > living // _MUCH_PART
            or (self._has_ended and bool(self._unneeded()))
        )

    def kept_bytes(self, more: int = 0) -> int:
        """Return how many bytes have to stay free for snapshots.

        Two must fit, because the next is made before the oldest is removed; those on the disk
        count. Each is as large as with ``more`` further messages, each with an id of its own, and a
        margin.
        """
        rows = self._machine.table.top + more + 2 * self._limits.room_rows
        machine = self._machine
        beside = machine.errors.size_bytes + _KEPT_ID_BYTES * (machine.known.used + more)
        beside += _KEPT_CALL_BYTES * (machine.calls.size + machine.takes.size)
        two = 2 * (rows * _KEPT_ROW_BYTES + beside + _HEAD_BYTES)
        return max(two - sum(self._sizes.values()), 0)

    def postpone(self) -> None:
        """Wait for another segment before the next attempt."""
        self._next, self._lived = self._journal.position, self._machine.table.used
        self._next_applied = self._machine.applied

    def finish(self, now_ms: int) -> None:
        """Make a snapshot of a store that is about to close, if there is anything new.

        All of its records must be committed, and their events flushed.
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
        """Make a snapshot of a repaired store, and only then delete all others."""
        self.covered = -1
        self.finish(now_ms)
        self._remove_old_snapshots(keep=1)

    async def run(self, now_ms: int, writer: Writer) -> None:
        """Make a snapshot, delete segments that the last one freed, and empty sparse segments."""
        self._has_ended = False
        unneeded = self._unneeded()
        if self._journal.position != self.covered:
            await self._snap(now_ms, writer)
        elif unneeded:
            # A second snapshot at the same position replaces the newest under its name: it adds no
            # safety.
            await in_thread(self._remove_old_snapshots, 1)
        # Freeing a large file takes the system milliseconds, so it runs in a thread.
        for number in unneeded:
            await in_thread(self._disk.remove, self._journal.release(number))
        # The room is free only after the committer has closed the files.
        await self._journal.committed()
        self._has_ended = True
        await self._empty(self._nearly_empty(), now_ms, writer)

    async def _snap(self, now_ms: int, writer: Writer) -> None:
        """Make a snapshot in threads, and remove the outdated snapshots."""
        until = self._machine.events.cut()
        snapshot = self._begin(now_ms)
        try:
            await self._create(snapshot)
            for part in snapshot.parts():
                await in_thread(snapshot.write, part)
            # It may take its name only when all of its records are durable in the journal.
            await self._flush(until, writer)
            await writer.sync_events()
            await writer.sync_journal()
            await in_thread(self._end, snapshot)
        except BaseException:
            snapshot.abandon()
            raise
        await in_thread(self._remove_old_snapshots)

    async def _flush(self, until: int, writer: Writer) -> None:
        """Write the events up to a position, or drop them if a snapshot would fail for them.

        Without a snapshot nothing is freed, and the events would never have room again.
        """
        try:
            await writer.flush_events(until)
        except DiskFull:
            self._machine.events.give_up(until)
            await in_thread(self._machine.events.remove_dropped)

    def _unneeded(self) -> list[int]:
        """Return the segments that are not needed once the next snapshot is finished.

        They held no live blob at the snapshot before, so that a start from either of the two finds
        every blob that its replay reads.
        """
        bound = self.covered // self._journal.segment_bytes
        return [n for n in sorted(self._journal.segments) if n < bound and n not in self.living]

    def _begin(self, now_ms: int) -> Snapshot:
        position = self._journal.cut()
        self.postpone()
        self._began_ms = now_ms
        return Snapshot(self._disk, self._folder, self._machine, position, now_ms, self._limits)

    async def _create(self, snapshot: Snapshot) -> None:
        """Make the file of a snapshot; on a full disk, delete older files for it."""
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
        """Rename a written snapshot to its final name: a start uses it only then."""
        snapshot.seal()
        living = snapshot.living_bytes(self._journal.segment_bytes)
        snapshot.finish()
        self.covered, self.living = snapshot.position, living
        self._damaged.discard(snapshot.position)
        self._sizes[snapshot.position] = snapshot.size_bytes

    def _remove_old_snapshots(self, keep: int = 2) -> None:
        """Remove all but the newest snapshots that are whole and durably named."""
        there = snapshot_positions(self._disk, self._folder)
        whole = [p for p in there if p <= self.covered and p not in self._damaged]
        for old in [p for p in there if p not in whole[-keep:]]:
            self._disk.remove(snapshot_path(self._folder, old))
            self._sizes.pop(old, None)

    def _nearly_empty(self) -> list[int]:
        """Return the segments behind the snapshot that have few live bytes.

        On a full disk, return the emptiest segments first, and no more than leave room for verbs.
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
        """Copy the live blobs of segments forward, a part at a time."""
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
        """Return the undamaged segments of some: a copy of damage would pass for whole.

        Damaged segments are kept for a repair.
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
        # Rows added during the search have no blobs in these segments.
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
        # Some messages may be gone, or replaced, since the search.
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
    """Return how many live bytes each segment holds, at least one a message."""
    table, living = machine.table, Counter[int]()
    for part in table.parts(_COUNTED_ROWS, groups=2):
        columns = (table.state[part], table.position[part], table.size_bytes[part])
        living.update(bytes_by_segment(*columns, segment_bytes))
    return dict(living)
