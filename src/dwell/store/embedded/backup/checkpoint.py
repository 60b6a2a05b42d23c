"""A checkpoint: the files of an open store as they are at one moment, held for copying.

It has a snapshot of that moment, so the journal is needed only for the blobs of live messages. Of a
file that still grows, only the part up to that moment counts. The files are held open, so they can
be read even after the compactor has removed them.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec

from dwell.store.embedded.core import Core
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.folder import LABEL, drawn_number, label_bytes
from dwell.store.embedded.journal.segment import segment_number
from dwell.store.embedded.snapshot import Snapshot, snapshot_path
from dwell.store.embedded.thread import in_thread

#: Few enough that the loop's thread does not notice the wait for the interpreter lock.
_ROWS_AT_ONCE = 1 << 16


class Held(NamedTuple):
    """A file that is held open: how many of its bytes count, and how long its copy has to be.

    A copy is padded with zeros after the bytes that count.
    """

    name: str
    fd: int
    size_bytes: int
    room_bytes: int


class Checkpoint:
    """The held files, the label last: without it a copy that was cut short is no store."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.files: list[Held] = []

    async def close(self) -> None:
        """Close the files."""
        files, self.files = self.files, []
        # The snapshot has no name left: closing it frees its disk space, which takes a while.
        await in_thread(_close_all, self.disk, files)


async def checkpoint_of(core: Core, now_ms: int) -> Checkpoint:
    """Return a checkpoint of now; raises DiskFull or StoreFailed."""
    checkpoint = Checkpoint(core.disk)
    try:
        # Nothing else runs before the first await, so everything is of one moment.
        position, until = core.journal.cut(), core.machine.events.cut()
        new = _unfinished(core)
        snapshot = Snapshot(
            core.disk, core.folder, core.machine, position, now_ms, core.limits, new, is_copy=True
        )
        segments = _hold_segments(checkpoint, core, position)
        await _hold_snapshot(checkpoint, core, snapshot)
        await core.flush_events(until)
        for path, size_bytes in core.machine.events.files_until(until):
            checkpoint.files.append(Held(path.name, core.disk.open(path), size_bytes, size_bytes))
        await in_thread(_hold_label, checkpoint, core)
        await in_thread(snapshot.seal)
        await in_thread(_let_go, checkpoint, segments, snapshot, core.journal.segment_bytes)
    except BaseException:
        await checkpoint.close()
        raise
    return checkpoint


async def _hold_snapshot(checkpoint: Checkpoint, core: Core, snapshot: Snapshot) -> None:
    """Write an unnamed snapshot, so that no part of it can ever be left behind."""
    try:
        try:
            await in_thread(snapshot.create)
        finally:
            if snapshot.fd >= 0:
                name = snapshot_path(core.folder, snapshot.position).name
                checkpoint.files.append(Held(name, snapshot.fd, 0, 0))
                core.disk.remove(snapshot.new)
        for part in snapshot.parts():
            await in_thread(snapshot.write, part)
    finally:
        snapshot.let_go()
    size_bytes = snapshot.size_bytes
    checkpoint.files = [
        held._replace(size_bytes=size_bytes, room_bytes=size_bytes)
        if held.fd == snapshot.fd
        else held
        for held in checkpoint.files
    ]


def _unfinished(core: Core) -> Path:
    """Return a name for a file that is unlinked at once; a start removes what a crash leaves."""
    return core.folder / f"checkpoint-{core.disk.system.random_bits(64):016x}.new"


def _hold_label(checkpoint: Checkpoint, core: Core) -> None:
    """Hold a label for a separate store, in which receipts of this store are invalid.

    Both stores will give the next numbers to different messages, so a receipt of one must not be
    valid in the other.
    """
    label = msgspec.structs.replace(core.label, number=drawn_number(core.disk))
    data, new = label_bytes(label), _unfinished(core)
    fd = core.disk.create(new, len(data))
    checkpoint.files.append(Held(LABEL, fd, len(data), len(data)))
    core.disk.remove(new)
    core.disk.write(fd, [data], 0)


def _hold_segments(checkpoint: Checkpoint, core: Core, position: int) -> list[Held]:
    """Hold all segments and return them; the copy continues in the last."""
    size = core.journal.segment_bytes
    last, used = divmod(position, size)
    segments = []
    for number, segment in sorted(core.journal.segments.items()):
        if number <= last:
            counts = used if number == last else size
            segments.append(Held(segment.path.name, core.disk.open(segment.path), counts, size))
            checkpoint.files.append(segments[-1])
    return segments


def _let_go(
    checkpoint: Checkpoint, segments: list[Held], snapshot: Snapshot, segment_bytes: int
) -> None:
    """Close the segments without live messages, except the last."""
    living = snapshot.living_bytes(segment_bytes)
    for held in segments[:-1]:
        if segment_number(held.name) not in living:
            checkpoint.files.remove(held)
            checkpoint.disk.close(held.fd)


def _close_all(disk: Disk, files: list[Held]) -> None:
    for held in files:
        disk.close(held.fd)
