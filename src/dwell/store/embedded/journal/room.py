"""Room: how much of the journal's segments there is for whom, above all when the disk is full.

When there is no room for another segment, a part of the last one is kept from what lets the store
grow, and of that a part from all but what lets it shrink, so that messages can still be acked.
"""

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from dwell.errors import BatchTooLarge, DiskFull
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.journal.frame import HEADER_BYTES

#: A segment's part that is kept, once for each :class:`Use`, when there is no room for a next one.
RESERVED_PART = 32
#: A segment's part that is left when a growing verb waits for the next one that is being made.
SHORT_PART = 4


class Use(IntEnum):
    """What a record does on a full disk: the higher, the more of the last segment it leaves free.

    ``END`` removes messages, ``CHANGE`` alters them, ``GROW`` adds some.
    """

    END = 0
    CHANGE = 1
    GROW = 2


class Room:
    """The room in segments of one size; ``position`` is where the journal stands.

    ``kept_bytes`` says how much on the disk no segment may take, and ``is_starved`` whether the
    last segment that was wanted found no room.
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
        """How large a record can be."""
        return self._segment_bytes - 2 * HEADER_BYTES - 2 * (self._segment_bytes // RESERVED_PART)

    @property
    def left(self) -> int:
        """How many bytes are left of the segment."""
        return self._segment_bytes - self.position % self._segment_bytes

    @property
    def left_bytes(self) -> int:
        """How many bytes of records that change something fit in this segment."""
        return max(self.left - 2 * HEADER_BYTES - self._kept(Use.CHANGE), 0)

    @property
    def is_little(self) -> bool:
        """Whether little or nothing that grows still fits in the last segment there is room for."""
        little = self._kept(Use.GROW) + self._segment_bytes // RESERVED_PART
        return self.is_starved and self.left <= little

    @property
    def is_short(self) -> bool:
        """Whether who lets the store grow should wait for another segment."""
        return self.left < self._segment_bytes // SHORT_PART

    @property
    def is_low(self) -> bool:
        """Whether there is no room for another segment, and half is used of what is left."""
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
        """Raise BatchTooLarge for a record that no segment has room for."""
        most = self.most_record_bytes
        if size_bytes > most:
            raise BatchTooLarge(f"batch: {size_bytes} bytes as a record, at most {most} allowed")

    def fits(self, size_bytes: int) -> bool:
        """Tell whether so many bytes of records fit in this segment at all."""
        return size_bytes + 2 * HEADER_BYTES <= self.left

    def is_for(self, use: Use, size_bytes: int) -> bool:
        """Tell whether they fit, and leave what is kept from such a use."""
        return size_bytes + 2 * HEADER_BYTES + self._kept(use) <= self.left

    def _kept(self, use: Use) -> int:
        if use == Use.GROW and self.is_starved:
            # What others have then must do to end the messages of a whole segment.
            return self._segment_bytes // 2
        return use * (self._segment_bytes // RESERVED_PART)
