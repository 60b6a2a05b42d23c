"""The index: open addressing with linear probing, a batch at a time, in NumPy.

Each loop handles the whole batch: most keys are done after the first probe, and the rest, ever
fewer, move one slot on, and later sixteen. A deleted slot keeps a mark, so that probing continues
past it, but only while a key stands behind it: a mark before an empty slot becomes empty too. So
marks do not accumulate, and a table is rebuilt only when it grows. It grows while in use: every
added batch moves some keys of the old table, and until all is moved a key missing from the new
table is looked up in the old one.

A small table is at most a quarter full and a large one half: the cost of a probe depends more on
the load than on the size. One in an area is at most three quarters full.
"""

import mmap
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from dwell.errors import DiskFull
from dwell.message import I64, U8, U32, U64, Rows
from dwell.store.embedded.area import Area
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.scratch import Scratch

#: The first number of a key: the index itself uses the smaller numbers.
FIRST_KEY = 2
_EMPTY = 0
_DELETED = 1
_SLOT_BYTES = 4
#: How full a table is when the next is made; and how many bytes of that are written for each key.
_NEARLY, _WRITTEN_A_KEY = 0.65, 256
#: A slot holds a number, and above it bits of the hash that the place does not depend on: most
#: other keys on a probe path are passed without a look at where the keys are stored.
_NUMBER_BITS, _TAG_SHIFT, _MARK_SHIFT = np.uint32(28), np.uint64(60), np.uint64(52)
_NUMBER = np.uint32((1 << 28) - 1)
_NARROW_ROUNDS, _WIDTH = 4, 16
#: For each key its tag, hash and check.
_Wanted: TypeAlias = tuple[U32, U64, U32]
#: How many keys there can be.
MOST_KEYS = 1 << 28
_NO_SLOTS: U32 = np.zeros(0, dtype=np.uint32)


class Keys(Protocol):
    """The keys by number: the bits for the lookup, and more that confirm a match."""

    hash: U64
    check: U32

    @property
    def top(self) -> int:
        """A number above those of all keys."""

    @property
    def used(self) -> int:
        """At least how many keys there are."""

    def in_use(self, part: slice) -> np.ndarray:
        """Tell which numbers are those of keys that were added and not removed."""


@dataclass(slots=True)
class _Slots:
    """A table: the numbers and tags, and in an area for each slot eight bits more of the hash.

    There a look at a key that is not the wanted one is likely to cost a page fault.
    """

    table: U32
    marks: U8 | None = None
    area: Area | None = None

    def __len__(self) -> int:
        return len(self.table)


class Index:
    """From a key to its number; the keys are stored elsewhere, and a slot holds only a number.

    A large table lies in an area.
    """

    def __init__(self, keys: Keys, limits: Limits = LIMITS, scratch: Scratch | None = None) -> None:
        self._keys = keys
        self._scratch = scratch
        self._few = limits.few_ids
        self._step, self._least = limits.index_step, limits.index_slots
        self._slots = _Slots(np.zeros(self._least, dtype=np.uint32))
        self._used = 0
        #: The previous table, while its keys are moved, in order of their numbers: which is next,
        #: before which one the last is, and how many follow for each added key.
        self._old = _Slots(_NO_SLOTS)
        self._moved = self._moved_end = self._pace = 0
        #: The next table, while it is brought into the cache, up to a byte, before it is needed.
        self._next: _Slots | None = None
        self._written = 0
        if scratch is not None:
            scratch.at_close(self._let_go)

    def _let_go(self) -> None:
        if self._slots.area is not None:
            self._slots = _Slots(np.zeros(self._least, dtype=np.uint32))
        self._old, self._next = _Slots(_NO_SLOTS), None

    def find(self, hashes: U64, checks: U32) -> Rows:
        """Return the number of each key, 0 for a missing one."""
        answer = self._find_in(self._slots, hashes, checks)
        if len(self._old):
            rest = np.flatnonzero(answer == 0)
            answer[rest] = self._find_in(self._old, hashes[rest], checks[rest])
        return answer

    def _find_in(self, slots: _Slots, hashes: U64, checks: U32) -> Rows:
        place, mask = _first_places(slots.table, hashes)
        answer, asking = np.zeros(len(hashes), dtype=np.intp), np.arange(len(hashes))
        tags, rounds = _tags_of(hashes), 0
        while len(asking):
            width = _width_of(rounds)
            found, free = self._look(slots, place, width, (tags, hashes, checks), asking)
            answer[asking] = found
            going = np.flatnonzero((found == 0) & (free == width))
            asking, place, rounds = asking[going], (place[going] + width) & mask, rounds + 1
        return answer

    def add(self, numbers: Rows) -> Rows:
        """Add distinct keys that are missing; return the number of each key in the index."""
        self.reserve(len(numbers))
        if len(self._old):
            least = self._step if self._slots.area is None else 0
            self._move(max(least, self._pace * len(numbers)))
        if not len(self._old):
            self._prepare_next(len(numbers))
            return self._add_new(numbers)
        answer = self._find_in(self._old, self._keys.hash[numbers], self._keys.check[numbers])
        new = np.flatnonzero(answer == 0)
        answer[new] = self._add_new(numbers[new])
        return answer

    def _add_new(self, numbers: Rows) -> Rows:
        """Add distinct keys that are not in the old table."""
        hashes, checks = self._keys.hash[numbers], self._keys.check[numbers]
        slots, table = self._slots, self._slots.table
        place, mask = _first_places(table, hashes)
        answer, asking, tags = numbers.copy(), np.arange(len(numbers)), _tags_of(hashes)
        marked, rounds = numbers.astype(np.uint32) | tags, 0
        while len(asking):
            width = _width_of(rounds)
            found, free = self._look(slots, place, width, (tags, hashes, checks), asking)
            hit = found > 0
            answer[asking[hit]] = found[hit]
            place = (place + free) & mask
            fits = np.flatnonzero(~hit & (free < width))
            table[place[fits]] = marked[asking[fits]]
            # Where several keys chose one free slot, the last one has it.
            hit[fits] = table[place[fits]] == marked[asking[fits]]
            fits = fits[hit[fits]]
            if slots.marks is not None:
                slots.marks[place[fits]] = _marks_of(hashes[asking[fits]])
            self._used += len(fits)
            asking, place, rounds = asking[~hit], place[~hit], rounds + 1
        return answer

    def _look(
        self, slots: _Slots, place: I64, width: int, keys: _Wanted, asking: I64
    ) -> tuple[Rows, I64]:
        """Look for keys in so many slots from a place on.

        Returns the number of each, 0 where it is not found, and how many slots come before the
        first free one, ``width`` without any.
        """
        tags, hashes, checks = keys
        if width == 1:
            there = slots.table[place]
            free = (there != _EMPTY).astype(np.int64)
            may_be = ((there ^ tags[asking]) <= _NUMBER) & (there > _DELETED)
            which = np.flatnonzero(may_be)
            there, place = there[which], place[which]
        else:
            span = np.arange(width)
            place = (place[:, None] + span) & (len(slots) - 1)
            there = slots.table[place]
            is_free = there == _EMPTY
            free = np.where(is_free.any(axis=1), is_free.argmax(axis=1), width)
            may_be = ((there ^ tags[asking][:, None]) <= _NUMBER) & (there > _DELETED)
            which, at = np.nonzero(may_be & (span < free[:, None]))
            there, place = there[which, at], place[which, at]
        found = np.zeros(len(asking), dtype=np.intp)
        if len(which):
            wanted = asking[which]
            if slots.marks is not None:
                likely = np.flatnonzero(slots.marks[place] == _marks_of(hashes[wanted]))
                which, wanted, there = which[likely], wanted[likely], there[likely]
            numbers = (there & _NUMBER).astype(np.intp)
            same = self._keys.hash[numbers] == hashes[wanted]
            same &= self._keys.check[numbers] == checks[wanted]
            found[which[same]] = numbers[same]
        return found, free

    def remove(self, numbers: Rows) -> None:
        """Remove the keys that are present; skip the others."""
        if len(self._old):
            old = self._old.table
            old[self._places_of(old, numbers)] = _DELETED
        table = self._slots.table
        place, mask = self._places_of(table, numbers), len(table) - 1
        table[place] = _DELETED
        while len(place):
            place = place[table[(place + 1) & mask] == _EMPTY]
            table[place] = _EMPTY
            self._used -= len(place)
            place = (place - 1) & mask
            place = place[table[place] == _DELETED]

    def numbers(self) -> Rows:
        """Return the numbers of all keys, in no order."""
        return distinct(np.concatenate([_keys_in(self._slots.table), _keys_in(self._old.table)]))

    def rebuild(self, numbers: Rows, more: int = 0) -> None:
        """Hold exactly these keys, with room for ``more``."""
        self._slots = self._new_slots(self._capacity_for(len(numbers) + more))
        self._used, self._old = 0, _Slots(_NO_SLOTS)
        step = 1 << 16
        for start in range(0, len(numbers), step):
            self._add_new(numbers[start : start + step])

    def _places_of(self, table: U32, numbers: Rows) -> I64:
        """Return the slots of keys that are present; each is on the probe path of its hash."""
        hashes = self._keys.hash[numbers]
        place, mask = _first_places(table, hashes)
        marked = numbers.astype(np.uint32) | _tags_of(hashes)
        going = np.flatnonzero(table[place] != marked)
        while len(going):
            going = going[table[place[going]] != _EMPTY]
            place[going] = (place[going] + 1) & mask
            going = going[table[place[going]] != marked[going]]
        found: I64 = place[table[place] == marked]
        return found

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys; raises DiskFull or MemoryError, changing nothing."""
        count = self._used + more
        if count * self._spare_for(count) > len(self._slots):
            self._move(self._moved_end)
            # Marks stay behind, so they need no room.
            living = min(self._used, self._keys.used)
            slots = self._next_slots(self._capacity_for(living + more))
            self._old, self._slots, self._used = self._slots, slots, 0
            self._moved, self._moved_end = FIRST_KEY, self._keys.top
            # The move must end before the next growth.
            room = max(int(len(slots) / self._spare_for(living + more)) - living, 1)
            self._pace = 2 * (self._moved_end // room + 1)

    def _next_slots(self, count: int) -> _Slots:
        """Return the table that was made for the growth, or a new one."""
        made, self._next = self._next, None
        if made is not None and len(made) >= count:
            return made
        if made is not None and made.area is not None and self._scratch is not None:
            self._scratch.retire(made.area)
        return self._new_slots(count)

    def _prepare_next(self, more: int) -> None:
        """Make the next table of an area a part at a time, while the present one fills up.

        All of its pages are touched at once as soon as it is used.
        """
        slots = self._slots
        if slots.area is None or self._used < _NEARLY * len(slots):
            return
        if self._next is None:
            try:
                self._next, self._written = self._new_slots(2 * len(slots)), 0
            except DiskFull:
                return
        if (area := self._next.area) is not None:
            end = min(self._written + _WRITTEN_A_KEY * more, area.size_bytes)
            area.write_zeros(self._written, end - self._written)
            area.array(np.uint8, self._written, end - self._written)[:] = 0
            self._written = end

    def _new_slots(self, count: int) -> _Slots:
        scratch = self._scratch
        if scratch is None or count <= scratch.least_rows:
            return _Slots(np.zeros(count, dtype=np.uint32))
        marks_at = max(count * _SLOT_BYTES, mmap.ALLOCATIONGRANULARITY)
        area = scratch.area(marks_at + count, is_hot=True)
        if area is None:
            return _Slots(np.zeros(count, dtype=np.uint32))
        try:
            scratch.extend(area, 0, count * _SLOT_BYTES)
            scratch.extend(area, marks_at, marks_at + count)
        except BaseException as error:
            scratch.retire(area)
            if not isinstance(error, DiskFull):
                raise
            scratch.refuse(error)
            return _Slots(np.zeros(count, dtype=np.uint32))
        marks = area.array(np.uint8, marks_at, count)
        return _Slots(area.array(np.uint32, 0, count), marks, area)

    def _move(self, most: int) -> None:
        """Move up to ``most`` keys of the old table.

        They are read in order, which touches few pages; in the order of their places in the table
        nearly each would be on another page.
        """
        if not len(self._old):
            return
        part = slice(self._moved, min(self._moved + most, self._moved_end))
        # One that was added since is found where it is.
        self._add_new(np.flatnonzero(self._keys.in_use(part)) + part.start)
        self._moved = part.stop
        if self._moved == self._moved_end:
            area, self._old = self._old.area, _Slots(_NO_SLOTS)
            if self._scratch is not None and area is not None:
                self._scratch.retire(area)

    def _capacity_for(self, count: int) -> int:
        least = count * self._spare_for(count)
        # A table that has just grown has room for as many keys again, or half as many.
        return max(
            self._least, 1 << int(least * (1 if self._is_tight(count) else 1.5)).bit_length()
        )

    def _spare_for(self, count: int) -> float:
        """Return how many slots there are for each key at least."""
        if self._is_tight(count):
            return 4 / 3
        return 4 if count < self._few else 2

    def _is_tight(self, count: int) -> bool:
        """Tell whether a table is in an area: there its size costs more than longer probes."""
        return (
            self._scratch is not None and self._scratch.is_used and count > self._scratch.least_rows
        )


def _keys_in(table: U32) -> Rows:
    """Return the numbers of the keys in some slots."""
    return (table[table > _DELETED] & _NUMBER).astype(np.intp)


def _tags_of(hashes: U64) -> U32:
    """Return the bits of some keys that stand in their slots beside the number."""
    return (hashes >> _TAG_SHIFT).astype(np.uint32) << _NUMBER_BITS


def _marks_of(hashes: U64) -> U8:
    """Return the bits that stand beside the slots of some keys."""
    return (hashes >> _MARK_SHIFT).astype(np.uint8)


def _width_of(rounds: int) -> int:
    """Return how many slots are looked at together, after some rounds.

    Most keys are done after few slots; the others take long, and are few.
    """
    return 1 if rounds < _NARROW_ROUNDS else _WIDTH


def _first_places(table: U32, hashes: U64) -> tuple[I64, int]:
    """Return where the probe path of each hash begins, and the mask that wraps it around."""
    mask = len(table) - 1
    return (hashes & np.uint64(mask)).astype(np.int64), mask
