"""Columns that grow in place: NumPy views over anonymous memory maps.

A map grows by moving page tables, not bytes, and pages that were never written cost nothing; so a
column that most messages leave at zero (leases, expiries) takes no memory for them.
"""

import mmap

import numpy as np

_FIRST_CAPACITY = 4096
# A shared map would not grow with its pages.
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Columns:
    """Named arrays of one length, read as attributes: ``columns.due_ms[rows]``.

    A view must not be kept across a call to :meth:`reserve`, which replaces all of them. A call
    that raises for lack of memory changes nothing.
    """

    def __init__(self, types: dict[str, type[np.generic]]) -> None:
        self._types = {name: np.dtype(dtype) for name, dtype in types.items()}
        self.capacity = 0
        self._maps = {
            name: mmap.mmap(-1, _FIRST_CAPACITY * dtype.itemsize, flags=_PRIVATE)
            for name, dtype in self._types.items()
        }
        self.reserve(_FIRST_CAPACITY)

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` rows; new rows are zero."""
        if capacity <= self.capacity:
            return
        capacity = max(capacity, self.capacity * 2)
        for name, dtype in self._types.items():
            # A view would keep its map from growing; the attribute is set again in any case.
            setattr(self, name, None)
            try:
                self._maps[name] = _resized(self._maps[name], capacity * dtype.itemsize)
            finally:
                setattr(self, name, np.frombuffer(self._maps[name], dtype=dtype))
        self.capacity = capacity


def _resized(old: mmap.mmap, size_bytes: int) -> mmap.mmap:
    try:
        old.resize(size_bytes)
    except (SystemError, OSError, ValueError, BufferError):
        # Not every system can move a map, and none can while a view of it exists; a copy has the
        # same result, but takes longer.
        new = mmap.mmap(-1, size_bytes, flags=_PRIVATE)
        new[: len(old)] = old[:]
        return new
    return old
