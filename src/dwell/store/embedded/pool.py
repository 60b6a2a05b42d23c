"""A pool: columns whose rows are allocated, freed and reused."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dwell.message import U32, Rows
from dwell.store.embedded.columns import Columns
from dwell.store.embedded.scratch import Scratch
from dwell.store.embedded.stack import Stack


class Pool(Columns):
    """Columns with a list of the rows below ``top`` that are free."""

    def __init__(
        self,
        types: dict[str, type[np.generic]],
        scratch: Scratch | None = None,
        together: Sequence[Sequence[str]] = (),
        most: int = 0,
    ) -> None:
        super().__init__(types, scratch, together, most)
        self.top = 0
        self._free = Stack(scratch, most)

    @property
    def used(self) -> int:
        """The number of allocated rows."""
        return self.top - len(self._free)

    def next_free(self, count: int) -> Rows:
        """Return the rows that :meth:`allocate` would return: the last freed, then new ones."""
        reused = min(count, len(self._free))
        old = self._free.last(reused)
        if reused == count:
            return old.astype(np.intp)
        new = np.arange(self.top, self.top + count - reused)
        return np.concatenate([old, new]) if reused else new

    def prepare(self, count: int) -> None:
        """Make room for ``count`` rows, or change nothing: DiskFull, OSError or MemoryError."""
        self.reserve(self.top + max(count - len(self._free), 0))

    def allocate(self, count: int) -> Rows:
        """Take rows from the free list, or make new rows."""
        rows = self.next_free(count)
        self.prepare(count)
        reused = min(count, len(self._free))
        self._free.drop(reused)
        self.top += count - reused
        return rows

    def claim(self, rows: Rows) -> None:
        """Allocate exactly these rows, free or not; the free list must be rebuilt later."""
        self.reserve(int(rows.max()) + 1)
        self.top = max(self.top, int(rows.max()) + 1)

    def free(self, rows: Rows) -> None:
        """Free rows."""
        self._free.push(rows)

    def free_rows(self) -> U32:
        """Return the free rows below ``top``, in the order of the free list."""
        return self._free.numbers()

    def restore_free(self, rows: U32 | Rows) -> None:
        """Set the free list, when a snapshot is read."""
        self._free.drop(len(self._free))
        self._free.push(rows)

    def rows_where(self, test: Callable[[slice], np.ndarray]) -> Rows:
        """Return the rows for which ``test(part)`` is true, one part after another."""
        found = list(self.rows_in_parts(test, 1 << 20))
        return np.concatenate(found) if found else np.zeros(0, np.intp)

    def rows_in_parts(self, test: Callable[[slice], np.ndarray], step: int) -> Iterator[Rows]:
        """Yield the rows for which ``test(part)`` is true, for parts of ``step`` rows."""
        return (np.flatnonzero(test(part)) + part.start for part in self.parts(step))

    def parts(self, step: int, *, groups: int = 1) -> Iterator[slice]:
        """Yield the present rows in parts of ``step``.

        The first ``groups`` of adjacent columns are read ahead for each part.
        """
        for at in range(0, self.top, step):
            part = slice(at, min(at + step, self.top))
            self.read_ahead(part, groups)
            yield part
            if self._scratch is not None:
                self._scratch.tend()
