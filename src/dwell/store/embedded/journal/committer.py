"""The committer: one thread that writes frames and makes them durable, many at a time.

While one fdatasync runs, the frames that come meanwhile gather in its queue; the next pass writes
them all and syncs once. The loop thread never waits for the disk.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dwell.histogram import Histogram
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.journal.frame import header


class Write(NamedTuple):
    """A frame to write: where it is in the journal and in its file, and its records' bytes."""

    fd: int
    offset: int
    position: int
    previous: int
    end: int
    records: Sequence[Buffer]

    def follows(self, other: "Write") -> bool:
        """Tell whether this frame begins where another ends, in the same file."""
        return self.fd == other.fd and self.position == other.end


class Committer:
    """Writes what :meth:`submit` gives it, in order.

    ``done(count)`` is called in the committer's thread when ``count`` more frames are as safe as
    ``sync`` asks; ``failed(error)`` once, after which nothing more is written. ``sync_every_ms`` is
    0 for a sync before each answer, a time between syncs, or None for no syncs at all.
    """

    def __init__(
        self,
        disk: Disk,
        sync_every_ms: int | None,
        durable: int,
        done: Callable[[int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self._sync_every_ms = sync_every_ms
        self._durable = durable
        self._done = done
        self._failed = failed
        # What is a number is a file to close.
        self._queue: queue.SimpleQueue[Write | int | None] = queue.SimpleQueue()
        self._unsynced: dict[int, int] = {}
        self._synced_at = time.monotonic()
        self.timings = {"write": Histogram(), "fsync": Histogram()}
        self._thread = threading.Thread(target=self._run, name="dwell-committer", daemon=True)
        self._thread.start()

    def submit(self, write: Write) -> None:
        """Have a frame written after those before it."""
        self._queue.put(write)

    def release(self, fd: int) -> None:
        """Have a file closed that nobody needs any more, when nothing is under way on it."""
        self._queue.put(fd)

    def close(self) -> None:
        """Write and sync everything that was submitted, and end the thread."""
        self._queue.put(None)
        self._thread.join()
        while not self._queue.empty():
            # They are left over where the thread has ended before, by an error.
            if isinstance(fd := self._queue.get(), int):
                self._disk.close(fd)

    def _run(self) -> None:
        try:
            going = True
            while going:
                going = self._pass()
        except BaseException as error:
            self._failed(error)

    def _pass(self) -> bool:
        """Write all that is there, sync if it is time; tell whether to go on."""
        writes = self._gather()
        last = None in writes
        frames = [write for write in writes if isinstance(write, Write)]
        self._write(frames)
        for fd in writes:
            if isinstance(fd, int):
                self._unsynced.pop(fd, None)
                self._disk.close(fd)
        if self._unsynced and (last or self._sync_is_due()):
            self._sync()
        if frames:
            self._done(len(frames))
        return not last

    def _gather(self) -> list[Write | int | None]:
        writes: list[Write | int | None] = []
        with contextlib.suppress(queue.Empty):
            writes.append(self._queue.get(timeout=self._patience()))
            while True:
                writes.append(self._queue.get_nowait())
        return writes

    def _patience(self) -> float | None:
        """Return how long to wait for more, in seconds, before a sync falls due."""
        if not self._unsynced or not self._sync_every_ms:
            return None
        return max(self._synced_at + self._sync_every_ms / 1000 - time.monotonic(), 0)

    def _write(self, frames: list[Write]) -> None:
        start = 0
        for index in range(1, len(frames) + 1):
            if index == len(frames) or not frames[index].follows(frames[index - 1]):
                self._write_neighbours(frames[start:index])
                start = index

    def _write_neighbours(self, frames: list[Write]) -> None:
        """Write frames that follow each other in one file with one call."""
        buffers: list[Buffer] = []
        for frame in frames:
            buffers.append(header(frame.position, frame.previous, self._durable, frame.records))
            buffers.extend(frame.records)
        start = time.perf_counter()
        self._disk.write(frames[0].fd, buffers, frames[0].offset)
        self.timings["write"].add(time.perf_counter() - start)
        self._unsynced[frames[0].fd] = frames[-1].end

    def _sync_is_due(self) -> bool:
        if self._sync_every_ms is None:
            return False
        return time.monotonic() >= self._synced_at + self._sync_every_ms / 1000

    def _sync(self) -> None:
        for fd, end in self._unsynced.items():
            start = time.perf_counter()
            self._disk.sync(fd)
            self.timings["fsync"].add(time.perf_counter() - start)
            self._durable = end
        self._unsynced.clear()
        self._synced_at = time.monotonic()
