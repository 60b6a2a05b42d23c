"""The operating system's calls (open, write, fsync ...), one method each, for tests to replace."""

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from dwell.store.embedded.thread import Gathering, Work

T = TypeVar("T")

Buffer: TypeAlias = bytes | bytearray | memoryview

_locked: set[int] = set()

#: Zeros that are written at a time.
_ZEROS = bytes(1 << 20)
#: The errors of a file system without nameless files.
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)

#: How many bytes of a file leave the page cache in one call.
_STEP_BYTES = 8 * 1024 * 1024


def _leave_locks() -> None:
    """Close the copies of locks in a process that was just forked: its parent owns them.

    A lock is held until the last copy of its descriptor is closed. The numbers stay in use, so that
    a later close of them closes nothing else.
    """
    nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd in _locked:
        os.dup2(nowhere, fd, inheritable=False)
    os.close(nowhere)
    _locked.clear()


os.register_at_fork(after_in_child=_leave_locks)


def _leave_the_cache(name: Path | str, folder_fd: int | None) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes <= _STEP_BYTES:
            return
        for offset in range(0, size_bytes, _STEP_BYTES):
            os.posix_fadvise(fd, offset, _STEP_BYTES, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class System:
    """The calls of the operating system; calls on files may raise OSError.

    Paths are absolute. Paths in a held folder (:meth:`hold`) are resolved by its descriptor.
    """

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def _at(self, path: Path) -> tuple[Path | str, int | None]:
        """Return a path as openat(2) takes it: a name, and the folder it is relative to."""
        if path in self._held:
            return ".", self._held[path]
        fd = self._held.get(path.parent)
        return (path, None) if fd is None else (path.name, fd)

    # --- beside files ---------------------------------------------------------------------------

    def gathering(self, work: Work[T], name: str) -> Gathering[T]:
        """Return a thread that processes items."""
        return Gathering(work, name)

    def random_bits(self, count: int) -> int:
        """Return an unpredictable random number."""
        return secrets.randbits(count)

    def process_number(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    # --- files ----------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        """Open a file or a folder, or create a file that only its owner can use."""
        name, folder_fd = self._at(path)
        return os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)

    def hold(self, folder: Path, fd: int) -> None:
        """Use an open folder for all paths in it, even if its name changes."""
        self._held[folder] = fd

    def let_go(self, folder: Path) -> None:
        """Use the name of a folder again."""
        self._held.pop(folder, None)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        if fd in _locked:
            # A process forked a moment ago may have a copy, which would keep the lock.
            _locked.discard(fd)
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def lock(self, fd: int) -> None:
        """Hold an open file's lock until it is closed; raises OSError when another has it."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _locked.add(fd)

    def read(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Return a part of an open file."""
        return os.pread(fd, size_bytes, offset)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write some of the buffers, one after another, and return how many bytes were written."""
        return os.pwritev(fd, buffers, offset)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Allocate the space of a file; unwritten parts are zeros."""
        os.posix_fallocate(fd, 0, size_bytes)

    def free_bytes(self, folder: Path) -> int:
        """Return how many bytes are free for files of a folder."""
        room = os.statvfs(self._held.get(folder, folder))
        return room.f_bavail * room.f_frsize

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Shorten a file, or lengthen it with zeros."""
        os.ftruncate(fd, size_bytes)

    def size(self, fd: int) -> int:
        """Return how long an open file is."""
        return os.fstat(fd).st_size

    def written(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of an open file between two offsets that may hold more than zeros.

        On a file system that cannot tell, all of it may.
        """
        while start < end:
            try:
                start = os.lseek(fd, start, os.SEEK_DATA)
                stop = os.lseek(fd, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                stop = end
            if start < end:
                yield start, min(stop, end)
            start = stop

    def sync(self, fd: int) -> None:
        """Return when an open file's data is on the disk."""
        os.fdatasync(fd)

    def sync_folder(self, fd: int) -> None:
        """Return when the names in an open folder are on the disk."""
        os.fsync(fd)

    def map(self, fd: int) -> mmap.mmap:
        """Map a whole file for reading; later writes show in the map."""
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)

    # --- scratch files --------------------------------------------------------------------------

    def open_nameless(self, folder: Path, size_bytes: int) -> int:
        """Make a file without a name in a folder: zeros without space on the disk."""
        folder_name, folder_fd = self._at(folder)
        try:
            fd = os.open(
                folder_name, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder_fd
            )
        except OSError as error:
            if error.errno not in _NO_NAMELESS:
                raise
            # Some file systems only lose the names of files that had one.
            path = folder / f"scratch-{secrets.randbits(64):016x}.new"
            fd = self.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            name, folder_fd = self._at(path)
            os.unlink(name, dir_fd=folder_fd)
        try:
            os.ftruncate(fd, size_bytes)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def allocate_part(self, fd: int, start: int, size_bytes: int) -> None:
        """Allocate the space of a part of a file, so that no write to it lacks room."""
        os.posix_fallocate(fd, start, size_bytes)

    def write_zeros(self, fd: int, start: int, size_bytes: int) -> None:
        """Write zeros to a part of a file that has its space: then it is in the cache."""
        end = start + size_bytes
        while start < end:
            start += os.pwrite(fd, _ZEROS[: end - start], start)

    def map_shared(self, fd: int, size_bytes: int, *, by_page: bool) -> mmap.mmap:
        """Map a nameless file for reading and writing; with ``by_page`` a page at a time.

        Otherwise one access makes up to 2 MiB resident.
        """
        made = mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED)
        if by_page:
            made.madvise(mmap.MADV_RANDOM)
        return made

    def read_ahead(self, mapped: mmap.mmap, start: int, size_bytes: int) -> None:
        """Have the system read a part of a mapped file that is about to be used."""
        mapped.madvise(mmap.MADV_WILLNEED, start, size_bytes)

    def release(self, mapped: mmap.mmap, start: int, size_bytes: int) -> None:
        """Take pages of a map out of this process; the file keeps what they hold."""
        mapped.madvise(mmap.MADV_DONTNEED, start, size_bytes)

    def discard(self, mapped: mmap.mmap, start: int, size_bytes: int) -> None:
        """Free a part of a mapped file, in memory and on the disk: it is zeros from then on."""
        mapped.madvise(mmap.MADV_REMOVE, start, size_bytes)

    def mapped_bytes(self) -> int:
        """Return how much of this process's memory is pages of files."""
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(200).split()[2]) * mmap.PAGESIZE

    # --- names ----------------------------------------------------------------------------------

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a folder, replacing an existing one."""
        (old_name, old_fd), (new_name, new_fd) = self._at(old), self._at(new)
        os.rename(old_name, new_name, src_dir_fd=old_fd, dst_dir_fd=new_fd)

    def remove(self, path: Path) -> None:
        """Remove a file; a large one is dropped from the page cache a part at a time first.

        Otherwise one call frees all its pages, for tens of milliseconds during which the kernel
        runs nothing else on that processor, perhaps not even the event loop.
        """
        name, folder_fd = self._at(path)
        with contextlib.suppress(OSError):
            _leave_the_cache(name, folder_fd)
        os.unlink(name, dir_fd=folder_fd)

    def make_folder(self, folder: Path) -> None:
        """Make a folder; raises FileExistsError when the name is taken."""
        name, parent_fd = self._at(folder)
        os.mkdir(name, 0o700, dir_fd=parent_fd)

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder."""
        name, parent_fd = self._at(folder)
        os.rmdir(name, dir_fd=parent_fd)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder."""
        return os.listdir(self._held.get(folder, folder))

    def exists(self, path: Path) -> bool:
        """Tell whether a path exists."""
        return self._mode(path) != 0

    def is_folder(self, path: Path) -> bool:
        """Tell whether a path is a folder."""
        return stat.S_ISDIR(self._mode(path))

    def _mode(self, path: Path) -> int:
        """Return the mode of a path, 0 if it does not exist."""
        name, folder_fd = self._at(path)
        try:
            return os.stat(name, dir_fd=folder_fd).st_mode
        except (OSError, ValueError):
            return 0
