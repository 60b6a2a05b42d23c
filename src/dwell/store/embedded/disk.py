"""Every call to the operating system's files, in one place, so that a test can make each one fail.

Nothing here retries: a failed fsync may have thrown the data away, and asking again would only hide
it (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020).
"""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from dwell.errors import DiskFull, StoreLocked

Buffer: TypeAlias = bytes | bytearray | memoryview

_MOST_BUFFERS = 512


def is_no_room(error: Exception) -> bool:
    """Tell whether something failed because the disk, or somebody's part of it, is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, DiskFull)


class Disk:
    """The real disk."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and its parents, if it is missing, for good."""
        if not folder.is_dir():
            self.make_folder(folder.parent)
            with contextlib.suppress(FileExistsError):
                self.make_new_folder(folder)

    def make_new_folder(self, folder: Path) -> None:
        """Make a folder, and its parents, for good; raises FileExistsError if it is there."""
        self.make_folder(folder.parent)
        folder.mkdir()
        self.sync_folder(folder.parent)

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder and all that is in it."""
        shutil.rmtree(folder)

    def lock(self, path: Path) -> int:
        """Hold a file's lock until :meth:`close`; raises StoreLocked when another has it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise StoreLocked(f"{path.parent}: held by process {holder}") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        return fd

    def create(self, path: Path, size_bytes: int) -> int:
        """Return a new file that has its room on the disk; raises DiskFull, leaving nothing.

        It has its name only when it has its room, so that a crash leaves no file that is too short.
        """
        new = path.with_name(f"{path.name}.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            if size_bytes:
                self.allocate(fd, size_bytes)
            self.sync(fd)
            self.rename(new, path)
        except OSError as error:
            os.close(fd)
            new.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            if is_no_room(error):
                raise DiskFull(f"{path.parent}: no room for {size_bytes} bytes more") from error
            raise
        return fd

    def free_bytes(self, folder: Path) -> int:
        """Return how many bytes of room the disk has for files of a folder."""
        room = os.statvfs(folder)
        return room.f_bavail * room.f_frsize

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Take the room of a file, all zeros."""
        os.posix_fallocate(fd, 0, size_bytes)

    def open(self, path: Path) -> int:
        """Open a file that exists, for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all of the buffers, one after another, from ``offset`` on."""
        for start in range(0, len(buffers), _MOST_BUFFERS):
            part = buffers[start : start + _MOST_BUFFERS]
            wanted = sum(map(len, part))
            written = os.pwritev(fd, part, offset)
            if written < wanted:
                self._write_rest(fd, b"".join(part)[written:], offset + written)
            offset += wanted

    def sync(self, fd: int) -> None:
        """Return when the file's data is on the disk."""
        os.fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder are on the disk."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def map(self, fd: int) -> mmap.mmap:
        """Map a whole file for reading; what is written later shows in the map."""
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)

    def rename(self, old: Path, new: Path) -> None:
        """Let a finished file take its name, replacing what had it, for good."""
        os.rename(old, new)
        self.sync_folder(new.parent)

    def write_file(self, path: Path, buffers: Sequence[Buffer]) -> None:
        """Write a whole file anew, and sync it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.write(fd, buffers, 0)
            self.sync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def read(self, path: Path) -> bytes:
        """Return a small file."""
        return path.read_bytes()

    def read_part(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Return a part of an open file."""
        return os.pread(fd, size_bytes, offset)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Cut a file off."""
        os.ftruncate(fd, size_bytes)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(folder))

    def _write_rest(self, fd: int, rest: bytes, offset: int) -> None:
        while rest:
            written = os.pwrite(fd, rest, offset)
            rest, offset = rest[written:], offset + written
