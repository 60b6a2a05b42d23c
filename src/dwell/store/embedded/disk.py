"""The disk: files and folders as the store uses them, over the calls of ``system.py``.

Nothing here retries: a failed fsync may have thrown the data away, and asking again would only hide
it (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020).
"""

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dwell.errors import DiskFull, StoreLocked
from dwell.store.embedded.system import Buffer as Buffer
from dwell.store.embedded.system import System

_MOST_BUFFERS = 512
#: The file in a store's folder that tells which process holds it.
LOCK = "lock"
_NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC


def is_no_room(error: Exception) -> bool:
    """Tell whether something failed because the disk, or a quota on it, is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, DiskFull)


class Disk:
    """A disk: the file operations of the store, made of the system's calls."""

    def __init__(self, system: System | None = None) -> None:
        self.system = system or System()

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and its parents, durably, if it is missing."""
        if not self.system.is_folder(folder):
            try:
                self.make_new_folder(folder)
            except FileExistsError:
                # Another process may have made it just now.
                if not self.system.is_folder(folder):
                    raise

    def make_new_folder(self, folder: Path) -> None:
        """Make a folder, and its parents, durably; raises FileExistsError if it exists."""
        if not self.system.exists(folder.parent):
            self.make_folder(folder.parent)
        self.system.make_folder(folder)
        try:
            self.sync_folder(folder.parent)
        except OSError:
            self.system.remove_folder(folder)
            raise

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder and its content."""
        for name in self.system.names(folder):
            path = folder / name
            if self.system.is_folder(path):
                self.remove_folder(path)
            else:
                self.system.remove(path)
        self.system.remove_folder(folder)

    def hold(self, folder: Path) -> int:
        """Open and lock a folder, and use it for all paths in it until :meth:`let_go`.

        Its name may then be removed, or given to another folder, without effect. Raises StoreLocked
        when another process holds it.
        """
        fd = self.system.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.system.lock(fd)
        except BlockingIOError:
            self.system.close(fd)
            raise self._locked(folder) from None
        except OSError as error:
            # Some network file systems lock files only; the lock file is locked in any case.
            if error.errno not in (errno.EBADF, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK):
                self.system.close(fd)
                raise
        self.system.hold(folder, fd)
        return fd

    def let_go(self, folder: Path, fd: int) -> None:
        """Unlock and close a folder that is held."""
        self.system.let_go(folder)
        self.system.close(fd)

    def lock(self, path: Path) -> int:
        """Hold a file's lock until :meth:`close`; raises StoreLocked when another has it."""
        fd = self.system.open(path, os.O_RDWR | os.O_CREAT)
        try:
            self.system.lock(fd)
        except OSError:
            self.system.close(fd)
            raise self._locked(path.parent) from None
        # The holder's name is optional: a full disk may have no room even for that.
        with contextlib.suppress(OSError):
            self.system.truncate(fd, 0)
            self.system.write(fd, [str(self.system.process_number()).encode()], 0)
        return fd

    def _locked(self, folder: Path) -> StoreLocked:
        holder = "unknown"
        with contextlib.suppress(OSError):
            holder = self.read(folder / LOCK)[:20].decode(errors="replace").strip() or holder
        return StoreLocked(f"{folder}: held by process {holder}{self._way(holder)}")

    def _way(self, holder: str) -> str:
        """Return advice about a folder that another process holds."""
        if holder == str(self.system.process_number()):
            return ", which is this one: use the queue that it has open, or close that first"
        return (
            "; only one can have it open, so let a server (dwell serve) have it, and all others "
            "open http://localhost:8410, or open it with admin_socket=True for the command line"
        )

    def create(self, path: Path, size_bytes: int) -> int:
        """Return a new file with its space allocated; raises DiskFull, leaving nothing.

        It gets its name only after the allocation, so that a crash leaves no file that is too
        short.
        """
        new = path.with_name(f"{path.name}.new")
        fd = self.system.open(new, _NEW)
        try:
            if size_bytes:
                self.allocate(fd, size_bytes)
            self.sync(fd)
            self.rename(new, path)
        except OSError as error:
            self.system.close(fd)
            self._remove_if_there(new)
            self._remove_if_there(path)
            if is_no_room(error):
                raise DiskFull(f"{path.parent}: no room for {size_bytes} bytes more") from error
            raise
        return fd

    def free_bytes(self, folder: Path) -> int:
        """Return how many bytes are free on the disk of a folder."""
        return self.system.free_bytes(folder)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Allocate the space of a file, all zeros."""
        self.system.allocate(fd, size_bytes)

    def open(self, path: Path) -> int:
        """Open a file that exists, for reading and writing."""
        return self.system.open(path, os.O_RDWR)

    def close(self, fd: int) -> None:
        """Close a file."""
        self.system.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all of the buffers, one after another, from ``offset`` on."""
        for start in range(0, len(buffers), _MOST_BUFFERS):
            part = buffers[start : start + _MOST_BUFFERS]
            wanted = sum(map(len, part))
            written = self.system.write(fd, part, offset)
            if written < wanted:
                self._write_rest(fd, b"".join(part)[written:], offset + written)
            offset += wanted

    def sync(self, fd: int) -> None:
        """Return when the file's data is on the disk."""
        self.system.sync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder are on the disk."""
        fd = self.system.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.system.sync_folder(fd)
        finally:
            self.system.close(fd)

    def written(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of an open file between two offsets that may hold more than zeros.

        The parts are blocks of the file system, so that eight bytes at a multiple of 8 are in one
        part.
        """
        return self.system.written(fd, start, end)

    def map(self, fd: int) -> mmap.mmap:
        """Map a whole file for reading; later writes show in the map."""
        return self.system.map(fd)

    def open_nameless(self, folder: Path, size_bytes: int) -> int:
        """Return a new file without a name, zeros without space on the disk."""
        return self.system.open_nameless(folder, size_bytes)

    def allocate_part(self, fd: int, start: int, size_bytes: int) -> None:
        """Allocate the space of a part of an open file."""
        self.system.allocate_part(fd, start, size_bytes)

    def write_zeros(self, fd: int, start: int, size_bytes: int) -> None:
        """Bring a part of a nameless file into the cache, as zeros."""
        self.system.write_zeros(fd, start, size_bytes)

    def map_shared(self, fd: int, size_bytes: int, *, by_page: bool) -> mmap.mmap:
        """Map a nameless file for reading and writing, a page at a time or many."""
        return self.system.map_shared(fd, size_bytes, by_page=by_page)

    def read_ahead(self, mapped: mmap.mmap, start: int, size_bytes: int) -> None:
        """Have the system read a part of a mapped file that is about to be used."""
        self.system.read_ahead(mapped, start, size_bytes)

    def release(self, mapped: mmap.mmap, start: int, size_bytes: int) -> None:
        """Take pages of a map out of memory; the file keeps what they hold."""
        self.system.release(mapped, start, size_bytes)

    def discard(self, mapped: mmap.mmap, start: int, size_bytes: int) -> None:
        """Free a part of a nameless file: it is zeros from then on."""
        self.system.discard(mapped, start, size_bytes)

    def mapped_bytes(self) -> int:
        """Return how much of the process's memory is pages of files."""
        return self.system.mapped_bytes()

    def rename(self, old: Path, new: Path) -> None:
        """Rename a finished file, replacing an existing one, and make that durable."""
        self.system.rename(old, new)
        self.sync_folder(new.parent)

    def write_file(self, path: Path, buffers: Sequence[Buffer]) -> None:
        """Write a whole file from scratch, and sync it."""
        fd = self.system.open(path, _NEW)
        try:
            self.write(fd, buffers, 0)
            self.sync(fd)
        finally:
            self.system.close(fd)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.system.remove(path)

    def read(self, path: Path) -> bytes:
        """Return a small file."""
        fd = self.system.open(path, os.O_RDONLY)
        try:
            return self.system.read(fd, self.system.size(fd), 0)
        finally:
            self.system.close(fd)

    def read_part(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Return a part of an open file."""
        return self.system.read(fd, size_bytes, offset)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Cut a file off."""
        self.system.truncate(fd, size_bytes)

    def size_bytes(self, path: Path) -> int:
        """Return how long a file is."""
        fd = self.open(path)
        try:
            return self.file_bytes(fd)
        finally:
            self.close(fd)

    def file_bytes(self, fd: int) -> int:
        """Return how long an open file is."""
        return self.system.size(fd)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(self.system.names(folder))

    def exists(self, path: Path) -> bool:
        """Tell whether a path exists."""
        return self.system.exists(path)

    def is_folder(self, path: Path) -> bool:
        """Tell whether a path is a folder."""
        return self.system.is_folder(path)

    def _remove_if_there(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.remove(path)

    def _write_rest(self, fd: int, rest: bytes, offset: int) -> None:
        while rest:
            written = self.system.write(fd, [rest], offset)
            rest, offset = rest[written:], offset + written
