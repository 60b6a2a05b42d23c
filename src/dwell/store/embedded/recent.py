"""Bodies that were put lately, as the objects they are: who takes them soon need not read them.

Many messages are taken within moments. To copy a body out of the journal and make an object of it
again costs more than the rest of the take, and the object that was put is often still at hand.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import Blobs, sizes_of
from dwell.message import I64
from dwell.store.embedded.limits import LIMITS

#: What an object weighs beside its bytes.
_OBJECT_BYTES = 64


class Recent:
    """The newest bodies, by where their blobs are in the journal.

    When there are more than ``most_bytes`` an eighth goes at a time, the oldest first.
    """

    def __init__(self, most_bytes: int = LIMITS.recent_bytes) -> None:
        self._most_bytes = most_bytes
        self._bodies: list[bytes] = []
        self._positions: I64 = np.zeros(1024, dtype=np.int64)
        self._puts: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def add(self, positions: I64, bodies: Sequence[bytes]) -> None:
        """Keep bodies whose blobs are at these positions, one behind the other and all others."""
        if isinstance(bodies, Blobs):
            # They are no objects yet, and cost as much to cut out here as from the journal.
            return
        sizes = sizes_of(bodies)
        size = int(sizes.sum()) + _OBJECT_BYTES * len(bodies)
        # One without bytes may be where the next is, and then a position names two.
        if size > self._most_bytes // 2 or not sizes.all():
            return
        if self._bytes + size > self._most_bytes:
            self._forget(self._most_bytes - self._most_bytes // 8 - size)
        first, end = len(self._bodies), len(self._bodies) + len(bodies)
        if end > len(self._positions):
            self._positions = np.resize(self._positions, 2 * end)
        self._positions[first:end] = positions
        self._bodies += bodies
        self._bytes += size
        self._puts.append((len(bodies), size))

    def find(self, positions: I64) -> list[bytes] | None:
        """Return the bodies of the blobs at some positions, or None unless all are here."""
        known = self._positions[: len(self._bodies)]
        if not len(known) or positions[0] < known[0]:
            return None
        first, count = int(known.searchsorted(positions[0])), len(positions)
        if np.array_equal(known[first : first + count], positions):
            return self._bodies[first : first + count]
        places = known.searchsorted(positions)
        if not np.array_equal(known.take(places, mode="clip"), positions):
            return None
        return [self._bodies[place] for place in places.tolist()]

    def _forget(self, size_bytes: int) -> None:
        """Let the oldest go, many at a time: what is left must move up."""
        gone = 0
        while self._bytes > size_bytes:
            count, size = self._puts.popleft()
            self._bytes -= size
            gone += count
        left = len(self._bodies) - gone
        del self._bodies[:gone]
        self._positions[:left] = self._positions[gone : gone + left]
