"""The index: open addressing with linear probing, a batch at a time, in NumPy.

Each loop handles the whole batch: most keys are done after the first probe, and the rest, ever
fewer, move one slot on, and later sixteen. A deleted slot keeps a mark, so that probing continues
past it, but only while a key stands behind it: a mark before an empty slot becomes empty too. So
marks do not accumulate, and a table is rebuilt only when it grows. It grows while in use: every
added batch moves some of the old table, and until all is moved a key missing from the new table is
looked up in the old one.

A small table is at most a quarter full and a large one half: the cost of a probe depends more on
the load than on the size. One in an area is at most three quarters full.
"""

from typing import Protocol, TypeAlias

import numpy as np

from dwell.errors import DiskFull
from dwell.message import I64, U32, U64, Rows
from dwell.store.embedded.area import Area
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.scratch import Scratch

#: The first number of a key: the index itself uses the smaller numbers.
FIRST_KEY = 2
_EMPTY = 0
_DELETED = 1
_SLOT_BYTES = 4
#: A slot holds a number, and above it bits of the hash that the place does not depend on: most
#: other keys on a probe path are passed without a look at where the keys are stored.
_NUMBER_BITS, _TAG_SHIFT = np.uint32(28), np.uint64(60)
_NUMBER = np.uint32((1 << 28) - 1)
_NARROW_ROUNDS, _WIDTH = 4, 16
#: For each key its tag, hash and check.
_Wanted: TypeAlias = tuple[U32, U64, U32]
#: How many keys there can be.
MOST_KEYS = 1 << 28
#: Slots that are moved for each added key, so that the move ends before the next growth.
_MOVED_A_KEY = 8
_NO_SLOTS: U32 = np.zeros(0, dtype=np.uint32)


class Keys(Protocol):
    """The keys by number: the bits for the lookup, and more that confirm a match."""

    hash: U64
    check: U32

    @property
    def used(self) -> int:
        """At least how many keys there are."""


class Index:
    """From a key to its number; the keys are stored elsewhere, and a slot holds only a number.

    A large table lies in an area.
    """

    def __init__(self, keys: Keys, limits: Limits = LIMITS, scratch: Scratch | None = None) -> None:
        self._keys = keys
        self._scratch = scratch
        self._area: Area | None = None
        self._old_area: Area | None = None
        self._few = limits.few_ids
        self._step, self._least = limits.index_step, limits.index_slots
        self._slots: U32 = np.zeros(self._least, dtype=np.uint32)
        self._used = 0
        #: The previous table, while it is moved: slots before this one are done.
        self._old: U32 = _NO_SLOTS
        self._moved = 0

    def find(self, hashes: U64, checks: U32) -> Rows:
        """Return the number of each key, 0 for a missing one."""
        answer = self._find_in(self._slots, hashes, checks)
        if len(self._old):
            rest = np.flatnonzero(answer == 0)
            answer[rest] = self._find_in(self._old, hashes[rest], checks[rest])
        return answer

    def _find_in(self, table: U32, hashes: U64, checks: U32) -> Rows:
        place, mask = _first_places(table, hashes)
        answer, asking = np.zeros(len(hashes), dtype=np.intp), np.arange(len(hashes))
        tags, rounds = _tags_of(hashes), 0
        while len(asking):
            width = _width_of(rounds)
            found, free = self._look(table, place, width, (tags, hashes, checks), asking)
            answer[asking] = found
            going = np.flatnonzero((found == 0) & (free == width))
            asking, place, rounds = asking[going], (place[going] + width) & mask, rounds + 1
        return answer

    def add(self, numbers: Rows) -> Rows:
        """Add distinct keys that are missing; return the number of each key in the index."""
        self.reserve(len(numbers))
        if len(self._old):
            self._move(max(self._step, _MOVED_A_KEY * len(numbers)))
        if not len(self._old):
            return self._add_new(numbers)
        answer = self._find_in(self._old, self._keys.hash[numbers], self._keys.check[numbers])
        new = np.flatnonzero(answer == 0)
        answer[new] = self._add_new(numbers[new])
        return answer

    def _add_new(self, numbers: Rows) -> Rows:
        """Add distinct keys that are not in the old table."""
        hashes, checks = self._keys.hash[numbers], self._keys.check[numbers]
        place, mask = _first_places(self._slots, hashes)
        answer, asking, tags = numbers.copy(), np.arange(len(numbers)), _tags_of(hashes)
        marked, rounds = numbers.astype(np.uint32) | tags, 0
        while len(asking):
            width = _width_of(rounds)
            found, free = self._look(self._slots, place, width, (tags, hashes, checks), asking)
            hit = found > 0
            answer[asking[hit]] = found[hit]
            place = (place + free) & mask
            fits = np.flatnonzero(~hit & (free < width))
            self._slots[place[fits]] = marked[asking[fits]]
            # Where several keys chose one free slot, the last one has it.
            hit[fits] = self._slots[place[fits]] == marked[asking[fits]]
            asking, place, rounds = asking[~hit], place[~hit], rounds + 1
        self._used += int(np.count_nonzero(answer == numbers))
        return answer

    def _look(
        self, table: U32, place: I64, width: int, keys: _Wanted, asking: I64
    ) -> tuple[Rows, I64]:
        """Look for keys in so many slots from a place on.

        Returns the number of each, 0 where it is not found, and how many slots come before the
        first free one, ``width`` without any.
        """
        tags, hashes, checks = keys
        if width == 1:
            slots = table[place]
            free = (slots != _EMPTY).astype(np.int64)
            may_be = ((slots ^ tags[asking]) <= _NUMBER) & (slots > _DELETED)
            which = np.flatnonzero(may_be)
            numbers = (slots[which] & _NUMBER).astype(np.intp)
        else:
            span = np.arange(width)
            slots = table[(place[:, None] + span) & (len(table) - 1)]
            is_free = slots == _EMPTY
            free = np.where(is_free.any(axis=1), is_free.argmax(axis=1), width)
            may_be = ((slots ^ tags[asking][:, None]) <= _NUMBER) & (slots > _DELETED)
            which, at = np.nonzero(may_be & (span < free[:, None]))
            numbers = (slots[which, at] & _NUMBER).astype(np.intp)
        found = np.zeros(len(asking), dtype=np.intp)
        if len(which):
            wanted = asking[which]
            same = self._keys.hash[numbers] == hashes[wanted]
            same &= self._keys.check[numbers] == checks[wanted]
            found[which[same]] = numbers[same]
        return found, free

    def remove(self, numbers: Rows) -> None:
        """Remove the keys that are present; skip the others."""
        if len(self._old):
            self._old[self._places_of(self._old, numbers)] = _DELETED
        place, mask = self._places_of(self._slots, numbers), len(self._slots) - 1
        self._slots[place] = _DELETED
        while len(place):
            place = place[self._slots[(place + 1) & mask] == _EMPTY]
            self._slots[place] = _EMPTY
            self._used -= len(place)
            place = (place - 1) & mask
            place = place[self._slots[place] == _DELETED]

    def numbers(self) -> Rows:
        """Return the numbers of all keys, in no order."""
        return np.concatenate([_keys_in(self._slots), _keys_in(self._old[self._moved :])])

    def rebuild(self, numbers: Rows, more: int = 0) -> None:
        """Hold exactly these keys, with room for ``more``."""
        self._slots, self._area = self._new_table(self._capacity_for(len(numbers) + more))
        self._used, self._old = 0, _NO_SLOTS
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
            self._move(len(self._old))
            # Marks stay behind, so they need no room.
            living = min(self._used, self._keys.used)
            slots, area = self._new_table(self._capacity_for(living + more))
            self._old, self._old_area, self._moved = self._slots, self._area, 0
            self._slots, self._area, self._used = slots, area, 0

    def _new_table(self, slots: int) -> tuple[U32, Area | None]:
        scratch, size_bytes = self._scratch, slots * _SLOT_BYTES
        if scratch is None or slots <= scratch.least_rows:
            return np.zeros(slots, dtype=np.uint32), None
        area = scratch.area(size_bytes, is_hot=True)
        if area is None:
            return np.zeros(slots, dtype=np.uint32), None
        try:
            scratch.extend(area, 0, size_bytes)
        except BaseException as error:
            scratch.retire(area)
            if not isinstance(error, DiskFull):
                raise
            scratch.refuse(error)
            return np.zeros(slots, dtype=np.uint32), None
        return area.array(np.uint32, 0, slots), area

    def _move(self, most: int) -> None:
        """Move the keys of up to ``most`` slots of the old table."""
        until = min(self._moved + most, len(self._old))
        self._add_new(_keys_in(self._old[self._moved : until]))
        self._moved = until
        if until == len(self._old):
            self._old, self._moved = _NO_SLOTS, 0
            if self._scratch is not None and self._old_area is not None:
                self._scratch.retire(self._old_area)
            self._old_area = None

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


def _width_of(rounds: int) -> int:
    """Return how many slots are looked at together, after some rounds.

    Most keys are done after few slots; the others take long, and are few.
    """
    return 1 if rounds < _NARROW_ROUNDS else _WIDTH


def _first_places(table: U32, hashes: U64) -> tuple[I64, int]:
    """Return where the probe path of each hash begins, and the mask that wraps it around."""
    mask = len(table) - 1
    return (hashes & np.uint64(mask)).astype(np.int64), mask
