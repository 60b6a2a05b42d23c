"""The journal: its segments, the frame being filled, and the callers that wait for a commit."""

import asyncio
import errno
import logging
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from dwell.errors import DiskFull, StoreDamaged, StoreError, StoreFailed
from dwell.histogram import Histogram
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.journal.frame import HEADER_BYTES, Frame, frame_at, frames_in
from dwell.store.embedded.journal.groupcommit import GroupCommitter, Write
from dwell.store.embedded.journal.record import Record, records_in
from dwell.store.embedded.journal.room import Room, Use
from dwell.store.embedded.journal.segment import Segment, segment_number, segment_path
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.thread import in_thread
from dwell.tasks import whole

SEGMENT_BYTES = 64 * 1024 * 1024
_REWRITE_BYTES = 4 * 1024 * 1024
#: A process runs out of these, not the disk; they may be available again at any time.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_log = logging.getLogger(__name__)


class Journal:
    """An append-only log of records. :meth:`replay` comes first, then :meth:`start`."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        segment_bytes: int,
        sync: int | None,
        limits: Limits = LIMITS,
    ) -> None:
        self._large_bytes = limits.large_frame_bytes
        self._disk = disk
        self._folder = folder
        self._sync_every_ms = sync
        self.segment_bytes = segment_bytes
        self.segments: dict[int, Segment] = {}
        self.room = Room(disk, folder, segment_bytes)
        self.failure: BaseException | None = None
        self._making: asyncio.Task[None] | None = None
        self._made: dict[int, Segment] = {}
        self._checks: dict[int, asyncio.Task[None]] = {}
        self._make_lock = threading.Lock()
        self._frame: list[Buffer] = []
        self._frame_start = 0
        self._frame_end = 0
        # The callers that wait for the frame being filled; and for each frame being written, or
        # file being closed.
        self._group: list[asyncio.Future[None]] = []
        self._waiting: list[list[asyncio.Future[None]]] = []
        self._committer: GroupCommitter | None = None

    # --- reading --------------------------------------------------------------------------------

    def open_segments(self) -> None:
        """Open the existing segments."""
        for name in self._disk.names(self._folder):
            number, path = segment_number(name), self._folder / name
            if number is not None and not self._disk.is_folder(path):
                self.segments[number] = Segment(self._disk, path, number, self._disk.open(path))

    def replay(self, position: int, *, tolerant: list[str] | None = None) -> Iterator[Record]:
        """Yield the records from ``position`` on, and cut off a tail that was never confirmed.

        It is unknown whether the last bytes were ever synced: the process may have been killed
        before, and after a failed sync the system may report unwritten data as written. They are
        written again and synced, because later answers depend on them.

        A broken frame that was once durable raises StoreDamaged; with a list as ``tolerant`` it is
        skipped instead, and a text about the loss is added to the list.
        """
        if not position and 0 not in self.segments and self.segments:
            path = segment_path(self._folder, 0)
            raise StoreDamaged(f"{path}: is missing, and no whole snapshot makes up for it")
        self._leave_unchecked(position)
        durable = position
        while True:
            number, offset = divmod(position, self.segment_bytes)
            segment = self.segments.get(number)
            frame = None if segment is None else frame_at(segment.data, offset, position)
            if segment is not None and frame is not None:
                base = position - offset
                durable = max(durable, frame.durable)
                yield from records_in(segment.data, frame.start, frame.end, base)
                position = base + frame.end
                continue
            following = self._following(position)
            words = self._lost_before(following, position)
            if words:
                if tolerant is None:
                    raise StoreDamaged(f"{words}; dwell check --repair saves what can be saved")
                end = position if following is None else following.position
                tolerant.append(
                    f"{words}, {end - position} bytes lost" if end > position else words
                )
            if following is None:
                break
            position = following.position
        self.position = position
        self._cut_off(position)
        self._secure(durable, position)

    def _following(self, position: int) -> Frame | None:
        """Return the next frame that follows this place, or proves that the place was durable."""
        number = position // self.segment_bytes
        for segment in (self.segments[n] for n in sorted(self.segments) if n >= number):
            base = segment.number * self.segment_bytes
            parts = segment.written(max(position + 1 - base, 0))
            for frame in frames_in(segment.data, parts, base):
                if frame.previous == position or frame.durable > position:
                    return frame
        return None

    def _lost_before(self, following: Frame | None, position: int) -> str:
        """Return a text about the loss between a position and the next frame, empty for no loss.

        A segment is made only when the previous segment exists, so that no gaps can occur.
        """
        number, offset = divmod(position, self.segment_bytes)
        end = max(self.segments, default=0)
        if following is not None:
            end = following.position // self.segment_bytes
        gone = next((n for n in range(number, end) if n not in self.segments), None)
        if gone is not None:
            return f"{segment_path(self._folder, gone)}: is missing"
        if following is not None and following.previous != position:
            return f"{segment_path(self._folder, number)}: damaged from offset {offset}"
        return ""

    def _leave_unchecked(self, position: int) -> None:
        """Note the bytes that no replay reads: those before its start position."""
        for number, segment in self.segments.items():
            before = position - number * self.segment_bytes
            segment.unchecked_bytes = max(min(before, self.segment_bytes), 0)

    async def check_segments(self, segments: Iterable[Segment]) -> None:
        """Check, in a thread, every frame of some segments that was not read since the start.

        Broken places become their ``damage``.
        """
        for segment in segments:
            if not segment.unchecked_bytes:
                continue
            number = segment.number
            if number not in self._checks:
                self._checks[number] = whole(self._check(segment))
            # Others wait for the same check, so it goes on when one of them is cancelled.
            await asyncio.shield(self._checks[number])

    async def _check(self, segment: Segment) -> None:
        try:
            segment.damage = await in_thread(self._broken_in, segment)
            segment.unchecked_bytes = 0
        finally:
            del self._checks[segment.number]

    def _broken_in(self, segment: Segment) -> list[tuple[int, int]]:
        """Return where the unchecked part of a segment is broken, or zero without a frame.

        The rest of a segment may be zeros because the next frame did not fit. But if a message
        should lie there, the zeros are damage.
        """
        base, end = segment.number * self.segment_bytes, segment.unchecked_bytes
        found: list[tuple[int, int]] = []
        whole = 0
        for frame, broken_from in self._frames_in(segment, end):
            if broken_from is not None:
                found.append((broken_from - base, end))
            elif found and frame is not None and found[-1][1] == end:
                found[-1] = (found[-1][0], frame.position - base)
            whole = end if frame is None else frame.end
        if whole < end:
            found.append((whole, end))
        return found

    def frames_of(self, number: int) -> Iterator[tuple[Frame | None, int | None]]:
        """Yield a segment's whole frames; where frames are broken, yield the position of the break.

        Bytes beyond the end of the journal are not read.
        """
        end = min(self.segment_bytes, self.position - number * self.segment_bytes)
        return self._frames_in(self.segments[number], end)

    def _frames_in(self, segment: Segment, end: int) -> Iterator[tuple[Frame | None, int | None]]:
        base = segment.number * self.segment_bytes
        offset = 0
        while offset < end:
            frame = frame_at(segment.data, offset, base + offset)
            if frame is not None:
                yield frame, None
                offset = frame.end
                continue
            # This thread may outlive the open file: only the map is safe to use.
            rest = [(offset + 1, len(segment.data))]
            following = next(frames_in(segment.data, rest, base), None)
            if following is not None or segment.bytes[offset:end].any():
                yield None, base + offset
            if following is None:
                return
            offset = following.position - base

    def _cut_off(self, position: int) -> None:
        """Zero everything from ``position`` on, so that no old frame is ever met again."""
        number = position // self.segment_bytes
        for n in sorted((n for n in self.segments if n > number), reverse=True):
            self._disk.remove(self.release(n))
            # If a deleted segment came back, its frames might seem to follow new frames; a segment
            # deleted before those behind it would count as lost.
            self._disk.sync_folder(self._folder)
        segment = self.segments.get(number)
        if segment is None:
            return
        offset = end = position % self.segment_bytes
        for first, after in segment.written(offset):
            rest = segment.bytes[first:after]
            if rest.any():
                end = after - int((rest[::-1] != 0).argmax())
        if end > offset:
            self._disk.write(segment.fd, [bytes(end - offset)], offset)
            self._disk.sync(segment.fd)

    def _secure(self, start: int, end: int) -> None:
        """Write the bytes between two positions once more, and sync them."""
        while start < end:
            segment = self.segments[start // self.segment_bytes]
            offset = start % self.segment_bytes
            last = min(self.segment_bytes, offset + end - start)
            for at in range(offset, last, _REWRITE_BYTES):
                part = segment.map[at : min(at + _REWRITE_BYTES, last)]
                self._disk.write(segment.fd, [part], at)
            self._disk.sync(segment.fd)
            start += last - offset

    # --- writing --------------------------------------------------------------------------------

    @property
    def timings(self) -> dict[str, Histogram]:
        """How long writes and syncs took."""
        assert self._committer is not None
        return self._committer.timings

    @property
    def position(self) -> int:
        """The position of the next append."""
        return self.room.position

    @position.setter
    def position(self, position: int) -> None:
        """Set the position of the next append."""
        self.room.position = position

    def start(self) -> None:
        """Start writing, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._ahead_at = self.position
        self._frame_end = self.position
        self._make_segment(self.position // self.segment_bytes)
        self._committer = GroupCommitter(
            self._disk,
            self._sync_every_ms,
            self.position,
            lambda count: self._tell(self._done, count),
            lambda error: self._tell(self.fail, error),
        )

    def reserve(self, size_bytes: int, use: Use) -> None:
        """Make sure that records of this size can be appended, and in one frame.

        The records of a verb are then one frame, or a part of one, so that a crash keeps all of
        them or none. A part of the last segment with room is kept for verbs that do not grow the
        store, and a part of that for verbs that shrink it, so that messages can still be acked on a
        full disk. Raises DiskFull, StoreFailed or BatchTooLarge.
        """
        self.check()
        self.room.check_size(size_bytes)
        if self.room.is_for(use, size_bytes):
            return
        self._make_segment(self.position // self.segment_bytes + 1)
        if not self.room.fits(size_bytes):
            self._close_frame()
            self.position += self.room.left

    def check(self) -> None:
        """Raise StoreFailed if a write or a sync has failed."""
        if self.failure is not None:
            raise StoreFailed(f"{self._folder}: {self.failure}; open the store again") from None

    def check_room(self) -> None:
        """Raise DiskFull if the disk is full, and little or no growth still fits."""
        if self.room.is_little and self.position // self.segment_bytes + 1 not in self._made:
            self.room.check_disk()

    @property
    def is_short(self) -> bool:
        """Whether verbs that grow the store should wait for the next segment."""
        return self._making is not None and self.room.is_short

    async def lengthened(self) -> None:
        """Return when the next segment exists, or could not be made."""
        if self._making is not None:
            await asyncio.wait([self._making])

    def append(self, record: Record, use: Use) -> None:
        """Append a record and set its ``blobs_at``, or append nothing and raise like reserve."""
        head, blobs, filling = record.encode()
        size = len(head) + len(blobs) + len(filling)
        self.reserve(size, use)
        # The size of a header stays unused in each segment, so that even an empty blob lies within
        # it.
        room = self.room
        if not self._frame:
            self._frame_start = room.position
            room.position += HEADER_BYTES
            self._loop.call_soon(self._close_frame)
        record.blobs_at = room.position + len(head)
        self._frame += (head, blobs, filling) if blobs else (head,)
        room.position += size

    def part(self) -> None:
        """End a large frame here, between two verbs.

        During its write, the callers of the frame before it continue: with one frame for a whole
        turn of the event loop, all callers would wait idle.
        """
        if self._frame and self.position - self._frame_start > self._large_bytes:
            self._close_frame()

    def cut(self) -> int:
        """End the frame here, and return the position: a replay can start only between frames."""
        self._close_frame()
        return self.position

    def committed(self) -> "asyncio.Future[None]":
        """Return a future that is done when all appended records are on disk (see ``sync``).

        Each caller gets its own future, and may cancel it.
        """
        self.check()
        future = self._loop.create_future()
        if self._frame:
            self._group.append(future)
        elif self._waiting:
            self._waiting[-1].append(future)
        else:
            future.set_result(None)
        return future

    def sync(self) -> None:
        """Sync everything written, even if ``sync`` says never; in any thread."""
        if self._sync_every_ms != 0:
            for segment in list(self.segments.values()):
                self._disk.sync(segment.fd)

    def release(self, number: int) -> Path:
        """Release a segment that is no longer needed; return its file, which may be deleted.

        It is closed, and its space free, when :meth:`committed` says that everything before is
        done.
        """
        segment = self.segments.pop(number)
        if self._committer is None:
            self._disk.close(segment.fd)
        else:
            self._committer.release(segment.fd)
            self._waiting.append([])
        return segment.path

    def close(self) -> None:
        """Write the unwritten records, sync, and close the files."""
        if self._committer is not None:
            self._close_frame()
            self._committer.close()
        for segment in [*self.segments.values(), *self._made.values()]:
            self._disk.close(segment.fd)
        self.segments, self._made = {}, {}

    def _make_segment(self, number: int) -> None:
        """Make sure that a segment exists; waits for the disk unless it was made ahead."""
        try:
            if number in self.segments:
                self.segments[number].lengthen(self.segment_bytes)
                return
            self._create(number)
            self._note_room(is_starved=False)
        except DiskFull:
            self._note_room(is_starved=True)
            raise
        except OSError as error:
            if error.errno in _PASSING:
                raise StoreError(f"{self._folder}: no segment can be made: {error}") from error
            self.fail(error)
            self.check()
        self.segments[number] = self._made.pop(number)

    def _create(self, number: int) -> None:
        """Make a segment, unless it exists; in any thread. Raises OSError or DiskFull."""
        with self._make_lock:
            if number in self._made or number in self.segments:
                return
            path = segment_path(self._folder, number)
            self.room.check_disk()
            fd = self._disk.create(path, self.segment_bytes)
            self._made[number] = Segment(self._disk, path, number, fd)

    def _note_room(self, *, is_starved: bool) -> None:
        """Note whether the disk lacks room for another segment, and log a change."""
        if is_starved and not self.room.is_starved:
            _log.error("%s: the disk is full; messages can be acked, and none put", self._folder)
        elif self.room.is_starved and not is_starved:
            _log.warning("%s: the disk has room again", self._folder)
        self.room.is_starved = is_starved

    def make_ahead(self) -> None:
        """Start making the next segment in a thread, if it will be needed soon."""
        number = self.position // self.segment_bytes + 1
        if self._making is None and number not in self.segments and number not in self._made:
            self._making = whole(self._make_ahead(number))

    async def _make_ahead(self, number: int) -> None:
        try:
            await in_thread(self._create, number)
            self._note_room(is_starved=False)
        except DiskFull:
            # Set here and not in the thread: the reservation of a verb must not change.
            self._note_room(is_starved=True)
        except (OSError, StoreError):
            # It is tried again when it is needed.
            pass
        finally:
            self._making = None

    def _close_frame(self) -> None:
        """Hand the frame that is being filled to the committer."""
        if not self._frame:
            return
        number, offset = divmod(self._frame_start, self.segment_bytes)
        before, end = self._frame_end, self.room.position
        self._waiting.append(self._group)
        assert self._committer is not None
        fd = self.segments[number].fd
        self._committer.submit(Write(fd, offset, self._frame_start, before, end, self._frame))
        self._frame_end = end
        self._frame, self._group = [], []
        if end >= self._ahead_at:
            # Halfway through each segment, or later if the disk was full then.
            half = self.segment_bytes // 2
            self._ahead_at = (end // half + 1) * half
            if end % self.segment_bytes >= half:
                self.make_ahead()

    def _tell(self, function, argument) -> None:  # type: ignore[no-untyped-def]
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, argument)

    def _done(self, count: int) -> None:
        done, self._waiting = self._waiting[:count], self._waiting[count:]
        for future in chain.from_iterable(done):
            if not future.done():
                future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Refuse all further writes, and fail every waiting caller."""
        if self.failure is None:
            _log.error("%s: the store takes no more writes: %s", self._folder, error)
        self.failure = error
        waiting = [*self._waiting, self._group]
        self._waiting, self._group = [], []
        for future in chain.from_iterable(waiting):
            if not future.done():
                future.set_exception(StoreFailed(f"{self._folder}: {error}"))
                future.exception()
