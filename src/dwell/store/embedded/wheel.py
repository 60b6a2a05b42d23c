"""The wheel: rows by the minute of their next change, loaded lazily.

Adding is O(1): rows are appended unsorted and distributed to slots many at a time: to slots of an
hour, which are distributed to slots of a minute one or two hours ahead of their time. When
the clock comes to a slot it is sorted once into a *run*; rows added to a minute that is already
loaded become a small run of their own, and small runs are merged. The idea of loading slots as they
come near is taken from hierarchical timing wheels (Varghese and Lauck, "Hashed and Hierarchical
Timing Wheels", 1987); sorting only the near slot replaces the finer wheels.

An entry is only a row number, 4 bytes. The table decides whether it is still valid:
``current(rows)`` returns the time of the next change of each row, 0 for never. So nothing has to be
removed when a message is cancelled or moved, and when too many entries are outdated the wheel is
swept.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from dwell.message import I64, U32, Rows
from dwell.store.embedded.chains import Chains
from dwell.store.embedded.distinct import are_distinct, distinct
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.scratch import Scratch

SLOT_MS = 60_000
#: The far slots.
_FAR_MS = 60 * SLOT_MS
_NEVER = 2**62 // _FAR_MS * _FAR_MS
#: Parts of a far slot that one sweep looks at, each as many rows as are loaded together.
_SWEPT_PARTS = 4


class Wheel:
    """Rows by time; a row may be added repeatedly, and only its current time counts."""

    def __init__(
        self,
        current: Callable[[Rows], I64],
        limits: Limits = LIMITS,
        scratch: Scratch | None = None,
    ) -> None:
        self._current = current
        self._deal_at = limits.deal_at
        self._most_runs = limits.wheel_runs
        self._spare_entries = limits.spare_entries
        self._undealt = array("I")
        self._undealt_first_ms = _NEVER
        self._slots: dict[int, array[int]] = {}
        self._first_slot = _NEVER
        # Slots of an hour from a time on, and hours that have come near and are being distributed.
        self._far = Chains(scratch, 2 * limits.most_rows)
        self._far_from_ms = 0
        self._opening: deque[int] = deque()
        self._first_far = _NEVER
        self._swept: list[int] = []
        # Slots, and the number of runs, that the present pass through near entries has not seen.
        self._unswept: list[int] = []
        self._unswept_runs = 0
        #: How many entries the last sweep left.
        self._left = 0
        # Near rows that are not sorted yet.
        self._coming: deque[U32] = deque()
        self._load_at_once = limits.loaded_rows
        self._runs: list[tuple[I64, U32]] = []
        self._loaded_until_ms = 0
        self._entries = 0

    @property
    def size(self) -> int:
        """How many entries there are, including outdated entries."""
        return self._entries

    def add(self, rows: Rows, at_ms: I64) -> None:
        """Add rows, each to be returned by ``pop`` once its time has come."""
        if not len(rows):
            return
        first_ms = int(at_ms.min())
        self._entries += len(rows)
        if first_ms < self._loaded_until_ms:
            near = at_ms < self._loaded_until_ms
            self._add_run(at_ms[near], rows[near].astype(np.uint32))
            rows = rows[~near]
            if not len(rows):
                return
            first_ms = self._loaded_until_ms
        self._undealt.frombytes(rows.astype(np.uint32).tobytes())
        self._undealt_first_ms = min(self._undealt_first_ms, first_ms)
        if len(self._undealt) >= self._deal_at:
            self._deal()

    def pop(self, now_ms: int, most: int) -> Rows | None:
        """Remove and return distinct rows whose time has come; None without any.

        They are the earliest, ``most`` at most; :meth:`next_ms` tells whether more are left.
        """
        self._load(now_ms)
        counts = [int(np.searchsorted(at_ms, now_ms, side="right")) for at_ms, _ in self._runs]
        if sum(counts) > most:
            counts = self._earliest(counts, most)
        due = []
        for index, count in enumerate(counts):
            if count:
                at_ms, rows = self._runs[index]
                due.append(rows[:count])
                self._runs[index] = (at_ms[count:], rows[count:])
        if not due:
            return None
        self._runs = [run for run in self._runs if len(run[1])]
        found = distinct(np.concatenate(due)).astype(np.intp)
        self._entries -= sum(map(len, due))
        at_ms = self._current(found)
        return found[(at_ms > 0) & (at_ms <= now_ms)]

    def _earliest(self, counts: list[int], most: int) -> list[int]:
        """Return how many of the first rows of each run are among the earliest rows."""
        heads = [at_ms[: min(n, most)] for (at_ms, _), n in zip(self._runs, counts, strict=True)]
        last_ms = np.partition(np.concatenate(heads), most - 1)[most - 1]
        earlier = [int(np.searchsorted(head, last_ms)) for head in heads]
        left, found = most - sum(earlier), []
        for head, before in zip(heads, earlier, strict=True):
            at_last = min(int(np.searchsorted(head, last_ms, side="right")) - before, left)
            found.append(before + at_last)
            left -= at_last
        return found

    def put_back(self, rows: Rows) -> None:
        """Put back rows that ``pop`` has returned, to be returned again."""
        self.add(rows, self._current(rows))

    def next_ms(self) -> int | None:
        """Return a lower bound for the next time when ``pop`` returns something."""
        if self._coming or self._opening:
            return 0
        first_ms = min(self._first_slot * SLOT_MS, self._undealt_first_ms // SLOT_MS * SLOT_MS)
        # An hour is opened an hour ahead.
        first_ms = min(first_ms, (self._first_far - 1) * _FAR_MS)
        for at_ms, _ in self._runs:
            first_ms = min(first_ms, int(at_ms[0]))
        return first_ms if first_ms < _NEVER else None

    def sweep(self, live: int) -> None:
        """Drop outdated entries, if they are many; ``live`` entries are valid."""
        most, grown = 2 * live + self._spare_entries, self._entries - self._left
        if self._entries > most:
            self._sweep_far()
            near, part = self._entries - self._far.count, _SWEPT_PARTS * self._load_at_once
            # Parts would never catch up with entries that are added faster.
            if near > most and (near <= part or (near > 8 * most and grown > part // 2)):
                self._sweep_all_near()
            elif near > most:
                self._sweep_near(part)
        self._left = self._entries

    def _sweep_near(self, most: int) -> None:
        """Drop outdated entries of near parts in turn, until about ``most`` have been seen."""
        self._deal()
        if not (self._unswept or self._unswept_runs):
            self._unswept, self._unswept_runs = list(self._slots), len(self._runs)
        while most > 0 and self._unswept_runs and self._runs:
            self._unswept_runs -= 1
            most -= self._sweep_run()
        while most > 0 and self._unswept:
            most -= self._sweep_slot(self._unswept.pop())
        if not self._runs:
            self._unswept_runs = 0

    def _sweep_run(self) -> int:
        """Drop outdated entries of the first run, which becomes the last; return its size."""
        at_ms, rows = self._runs.pop(0)
        kept = np.flatnonzero(self._current(rows.astype(np.intp)) == at_ms)
        if not are_distinct(rows[kept]):
            kept = kept[np.sort(np.unique(rows[kept], return_index=True)[1])]
        self._entries -= len(rows) - len(kept)
        if len(kept):
            self._runs.append((at_ms[kept], rows[kept]))
        return len(rows)

    def _sweep_slot(self, slot: int) -> int:
        """Drop outdated entries of a slot; return its size."""
        if slot not in self._slots:
            return 0
        rows: U32 = np.frombuffer(self._slots.pop(slot), dtype=np.uint32)
        kept = distinct(rows)
        kept = kept[self._current(kept.astype(np.intp)) // SLOT_MS == slot]
        self._entries -= len(rows) - len(kept)
        if len(kept):
            self._slots[slot] = array("I", kept.tobytes())
        self._first_slot = min(self._slots, default=_NEVER)
        return len(rows)

    def _sweep_all_near(self) -> None:
        """Drop all outdated near entries."""
        self._deal()
        everything, loaded_until_ms = _distinct_of(self._near_parts()), self._loaded_until_ms
        self._clear_near()
        # Near rows stay loaded: a deadline in the past would not be a deadline.
        self._loaded_until_ms, self._entries = loaded_until_ms, self._far.count
        at_ms = self._current(everything)
        # A row that is far by now has an entry there.
        near = (at_ms > 0) & (at_ms < self._far_from_ms)
        self.add(everything[near], at_ms[near])

    def _sweep_far(self) -> None:
        """Drop outdated entries of a far slot, in turn, or of a part of it."""
        if not self._swept:
            self._swept = list(self._far)
        slot = self._swept.pop() if self._swept else _NEVER
        left = self._far.size_of(slot)
        # What is put back comes to the end, so each row is looked at once.
        for _ in range(_SWEPT_PARTS):
            if left <= 0:
                return
            rows = self._far.pop(slot, self._load_at_once)
            left -= len(rows)
            found = distinct(rows)
            kept = found[self._current(found.astype(np.intp)) // _FAR_MS == slot]
            self._entries -= len(rows) - len(kept)
            if len(kept):
                self._far.push(slot, kept)

    def rows(self) -> Rows:
        """Return the distinct rows that have an entry, outdated or not."""
        return _distinct_of([*self._near_parts(), *self._far.parts()])

    def _near_parts(self) -> list[U32]:
        rows = [run[1] for run in self._runs]
        rows += self._coming
        parts = (self._undealt, *self._slots.values())
        rows += [np.frombuffer(part, dtype=np.uint32) for part in parts if part]
        return rows

    def clear(self) -> None:
        """Drop every entry."""
        self._clear_near()
        self._far.clear()
        self._opening.clear()
        self._first_far, self._far_from_ms, self._entries = _NEVER, 0, 0

    def _clear_near(self) -> None:
        """Drop the entries that are in no far slot."""
        self._undealt, self._undealt_first_ms = array("I"), _NEVER
        self._loaded_until_ms = 0
        self._slots, self._first_slot, self._runs = {}, _NEVER, []
        self._coming.clear()

    def _add_run(self, at_ms: I64, rows: U32) -> None:
        if not len(rows):
            return
        order = np.argsort(at_ms, kind="stable")
        self._runs.append((at_ms[order], rows[order]))
        if len(self._runs) > self._most_runs:
            self._merge_small()

    def _merge_small(self) -> None:
        # The largest runs are left alone, so that a row is copied only a few times.
        self._runs.sort(key=lambda run: -len(run[1]))
        kept = self._most_runs // 4
        keep, small = self._runs[:kept], self._runs[kept:]
        self._runs = keep
        self._add_run(
            np.concatenate([run[0] for run in small]), np.concatenate([run[1] for run in small])
        )

    def _deal(self) -> None:
        """Move the unsorted rows into the slots of their times."""
        rows: U32 = np.frombuffer(self._undealt, dtype=np.uint32)
        self._undealt, self._undealt_first_ms = array("I"), _NEVER
        at_ms = self._current(rows.astype(np.intp))
        # A row that is nearer by now was added again when it was moved.
        live = at_ms >= max(self._loaded_until_ms, 1)
        self._entries -= len(rows) - int(np.count_nonzero(live))
        at_ms, rows = at_ms[live], rows[live]
        is_far = at_ms >= self._far_from_ms
        for slot, some in _by_slot(at_ms[is_far] // _FAR_MS, rows[is_far]):
            self._far.push(slot, some)
            self._first_far = min(self._first_far, slot)
        self._deal_near(at_ms[~is_far], rows[~is_far])

    def _deal_near(self, at_ms: I64, rows: U32) -> None:
        for slot, some in _by_slot(at_ms // SLOT_MS, rows):
            into = self._slots.get(slot)
            if into is None:
                into = self._slots[slot] = array("I")
            into.frombytes(some.tobytes())
        self._first_slot = min(self._slots, default=_NEVER)

    def _load(self, now_ms: int) -> None:
        """Load every slot whose minute has started, and sort a part of it into a run."""
        until_ms = (now_ms // SLOT_MS + 1) * SLOT_MS
        if until_ms > self._loaded_until_ms:
            if self._undealt_first_ms < until_ms:
                self._deal()
            begun = sorted(slot for slot in self._slots if slot * SLOT_MS < until_ms)
            self._loaded_until_ms = until_ms
            self._coming += [np.frombuffer(self._slots.pop(s), dtype=np.uint32) for s in begun]
            self._first_slot = min(self._slots, default=_NEVER)
            self._open(until_ms)
        missing, parts = self._load_at_once, list[U32]()
        while self._coming and missing:
            part = self._coming.popleft()
            if len(part) > missing:
                self._coming.appendleft(part[missing:])
            parts.append(part[:missing])
            missing -= len(parts[-1])
        while self._opening and missing > 0:
            if not self._far.size_of(self._opening[0]):
                self._opening.popleft()
                continue
            parts.append(self._far.pop(self._opening[0], missing))
            missing -= len(parts[-1])
        while self._opening and not self._far.size_of(self._opening[0]):
            self._opening.popleft()
        if parts:
            self._place(np.concatenate(parts))

    def _open(self, until_ms: int) -> None:
        """Begin to distribute the hours that come near."""
        far_from_ms = (until_ms // _FAR_MS + 2) * _FAR_MS
        if far_from_ms <= self._far_from_ms:
            return
        self._far_from_ms = far_from_ms
        if self._first_far * _FAR_MS < far_from_ms:
            near = {slot for slot in self._far if slot * _FAR_MS < far_from_ms}
            self._opening += sorted(near - {*self._opening})
            self._first_far = min((slot for slot in self._far if slot not in near), default=_NEVER)

    def _place(self, entries: U32) -> None:
        """Sort near rows into a run, and later rows into their slots."""
        rows = distinct(entries)
        at_ms = self._current(rows.astype(np.intp))
        near = (at_ms > 0) & (at_ms < self._loaded_until_ms)
        later = (at_ms >= self._loaded_until_ms) & (at_ms < self._far_from_ms)
        kept = int(np.count_nonzero(near)) + int(np.count_nonzero(later))
        self._entries -= len(entries) - kept
        self._add_run(at_ms[near], rows[near])
        self._deal_near(at_ms[later], rows[later])


def _distinct_of(parts: list[U32]) -> Rows:
    return distinct(np.concatenate(parts)).astype(np.intp) if parts else np.zeros(0, np.intp)


def _by_slot(slots: I64, rows: U32) -> Iterator[tuple[int, U32]]:
    """Yield each slot with its rows."""
    if not len(rows):
        return
    order = np.argsort(_short(slots), kind="stable")
    slots, rows = slots[order], rows[order]
    starts = np.flatnonzero(np.diff(slots, prepend=-1))
    ends = np.append(starts[1:], len(rows))
    for slot, start, end in zip(
        slots[starts].tolist(), starts.tolist(), ends.tolist(), strict=True
    ):
        yield slot, rows[start:end]


def _short(slots: I64) -> np.ndarray:
    """Return near slots as 16-bit numbers, which sort in linear time; others unchanged."""
    first, last = int(slots.min()), int(slots.max())
    return (slots - first).astype(np.uint16) if last - first < 65_536 else slots
