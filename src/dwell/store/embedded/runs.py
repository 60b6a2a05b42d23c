"""Messages that can be taken, in order: sorted runs, merged as they pile up.

A push in order (nearly all are) extends the newest run; any other starts a run of its own, and runs
are merged like a binomial heap, so that there are at most about log2(n) of them and each message is
copied about log2(n) times. Entries are never searched for: an entry whose message has moved on is
dropped when it comes to the front.
"""

from bisect import bisect_right
from collections import deque

import numpy as np

from dwell.message import I64, U32, U64
from dwell.store.embedded.limits import LIMITS, Limits


class Chunk:
    """Entries by priority, due and arrival (``seq``); the row identifies the message."""

    __slots__ = ("due_ms", "priority", "rows", "seq")

    def __init__(self, rows: U32, priority: U32, due_ms: I64, seq: U64) -> None:
        self.rows = rows
        self.priority = priority
        self.due_ms = due_ms
        self.seq = seq

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, selection: "slice | np.ndarray") -> "Chunk":
        """Return some of the entries."""
        return Chunk(
            self.rows[selection],
            self.priority[selection],
            self.due_ms[selection],
            self.seq[selection],
        )

    def key(self, index: int) -> tuple[int, int, int]:
        """Return the sort key of entry ``index``."""
        return (int(self.priority[index]), int(self.due_ms[index]), int(self.seq[index]))

    def ordered(self) -> "Chunk":
        """Return the entries in order."""
        return self if self._is_ordered() else self.part(self._order())

    def _order(self) -> np.ndarray:
        return np.lexsort((self.seq, self.due_ms, self.priority))

    def _is_ordered(self) -> bool:
        if len(self) < 2:
            return True
        for column in (self.priority, self.due_ms):
            if column[0] == column[-1] and (column == column[0]).all():
                continue
            if column is self.priority:
                return False
            # Strictly rising dues leave no ties for the arrival to break.
            return bool((column[1:] > column[:-1]).all())
        return bool((self.seq[1:] > self.seq[:-1]).all())


def joined(chunks: "list[Chunk]") -> Chunk:
    """Return the entries of several chunks as one chunk, in the order given."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        np.concatenate([c.rows for c in chunks]),
        np.concatenate([c.priority for c in chunks]),
        np.concatenate([c.due_ms for c in chunks]),
        np.concatenate([c.seq for c in chunks]),
    )


class Run:
    """A chain of chunks, each starting where the previous chunk ends."""

    __slots__ = ("_small_chunk", "chunks", "size")

    def __init__(self, chunk: Chunk, small_chunk: int) -> None:
        self._small_chunk = small_chunk
        self.chunks = deque([chunk])
        self.size = len(chunk)

    def accepts(self, chunk: Chunk) -> bool:
        """Tell whether a chunk can be added at the end."""
        return self.chunks[-1].key(-1) <= chunk.key(0)

    def append(self, chunk: Chunk) -> None:
        """Add a chunk at the end; small neighbours are joined, so that single puts stay cheap."""
        self.size += len(chunk)
        while self.chunks and len(self.chunks[-1]) <= min(2 * len(chunk), self._small_chunk):
            chunk = joined([self.chunks.pop(), chunk])
        self.chunks.append(chunk)

    def head(self, limit: int) -> Chunk:
        """Return the first ``limit`` entries, leaving them where they are."""
        parts, missing = [], limit
        for chunk in self.chunks:
            parts.append(chunk.part(slice(missing)) if len(chunk) > missing else chunk)
            missing -= len(parts[-1])
            if not missing:
                break
        return joined(parts)

    def drop(self, count: int) -> None:
        """Remove the first ``count`` entries."""
        self.size -= count
        while count:
            first = self.chunks.popleft()
            if len(first) > count:
                self.chunks.appendleft(first.part(slice(count, None)))
            count -= min(len(first), count)


class Later:
    """Remainders of chunks that were set aside, by number, until they are asked for.

    A remainder is kept as integers: with one object each, the garbage collector would visit all
    objects of the process again and again.
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._firsts: list[int] = []
        self._batches: list[tuple[Chunk, I64, I64]] = []
        self._left: list[int] = []
        self._next = 0

    def known(self, numbers: list[int]) -> list[int]:
        """Return the numbers, out of some, that have a part."""
        return [number for number in numbers if number in self._places] if self._places else []

    def add(self, numbers: list[int], chunk: Chunk, starts: I64, ends: I64) -> None:
        """Add a part of a chunk for each number; no number may have a part already."""
        self._places.update(zip(numbers, range(self._next, self._next + len(numbers)), strict=True))
        self._firsts.append(self._next)
        self._batches.append((chunk, starts, ends))
        self._left.append(len(numbers))
        self._next += len(numbers)

    def pop(self, number: int) -> Chunk | None:
        """Remove and return the part of a number; None if it has no part."""
        place = self._places.pop(number, None) if self._places else None
        if place is None:
            return None
        batch = bisect_right(self._firsts, place) - 1
        chunk, starts, ends = self._batches[batch]
        at = place - self._firsts[batch]
        self._left[batch] -= 1
        if not self._left[batch]:
            del self._firsts[batch], self._batches[batch], self._left[batch]
        return chunk.part(slice(int(starts[at]), int(ends[at])))


class Runs:
    """A priority queue of entries: push batches, pop the first entries."""

    __slots__ = ("_merged_rows", "_runs", "_small_chunk")

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._runs: list[Run] = []
        self._small_chunk = limits.small_chunk
        self._merged_rows = limits.merged_rows

    def push(self, chunk: Chunk) -> None:
        """Add entries, in any order."""
        if not len(chunk):
            return
        chunk = chunk.ordered()
        if self._runs and self._runs[-1].accepts(chunk):
            self._runs[-1].append(chunk)
            return
        self._runs.append(Run(chunk, self._small_chunk))
        # A merge of very long runs would block all other tasks.
        while (
            len(self._runs) > 1
            and self._runs[-2].size <= 2 * self._runs[-1].size
            and self._runs[-1].size <= self._merged_rows
        ):
            newer, older = self._runs.pop(), self._runs.pop()
            chunk = joined([*older.chunks, *newer.chunks]).ordered()
            self._runs.append(Run(chunk, self._small_chunk))

    @property
    def size(self) -> int:
        """How many entries there are, including outdated entries."""
        return sum(run.size for run in self._runs)

    def entries(self) -> list[Chunk]:
        """Return all entries, in no order."""
        return [chunk for run in self._runs for chunk in run.chunks]

    def pop(self, limit: int) -> Chunk | None:
        """Remove and return the first entries, at most ``limit``; None without any."""
        if not self._runs:
            return None
        heads = [run.head(limit) for run in self._runs]
        if len(heads) == 1:
            first = heads[0]
            self._runs[0].drop(len(first))
        else:
            first = self._pop_merged(heads, limit)
        self._runs = [run for run in self._runs if run.size]
        return first

    def _pop_merged(self, heads: list[Chunk], limit: int) -> Chunk:
        everything = joined(heads)
        order = everything._order()[:limit]
        run_of = np.repeat(np.arange(len(heads)), [len(head) for head in heads])
        counts = np.bincount(run_of[order], minlength=len(heads))
        for run, count in zip(self._runs, counts.tolist(), strict=True):
            run.drop(count)
        return everything.part(order)
