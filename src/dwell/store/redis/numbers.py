"""Numbers of messages: the shard in the lowest 8 bits, then the slot in 6, then the block."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np

from dwell.message import QUEUE_ID_MARK, U64

MOST_SHARDS = 256
SLOTS = 64
_SHARD_BITS = 8
_SHARD_MASK = np.uint64(MOST_SHARDS - 1)
_LOW_HALF = np.uint64(0xFFFF_FFFF)
#: Numbers in Lua are doubles, which are exact up to this size.
_MOST_NUMBER = np.uint64(2**53)


class Group(NamedTuple):
    """Adjacent receipts of one block and take: the argument for a function, and their places."""

    shard: int
    text: bytes
    start: int
    stop: int


def number(n: int, shard: int) -> int:
    """Return the number of a message from its number ``n`` in a shard."""
    return n << _SHARD_BITS | shard


def split(value: int) -> tuple[int, int]:
    """Return ``n`` and the shard of a number."""
    return value >> _SHARD_BITS, value & (MOST_SHARDS - 1)


def shard_of(id_: bytes, shards: int) -> int:
    """Return the shard that an id belongs to, for callers' and queue-made ids."""
    if id_.startswith(QUEUE_ID_MARK.encode()):
        try:
            return int(id_[1:], 16) % MOST_SHARDS % shards
        except ValueError:
            return 0
    return crc32(id_) % shards


def receipts_of(numbers: U64, takes: U64, store: int) -> U64:
    """Return the receipts of messages that were taken, shape (n, 2)."""
    receipts = np.empty((len(numbers), 2), np.uint64)
    receipts[:, 0] = np.uint64(store << 32) | takes
    receipts[:, 1] = numbers
    return receipts


def groups_of(receipts: U64) -> Iterator[Group]:
    """Yield receipts in groups; skips receipts that no store can have made."""
    takes, numbers = receipts[:, 0] & _LOW_HALF, receipts[:, 1]
    shards, blocks = numbers & _SHARD_MASK, numbers >> np.uint64(14)
    slots = (numbers >> np.uint64(_SHARD_BITS)).astype(np.uint8) & np.uint8(SLOTS - 1)
    is_new = (takes[1:] != takes[:-1]) | (shards[1:] != shards[:-1]) | (blocks[1:] != blocks[:-1])
    cuts = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(numbers)] if len(numbers) else []
    for start, stop in pairwise(cuts):
        if numbers[start] < _MOST_NUMBER:
            first = (int(blocks[start]) * SLOTS).to_bytes(7, "big")
            text = first + int(takes[start]).to_bytes(4, "big") + slots[start:stop].tobytes()
            yield Group(int(shards[start]), text, start, stop)


def shares(shards_of: Sequence[int]) -> dict[int, list[int]]:
    """Return the places of each shard's items, in order."""
    found: dict[int, list[int]] = {}
    for at, shard in enumerate(shards_of):
        found.setdefault(shard, []).append(at)
    return found
