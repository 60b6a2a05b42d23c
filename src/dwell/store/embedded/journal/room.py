"""Room: how much space each kind of verb may use, above all on a full disk.

Without room for another segment, a part of the last segment is closed to verbs that grow the store,
and a part of that to all but verbs that shrink it, so that messages can still be acked.
"""

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from dwell.errors import BatchTooLarge, DiskFull
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.journal.frame import HEADER_BYTES

#: One part in this many of a segment is kept for each :class:`Use`, on a full disk.
RESERVED_PART = 32
#: A growing verb waits for the next segment when less than one part in this many is left.
SHORT_PART = 4


class Use(IntEnum):
    """The effect of a record on space: a higher use leaves more of the last segment free.

    ``END`` removes messages, ``CHANGE`` alters them, ``GROW`` adds some.
    """

    END = 0
    CHANGE = 1
    GROW = 2


class Room:
    """The room in segments of one size; ``position`` is the end of the journal.

    ``kept_bytes`` is how many bytes on the disk no segment may take, and ``is_starved`` tells
    whether the last attempt to make a segment found no room.
    """

    def __init__(self, disk: Disk, folder: Path, segment_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self.position = 0
        self.kept_bytes: Callable[[], int] = lambda: 0
        self.is_starved = False

    @property
    def most_record_bytes(self) -> int:
        """The largest size of a record."""
        return self._segment_bytes - 2 * HEADER_BYTES - 2 * (self._segment_bytes // RESERVED_PART)

    @property
    def left(self) -> int:
        """The bytes left in the segment."""
        return self._segment_bytes - self.position % self._segment_bytes

    @property
    def left_bytes(self) -> int:
        """The bytes of records that change something and fit in this segment."""
        return max(self.left - 2 * HEADER_BYTES - self._kept(Use.CHANGE), 0)

    @property
    def is_little(self) -> bool:
        """Whether little or no growth still fits in the last segment with room."""
        little = self._kept(Use.GROW) + self._segment_bytes // RESERVED_PART
        return self.is_starved and self.left <= little

    @property
    def is_short(self) -> bool:
        """Whether verbs that grow the store should wait for another segment."""
        return self.left < self._segment_bytes // SHORT_PART

    @property
    def is_low(self) -> bool:
        """Whether another segment has no room, and half of the rest is used."""
        return self.is_starved and self.is_short

    @property
    def is_on_disk(self) -> bool:
        """Whether the disk has room for another segment."""
        return self._disk.free_bytes(self._folder) >= self._segment_bytes + self.kept_bytes()

    def check_disk(self) -> None:
        """Raise DiskFull if the disk has no room for another segment."""
        if not self.is_on_disk:
            raise DiskFull(f"{self._folder}: no room for {self._segment_bytes} bytes more")

    def check_size(self, size_bytes: int) -> None:
        """Raise BatchTooLarge for a record larger than any segment."""
        most = self.most_record_bytes
        if size_bytes > most:
            raise BatchTooLarge(f"batch: {size_bytes} bytes as a record, at most {most} allowed")

    def fits(self, size_bytes: int) -> bool:
        """Tell whether records of this size fit in this segment at all."""
        return size_bytes + 2 * HEADER_BYTES <= self.left

    def is_for(self, use: Use, size_bytes: int) -> bool:
        """Tell whether they fit, and leave the part that is kept from such a use."""
        return size_bytes + 2 * HEADER_BYTES + self._kept(use) <= self.left

    def _kept(self, use: Use) -> int:
        if use == Use.GROW and self.is_starved:
            # The other half is enough for the verbs that end the messages of a whole segment.
            return self._segment_bytes // 2
        return use * (self._segment_bytes // RESERVED_PART)
