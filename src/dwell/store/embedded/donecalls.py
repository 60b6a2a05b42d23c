"""Done calls: what was done lately to messages that a request had numbered.

A request whose answer was lost is sent again, and is told what was done for it the first time. What
is noted here stands in the journal too, beside what was done, and in snapshots.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dwell.batch.calls import are_again, plain
from dwell.message import U8, U32, U64, Result
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.limits import LIMITS, Limits

#: What each kind of record does to a message, if it does not die of it.
_RESULTS = {
    RecordKind.PUT: Result.CREATED,
    RecordKind.PUT_OWN: Result.CREATED,
    RecordKind.REPLACE: Result.REPLACED,
    RecordKind.ACK: Result.ACKED,
    RecordKind.RELEASE: Result.RELEASED,
    RecordKind.BURY: Result.BURIED,
    RecordKind.KICK: Result.KICKED,
    RecordKind.CANCEL: Result.CANCELLED,
    RecordKind.MOVE: Result.MOVED,
}
_NO_NUMBERS: U64 = np.zeros(0, dtype=np.uint64)

#: The arrays of a snapshot that hold done calls, a column of Block each.
ARRAYS = {
    "numbers": "call_numbers",
    "rows": "call_rows",
    "seqs": "call_seqs",
    "results": "call_results",
}


class Block(NamedTuple):
    """Messages in order of their call numbers: their rows, arrivals, and what was done to them.

    The arrivals are those of messages that were created, and otherwise 0.
    """

    numbers: U64
    rows: U32
    seqs: U64
    results: U8

    def picked(self, which: np.ndarray) -> "Block":
        """Return copies of the messages at some places."""
        return Block(self.numbers[which], self.rows[which], self.seqs[which], self.results[which])


class DoneCalls:
    """The newest ``limits.calls`` messages with call numbers, for ``limits.calls_ms`` at least."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._open: list[Block] = []
        self._open_rows = 0
        self._blocks: deque[tuple[int, Block]] = deque()
        self._late: U64 = _NO_NUMBERS
        self._late_until_ms = 0

    def note(self, record: Record, is_dead: np.ndarray) -> None:
        """Note what a record that has call numbers did; ``is_dead`` tells which messages died."""
        count = len(record)
        seqs: U64 = np.zeros(count, dtype=np.uint64)
        if record.kind in (RecordKind.PUT, RecordKind.PUT_OWN):
            first = record.meta.first_seq
            seqs = np.arange(first, first + count, dtype=np.uint64)
        results = np.full(count, _RESULTS[record.kind], dtype=np.uint8)
        if record.kind is RecordKind.RELEASE:
            results[is_dead] = Result.BURIED
        numbers, rows = record.columns["calls"], record.columns["rows"].astype(np.uint32)
        # This also copies what a replay reads from a file's pages, which are not to be held.
        has_number = np.flatnonzero(numbers)
        self._add(Block(numbers, rows, seqs, results).picked(has_number), record.time_ms)

    def _add(self, part: Block, time_ms: int) -> None:
        self._open.append(part)
        self._open_rows += len(part.numbers)
        if self._open_rows >= self._limits.call_block:
            self._blocks.append((time_ms, _sorted(self._open)))
            self._open, self._open_rows = [], 0
            kept = sum(len(block.numbers) for _, block in self._blocks)
            while self._blocks and (
                kept > self._limits.calls or self._blocks[0][0] < time_ms - self._limits.calls_ms
            ):
                kept -= len(self._blocks.popleft()[1].numbers)

    def find(self, calls: U64, now_ms: int) -> Block | None:
        """Return what was done for calls, with result 0 where nothing was; None if for none.

        Repeats are looked for, and first requests that come after their repeats.
        """
        is_asked = are_again(calls)
        if len(self._late):
            if now_ms > self._late_until_ms:
                self._late = _NO_NUMBERS
            is_asked |= np.isin(calls, self._late)
        asked = np.flatnonzero(is_asked)
        if not len(asked):
            return None
        numbers = plain(calls)
        found = Block(
            numbers,
            np.zeros(len(calls), dtype=np.uint32),
            np.zeros(len(calls), dtype=np.uint64),
            np.zeros(len(calls), dtype=np.uint8),
        )
        if self._open:
            self._open = [_sorted(self._open)]
        for block in (*self._open, *(block for _, block in self._blocks)):
            places = np.minimum(block.numbers.searchsorted(numbers[asked]), len(block.numbers) - 1)
            is_there = block.numbers[places] == numbers[asked]
            at, places = asked[is_there], places[is_there]
            for name in ("rows", "seqs", "results"):
                getattr(found, name)[at] = getattr(block, name)[places]
        self._note_late(numbers[asked[found.results[asked] == 0]], now_ms)
        return found if found.results.any() else None

    def _note_late(self, numbers: U64, now_ms: int) -> None:
        """Note repeats that came before what they repeat."""
        if len(numbers):
            self._late = np.concatenate([self._late, numbers])[-self._limits.calls :]
            self._late_until_ms = now_ms + self._limits.calls_ms

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that is noted, by the names of the arrays of a snapshot."""
        parts = [*(block for _, block in self._blocks), *self._open]
        if not parts:
            return {}
        return {
            name: np.concatenate([getattr(part, field) for part in parts])
            for field, name in ARRAYS.items()
        }

    def restore(self, arrays: Mapping[str, np.ndarray], time_ms: int) -> None:
        """Note what a snapshot of a time has."""
        if ARRAYS["numbers"] in arrays:
            columns = {field: arrays[name].copy() for field, name in ARRAYS.items()}
            self._blocks.append((time_ms, _sorted([Block(**columns)])))


def _sorted(parts: list[Block]) -> Block:
    joined = Block(*map(_joined, zip(*parts, strict=True)))
    return joined.picked(np.argsort(joined.numbers, kind="stable"))


def _joined(columns: Sequence[np.ndarray]) -> Any:
    return np.concatenate(columns)
