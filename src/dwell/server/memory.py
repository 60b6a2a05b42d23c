"""Memory: how much the process may still use, if the system limits it.

Beyond the limit the process is killed without an answer: Python can report a failed allocation, but
the libraries under it end the process. So requests are refused while there is still room.
"""

import os
import resource
import time
from pathlib import Path

from dwell.errors import StoreFull

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_STATM = Path("/proc/self/statm")

#: How long a measurement is used.
_LOOK_S = 0.005

#: Memory that stays free for running work: answers, snapshots, threads.
KEPT_BYTES = 32 * 1024 * 1024

#: Further memory that stays free for requests that store nothing, such as acks.
KEPT_FROM_PUTS_BYTES = 16 * 1024 * 1024

#: How often a request is in memory while it is read and done: as it came, in one piece, decoded.
_COPIES = 4


class Memory:
    """The memory that a limit leaves; ``used_bytes`` is for tests."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._left_bytes = limit_bytes
        self._looked_at = -_LOOK_S

    @classmethod
    def limited(cls) -> "Memory | None":
        """Return the memory of this process, or None if nothing limits it (``ulimit -v``)."""
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        return None if limit_bytes == resource.RLIM_INFINITY else cls(limit_bytes)

    def used_bytes(self) -> int:
        """Return how much of the limited memory the process uses."""
        return int(_STATM.read_bytes().split(b" ", 1)[0]) * _PAGE_BYTES

    @property
    def left_bytes(self) -> int:
        """How much there still is, as of a few milliseconds ago."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._left_bytes = self.limit_bytes - self.used_bytes()
        return self._left_bytes

    def check(self, size_bytes: int) -> None:
        """Refuse requests that there is no memory for; raises StoreFull."""
        if self.left_bytes < KEPT_BYTES + _COPIES * size_bytes:
            raise self._refusal("this request")

    def check_answer(self, size_bytes: int) -> None:
        """Refuse an answer that takes too much memory while it is made; raises StoreFull."""
        # Measured again, as other requests may have taken memory since.
        self._looked_at = -_LOOK_S
        if self.left_bytes < KEPT_BYTES + size_bytes:
            raise self._refusal("an answer of this size")

    def check_growth(self) -> None:
        """Refuse new messages while the free memory is needed for others; raises StoreFull."""
        if self.left_bytes < KEPT_BYTES + KEPT_FROM_PUTS_BYTES:
            raise self._refusal("new messages")

    def _refusal(self, what: str) -> StoreFull:
        return StoreFull(
            f"memory: {self.left_bytes} bytes are left of {self.limit_bytes}, too few for {what}"
        )
