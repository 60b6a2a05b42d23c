"""Columns that grow in place: NumPy views over anonymous memory maps.

A map grows by moving page tables, not bytes, and pages that were never written cost nothing; so a
column that most messages leave at zero (leases, expiries) takes no memory for them.
"""

import mmap

import numpy as np
import numpy.typing as npt

_FIRST_CAPACITY = 4096
# A shared map would not grow with its pages.
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Columns:
    """Named arrays of one length, read as attributes: ``columns.due_ms[rows]``.

    A view must not be kept across a call to :meth:`reserve`, which replaces all of them.
    """

    def __init__(self, types: dict[str, type[np.generic]]) -> None:
        self._types = {name: np.dtype(dtype) for name, dtype in types.items()}
        self.capacity = 0
        self._maps: dict[str, mmap.mmap] = {}
        self.reserve(_FIRST_CAPACITY)

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` rows; new rows are zero."""
        if capacity <= self.capacity:
            return
        capacity = max(capacity, self.capacity * 2)
        for name, dtype in self._types.items():
            setattr(self, name, self._grown(name, dtype, capacity))
        self.capacity = capacity

    def _grown(
        self, name: str, dtype: np.dtype[np.generic], capacity: int
    ) -> npt.NDArray[np.generic]:
        size_bytes = capacity * dtype.itemsize
        old = self._maps.get(name)
        if old is not None:
            setattr(self, name, None)
            self._maps[name] = _resized(old, size_bytes)
        else:
            self._maps[name] = mmap.mmap(-1, size_bytes, flags=_PRIVATE)
        return np.frombuffer(self._maps[name], dtype=dtype)


def _resized(old: mmap.mmap, size_bytes: int) -> mmap.mmap:
    try:
        old.resize(size_bytes)
    except (SystemError, OSError, ValueError):
        # Not every system can move a map; copying is the same but for the time it takes.
        new = mmap.mmap(-1, size_bytes, flags=_PRIVATE)
        new[: len(old)] = old[:]
        return new
    return old
