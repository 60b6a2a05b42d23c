"""Blobs: the parts of messages that stay on disk, read back many at a time."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, starmap
from pathlib import Path

import numpy as np

from dwell.batch.blobs import Blobs, joined, sizes_of, slice_of
from dwell.message import I64, U16, U32, U64
from dwell.store.embedded.disk import Buffer
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.journal.segment import Segment

#: Pages are released after this many bytes of blobs. A lookup of one id maps up to 2 MiB, and a
#: smaller read would soon map the same pages again.
_LARGE_BYTES = 4 * 1024 * 1024
#: Up to this many positions a set is quicker than NumPy.
_FEW = 64


def interleaved(parts: Sequence[Sequence[bytes] | None], count: int) -> Buffer:
    """Return the blobs of a batch: the first of each part, the second of each part ..."""
    there = [part for part in parts if part is not None]
    if len(there) == 1:
        return joined(there[0])
    if count == 1:
        return b"".join([part[0] for part in there])
    if count and all(_is_even(sizes_of(part)) for part in there):
        tables = [np.frombuffer(joined(part), np.uint8).reshape(count, -1) for part in there]
        return np.hstack(tables).reshape(-1).data
    mixed: list[bytes] = [b""] * (count * len(there))
    for index, part in enumerate(there):
        mixed[index :: len(there)] = part
    return b"".join(mixed)


def _is_even(sizes: I64) -> bool:
    """Tell whether all are of one size, and not empty."""
    return bool(sizes[0] and (sizes == sizes[0]).all())


class BlobReader:
    """The places of some blobs, noted while nothing can move, read once they are on disk.

    It holds on to the segments, so that they can be read even after they were deleted.
    """

    __slots__ = ("_extra_bytes", "_id_bytes", "_position", "_segments", "_shift", "_size_bytes")

    def __init__(
        self, journal: Journal, position: I64, size_bytes: U32, id_bytes: U16, extra_bytes: U16
    ) -> None:
        self._position = position
        self._size_bytes = size_bytes.astype(np.int64)
        self._id_bytes = id_bytes
        self._extra_bytes = extra_bytes
        self._shift = journal.segment_bytes
        self._segments = {number: journal.segments[number] for number in self._numbers()}

    def _numbers(self) -> Iterable[int]:
        position, shift = self._position, self._shift
        if len(position) <= _FEW:
            return {at // shift for at in position.tolist()}
        numbers = range(int(position.min()) // shift, int(position.max()) // shift + 1)
        return numbers if len(numbers) <= 2 else distinct(position // shift).tolist()

    @classmethod
    def joined(cls, readers: "Sequence[BlobReader]") -> "BlobReader":
        """Return one reader for the blobs of several readers of one journal, in order."""
        made = cls.__new__(cls)
        for name in ("_position", "_size_bytes", "_id_bytes", "_extra_bytes"):
            setattr(made, name, np.concatenate([getattr(reader, name) for reader in readers]))
        made._shift = readers[0]._shift
        made._segments = {n: segment for of in readers for n, segment in of._segments.items()}
        return made

    def __len__(self) -> int:
        return len(self._position)

    @property
    def has_ids(self) -> bool:
        """Whether any of the messages came with an id."""
        return bool(self._id_bytes.any())

    @property
    def is_large(self) -> bool:
        """Whether the pages of the blobs are released after the read."""
        return len(self) > 1 and int(self._size_bytes.sum()) >= _LARGE_BYTES

    @property
    def segments(self) -> Iterable[Segment]:
        """The segments that hold the blobs."""
        return self._segments.values()

    def damages(self) -> Iterator[tuple[Path, int, np.ndarray]]:
        """Yield path and offset of each damage, and which blobs lie there."""
        for number, segment in self._segments.items():
            for first, end in segment.damage:
                start = self._position - number * self._shift
                # An empty blob lies in its frame, too.
                is_there = (start < end) & (start + np.maximum(self._size_bytes, 1) > first)
                yield segment.path, first, is_there

    def extras(self) -> Sequence[bytes] | None:
        """Return the extras, None when no message has any."""
        if not self._extra_bytes.any():
            return None
        start = self._position + self._id_bytes
        return self._slices(start, start + self._extra_bytes)

    def bodies(self) -> Sequence[bytes]:
        """Return the bodies."""
        start = self._position + self._id_bytes + self._extra_bytes
        return self._slices(start, self._position + self._size_bytes)

    def id_at(self, index: int) -> bytes:
        """Return one id, empty where the queue made it."""
        number, start = divmod(int(self._position[index]), self._shift)
        return self._segments[number].map[start : start + int(self._id_bytes[index])]

    def ids(self) -> bytes:
        """Return only the ids, one after another, nothing where the queue made them."""
        steps = np.cumsum(self._size_bytes) // _LARGE_BYTES
        if not steps[-1]:
            return self._ids_in(slice(None))
        cuts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(self)]
        found = []
        for part in starmap(slice, pairwise(cuts)):
            found.append(self._ids_in(part))
            self._let_go()
        return b"".join(found)

    def _ids_in(self, part: slice) -> bytes:
        position, id_bytes = self._position[part], self._id_bytes[part]
        longest = int(id_bytes.max())
        words: U64 = np.empty((len(position), (longest + 7) // 8), dtype=np.uint64)
        numbers = position // self._shift
        for number, segment in self._segments.items():
            here = numbers == number if len(self._segments) > 1 else slice(None)
            offsets = position[here] - number * self._shift
            for word in range(words.shape[1]):
                # Bytes read beyond an id, or beyond the segment, are dropped below.
                places = np.minimum(offsets + 8 * word, len(segment.words) - 1)
                words[here, word] = segment.words[places]
        found = words.view(np.uint8)[:, :longest]
        if (id_bytes == longest).all():
            return found.tobytes()
        return found[np.arange(longest) < id_bytes[:, None]].tobytes()

    def id_blobs(self) -> Blobs:
        """Return the ids, each empty where the queue made it."""
        return Blobs.packed(self.ids(), self._id_bytes.astype(np.int64))

    def _slices(self, start: I64, end: I64) -> Sequence[bytes]:
        found = self._copied(start, end)
        if self.is_large:
            self._let_go()
        return found

    def _let_go(self) -> None:
        for segment in self._segments.values():
            segment.let_go()

    def _copied(self, start: I64, end: I64) -> Sequence[bytes]:
        if len(self._segments) == 1:
            ((number, segment),) = self._segments.items()
            base = number * self._shift
            first, last = int(start.min()) - base, int(end.max()) - base
            if last - first <= 2 * int((end - start).sum()) + 4096:
                # They lie close together: one copy out of the map is enough.
                return Blobs(segment.map[first:last], start - base - first, end - base - first)
            pairs = zip((start - base).tolist(), (end - base).tolist(), strict=True)
            return [segment.map[a:b] for a, b in pairs]
        numbers = (start // self._shift).tolist()
        maps = {number: segment.map for number, segment in self._segments.items()}
        offsets = (start % self._shift).tolist()
        sizes = (end - start).tolist()
        return [maps[n][a : a + s] for n, a, s in zip(numbers, offsets, sizes, strict=True)]


class BlobIds(Sequence[bytes]):
    """Ids that are read from the journal one by one, on access."""

    __slots__ = ("_places", "_reader")

    def __init__(self, reader: BlobReader, places: range | None = None) -> None:
        self._reader = reader
        self._places = range(len(reader)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return BlobIds(self._reader, self._places[index])
        return self._reader.id_at(self._places[index])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._reader.id_blobs()[slice_of(self._places)])
