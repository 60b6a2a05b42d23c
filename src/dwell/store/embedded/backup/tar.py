"""A checkpoint as a tar archive: a stream of bytes one way, a store in a new folder the other."""

import contextlib
import re
import tarfile
import time
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

from dwell.errors import InvalidInput, StoreDamaged
from dwell.store.base import Store
from dwell.store.embedded.backup.backup import new_folder, new_place
from dwell.store.embedded.backup.checkpoint import Checkpoint, Held
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.folder import LABEL
from dwell.store.embedded.thread import in_thread

_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
_CHUNK_BYTES = 1024 * 1024
_NAME = re.compile(
    rf"{re.escape(LABEL)}|journal-\d{{8}}\.dwl|snapshot-\d{{16}}\.dws|events-\d{{16}}\.dwe"
)


class CheckpointTar:
    """A checkpoint as chunks of a tar archive of ``size_bytes``; closed after the last chunk.

    A reader that stops early must close it.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._files = tuple(checkpoint.files)
        self._time_s = int(time.time())
        heads = sum(len(self._head(held)) for held in self._files)
        bodies = sum(held.room_bytes + _padding(held.room_bytes) for held in self._files)
        self.size_bytes = heads + bodies + len(_END)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the archive, once."""
        try:
            for held in self._files:
                yield self._head(held)
                async for chunk in self._body(held):
                    yield chunk
            yield _END
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the files."""
        await self._checkpoint.close()

    def _head(self, held: Held) -> bytes:
        info = tarfile.TarInfo(held.name)
        info.size, info.mtime, info.mode = held.room_bytes, self._time_s, 0o644
        return info.tobuf(tarfile.GNU_FORMAT)

    async def _body(self, held: Held) -> AsyncIterator[bytes]:
        read = self._checkpoint.disk.read_part
        for offset in range(0, held.size_bytes, _CHUNK_BYTES):
            size_bytes = min(_CHUNK_BYTES, held.size_bytes - offset)
            yield await in_thread(read, held.fd, size_bytes, offset)
        left = held.room_bytes - held.size_bytes + _padding(held.room_bytes)
        for start in range(0, left, _CHUNK_BYTES):
            yield bytes(min(_CHUNK_BYTES, left - start))


async def checkpoint_tar(store: Store) -> CheckpointTar:
    """Return a checkpoint of an open store as a tar archive.

    Raises InvalidInput for a store that is not kept in a folder, and DiskFull.
    """
    checkpoint = getattr(store, "checkpoint", None)
    if checkpoint is None:
        raise InvalidInput("backup: this store is not kept in a folder, so there is none to copy")
    return CheckpointTar(await checkpoint())


class Unpacker:
    """Writes the files of an archive, chunk by chunk, into a folder; :meth:`close` ends it."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._buffer = bytearray()
        self._fd = -1
        self._offset = self._size_bytes = self._skip = 0
        self._names: list[str] = []
        self._is_complete = False

    def feed(self, chunk: bytes) -> None:
        """Write the content of a chunk; raises StoreDamaged or DiskFull."""
        self._buffer += chunk
        while not self._is_complete and (self._feed_body() if self._is_inside else self._begin()):
            pass

    def close(self) -> None:
        """Close the current file."""
        if self._fd >= 0:
            self._disk.close(self._fd)

    def check(self) -> None:
        """Raise StoreDamaged unless the archive is complete."""
        if not self._is_complete or LABEL not in self._names:
            raise StoreDamaged("backup: the checkpoint ended before its end")

    @property
    def _is_inside(self) -> bool:
        return self._fd >= 0 or self._skip > 0

    def _begin(self) -> bool:
        """Start the next file if its header has arrived; tell whether to go on."""
        if len(self._buffer) < _BLOCK:
            return False
        head = bytes(self._buffer[:_BLOCK])
        del self._buffer[:_BLOCK]
        if not any(head):
            self._is_complete = True
            return False
        name, self._size_bytes = self._read_head(head)
        self._names.append(name)
        self._skip, self._offset = _padding(self._size_bytes), 0
        self._fd = self._disk.create(self._folder / name, self._size_bytes)
        return True

    def _read_head(self, head: bytes) -> tuple[str, int]:
        with contextlib.suppress(tarfile.HeaderError):
            info = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
            is_known = _NAME.fullmatch(info.name) and info.name not in self._names
            if is_known and info.isreg() and info.size > 0:
                return info.name, info.size
        raise StoreDamaged("backup: what came is not a checkpoint of a store")

    def _feed_body(self) -> bool:
        if self._fd >= 0:
            part = bytes(self._buffer[: self._size_bytes - self._offset])
            self._disk.write(self._fd, [part], self._offset)
            self._offset += len(part)
            del self._buffer[: len(part)]
            if self._offset < self._size_bytes:
                return False
            self._end_file()
        skipped = min(self._skip, len(self._buffer))
        del self._buffer[:skipped]
        self._skip -= skipped
        return self._skip == 0

    def _end_file(self) -> None:
        fd, self._fd = self._fd, -1
        try:
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)


async def unpack_tar(
    chunks: AsyncIterable[bytes], folder: str | Path, disk: Disk | None = None
) -> None:
    """Make a new store in a folder from the chunks of an archive, or leave nothing.

    Raises InvalidInput when the folder exists already, StoreDamaged when the chunks are not a whole
    checkpoint, and DiskFull.
    """
    disk = disk or Disk()
    async with new_folder(disk, new_place(disk, folder)) as new:
        unpacker = Unpacker(disk, new)
        try:
            async for chunk in chunks:
                await in_thread(unpacker.feed, chunk)
        finally:
            unpacker.close()
        unpacker.check()


def _padding(size_bytes: int) -> int:
    return -size_bytes % _BLOCK
