"""Check a store on disk, byte by byte, and save the readable part of a damaged one.

The store must not be open. A check recovers the store as a start does, over a disk that writes
nothing. A repair does the same on the real disk, leaves out the damaged parts, and writes a new
snapshot for the next start.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dwell.clock import RealClock
from dwell.errors import NotAStore, StoreDamaged
from dwell.message import Rows, State
from dwell.store.embedded import snapshot
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.core import Core
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.folder import LABEL
from dwell.store.embedded.journal.journal import SEGMENT_BYTES, Journal
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.ownids import have_own, ids_of
from dwell.store.embedded.snapshotreader import SnapshotReader

_EVENTS_BYTES = 1 << 62
#: How many lost messages are named, and how many ids are read at once.
_MOST_NAMED, _IDS_AT_ONCE = 100, 1 << 20
#: How many rows are compared with the frames at once.
_ROWS_AT_ONCE = 1 << 16


@dataclass(slots=True)
class Report:
    """The result of a check: faults in words, messages in each state, bytes read.

    After a repair the counts are of the saved messages.
    """

    findings: list[str] = field(default_factory=list)
    messages: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing was damaged."""
        return not self.findings


class ReadOnlyDisk(Disk):
    """A read-only disk, except for the lock: all writes are dropped."""

    def create(self, path: Path, size_bytes: int) -> int:
        """Return a file that is gone as soon as it is closed."""
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, size_bytes)
        return fd

    def open(self, path: Path) -> int:
        """Open a file for reading."""
        return self.system.open(path, os.O_RDONLY)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write nothing."""

    def write_file(self, path: Path, buffers: Sequence[Buffer]) -> None:
        """Write no file."""

    def sync(self, fd: int) -> None:
        """Sync nothing."""

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Take no room."""

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Cut nothing off."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename nothing."""

    def remove(self, path: Path) -> None:
        """Remove nothing."""


def check(path: str | Path, *, repair: bool = False, disk: Disk | None = None) -> Report:
    """Read all of a store; with ``repair``, save the readable part if anything is damaged.

    Raises NotAStore, StoreLocked, StoreTooNew, and StoreDamaged when nothing can be saved because
    the store's label or every snapshot is gone. Other damage is reported, not raised.
    """
    folder, disk = Path(path).absolute(), disk or Disk()
    if not disk.exists(folder / LABEL):
        raise NotAStore(f"{folder}: is not a store")
    report = asyncio.run(_look(folder, ReadOnlyDisk(disk.system), keep=False))
    if repair and not report.ok:
        findings = report.findings
        report = asyncio.run(_look(folder, disk, keep=True))
        report.findings = list(dict.fromkeys(findings + report.findings))
    return report


async def _look(folder: Path, disk: Disk, *, keep: bool) -> Report:
    report, now_ms = Report(), RealClock().now_ms()
    core = Core(disk, folder, SEGMENT_BYTES, 0, _EVENTS_BYTES)
    core.open(now_ms, lambda topic, count, paused: None, tolerant=report.findings)
    try:
        report.findings += _snapshot_damage(disk, folder)
        numbers = sorted(core.journal.segments)
        ranges = [part for number in numbers for part in whole_ranges(core.journal, number, report)]
        lost = unreadable(core.machine, ranges)
        results = lost[~core.machine.table.are_messages(lost)]
        if len(results):
            report.findings.append(f"{len(results)} results of acks are lost: they are damaged")
            core.machine.drop(results, now_ms)
            lost = np.setdiff1d(lost, results)
        if len(lost):
            report.findings.append(f"{len(lost)} messages are lost: their bodies are damaged")
            report.findings += await _named(core, lost)
            core.machine.drop(lost, now_ms)
        mistaken = with_anothers_id(core)
        if len(mistaken):
            words = "messages are lost: what lies in their places is another's"
            report.findings.append(f"{len(mistaken)} {words}")
            core.machine.drop(mistaken, now_ms)
        states = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
        report.messages = {s.name.lower(): core.machine.table.total(s) for s in states}
    finally:
        await core.close(now_ms, repaired=keep)
    return report


async def _named(core: Core, rows: Rows) -> list[str]:
    """Name the first of some lost messages, as far as their ids can still be read."""
    table, names, some = core.machine.table, core.machine.topics.names, rows[:_MOST_NAMED]
    ids = await ids_of(core, core.finder(), some)
    columns = (table.topic[some].tolist(), table.seq[some].tolist(), ids)
    return [
        f"lost: number {number} of topic {names[topic]}, "
        + ("its id cannot be read" if id_ is None else f"id {id_!r}")
        for topic, number, id_ in zip(*columns, strict=True)
    ]


def _snapshot_damage(disk: Disk, folder: Path) -> list[str]:
    """Return the faults of the snapshots that the start did not read."""
    damage = []
    for position in snapshot.snapshot_positions(disk, folder):
        try:
            SnapshotReader(disk, folder, position).verify()
        except StoreDamaged as error:
            damage.append(str(error))
    return damage


def whole_ranges(journal: Journal, number: int, report: Report) -> list[tuple[int, int]]:
    """Return where the whole frames of a segment have their records: positions of start and end.

    A segment that the start did not read is read here for the first time.
    """
    ranges: list[tuple[int, int]] = []
    base = number * journal.segment_bytes
    report.segments += 1
    for frame, broken_from in journal.frames_of(number):
        if broken_from is not None:
            path = journal.segments[number].path
            words = f"{path}: damaged from offset {broken_from - base}"
            if not any(words in finding for finding in report.findings):
                report.findings.append(words)
        if frame is not None:
            ranges.append((base + frame.start, base + frame.end))
            report.bytes += frame.end - frame.start
    return ranges


def with_anothers_id(core: Core) -> Rows:
    """Return the rows of messages whose blobs have another message's id or topic.

    A row may have belonged to another message in a lost part of the journal; later records about
    that message are then applied to this row.
    """
    table, finder = core.machine.table, core.finder()
    rows = table.rows_where(lambda part: table.are_messages(part) & (table.id_bytes[part] > 0))
    found = [rows[:0]]
    for at in range(0, len(rows), _IDS_AT_ONCE):
        some = rows[at : at + _IDS_AT_ONCE]
        columns = (table.size_bytes[some], table.id_bytes[some], table.extra_bytes[some])
        ids = BlobReader(core.journal, table.position[some], *columns).id_blobs()
        found.append(some[~have_own(core, finder, some, table.topic[some], ids)])
    return np.concatenate(found)


def unreadable(machine: Machine, whole: list[tuple[int, int]]) -> Rows:
    """Return the rows of messages whose blobs do not lie in a whole frame."""
    return np.concatenate([np.zeros(0, np.intp), *unreadable_parts(machine, whole)])


def unreadable_parts(machine: Machine, whole: list[tuple[int, int]]) -> Iterator[Rows]:
    """Yield such rows, those of a part of the table at a time."""
    table = machine.table
    for rows in table.rows_in_parts(lambda part: table.state[part] != State.GONE, _ROWS_AT_ONCE):
        yield lost_of(machine, whole, rows)


def lost_of(machine: Machine, whole: list[tuple[int, int]], rows: Rows) -> Rows:
    """Return which of some rows have a blob that does not lie in a whole frame."""
    if not len(rows) or not whole:
        return rows
    table, ranges = machine.table, np.array(whole, dtype=np.int64)
    start = table.position[rows]
    index = np.maximum(np.searchsorted(ranges[:, 0], start, side="right") - 1, 0)
    inside = (start >= ranges[index, 0]) & (start + table.size_bytes[rows] <= ranges[index, 1])
    lost: Rows = rows[~inside]
    return lost
