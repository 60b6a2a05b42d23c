"""Ids: the hashes of the caller's own, and the form of those that the queue makes.

A caller's id stays on disk with its message; memory keeps 96 bits of hash. The hash is keyed with a
random seed of the store, so that nobody can make ids that collide, and with 96 bits two of 100
million ids are the same once in ten million such stores (birthday bound, n^2 / 2^97).

A queue-made id is where the message is: ``~row-arrival`` in hexadecimal. It needs no index.
"""

from collections.abc import Sequence

import numpy as np

from dwell.message import QUEUE_ID_MARK, U32, U64

_MULTIPLY_A = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_B = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT_A = np.uint64(29)
_SHIFT_B = np.uint64(32)


class IdHasher:
    """Hashes ids of one topic at a time, many at once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def hash(self, topic_seed: int, ids: Sequence[bytes]) -> tuple[U64, U32]:
        """Return the 64 bits that the index looks for, and 32 more that confirm the find."""
        sizes = np.fromiter(map(len, ids), dtype=np.uint64, count=len(ids))
        start = np.uint64(self._seed ^ topic_seed)
        first = sizes * _MULTIPLY_A ^ start
        second = (sizes + start) * _MULTIPLY_B
        shortest = int(sizes.min())
        for number, word in enumerate(_words(ids, int(sizes.max())).T):
            # Only an id's own words count, however long the others of its batch are.
            its = slice(None) if number * 8 < shortest else sizes > number * 8
            first[its] = (first[its] ^ word[its]) * _MULTIPLY_A
            first[its] ^= first[its] >> _SHIFT_A
            second[its] = (second[its] + word[its]) * _MULTIPLY_B
            second[its] ^= second[its] >> _SHIFT_B
        return _finished(first), (_finished(second ^ start) >> _SHIFT_B).astype(np.uint32)


def _words(ids: Sequence[bytes], longest: int) -> U64:
    """Return the ids as rows of 64-bit words, filled up with zeros."""
    width = (longest + 7) // 8 * 8
    return np.array(ids, dtype=f"S{width}").view(np.uint64).reshape(len(ids), -1)


def _finished(hashes: U64) -> U64:
    # The finalizer of splitmix64 (Steele, Lea and Flood, 2014) lets every bit reach every other.
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def queue_id(row: int, seq: int) -> str:
    """Return the id of a message that came without one."""
    return f"{QUEUE_ID_MARK}{row:x}-{seq:x}"


def parse_queue_ids(ids: Sequence[bytes]) -> tuple[U32, U64]:
    """Return the rows and arrivals that queue-made ids name; (0, 0) where an id is not one."""
    rows = np.zeros(len(ids), dtype=np.uint32)
    seqs = np.zeros(len(ids), dtype=np.uint64)
    for index, text in enumerate(ids):
        try:
            row, seq = text[1:].split(b"-")
            rows[index], seqs[index] = int(row, 16), int(seq, 16)
        except (ValueError, OverflowError):
            rows[index] = seqs[index] = 0
    return rows, seqs


class LazyIds(Sequence[str]):
    """The ids of some messages as texts, made only when they are looked at.

    ``own`` holds the caller's ids as bytes, empty where the queue made the id. A slice shares the
    columns of the whole, and knows only its ``places`` in them.
    """

    __slots__ = ("_own", "_places", "_rows", "_seqs")

    def __init__(
        self, rows: U32, seqs: U64, own: Sequence[bytes] | None, places: range | None = None
    ) -> None:
        self._rows, self._seqs, self._own = rows, seqs, own
        self._places = range(len(rows)) if places is None else places

    @classmethod
    def of(cls, own: Sequence[bytes]) -> "LazyIds":
        """Return ids that are all the caller's."""
        none: U64 = np.zeros(len(own), dtype=np.uint64)
        return cls(none.astype(np.uint32), none, own)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return LazyIds(self._rows, self._seqs, self._own, self._places[index])
        place = self._places[index]
        if self._own is not None and self._own[place]:
            return self._own[place].decode()
        return queue_id(int(self._rows[place]), int(self._seqs[place]))
