"""Done calls: the results of numbered requests, by the number of each message.

A request whose answer was lost is sent again, and gets the results of the first time. The journal
has the numbers in the record of the verb, and snapshots have everything that is kept here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dwell.batch.calls import CALLER_SHIFT, are_again, plain
from dwell.message import U8, U32, U64, Result
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.limits import LIMITS, Limits

#: The result of each kind of record, except for messages that a release buries.
_RESULTS = {
    RecordKind.PUT: Result.CREATED,
    RecordKind.PUT_OWN: Result.CREATED,
    RecordKind.REPLACE: Result.REPLACED,
    RecordKind.ACK: Result.ACKED,
    RecordKind.DONE: Result.ACKED,
    RecordKind.RELEASE: Result.RELEASED,
    RecordKind.BURY: Result.BURIED,
    RecordKind.KICK: Result.KICKED,
    RecordKind.CANCEL: Result.CANCELLED,
    RecordKind.MOVE: Result.MOVED,
}
#: The arrays of a snapshot that hold done calls, one for each column of Block, and takes.
ARRAYS = ("call_numbers", "call_rows", "call_seqs", "call_results")
TAKE_ARRAYS = ("take_numbers", "take_rows", "take_takes", "take_results")
#: The result of each message that a take has leased.
_TAKEN = 1
_LOWER = np.uint64(0xFFFFFFFF)


class Block(NamedTuple):
    """Messages in order of their call numbers, with their rows, arrivals and results.

    The arrival is 0 unless the message was created. Takes have the number of the take instead.
    """

    numbers: U64
    rows: U32
    seqs: U64
    results: U8

    def picked(self, which: "np.ndarray | slice") -> "Block":
        """Return copies of the messages at some places."""
        return Block(self.numbers[which], self.rows[which], self.seqs[which], self.results[which])

    def sorted(self, count: int) -> "Block":
        """Return a copy of the first messages, in order of their numbers."""
        return self.picked(np.argsort(self.numbers[:count], kind="stable"))


class Late:
    """The numbers of repeats that came before the requests that they repeat.

    They are kept as runs, the newest ``limits.call_block`` of them: numbers of one request are
    consecutive.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._runs: U64 = np.zeros((0, 2), dtype=np.uint64)
        self._until_ms = 0
        #: The first number of each run, in order, and the highest last number up to there.
        self._firsts: U64 = self._runs[:, 0]
        self._lasts: U64 = self._runs[:, 1]

    @property
    def is_any(self) -> bool:
        """Whether there are any."""
        return len(self._runs) > 0

    def has(self, calls: U64, now_ms: int) -> np.ndarray:
        """Tell of each number whether it belongs to a late repeat."""
        if len(self._runs) and now_ms > self._until_ms:
            self._set(self._runs[:0])
        if not len(self._runs):
            return np.zeros(len(calls), dtype=bool)
        places = self._firsts.searchsorted(calls, side="right")
        found: np.ndarray = (places > 0) & (calls <= self._lasts[np.maximum(places, 1) - 1])
        return found

    def add(self, numbers: U64, now_ms: int) -> None:
        """Add numbers, for ``limits.calls_ms`` from now."""
        if not len(numbers):
            return
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        firsts = numbers[np.append(0, cuts)]
        lasts = numbers[np.append(cuts - 1, len(numbers) - 1)]
        runs = np.concatenate([self._runs, np.stack([firsts, lasts], axis=1)])
        self._set(runs[-self._limits.call_block :])
        self._until_ms = now_ms + self._limits.calls_ms

    def _set(self, runs: U64) -> None:
        self._runs = runs
        order = np.argsort(runs[:, 0], kind="stable")
        self._firsts = runs[order, 0]
        self._lasts = np.maximum.accumulate(runs[order, 1])


class DoneCalls:
    """The newest ``limits.calls`` messages with call numbers, for ``limits.calls_ms`` at least.

    Where that is too many, the oldest of the caller that has most of them are dropped first, so
    that no caller pushes out the results of others.
    """

    def __init__(self, limits: Limits = LIMITS, arrays: Sequence[str] = ARRAYS) -> None:
        self._limits = limits
        self._arrays = arrays
        self._blocks: list[tuple[int, Block]] = []
        #: How many messages each caller has in the blocks.
        self._of_callers: Counter[int] = Counter()
        #: The block being filled, its size so far, and the time of its newest record.
        self._newest = _empty(limits.call_block)
        self._count = 0
        self._newest_ms = 0
        self._late = Late(limits)

    def note(self, record: Record, is_dead: np.ndarray) -> None:
        """Keep the results of a record with call numbers; ``is_dead`` tells which messages died."""
        count = len(record)
        seqs: U64 = np.zeros(count, dtype=np.uint64)
        if record.kind in (RecordKind.PUT, RecordKind.PUT_OWN):
            first = record.meta.first_seq
            seqs = np.arange(first, first + count, dtype=np.uint64)
        results = np.full(count, _RESULTS[record.kind], dtype=np.uint8)
        if record.kind is RecordKind.RELEASE:
            results[is_dead] = Result.BURIED
        self._keep(Block(record.columns["calls"], record.columns["rows"], seqs, results), record)

    def note_take(self, record: Record) -> None:
        """Keep the leases of a take with call numbers, one for all messages of a request."""
        first, count = record.meta.first_take, len(record)
        takes = np.arange(first, first + count, dtype=np.uint64) & _LOWER
        results = np.full(count, _TAKEN, dtype=np.uint8)
        self._keep(Block(record.columns["calls"], record.columns["rows"], takes, results), record)

    def _keep(self, done: Block, record: Record) -> None:
        count = len(record)
        if count <= self._limits.call_block - self._count and done.numbers.all():
            self._fill(done, record.time_ms)
            return
        left = np.flatnonzero(done.numbers)
        while len(left):
            some, left = np.split(left, [self._limits.call_block - self._count])
            self._fill(done.picked(some), record.time_ms)

    def _fill(self, part: Block, time_ms: int) -> None:
        end = self._count + len(part.numbers)
        for column, values in zip(_columns(self._newest), _columns(part), strict=True):
            column[self._count : end] = values
        self._count, self._newest_ms = end, time_ms
        if end == self._limits.call_block:
            self._append(time_ms, self._newest.sorted(end))
            self._count = 0
            self._drop(time_ms)

    def _drop(self, now_ms: int) -> None:
        """Drop messages that are too old, or too many."""
        oldest_ms = now_ms - self._limits.calls_ms
        while self._blocks and self._blocks[0][0] < oldest_ms:
            self._of_callers.subtract(dict(_callers_of(self._blocks.pop(0)[1])))
        more = self.size - self._limits.calls
        while more > 0 and self._blocks:
            more -= self._drop_oldest_of(max(self._of_callers, key=self._of_callers.__getitem__))
        self._of_callers = +self._of_callers

    def _append(self, time_ms: int, block: Block) -> None:
        self._blocks.append((time_ms, block))
        self._of_callers.update(dict(_callers_of(block)))

    def _drop_oldest_of(self, caller: int) -> int:
        """Drop the oldest messages of a caller, those of one block; return how many."""
        bounds = np.array([caller, caller + 1], np.uint64) << np.uint64(CALLER_SHIFT)
        for at, (time_ms, block) in enumerate(self._blocks):
            first, end = block.numbers.searchsorted(bounds).tolist()
            if first == end:
                continue
            if end - first == len(block.numbers):
                del self._blocks[at]
            else:
                others = np.delete(np.arange(len(block.numbers)), slice(first, end))
                self._blocks[at] = time_ms, block.picked(others)
            self._of_callers[caller] -= end - first
            return int(end - first)
        raise AssertionError(f"no block has numbers of caller {caller}")

    @property
    def size(self) -> int:
        """The number of messages that are kept."""
        return self._count + sum(len(block.numbers) for _, block in self._blocks)

    def find(self, calls: U64, now_ms: int) -> Block | None:
        """Return the results of repeated calls, 0 for a call without one; None if all are 0.

        First requests are looked up too if their repeats arrived before them.
        """
        is_asked = are_again(calls)
        if self._late.is_any:
            is_asked |= self._late.has(calls, now_ms)
        if not is_asked.any():
            return None
        asked = np.flatnonzero(is_asked)
        found = _empty(len(calls))
        found.numbers[:] = plain(calls)
        for block in self._all():
            if not len(block.numbers):
                continue
            places = block.numbers.searchsorted(found.numbers[asked])
            places = np.minimum(places, len(block.numbers) - 1)
            is_there = block.numbers[places] == found.numbers[asked]
            for column, values in zip(_columns(found), _columns(block), strict=True):
                column[asked[is_there]] = values[places[is_there]]
        self._late.add(found.numbers[asked[found.results[asked] == 0]], now_ms)
        return found if found.results.any() else None

    def taken(self, calls: U64) -> Block:
        """Return the messages that the takes of some numbers had leased."""
        found = [_empty(0)]
        for block in self._all():
            firsts = block.numbers.searchsorted(calls, side="left").tolist()
            ends = block.numbers.searchsorted(calls, side="right").tolist()
            pairs = zip(firsts, ends, strict=True)
            found += [block.picked(slice(first, end)) for first, end in pairs if end > first]
        return Block(*map(np.concatenate, zip(*found, strict=True)))

    def _all(self) -> tuple[Block, ...]:
        """Return all blocks, each in order of its numbers."""
        return self._newest.sorted(self._count), *(block for _, block in self._blocks)

    def arrays(self, now_ms: int) -> dict[str, np.ndarray]:
        """Return all results that are not too old, by the names of the arrays of a snapshot."""
        newest = self._newest_ms, self._newest.sorted(self._count)
        oldest_ms = now_ms - self._limits.calls_ms
        parts = [block for at_ms, block in (*self._blocks, newest) if at_ms >= oldest_ms]
        columns = zip(*parts, strict=True) if parts else ()
        named = zip(self._arrays, columns, strict=False)
        return {name: np.concatenate(column) for name, column in named}

    def restore(self, arrays: Mapping[str, np.ndarray], time_ms: int) -> None:
        """Restore the results of a snapshot made at a time."""
        if self._arrays[0] in arrays:
            all_of_them = Block(*(arrays[name] for name in self._arrays))
            step = self._limits.call_block
            for start in range(0, len(all_of_them.numbers), step):
                part = all_of_them.picked(slice(start, start + step))
                self._append(time_ms, part.sorted(len(part.numbers)))


def _empty(size: int) -> Block:
    numbers, seqs = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
    return Block(numbers, np.zeros(size, np.uint32), seqs, np.zeros(size, np.uint8))


def _callers_of(block: Block) -> Iterator[tuple[int, int]]:
    """Yield the callers of a block with numbers, and how many messages each has."""
    callers, counts = np.unique(block.numbers >> np.uint64(CALLER_SHIFT), return_counts=True)
    return zip(callers.tolist(), counts.tolist(), strict=True)


def _columns(block: Block) -> tuple[np.ndarray, ...]:
    return block
