"""Ids: the hashes of the caller's own, and the form of those that the queue makes.

A caller's id stays on disk with its message; memory keeps 85 bits of hash. The hash is keyed with a
random seed of the store, so that nobody can make ids that collide, and with 85 bits two of 100
million ids are the same once in seven thousand million such stores (birthday bound, n^2 / 2^86).

A queue-made id is where the message is: ``~row-arrival`` in hexadecimal. It needs no index.
"""

from collections.abc import Sequence

import numpy as np

from dwell.lazy import joined, queue_id, sizes_of
from dwell.message import U32, U64, Rows

_MULTIPLY_A = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_B = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT_A = np.uint64(29)
_SHIFT_B = np.uint64(32)
#: 2**28 rows are twice what a machine's memory holds; with 35 bits the number stays below 2**63.
_ROW_BITS = np.uint64(28)
_ROW_MASK = np.uint64((1 << 28) - 1)
_SEQ_MASK = np.uint64((1 << 35) - 1)


class IdHasher:
    """Hashes ids of one topic at a time, many at once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def hash(self, topic_seed: int, ids: Sequence[bytes]) -> tuple[U64, U32]:
        """Return the 64 bits that the index looks for, and 32 more that confirm the find."""
        sizes = sizes_of(ids).astype(np.uint64)
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
    words: U64 = np.zeros((len(ids), width // 8), dtype=np.uint64)
    sizes, data = sizes_of(ids), np.frombuffer(joined(ids), dtype=np.uint8)
    if (sizes == longest).all():
        words.view(np.uint8)[:, :longest] = data.reshape(-1, longest)
    else:
        words.view(np.uint8)[np.arange(width) < sizes[:, None]] = data
    return words


def _finished(hashes: U64) -> U64:
    # The finalizer of splitmix64 (Steele, Lea and Flood, 2014) lets every bit reach every other.
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def numbers_of(rows: Rows, seqs: U64) -> U64:
    """Return the numbers of messages: where each is, and enough of its arrival to know it by.

    The arrival is above the row, so that numbers grow as messages come. Two messages of one
    row have the same number only if 2**35 others came in between.
    """
    return (seqs & _SEQ_MASK) << _ROW_BITS | rows.astype(np.uint64)


def rows_of(numbers: U64) -> Rows:
    """Return the rows that numbers name; whether those are theirs, :func:`numbers_of` tells."""
    return (numbers & _ROW_MASK).astype(np.intp)


def parse_queue_ids(ids: Sequence[bytes]) -> tuple[Rows, U64]:
    """Return the rows and arrivals that queue-made ids name; (0, 0) where an id is not one.

    A message has one id: what only reads as the same numbers, with a zero ahead, is not one.
    """
    rows = np.zeros(len(ids), dtype=np.intp)
    seqs = np.zeros(len(ids), dtype=np.uint64)
    for index, text in enumerate(ids):
        try:
            row, seq = text[1:].split(b"-")
            place = int(row, 16), int(seq, 16)
            if queue_id(*place).encode() == text:
                rows[index], seqs[index] = place
        except (ValueError, OverflowError):
            rows[index] = seqs[index] = 0
    return rows, seqs
