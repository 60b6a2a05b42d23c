"""Blocks: up to 64 messages of one put as one string, in the layout of ``layout.py``."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dwell.batch.blobs import joined, picked, sizes_of
from dwell.batch.puts import Puts
from dwell.message import I64, U8, State
from dwell.store.redis.layout import BLOCK, DATA, SLOT
from dwell.store.redis.numbers import SLOTS
from dwell.store.redis.shortkeys import ShortKeys

_HEAD = BLOCK.python
#: A state that no message has: the whole text is stored elsewhere.
_ELSEWHERE = 2
_OWN_IDS = 1

#: The largest size that the usual allocator of Redis does not pad to whole pages, less the head of
#: the block.
_MOST_BYTES = 14_336 - 300
_LARGE_BYTES = 2048
#: From this many messages on, a put's messages are sorted by due, and arrive in that order.
_SORTED = 64
#: The dues of a block span at most this long, or an eighth of the time until the first, if longer.
_SPAN_MS = 3_600_000
#: Messages due sooner share a block only with those due in the same millisecond, so that the block
#: stays whole.
_SOON_MS = 1_000


@dataclass(slots=True)
class Block:
    """The text of a block, and the places of its messages in the put."""

    text: bytes
    places: I64
    names_end: int

    @property
    def names(self) -> bytes:
        """Everything but extras and bodies, marked as a part of a block."""
        return bytes([_ELSEWHERE]) + self.text[1 : self.names_end]

    @property
    def is_large(self) -> bool:
        """Whether the text should bypass Lua, which hashes every string that it receives."""
        return self.names_end > 0 and len(self.text) - self.names_end > _LARGE_BYTES


def blocks_of(puts: Puts, places: I64, now_ms: int, *, may_sort: bool) -> list[Block]:
    """Return some messages of a put as blocks.

    Messages that differ only in their due may be sorted by it: all messages of a block fall due
    together.
    """
    many = _Columns(puts, places, may_sort)
    cuts = list(_cuts(many, now_ms))
    return many.blocks(np.array([start for start, _ in cuts]), np.array([stop for _, stop in cuts]))


def _cuts(many: "_Columns", now_ms: int) -> Iterator[tuple[int, int]]:
    due_ms = many.due_ms
    ends = np.cumsum(many.sizes + many.key_sizes + SLOT.size + DATA.size)
    changes = np.append(np.flatnonzero(many.is_other()) + 1, len(due_ms))
    is_sorted = many.is_sorted
    start = 0
    while start < len(due_ms):
        first = int(due_ms[start])
        stop = min(start + SLOTS, int(changes[np.searchsorted(changes, start, side="right")]))
        before = int(ends[start - 1]) if start else 0
        stop = min(stop, max(int(np.searchsorted(ends, before + _MOST_BYTES)), start + 1))
        if is_sorted:
            span = 0 if first <= now_ms + _SOON_MS else max(_SPAN_MS, (first - now_ms) // 8)
            stop = min(stop, int(np.searchsorted(due_ms, first + span, side="right")))
        yield start, stop
        start = stop


class _Columns:
    """The columns of a put in the order of its blocks."""

    def __init__(self, puts: Puts, places: I64, may_sort: bool) -> None:
        alike = ("priority", "lease_ms", "max_attempts")
        self._puts = puts
        may_sort &= len(places) >= _SORTED
        may_sort &= all(_is_uniform(getattr(puts, name)) for name in alike)
        due_ms = puts.due_ms[places]
        self.is_sorted = bool(np.all(due_ms[1:] >= due_ms[:-1]))
        if may_sort and not self.is_sorted:
            places = places[np.argsort(due_ms, kind="stable")]
            self.is_sorted = True
        self.places = places
        self.due_ms = puts.due_ms[places]
        self.expires_ms = puts.expires_ms[places]
        self._alike = {name: getattr(puts, name)[places] for name in alike}
        self.bodies = _picked(puts.bodies, places)
        self.ids = None if puts.ids is None else _picked(puts.ids, places)
        self.extras = None if puts.extras is None else _picked(puts.extras, places)
        self._id_sizes = _sizes(self.ids, len(places))
        self._extra_sizes = _sizes(self.extras, len(places))
        self.sizes = sizes_of(self.bodies) + self._id_sizes + self._extra_sizes
        self._keys = None if self.extras is None else ShortKeys(self.extras, self._extra_sizes)
        self.key_sizes: I64 | int = 0 if self._keys is None else self._keys.sizes
        self._topic = puts.topic.encode()

    def is_other(self) -> np.ndarray:
        """Tell of each message but the first whether it must start another block."""
        others = [column[1:] != column[:-1] for column in self._alike.values()]
        others.append((self.expires_ms[1:] != 0) != (self.expires_ms[:-1] != 0))
        if not self.is_sorted:
            others.append(self.due_ms[1:] < self.due_ms[:-1])
        result: np.ndarray = np.logical_or.reduce(others)
        return result

    def blocks(self, starts: I64, stops: I64) -> list[Block]:
        """Return the messages from each start to its stop as a block."""
        sizes = stops - starts
        index_at = BLOCK.size + len(self._topic)
        id_ends = index_at + SLOT.size * sizes.repeat(sizes) + _sums(self._id_sizes, starts, sizes)
        names_ends = id_ends[stops - 1]
        data_at = (names_ends + DATA.size * sizes).repeat(sizes)
        data_ends = data_at + _sums(self.sizes - self._id_sizes, starts, sizes)
        names = np.zeros((len(self.due_ms), SLOT.size), np.uint8)
        names[:, 1:7] = _in_bytes(self.due_ms, 8)[:, 2:]
        names[:, 7:9] = _in_bytes(id_ends, 2)
        data = np.empty((len(self.due_ms), DATA.size), np.uint8)
        data[:, :4] = _in_bytes(data_ends, 4)
        data[:, 4:] = _in_bytes(self._extra_sizes, 2)
        cuts = zip(starts.tolist(), stops.tolist(), names_ends.tolist(), strict=True)
        return [self._block(slice(start, stop), names, data, end) for start, stop, end in cuts]

    def _block(self, part: slice, names: U8, data: U8, names_end: int) -> Block:
        size, due_ms, first = part.stop - part.start, self.due_ms[part], part.start
        head = _HEAD.pack(
            *(State.DELAYED, size, size, 0 if self.ids is None else _OWN_IDS, 0),
            # Takes start at a random number, so that no receipt from before a loss of data fits a
            # message that reuses its number.
            *(random.getrandbits(31), bytes(6)),
            int(self._alike["priority"][first]),
            int(self._alike["lease_ms"][first]),
            int(self._alike["max_attempts"][first]),
            int(due_ms.min()).to_bytes(6, "big"),
            int(due_ms.max()).to_bytes(6, "big"),
            names_end,
            len(self._topic),
        )
        ids = b"" if self.ids is None else joined(self.ids[part])
        pieces = [head, self._topic, names[part].tobytes(), ids, data[part].tobytes()]
        expiries = self._expiries(part)
        keys = b"" if self._keys is None else self._keys.of(part)
        text = b"".join([expiries, *pieces, self._data(part), keys])
        return Block(text, self.places[part], 0 if expiries else names_end)

    def _data(self, part: slice) -> bytes:
        if self.extras is None:
            return joined(self.bodies[part])
        pairs = zip(self.extras[part], self.bodies[part], strict=True)
        return b"".join([piece for pair in pairs for piece in pair])

    def _expiries(self, part: slice) -> bytes:
        """Return the prefix of a block whose messages expire."""
        expires_ms = self.expires_ms[part]
        if not expires_ms.any():
            return b""
        return bytes([0, len(expires_ms)]) + _in_bytes(expires_ms, 8)[:, 2:].tobytes()


def _sums(sizes: I64, starts: I64, counts: I64) -> I64:
    """Return the running sums of sizes, restarting at each block."""
    sums = np.cumsum(sizes)
    before = sums[starts] - sizes[starts]
    result: I64 = sums - before.repeat(counts)
    return result


def _is_uniform(column: np.ndarray) -> bool:
    return bool(np.all(column == column[0]))


def _picked(values: Sequence[bytes], places: I64) -> Sequence[bytes]:
    """Return values in a new order; the values themselves if all are taken in order."""
    size = len(places)
    if size == len(values) and size and places[0] == 0 and np.all(places[1:] == places[:-1] + 1):
        return values
    return picked(values, places)


def _sizes(values: Sequence[bytes] | None, count: int) -> I64:
    return np.zeros(count, np.int64) if values is None else sizes_of(values)


def _in_bytes(column: np.ndarray, width: int) -> U8:
    return column.astype(f">u{width}").view(np.uint8).reshape(-1, width)
