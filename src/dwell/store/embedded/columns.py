"""Columns that grow in place: in anonymous memory maps, and in an area once they are long.

An anonymous map grows by moving page tables, not bytes, and pages that were never written cost
nothing; so a column that most messages leave at zero (leases, expiries) takes no memory for them.

In an area (:mod:`area`) several columns lie together, a row behind the other: there each page that
is touched may cost a page fault, and a verb touches most columns of a row. A column is then a view
with steps as long as a row.
"""

import mmap
from collections.abc import Sequence

import numpy as np

from dwell.errors import DiskFull
from dwell.store.embedded.area import Area
from dwell.store.embedded.scratch import Scratch

_FIRST_CAPACITY = 4096
# A shared map would not grow with its pages.
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Columns:
    """Named arrays of one length, read as attributes: ``columns.due_ms[rows]``.

    A view must not be kept across a call to :meth:`reserve`, which replaces all of them. A call
    that raises for lack of memory or disk changes nothing. ``together`` names the columns that lie
    together in an area, ``most`` is how many rows there can be in one.
    """

    def __init__(
        self,
        types: dict[str, type[np.generic]],
        scratch: Scratch | None = None,
        together: Sequence[Sequence[str]] = (),
        most: int = 0,
    ) -> None:
        self._types = {name: np.dtype(dtype) for name, dtype in types.items()}
        self._scratch, self._most = scratch, most
        self._groups = [
            np.dtype([(name, self._types[name]) for name in names], align=True)
            for names in together
        ]
        self._area: Area | None = None
        if scratch is not None:
            scratch.at_close(self._let_go)
        self.capacity = 0
        self._maps = {
            name: mmap.mmap(-1, _FIRST_CAPACITY * dtype.itemsize, flags=_PRIVATE)
            for name, dtype in self._types.items()
        }
        self.reserve(_FIRST_CAPACITY)

    @property
    def is_in_area(self) -> bool:
        """Whether the columns lie in an area."""
        return self._area is not None

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` rows; new rows are zero. Raises DiskFull or MemoryError."""
        if capacity <= self.capacity:
            return
        scratch = self._scratch
        if scratch is not None and capacity > scratch.least_rows:
            try:
                if self._is_extended(scratch, capacity):
                    return
            except DiskFull as full:
                scratch.refuse(full)
                self._return_to_memory(scratch)
        capacity = max(capacity, self.capacity * 2)
        for name, dtype in self._types.items():
            # A view would keep its map from growing; the attribute is set again in any case.
            setattr(self, name, None)
            try:
                self._maps[name] = _resized(self._maps[name], capacity * dtype.itemsize)
            finally:
                setattr(self, name, np.frombuffer(self._maps[name], dtype=dtype))
        self.capacity = capacity

    def _is_extended(self, scratch: Scratch, capacity: int) -> bool:
        """Make room in the area, to which it first copies everything; tell whether there is one."""
        if self._area is not None:
            self._extend(scratch, self._area, capacity)
            return True
        area = scratch.area(self._starts()[-1])
        if area is None:
            return False
        count = self.capacity
        before = {name: getattr(self, name) for name in self._types} if count else {}
        try:
            self._extend(scratch, area, capacity)
        except BaseException:
            scratch.retire(area)
            raise
        for name, column in before.items():
            getattr(self, name)[:count] = column
        self._area, self._maps = area, {}
        return True

    def _return_to_memory(self, scratch: Scratch) -> None:
        """Copy everything out of the area, if there is one."""
        if self._area is None:
            return
        for name, dtype in self._types.items():
            column = getattr(self, name)
            self._maps[name] = mmap.mmap(-1, column.nbytes, flags=_PRIVATE)
            setattr(self, name, np.frombuffer(self._maps[name], dtype=dtype))
            getattr(self, name)[:] = column
        scratch.retire(self._area)
        self._area = None

    def _extend(self, scratch: Scratch, area: Area, capacity: int) -> None:
        if capacity > self._most:
            raise MemoryError(f"{capacity} rows, at most {self._most} fit in an area")
        step = scratch.step_rows
        capacity = min(-(-capacity // step) * step, self._most)
        places = list(zip(self._groups, self._starts(), strict=False))
        for group, start in places:
            scratch.extend(area, start, start + capacity * group.itemsize)
        for group, start in places:
            rows = area.array(group, start, capacity)
            for name in group.names or ():
                setattr(self, name, rows[name])
        self.capacity = capacity

    def _let_go(self) -> None:
        if self._area is not None:
            for name, dtype in self._types.items():
                setattr(self, name, np.zeros(0, dtype))
            self._area, self.capacity = None, 0

    def read_ahead(self, part: slice, groups: int) -> None:
        """Have the system read rows of the first groups of columns that are not in its cache.

        Otherwise it reads a page for each page fault.
        """
        if self._area is None:
            return
        for group, start in zip(self._groups[:groups], self._starts(), strict=False):
            first, size_bytes = (
                part.start * group.itemsize,
                (part.stop - part.start) * group.itemsize,
            )
            self._area.read_ahead(start + first, size_bytes)

    def _starts(self) -> list[int]:
        """Return where the columns of each group begin in an area, and where the last end."""
        starts = [0]
        for group in self._groups:
            end = starts[-1] + self._most * group.itemsize
            starts.append(-(-end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY)
        return starts


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
