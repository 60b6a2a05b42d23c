"""Hashes of the caller's ids: 85 bits in memory stand for an id that lies on disk.

They are keyed with random numbers of the store, so that nobody without these can make ids that
collide: for any two ids chosen beforehand the chance is 2**-85, and two of 100 million ids are the
same once in seven thousand million such stores (birthday bound, n**2 / 2**86).

Each of three parts is a sum of an id's 32-bit words, each times a random 64-bit number; the upper
half of the sum is used: the scheme MULTILINEAR of Lemire and Kaser, "Strongly universal string
hashing is fast" (The Computer Journal, 2014), after Dietzfelbinger (1996).
"""

from collections.abc import Sequence
from hashlib import blake2b, shake_256
from typing import Protocol

import numpy as np

from dwell.batch.blobs import joined, sizes_of
from dwell.message import U32, U64

_HALF = np.uint64(32)
_UPPER = np.uint64(0xFFFFFFFF00000000)
_PARTS = 3
#: An id's words, and its size before them.
_MOST_WORDS = 256 // 4 + 1
_MOST_TOPICS = 4096
_MULTIPLY_A = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_B = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT_A = np.uint64(29)
_SHIFT_B = np.uint64(32)


class Hasher(Protocol):
    """Hashes ids of one topic at a time, many at once."""

    def topic(self, name: str) -> int:
        """Return the number that represents a topic in :meth:`hash`."""

    def hash(self, topic: int, ids: Sequence[bytes]) -> tuple[U64, U32]:
        """Return 64 bits to look up in the index, and 32 more that confirm the match."""


class IdHasher:
    """The hasher of a store with this seed, which must stay secret."""

    def __init__(self, seed: int) -> None:
        self._seed = seed.to_bytes(16, "little")
        data = shake_256(b"dwell ids" + self._seed).digest(8 * _PARTS * _MOST_WORDS)
        keys: U64 = np.frombuffer(data, dtype=np.uint64).reshape(_MOST_WORDS, _PARTS)
        self._size_keys, self._keys = keys[0], np.ascontiguousarray(keys[1:])
        self._starts: dict[int, U64] = {}

    def topic(self, name: str) -> int:
        """Return the number that represents a topic in :meth:`hash`."""
        digest = blake2b(name.encode(), digest_size=8, key=self._seed).digest()
        return int.from_bytes(digest, "little")

    def hash(self, topic: int, ids: Sequence[bytes]) -> tuple[U64, U32]:
        """Return 64 bits to look up in the index, and 32 more that confirm the match."""
        sizes = sizes_of(ids)
        words = _words(ids, int(sizes.max())).view(np.uint32).astype(np.uint64)
        sums = words @ self._keys[: words.shape[1]]
        sums += sizes.astype(np.uint64)[:, None] * self._size_keys
        sums += self._start_of(topic)
        # Similar ids have similar sums; mixing spreads them over the index.
        hashes = mixed(sums[:, 0] >> _HALF | sums[:, 1] & _UPPER)
        return hashes, (sums[:, 2] >> _HALF).astype(np.uint32)

    def _start_of(self, topic: int) -> U64:
        start = self._starts.get(topic)
        if start is None:
            if len(self._starts) >= _MOST_TOPICS:
                self._starts.clear()
            data = blake2b(topic.to_bytes(8, "little"), digest_size=8 * _PARTS, key=self._seed)
            start = self._starts[topic] = np.frombuffer(data.digest(), dtype=np.uint64)
        return start


class FirstIdHasher:
    """The hasher of stores made with format 1: it does not prevent deliberate collisions.

    Such a store has no texts of the ids it remembers, so it cannot change its hash.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def topic(self, name: str) -> int:
        """Return the number that represents a topic in :meth:`hash`."""
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")

    def hash(self, topic: int, ids: Sequence[bytes]) -> tuple[U64, U32]:
        """Return 64 bits to look up in the index, and 32 more that confirm the match."""
        sizes = sizes_of(ids).astype(np.uint64)
        start = np.uint64(self._seed ^ topic)
        first = sizes * _MULTIPLY_A ^ start
        second = (sizes + start) * _MULTIPLY_B
        for number, word in enumerate(_words(ids, int(sizes.max())).T):
            # Only an id's own words count, however long the others of its batch are.
            its = sizes > number * 8
            first[its] = (first[its] ^ word[its]) * _MULTIPLY_A
            first[its] ^= first[its] >> _SHIFT_A
            second[its] = (second[its] + word[its]) * _MULTIPLY_B
            second[its] ^= second[its] >> _SHIFT_B
        return mixed(first), (mixed(second ^ start) >> _SHIFT_B).astype(np.uint32)


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


def mixed(hashes: U64) -> U64:
    """Return mixed numbers: each input bit affects every output bit.

    This is the finalizer of splitmix64 (Steele, Lea and Flood, 2014).
    """
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


HASHERS: dict[int, type[IdHasher] | type[FirstIdHasher]] = {1: FirstIdHasher, 2: IdHasher}
