"""A disk that fails when it is told to, and forgets what was never synced when it loses power.

It works on real files. Between a write and the sync that follows, it remembers what was there
before; :meth:`FaultyDisk.lose_power` puts some of that back, sector by sector, as a machine does
that stops at once.
"""

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

from dwell.store.embedded.disk import Buffer, Disk

_SECTOR_BYTES = 512


class FaultyDisk(Disk):
    """A disk with one fault ahead of it.

    ``fault`` is ``torn`` (a write ends half-way, and the machine is gone), ``full`` (no room for
    anything new, until :meth:`free`), ``write`` (one write fails) or ``sync`` (one sync fails).
    It comes at call number ``at`` of those that it can befall, counted from 0; -1 for never.
    """

    def __init__(self, fault: str = "", at: int = -1, seed: int = 0) -> None:
        self.arm(fault, at)
        self._random = random.Random(seed)
        self._unsynced: list[tuple[int, int, bytes]] = []
        self._open: set[int] = set()
        self.dead = False

    def arm(self, fault: str, at: int) -> None:
        """Let a fault come after ``at`` more calls."""
        self.fault = fault
        self.left = at

    def free(self) -> None:
        """Make room again on a disk that was full."""
        self.arm("", -1)

    def lose_power(self) -> None:
        """Close every file, and lose some of what was not synced."""
        self.dead = True
        for fd, offset, before in reversed(self._unsynced):
            for start in range(0, len(before), _SECTOR_BYTES):
                if self._random.random() < 0.5:
                    os.pwrite(fd, before[start : start + _SECTOR_BYTES], offset + start)
        self._unsynced = []
        for fd in self._open:
            os.close(fd)
        self._open = set()

    # --- calls ----------------------------------------------------------------------------------

    def lock(self, path: Path) -> int:
        """Lock a file, which :meth:`lose_power` unlocks."""
        return self._opened(super().lock(path))

    def open(self, path: Path) -> int:
        """Open a file."""
        return self._opened(super().open(path))

    def create(self, path: Path, size_bytes: int) -> int:
        """Make a file, if there is room."""
        return self._opened(super().create(path, size_bytes))

    def close(self, fd: int) -> None:
        """Close a file, unless the power did."""
        if fd in self._open:
            self._open.discard(fd)
            self._unsynced = [entry for entry in self._unsynced if entry[0] != fd]
            super().close(fd)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Take room, if there is any."""
        if self._befalls("full"):
            raise OSError(errno.ENOSPC, "no room (injected)")
        super().allocate(fd, size_bytes)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write, or only a part, or nothing."""
        data = b"".join(buffers)
        if self._befalls("write"):
            raise OSError(errno.EIO, "write failed (injected)")
        if self._befalls("torn"):
            self._write(fd, data[: self._random.randrange(len(data) + 1)], offset)
            self.dead = True
            raise OSError(errno.EIO, "the power went while writing (injected)")
        self._write(fd, data, offset)

    def sync(self, fd: int) -> None:
        """Make what was written safe, or fail."""
        if self._befalls("sync"):
            raise OSError(errno.EIO, "sync failed (injected)")
        super().sync(fd)
        self._unsynced = [entry for entry in self._unsynced if entry[0] != fd]

    def _write(self, fd: int, data: bytes, offset: int) -> None:
        before = os.pread(fd, len(data), offset)
        self._unsynced.append((fd, offset, before.ljust(len(data), b"\0")))
        super().write(fd, [data], offset)

    def _opened(self, fd: int) -> int:
        self._open.add(fd)
        return fd

    def _befalls(self, fault: str) -> bool:
        """Count a call that a fault can befall; tell whether it comes now."""
        if self.dead:
            raise OSError(errno.EIO, "the power is gone (injected)")
        if self.fault != fault or self.left < 0:
            return False
        self.left -= 1
        if self.left >= 0:
            return False
        if fault == "full":
            self.left = 0
        return True
