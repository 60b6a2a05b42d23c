"""Columns that make a value only when it is read."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Generic, TypeVar, overload

import numpy as np

from dwell.message import I64, QUEUE_ID_MARK, U8, U32, U64, Rows

T = TypeVar("T")


class Same(Sequence[T], Generic[T]):
    """One value, ``count`` times."""

    __slots__ = ("_count", "_value")

    def __init__(self, value: T, count: int) -> None:
        self._value, self._count = value, count

    @property
    def value(self) -> T | None:
        """The value; None if the count is 0."""
        return self._value if self._count else None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "Same[T]": ...
    def __getitem__(self, index: int | slice) -> "T | Same[T]":
        if isinstance(index, slice):
            return Same(self._value, len(range(self._count)[index]))
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._value

    def __iter__(self) -> Iterator[T]:
        return repeat(self._value, self._count)


class Blobs(Sequence[bytes]):
    """Blobs in one buffer, each cut out when it is read.

    Blob ``n`` is from ``starts[n]`` to ``ends[n]``, offsets in ``data``. ``is_packed``: they cover
    all of the data, one after the other.
    """

    __slots__ = ("_data", "_ends", "_starts", "is_packed")

    def __init__(self, data: bytes, starts: I64, ends: I64, *, is_packed: bool = False) -> None:
        self._data, self._starts, self._ends = data, starts, ends
        self.is_packed = is_packed

    @classmethod
    def packed(cls, data: bytes, sizes: I64) -> "Blobs":
        """Return blobs that lie one behind the other."""
        ends = np.cumsum(sizes)
        end = int(ends[-1]) if len(ends) else 0
        return cls(data, ends - sizes, ends, is_packed=end == len(data))

    @classmethod
    def of(cls, parts: Sequence[bytes]) -> "Blobs":
        """Return any blobs in this form."""
        if isinstance(parts, Blobs):
            return parts
        many = list(parts)
        return cls.packed(b"".join(many), sizes_of(many))

    @property
    def sizes(self) -> I64:
        """How long each is."""
        return self._ends - self._starts

    def picked(self, places: np.ndarray) -> "Blobs":
        """Return those at some places."""
        return Blobs(self._data, self._starts[places], self._ends[places])

    def join(self) -> bytes:
        """Return all of them, one behind the other."""
        if self.is_packed:
            return self._data
        if not len(self):
            return b""
        # Most lie one behind the other already, in a few pieces.
        cuts = np.flatnonzero(self._starts[1:] != self._ends[:-1])
        starts = [int(self._starts[0]), *self._starts[cuts + 1].tolist()]
        ends = [*self._ends[cuts].tolist(), int(self._ends[-1])]
        return b"".join([self._data[start:end] for start, end in zip(starts, ends, strict=True)])

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "Blobs": ...
    def __getitem__(self, index: int | slice) -> "bytes | Blobs":
        if isinstance(index, slice):
            return Blobs(self._data, self._starts[index], self._ends[index])
        return self._data[self._starts[index] : self._ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        data = self._data
        pairs = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
        return iter([data[start:end] for start, end in pairs])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Sized(list[bytes]):
    """An immutable list of blobs, and the length of each."""

    __slots__ = ("sizes",)

    def __init__(self, parts: Iterable[bytes], sizes: I64 | None = None) -> None:
        super().__init__(parts)
        self.sizes = _lengths(self) if sizes is None else sizes


def text_bytes(text: str | None) -> int:
    """Return how many bytes a text has at most in UTF-8."""
    return 0 if text is None else len(text) if text.isascii() else 4 * len(text)


def sizes_of(parts: Sequence[bytes] | Sequence[str]) -> I64:
    """Return the length of each of some blobs or texts."""
    if isinstance(parts, (Blobs, Sized)):
        return parts.sizes
    if isinstance(parts, Same):
        return np.full(len(parts), len(parts.value or b""))
    return _lengths(parts)


def _lengths(parts: Sequence[bytes] | Sequence[str]) -> I64:
    return np.fromiter(map(len, parts), dtype=np.int64)


def total_bytes(parts: Sequence[bytes]) -> int:
    """Return how long some blobs are together."""
    if isinstance(parts, Same):
        return len(parts) * len(parts.value or b"")
    if isinstance(parts, Blobs) and parts.is_packed:
        return len(parts.join())
    return int(sizes_of(parts).sum())


def joined(parts: Sequence[bytes]) -> bytes:
    """Return some blobs, one behind the other."""
    return parts.join() if isinstance(parts, Blobs) else b"".join(parts)


def are_texts(parts: Blobs) -> bool:
    """Tell whether each of some blobs is UTF-8: all of them together, and none begins inside."""
    try:
        parts.join().decode()
    except UnicodeDecodeError:
        return False
    sizes = parts.sizes
    first = np.frombuffer(parts.join(), np.uint8)[(np.cumsum(sizes) - sizes)[sizes > 0]]
    return not (first & 0xC0 == 0x80).any()


def firsts_of(parts: Sequence[bytes]) -> U8:
    """Return the first byte of each blob; no blob may be empty."""
    sizes = sizes_of(parts)
    firsts: U8 = np.frombuffer(joined(parts), np.uint8)[np.cumsum(sizes) - sizes]
    return firsts


def picked(parts: Sequence[bytes], places: np.ndarray) -> Sequence[bytes]:
    """Return the blobs at some places."""
    if isinstance(parts, Blobs):
        return parts.picked(places)
    return [parts[place] for place in places.tolist()]


def chained(many: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """Return the blobs of several sequences as one."""
    sizes = np.concatenate([sizes_of(parts) for parts in many])
    if all(isinstance(parts, Blobs) for parts in many):
        return Blobs.packed(b"".join(map(joined, many)), sizes)
    return Sized(chain.from_iterable(many), sizes)


def queue_id(row: int, seq: int) -> str:
    """Return the id of a message that came without one."""
    return f"{QUEUE_ID_MARK}{row:x}-{seq:x}"


#: The id of a message that an import or a takeover has moved: :func:`moved_mark`, and the rest.
MOVED = re.compile(r"moved-[0-9a-f]{8}-(?P<rest>(?:[0-9a-f]{1,8}-)?[0-9a-f]{1,24})")


def moved_mark(number: int) -> str:
    """Return how the ids of messages from a store of a number begin in another one.

    The rest is the id that the store made, without its first character: the same each time, so
    that a message that is moved again is found.
    """
    return f"moved-{number:08x}-"


def slice_of(places: range) -> slice:
    """Return the slice that selects these places of a sequence."""
    if not places:
        return slice(0, 0)
    # Backwards to the first place a range stops at -1, which in a slice is the last one.
    return slice(places.start, places.stop if places.stop >= 0 else None, places.step)


class LazyIds(Sequence[str]):
    """The ids of some messages as texts, made only when they are read.

    ``own`` holds the caller's ids as bytes, empty if the queue made the id. A slice shares the
    columns of the whole, and knows only its ``places`` in them.
    """

    __slots__ = ("_own", "_places", "_rows", "_seqs")

    def __init__(
        self, rows: U32 | Rows, seqs: U64, own: Sequence[bytes] | None, places: range | None = None
    ) -> None:
        self._rows, self._seqs, self._own = rows, seqs, own
        self._places = range(len(rows)) if places is None else places

    @classmethod
    def of(cls, own: Sequence[bytes]) -> "LazyIds":
        """Return ids that are all the caller's."""
        none: U64 = np.zeros(len(own), dtype=np.uint64)
        return cls(none.astype(np.uint32), none, own)

    def made(self) -> tuple[U32 | Rows, U64] | None:
        """Return the rows and arrivals, when the queue made all of the ids."""
        if self._own is not None:
            return None
        part = slice_of(self._places)
        return self._rows[part], self._seqs[part]

    def own(self) -> Blobs | None:
        """Return the ids as blobs, when all of them are the caller's."""
        if self._own is None:
            return None
        own = Blobs.of(self._own[slice_of(self._places)])
        return own if own.sizes.all() else None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        own = None if self._own is None else list(self._own[slice_of(self._places)])
        if own is None or not all(own):
            return iter(self._texts())
        return map(bytes.decode, own)

    def _texts(self) -> list[str]:
        made = self.made()
        if made is None:
            return [self[at] for at in range(len(self))]
        # As queue_id makes one, but without a call for each.
        pairs = zip(made[0].tolist(), made[1].tolist(), strict=True)
        return [f"{QUEUE_ID_MARK}{row:x}-{seq:x}" for row, seq in pairs]

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return LazyIds(self._rows, self._seqs, self._own, self._places[index])
        place = self._places[index]
        if self._own is not None and self._own[place]:
            return self._own[place].decode()
        return queue_id(int(self._rows[place]), int(self._seqs[place]))
