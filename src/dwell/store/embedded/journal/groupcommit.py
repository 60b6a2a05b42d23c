"""The committer: one thread that writes frames and makes them durable, many at a time.

While one fdatasync runs, new frames gather in its queue; the next pass writes them all and syncs
once. The loop thread never waits for the disk.
"""

import time
from collections.abc import Callable, Iterator, Sequence
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


class GroupCommitter:
    """Writes what :meth:`submit` gives it, in order.

    ``done(count)`` is called in the committer's thread when ``count`` more frames are as safe as
    ``sync`` asks, or files closed; ``failed(error)`` is called once, and nothing is written after
    it. ``sync_every_ms`` is 0 for a sync before each answer, a time between syncs, or None for no
    syncs at all.
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
        self._unsynced: dict[int, int] = {}
        self._synced_at_s: float | None = None
        self.timings = {"write": Histogram(), "fsync": Histogram()}
        # A number in the queue is a file descriptor to close.
        self._thread = disk.system.gathering(self, "dwell-committer")
        #: Queue a frame to be written after those before it.
        self.submit: Callable[[Write | int], None] = self._thread.put

    def release(self, fd: int) -> None:
        """Queue an unneeded file to be closed once no operation on it is in progress."""
        self._thread.put(fd)

    def close(self) -> None:
        """Write and sync everything submitted, and end the thread."""
        for item in self._thread.close():
            # These files are left over if an error ended the thread early.
            if isinstance(item, int):
                self._disk.close(item)

    # --- in the thread --------------------------------------------------------------------------

    def steps(
        self, items: Sequence[Write | int], now_s: Callable[[], float], last: bool
    ) -> Iterator[None]:
        """Write all queued frames, sync if it is time, and report."""
        self._write([item for item in items if isinstance(item, Write)])
        for item in items:
            if isinstance(item, int):
                self._unsynced.pop(item, None)
                self._disk.close(item)
        yield
        if self._unsynced and (last or self._sync_is_due(now_s())):
            self._sync()
            self._synced_at_s = now_s()
            yield
        self._done(len(items))

    def patience_s(self, now_s: float) -> float | None:
        """Return how long to wait for more, in seconds, before a sync falls due."""
        if not self._unsynced or not self._sync_every_ms:
            return None
        return max(self._sync_at_s(now_s) - now_s, 0)

    def fail(self, error: BaseException) -> None:
        """Report the error; nothing is written afterwards."""
        self._failed(error)

    def _sync_at_s(self, now_s: float) -> float:
        """Return when the next sync falls due; the first interval starts at the first call."""
        assert self._sync_every_ms is not None
        if self._synced_at_s is None:
            self._synced_at_s = now_s
        return self._synced_at_s + self._sync_every_ms / 1000

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

    def _sync_is_due(self, now_s: float) -> bool:
        return self._sync_every_ms is not None and now_s >= self._sync_at_s(now_s)

    def _sync(self) -> None:
        for fd, end in self._unsynced.items():
            start = time.perf_counter()
            self._disk.sync(fd)
            self.timings["fsync"].add(time.perf_counter() - start)
            self._durable = end
        self._unsynced.clear()
