"""Recently put bodies, kept as objects: a take that follows soon need not read them.

Many messages are taken within moments. Copying a body out of the journal and making an object of it
costs more than the rest of the take, and the object that was put often still exists.
"""

from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import Blobs, sizes_of
from dwell.message import I64, Rows
from dwell.store.embedded.limits import LIMITS

#: The memory of an object in addition to its bytes.
_OBJECT_BYTES = 64
_FIRST = 1024


class Recent:
    """The newest bodies, by the journal positions of their blobs.

    Above ``most_bytes`` an eighth is dropped at a time, the oldest first.
    """

    def __init__(self, most_bytes: int = LIMITS.recent_bytes) -> None:
        self._most_bytes = most_bytes
        self._count = self._bytes = 0
        self._positions: I64 = np.zeros(_FIRST, dtype=np.int64)
        self._sizes: I64 = np.zeros(_FIRST, dtype=np.int64)
        # The garbage collector visits all of a list again and again, but skips this array.
        self._bodies = np.empty(_FIRST, dtype=np.object_)

    def add(self, positions: I64, bodies: Sequence[bytes]) -> None:
        """Add bodies whose blobs are at these positions, ascending and behind all others."""
        if isinstance(bodies, Blobs):
            # They are no objects yet, and cutting them out here costs as much as from the journal.
            return
        sizes = sizes_of(bodies)
        size = int(sizes.sum()) + _OBJECT_BYTES * len(bodies)
        # A body without bytes may have the position of the next, which makes it ambiguous.
        if size > self._most_bytes // 2 or not sizes.all():
            return
        if self._bytes + size > self._most_bytes:
            self._forget(self._bytes + size - (self._most_bytes - self._most_bytes // 8))
        first, end = self._count, self._count + len(bodies)
        if end > len(self._positions):
            self._positions = np.resize(self._positions, 2 * end)
            self._sizes = np.resize(self._sizes, 2 * end)
            self._bodies = np.resize(self._bodies, 2 * end)
            self._bodies[first:] = None
        self._positions[first:end] = positions
        self._sizes[first:end] = sizes + _OBJECT_BYTES
        self._bodies[first:end] = bodies
        self._bytes += size
        self._count = end

    def find(self, positions: I64) -> list[bytes] | None:
        """Return the bodies of the blobs at some positions, or None unless all are present."""
        known = self._positions[: self._count]
        if not len(known) or positions[0] < known[0]:
            return None
        first, count = int(known.searchsorted(positions[0])), len(positions)
        places: slice | Rows = slice(first, first + count)
        if not np.array_equal(known[places], positions):
            places = known.searchsorted(positions)
            if not np.array_equal(known.take(places, mode="clip"), positions):
                return None
        found: list[bytes] = self._bodies[places].tolist()
        return found

    def _forget(self, size_bytes: int) -> None:
        """Drop the oldest bodies, many at a time, because the rest must move up."""
        end = self._count
        gone = int(np.cumsum(self._sizes[:end]).searchsorted(size_bytes)) + 1
        self._count = left = max(end - gone, 0)
        self._bytes = int(self._sizes[gone:end].sum())
        for column in (self._positions, self._sizes, self._bodies):
            column[:left] = column[gone:end]
        self._bodies[left:end] = None
