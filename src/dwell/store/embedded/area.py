"""An area: a file without a name, mapped as memory that the system may take back at any time.

The file is as long as the area may ever become, so that growth moves nothing and no view of it
becomes invalid; only the parts in use have space on the disk. That space is allocated before a part
is used: a write to a mapped page without space would end the process where the disk is full.

Nothing reads the file after the process has ended. It has no name, so the system frees it then.
"""

import contextlib
import mmap
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dwell.store.embedded.disk import Disk

#: Up to this many bytes a new part is brought into the cache at once.
_WRITTEN_BYTES = 4 << 20


class Area:
    """The mapped file; ``map`` is the memory. Raises OSError when there is no such file."""

    def __init__(self, disk: Disk, folder: Path, size_bytes: int, *, by_page: bool = True) -> None:
        self._disk = disk
        self._fd = disk.open_nameless(folder, size_bytes)
        self.close = weakref.finalize(self, disk.close, self._fd)
        try:
            self.map = disk.map_shared(self._fd, size_bytes, by_page=by_page)
        except BaseException:
            self.close()
            raise
        #: The ends of the parts in use, by their beginnings, in bytes.
        self._used: dict[int, int] = {}

    def array(
        self, dtype: "np.dtype[np.generic] | type[np.generic]", start: int, count: int
    ) -> np.ndarray:
        """Return ``count`` values that lie in the area from byte ``start`` on."""
        return np.frombuffer(self.map, dtype=dtype, count=count, offset=start)

    def missing_bytes(self, start: int, end: int) -> int:
        """Return how much space is missing for a part that begins at ``start``."""
        return max(end - self._used.get(start, start), 0)

    def extend(self, start: int, end: int) -> None:
        """Allocate space so that the part that begins at byte ``start`` reaches to ``end``.

        It is changed by nothing if it raises OSError.
        """
        if more := self.missing_bytes(start, end):
            self._disk.allocate_part(self._fd, end - more, more)
            if more <= _WRITTEN_BYTES:
                self.write_zeros(end - more, more)
            self._used[start] = end

    def write_zeros(self, start: int, size_bytes: int) -> None:
        """Bring a part that was never written into the cache of the system.

        A page fault takes half the time for a page that is there. It holds zeros in any case, so
        an error of the disk is no fault.
        """
        with contextlib.suppress(OSError):
            self._disk.write_zeros(self._fd, start, size_bytes)

    @property
    def size_bytes(self) -> int:
        """How much space it has on the disk."""
        return sum(end - start for start, end in self._used.items())

    def pieces(self, step: int) -> Iterator[tuple[int, int]]:
        """Yield beginning and size of the pieces in use, at most ``step`` bytes each."""
        for start, end in list(self._used.items()):
            for at in range(start, end, step):
                yield at, min(step, end - at)

    def read_ahead(self, start: int, size_bytes: int) -> None:
        """Have the system read a part from the disk, unless that is in its cache.

        Errors are met by what uses the part.
        """
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError):
            self._disk.read_ahead(self.map, first, start + size_bytes - first)

    def release(self, start: int, size_bytes: int) -> None:
        """Take a piece out of memory; what it holds stays."""
        self._disk.release(self.map, start, size_bytes)

    def discard(self, start: int, size_bytes: int) -> None:
        """Free a piece, in memory and on the disk; what it holds is lost."""
        self._disk.discard(self.map, start, size_bytes)
