"""A disk that fails on request, and loses unsynced data in a power cut.

It is all in memory: names (:mod:`names`) and files (:mod:`cached`), each with its states in the
system and on the disk. A killed process loses nothing; a power cut loses unsynced data, sector by
sector and name by name, in any subset. Both can happen at every call of the system: before it,
after it, and in the middle of a write.
"""

import errno
import mmap
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dwell.store.embedded.disk import Disk
from dwell.store.embedded.system import Buffer, System
from dwell.testing.cached import CachedFile, ScratchFile, room_of
from dwell.testing.names import CachedFolder, Node

#: The calls that each fault can affect. A kill and a power cut can affect every call.
_BEFALLS = {
    "write": {"write"},
    "short": {"write"},
    "torn": {"write"},
    "sync": {"sync", "sync_folder"},
    "open": {"open"},
    "create": {"create"},
    "full": {"allocate"},
    "allocate": {"allocate", "write_zeros"},
    "read": {"read"},
}
_STOPS = ("kill", "power", "torn")


class Stopped(OSError):
    """The process that made the call has ended, and perhaps the machine too."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the process is gone (injected)")


class FaultySystem(System):
    """The calls on files of one process, on a disk in memory.

    ``fault`` happens at call number ``at``, counted from 0, among the calls it can affect; -1 for
    never. ``kill`` and ``power`` end the process there, before or after the call according to
    ``when``; ``torn`` is a power cut in the middle of a write. Calls after the end raise Stopped.
    """

    def __init__(self, root: CachedFolder, chance: random.Random, size_bytes: int) -> None:
        super().__init__()
        self.root = root
        self.chance = chance
        self.size_bytes = size_bytes
        self.used_bytes = sum(file.room_bytes for file in _files_of(root))
        self.fault, self.left, self.when = "", -1, "before"
        #: Whether a failed sync also drops unsynced data from memory.
        self.drops = False
        self.calls = self.syncs = 0
        self.dead = False
        self.open_files: dict[int, Node] = {}
        self._mutex = threading.RLock()
        self._is_ending = ""

    # --- the end ----------------------------------------------------------------------------------

    def die(self, *, power: bool) -> None:
        """End the process; with ``power`` the machine too."""
        with self._mutex:
            if self.dead:
                return
            self.dead = True
            for fd, node in self.open_files.items():
                self._let_go(node, fd)
                os.close(fd)
            self.open_files = {}
            if power:
                self.root = self.root.lose_power(self.chance)

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Block changes by all threads."""
        with self._mutex:
            yield

    @contextmanager
    def _call(self, *names: str) -> Iterator[None]:
        """Make a call that a fault may affect."""
        with self._mutex:
            if self.dead:
                raise Stopped
            self.calls += 1
            fault = self._befalling(names)
            if fault in _STOPS and self.when == "before" and fault != "torn":
                self._end(fault)
            if fault in ("write", "sync", "open", "create", "allocate", "read"):
                raise OSError(errno.EIO, f"{fault} failed (injected)")
            if fault == "full":
                raise OSError(errno.ENOSPC, "no room (injected)")
            self._is_ending = fault
            yield
            if fault in _STOPS:
                self._end(fault)

    def _end(self, fault: str) -> None:
        self.die(power=fault != "kill")
        raise Stopped

    def _befalling(self, names: tuple[str, ...]) -> str:
        """Count a call; return the fault that affects it."""
        if self.left < 0 or not (
            self.fault in ("kill", "power") or _BEFALLS[self.fault].intersection(names)
        ):
            return ""
        self.left -= 1
        if self.left >= 0:
            return ""
        if self.fault == "full":
            self.left = 0
        return self.fault

    # --- open files -------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        """Open a file or a folder, or make a file."""
        with self._call("open", *(("create",) if flags & os.O_CREAT else ())):
            node = self._found(path)
            if node is None:
                if not flags & os.O_CREAT:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
                node = CachedFile()
                node.holders = 1
                self._folder(path.parent).add(path.name, node)
            if isinstance(node, CachedFolder):
                fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            else:
                if flags & os.O_TRUNC and node.size_bytes:
                    self._resize(node, 0)
                fd = os.dup(node.fd)
                node.holders += 1
            self.open_files[fd] = node
            return fd

    def close(self, fd: int) -> None:
        """Close a descriptor; does nothing once the process has ended."""
        with self._mutex:
            if self.dead:
                return
            # After a second close the number may belong to another file.
            self._let_go(self.open_files.pop(fd), fd)
            os.close(fd)

    def lock(self, fd: int) -> None:
        """Hold the lock of a file or a folder until it is closed."""
        with self._call("lock"):
            node = self.open_files[fd]
            if node.lock_fd not in (-1, fd):
                raise BlockingIOError(errno.EAGAIN, "locked")
            node.lock_fd = fd

    def read(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Return a part of an open file."""
        with self._call("read"):
            return os.pread(fd, size_bytes, offset)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write to memory; only a part when there is no room for more, or a fault says so."""
        data = b"".join(buffers)
        with self._call("write"):
            file = self._file(fd)
            is_cut = self._is_ending in ("short", "torn") or self.when == "during"
            if self._is_ending and is_cut and data:
                least = 1 if self._is_ending == "short" else 0
                data = data[: self.chance.randrange(least, len(data) + 1)]
            data = self._fitting(file, data, offset)
            file.write(data, offset)
            return len(data)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Allocate the space of a file."""
        with self._call("allocate"):
            file = self._file(fd)
            if size_bytes > file.size_bytes:
                if self._room_for(file, size_bytes) < size_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._resize(file, size_bytes)

    def free_bytes(self, folder: Path) -> int:
        """Return how much space is left."""
        return max(self.size_bytes - self.used_bytes, 0)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Shorten a file, or lengthen it."""
        with self._call("truncate"):
            file = self._file(fd)
            if size_bytes != file.size_bytes:
                self._resize(file, size_bytes)

    def size(self, fd: int) -> int:
        """Return how long an open file is."""
        with self._call("size"):
            return self._file(fd).size_bytes

    def written(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of an open file that may hold more than zeros."""
        with self._call("written"):
            found = list(super().written(fd, start, end))
        yield from found

    def sync(self, fd: int) -> None:
        """Copy a file from memory to the disk."""
        with self._mutex:
            self.syncs += 1
            try:
                with self._call("sync"):
                    self._file(fd).sync()
            except OSError:
                if not self.dead:
                    self._file(fd).fail_sync(self.chance, drop=self.drops)
                raise

    def sync_folder(self, fd: int) -> None:
        """Copy the names in a folder to the disk."""
        with self._call("sync_folder"):
            folder = self.open_files[fd]
            assert isinstance(folder, CachedFolder)
            folder.sync()

    def map(self, fd: int) -> mmap.mmap:
        """Map a whole file for reading."""
        with self._call("map"):
            return super().map(fd)

    # --- scratch files ----------------------------------------------------------------------------

    def open_nameless(self, folder: Path, size_bytes: int) -> int:
        """Make a file without a name, of zeros that take no space."""
        with self._call("open", "create"):
            self._folder(folder)
            file = ScratchFile(size_bytes)
            fd = os.dup(file.fd)
            file.holders = 1
            self.open_files[fd] = file
            return fd

    def allocate_part(self, fd: int, start: int, size_bytes: int) -> None:
        """Allocate the space of a part of a nameless file, which has none yet."""
        with self._call("allocate"):
            file = self._file(fd)
            assert isinstance(file, ScratchFile)
            if room_of(size_bytes) > self.size_bytes - self.used_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.taken_bytes += room_of(size_bytes)
            self.used_bytes += room_of(size_bytes)

    def write_zeros(self, fd: int, start: int, size_bytes: int) -> None:
        """Do nothing: a nameless file is all in memory."""
        with self._call("write_zeros"):
            self._file(fd)

    def map_shared(self, fd: int, size_bytes: int, *, by_page: bool) -> mmap.mmap:
        """Map a nameless file."""
        with self._call("map"):
            return super().map_shared(fd, size_bytes, by_page=by_page)

    def discard(self, mapped: mmap.mmap, start: int, size_bytes: int) -> None:
        """Free a part of a nameless file; its space counts until the file is closed."""
        with self._call("discard"):
            super().discard(mapped, start, size_bytes)

    # --- names ------------------------------------------------------------------------------------

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a folder, within its folder."""
        with self._call("rename"):
            assert old.parent == new.parent, "a rename between folders is not modelled"
            self._node(old)
            before = self._folder(old.parent).rename(old.name, new.name)
            if before is not None:
                self._let_go(before)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with self._call("remove"):
            self._node(path)
            self._let_go(self._folder(path.parent).remove(path.name))

    def make_folder(self, folder: Path) -> None:
        """Make a folder."""
        with self._call("make_folder"):
            if self._found(folder) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
            self._folder(folder.parent).add(folder.name, CachedFolder())

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder."""
        with self._call("remove_folder"):
            if self._folder(folder).entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
            self._folder(folder.parent).remove(folder.name)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder."""
        with self._call("names"):
            return list(self._folder(folder).entries)

    def exists(self, path: Path) -> bool:
        """Tell whether a path exists."""
        with self._call("exists"):
            return self._found(path) is not None

    def is_folder(self, path: Path) -> bool:
        """Tell whether a path is a folder."""
        with self._call("is_folder"):
            return isinstance(self._found(path), CachedFolder)

    # --- inside -----------------------------------------------------------------------------------

    def _found(self, path: Path) -> Node | None:
        node: Node | None = self.root
        for index, name in enumerate(path.parts[1:], 2):
            if isinstance(node, CachedFile):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if node is None:
                return None
            found = node.entries.get(name)
            if found is None and node.is_real and os.path.isdir(Path(*path.parts[:index])):
                found = node.add_real(name)
            node = found
        return node

    def _node(self, path: Path) -> Node:
        node = self._found(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def _folder(self, path: Path) -> CachedFolder:
        folder = self._node(path)
        if not isinstance(folder, CachedFolder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return folder

    def _file(self, fd: int) -> CachedFile:
        file = self.open_files.get(fd)
        if not isinstance(file, CachedFile):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def _let_go(self, node: Node, fd: int = -2) -> None:
        if node.lock_fd == fd:
            node.lock_fd = -1
        if isinstance(node, CachedFile):
            node.holders -= 1
            if not node.holders:
                self.used_bytes -= node.room_bytes

    def _resize(self, file: CachedFile, size_bytes: int) -> None:
        self.used_bytes += room_of(size_bytes) - file.room_bytes
        file.resize(size_bytes)

    def _room_for(self, file: CachedFile, end: int) -> int:
        """Return the size that a file can get, up to ``end``."""
        more = room_of(end) - file.room_bytes
        left = self.size_bytes - self.used_bytes
        return end if more <= max(left, 0) else file.room_bytes + max(left, 0) // 4096 * 4096

    def _fitting(self, file: CachedFile, data: bytes, offset: int) -> bytes:
        end = offset + len(data)
        if end <= file.size_bytes:
            return data
        room = min(self._room_for(file, end), end) - offset
        if room <= 0 and data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.used_bytes += room_of(max(offset + room, file.size_bytes)) - file.room_bytes
        return data[:room]


class FaultyDisk(Disk):
    """A disk with one fault ahead of it (see :class:`FaultySystem`), for one process.

    Real folders exist in it, empty; ``size_bytes`` is its space. After the end of the process,
    :meth:`restarted` returns the disk for the next process.
    """

    system: FaultySystem

    def __init__(
        self,
        fault: str = "",
        at: int = -1,
        seed: int = 0,
        *,
        when: str = "before",
        size_bytes: int = 1 << 62,
        root: CachedFolder | None = None,
    ) -> None:
        root = root or CachedFolder(is_real=True)
        super().__init__(self._system_on(root, random.Random(seed), size_bytes))
        self.arm(fault, at, when)

    def _system_on(
        self, root: CachedFolder, chance: random.Random, size_bytes: int
    ) -> FaultySystem:
        return FaultySystem(root, chance, size_bytes)

    @property
    def left(self) -> int:
        """How many more of the calls that the fault can affect come before it."""
        return self.system.left

    @property
    def dead(self) -> bool:
        """Whether the process has ended."""
        return self.system.dead

    def arm(self, fault: str, at: int, when: str = "before") -> None:
        """Arm a fault that happens after ``at`` more calls."""
        self.system.fault, self.system.left, self.system.when = fault, at, when

    def free(self) -> None:
        """Free the space of a full disk, and disarm faults."""
        self.arm("", -1)
        self.system.size_bytes = 1 << 62

    def kill(self) -> None:
        """End the process: all written data stays."""
        self.system.die(power=False)

    def lose_power(self) -> None:
        """End the process and the machine: some of the unsynced data is lost."""
        if self.dead:
            # The machine can lose power after its process has ended.
            self.system.root = self.system.root.lose_power(self.system.chance)
        self.system.die(power=True)

    def restarted(self) -> "FaultyDisk":
        """Return the same disk for another process, without faults, after the end of this one."""
        assert self.dead, "one process at a time"
        return self._like(self.system.root)

    def copied(self) -> "FaultyDisk":
        """Return a copy of this disk, with the same data unsynced, for another process."""
        with self.system.calm():
            return self._like(self.system.root.copied())

    def only_synced(self) -> "FaultyDisk":
        """Return a disk with only the synced data: the least that a power cut leaves.

        It must have everything that was answered.
        """
        with self.system.calm():
            return self._like(self.system.root.only_synced())

    def unsynced(self, folder: Path) -> dict[str, list[tuple[int, int]]]:
        """Return each name in a folder that a power cut may affect.

        Each has the ranges of the file at risk, or none for a name that is itself unsynced.
        """
        within = self.system._folder(folder)
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in within.unsynced()}
        for name, node in within.entries.items():
            if isinstance(node, CachedFile) and not node.is_safe:
                found[name] = node.unsynced()
        return found

    def copy_out(self, folder: Path, to: Path) -> None:
        """Copy the files of a folder to a real folder."""
        to.mkdir(parents=True, exist_ok=True)
        for name, node in self.system._folder(folder).entries.items():
            if isinstance(node, CachedFile):
                (to / name).write_bytes(node.data())
            else:
                self.copy_out(folder / name, to / name)

    def _like(self, root: CachedFolder) -> "FaultyDisk":
        seed = self.system.chance.getrandbits(32)
        return FaultyDisk(seed=seed, size_bytes=self.system.size_bytes, root=root)


def _files_of(folder: CachedFolder) -> Iterator[CachedFile]:
    for node in folder.entries.values():
        if isinstance(node, CachedFile):
            yield node
        else:
            yield from _files_of(node)
