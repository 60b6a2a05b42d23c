"""Records: the answers of the functions, loose messages and blocks, as batches of messages."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from dwell.batch.batch import BATCH_ARRAYS, Batch
from dwell.batch.blobs import Blobs, LazyIds, Same, total_bytes
from dwell.clock import Clock
from dwell.message import I64, QUEUE_ID_MARK, U8, U64, State
from dwell.store.redis.layout import BLOCK, DATA, LOOSE, SLOT
from dwell.store.redis.numbers import number, receipts_of

_RECORD, _HEAD = LOOSE.python, BLOCK.python
_SIZE, _NAMES_END, _TOPIC_SIZE = map(BLOCK.place, ("size", "names_end", "topic_size"))
_NO_ERROR = 65_535
#: The bits of a message's number below its block's number: slot and shard.
_PLACE_BITS = 14
_SLOT_BITS = 6


#: Batch columns with another name for the field of a row.
_FIELDS = {"numbers": "number"}
#: Fields in a block's head, equal for all of its messages.
_IN_HEADS = ("priority", "attempt", "max_attempts", "lease_ms")


class Row(NamedTuple):
    """One message, as a batch holds it in columns."""

    number: int
    topic: str
    id: str
    body: bytes
    extra: bytes
    due_ms: int
    priority: int
    attempt: int
    max_attempts: int
    lease_ms: int
    until_ms: int
    expires_ms: int
    state: int
    take: int
    error: str | None


def loose(n: int, shard: int, text: bytes, now_ms: int) -> Row:
    """Return a loose message; a waiting message is ready when its due has come."""
    (state, attempt, take, ends, due, priority, expires, lease, most, *sizes) = _RECORD.unpack_from(
        text
    )
    parts, at = [], LOOSE.size
    for size in sizes:
        size = 0 if size == _NO_ERROR else size
        parts.append(text[at : at + size])
        at += size
    topic, id_, extra, error, _ = parts
    due_ms = int.from_bytes(due, "big")
    if state == State.DELAYED and due_ms <= now_ms:
        state = State.READY
    return Row(
        *(number(n, shard), topic.decode(), id_.decode(), text[at:], extra, due_ms, priority),
        *(attempt, most, lease, int.from_bytes(ends, "big"), int.from_bytes(expires, "big")),
        *(int(state), take, None if sizes[3] == _NO_ERROR else error.decode()),
    )


def is_of_block(entry: bytes) -> bool:
    """Tell whether an entry of a take names a block: n, a mark, and the number of the take."""
    return len(entry) == 12


def _is_of(entry: bytes, text: bytes) -> bool:
    """Tell whether a text belongs to the take of an entry."""
    at = 6 if is_of_block(entry) else 3
    return text[0] == State.LEASED and text[at : at + 4] == entry[-4:]


class Leased:
    """The messages of a take, gathered shard by shard."""

    def __init__(self, store: int) -> None:
        self._store = store
        self._parts: list[tuple[int, Batch]] = []
        #: The shard of the last part, if that part is of blocks.
        self._last_block: int | None = None
        self._size = 0
        self.size_bytes = 0
        #: The earliest end of their leases, by the monotonic clock.
        self.ends_at = float("inf")

    def add(
        self,
        shard: int,
        entries: Iterable[tuple[bytes, bytes | None]],
        now_ms: int,
        heard_at: float,
    ) -> None:
        """Add the messages taken from a shard: entries with their texts, and the answer's time.

        A message that was gone, or held by another taker, when its text was read is left out: its
        lease had ended before.
        """
        found = [(entry, text) for entry, text in entries if text and _is_of(entry, text)]
        for is_block, some in groupby(found, key=lambda pair: is_of_block(pair[0])):
            pairs = [(int.from_bytes(entry[:7], "big"), text) for entry, text in some]
            if is_block:
                part = blocks_batch(shard, pairs, self._store)
            else:
                part = batch_of([loose(n, shard, text, now_ms) for n, text in pairs], self._store)
            self._size += len(part)
            left_ms = int(part.until_ms.min(initial=2**62)) - now_ms
            self.ends_at = min(self.ends_at, heard_at + left_ms / 1000)
            self.size_bytes += total_bytes(part.bodies) + total_bytes(part.extras)
            count = len(self._parts)
            if not is_block and self._last_block == shard:
                part = self._in_order(part)
            self._parts.append((shard, part))
            # More messages of the block may follow, loose, in another call.
            is_open = is_block or len(self._parts) == count
            self._last_block = shard if is_open else None

    def _in_order(self, part: Batch) -> Batch:
        """Return loose messages merged with the messages of the block before them, in order."""
        before = self._parts[-1][1]
        places = np.append(before.numbers, part.numbers) >> np.uint64(_PLACE_BITS)
        is_of_it = places == places[len(before) - 1]
        number = int(np.argmin(np.append(is_of_it[len(before) :], False)))
        if not number:
            return part
        self._parts.pop()
        both, order = Batch.joined([before, part]), np.arange(len(places))
        first, last = int(np.argmax(is_of_it)), len(before) + number
        columns = (both.numbers, both.due_ms, both.priority)
        order[first:last] = first + np.lexsort([column[first:last] for column in columns])
        return both.picked(order.tolist())

    def __len__(self) -> int:
        return self._size

    def ids(self) -> Iterator[bytes]:
        """Yield the id of each message."""
        for _, part in self._parts:
            yield from (id_.encode() for id_ in part.ids)

    def batch(self, clock_of: Callable[[int], Clock]) -> Batch:
        """Return the messages whose leases have not ended, by the clock of their shard.

        An answer can come late, when another taker may already hold some of its messages.
        """
        found = []
        for shard, part in self._parts:
            goes_on = part.until_ms > clock_of(shard).now_ms()
            found.append(part if goes_on.all() else part.picked(np.flatnonzero(goes_on).tolist()))
        return Batch.joined(found)

    def held(self, clock_of: Callable[[int], Clock]) -> Batch:
        """Return the same in order of due."""
        batch = self.batch(clock_of)
        return batch.picked(np.lexsort((batch.numbers, batch.due_ms)).tolist())


def place_of(entry: bytes) -> int:
    """Return the place of an entry: its block's place, or its former block's."""
    return int.from_bytes(entry[:7], "big") >> _SLOT_BITS


def batch_of(rows: Sequence[Row], store: int | None = None) -> Batch:
    """Return messages as a batch, with receipts if ``store`` is a store's number."""
    values = zip(*rows, strict=True) if rows else iter([()] * len(Row._fields))
    lists = dict(zip(Row._fields, map(list, values), strict=True))
    columns: dict[str, Any] = {
        name: np.array(lists[_FIELDS.get(name, name)], kind) for name, kind in BATCH_ARRAYS.items()
    }
    receipts = None
    if store is not None:
        receipts = receipts_of(columns["numbers"], np.array(lists["take"], np.uint64), store)
    return Batch(
        topics=lists["topic"],
        ids=lists["id"],
        bodies=lists["body"],
        extras=lists["extra"],
        errors={at: error for at, error in enumerate(lists["error"]) if error is not None},
        receipts=receipts,
        **columns,
    )


def versions_of(rows: Sequence[Row]) -> U64:
    """Return numbers that differ after any change: the take, and a checksum below it.

    A take, a replacement, a kick and a move change the take; any other change alters one of the
    numbers in the checksum. ``finding.lua`` compares it.
    """
    columns = np.array(
        [(row.number, row.due_ms, row.until_ms, row.attempt, row.state, row.take) for row in rows],
        np.uint64,
    ).reshape(-1, 6)
    numbers, dues, ends, attempts, states, takes = columns.T
    # A waiting message that falls due is not changed by that.
    states = np.where(states == State.READY, np.uint64(State.DELAYED), states)
    factors = np.array([1, 3, 5, 65_537, 1 << 28], np.uint64)
    sums = np.stack([numbers >> np.uint64(8), dues, ends, attempts, states], axis=1) @ factors
    versions: U64 = (takes << np.uint64(32)) | (sums & np.uint64(0xFFFF_FFFF))
    return versions


def packed_versions(versions: U64 | None, places: Sequence[int]) -> bytes:
    """Return versions in the form that functions take; empty if none are given."""
    return b"" if versions is None else versions[list(places)].astype(">u8").tobytes()


class Names:
    """The names of blocks of one shard, in columns: for each message that is still there.

    ``heads`` are the blocks' own, ``block`` is the index of each message's block. Offsets are in
    ``text``, the concatenation of all texts.
    """

    def __init__(self, shard: int, pairs: Sequence[tuple[int, bytes]]) -> None:
        self.texts = [text for _, text in pairs]
        self.text = b"".join(self.texts)
        self.heads = [_HEAD.unpack_from(text) for text in self.texts]
        self.sizes = np.array([head[_SIZE] for head in self.heads])
        index_at = np.array([BLOCK.size + head[_TOPIC_SIZE] for head in self.heads])
        index = self.rows(index_at, SLOT.size)
        block = np.arange(len(self.sizes)).repeat(self.sizes)
        self.firsts = np.cumsum(self.sizes) - self.sizes
        self.offsets = np.cumsum([0, *map(len, self.texts[:-1])])[block]
        id_ends = _number(index[:, 7:9])
        id_starts = self.starts(id_ends, index_at + SLOT.size * self.sizes)
        self.live = np.flatnonzero(index[:, 0] == 0)
        slots = np.arange(len(block)) - self.firsts[block]
        numbers = (np.array([n for n, _ in pairs])[block] + slots) * 256 + shard
        self.block = block[self.live]
        self.due_ms = _number(index[:, 1:7])[self.live]
        self.numbers: U64 = numbers[self.live].astype(np.uint64)
        self.ids = _ids(self.blobs(id_starts, id_ends), self.numbers)

    def rows(self, starts: I64, width: int) -> U8:
        """Return a table in each block with one row for each slot, starting at a place."""
        spans = zip(self.texts, starts.tolist(), self.sizes.tolist(), strict=True)
        parts = [text[at : at + width * size] for text, at, size in spans]
        return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, width)

    def starts(self, ends: I64, firsts: I64) -> I64:
        """Return the start of each piece, which follows the piece before it in its block."""
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1]
        starts[self.firsts] = firsts
        return starts

    def blobs(self, starts: I64, ends: I64) -> Blobs:
        """Return pieces of the messages that are still there; offsets count within a block."""
        live, offsets = self.live, self.offsets
        return Blobs(self.text, (starts + offsets)[live], (ends + offsets)[live])

    def column(self, name: str, dtype: type[np.generic]) -> Any:
        """Return a number of the heads for each message, from its block."""
        place = BLOCK.place(name)
        values = [head[place] for head in self.heads]
        if isinstance(values[0], bytes):
            values = [int.from_bytes(value, "big") for value in values]
        return np.array(values, dtype)[self.block]

    def topics(self) -> Sequence[str]:
        """Return the topic of each message."""
        names = [
            text[BLOCK.size : BLOCK.size + head[_TOPIC_SIZE]].decode()
            for text, head in zip(self.texts, self.heads, strict=True)
        ]
        return [names[block] for block in self.block.tolist()]


def _ids(own: Blobs, numbers: U64) -> Sequence[str]:
    """Return ids: the caller's own, or else the id that the queue made."""
    sizes = own.sizes
    if sizes.all():
        return LazyIds.of(own)
    made = [f"{QUEUE_ID_MARK}{one:x}" for one in numbers.tolist()]
    if not sizes.any():
        return made
    return [id_.decode() or other for id_, other in zip(own, made, strict=True)]


def blocks_batch(shard: int, pairs: Sequence[tuple[int, bytes]], store: int) -> Batch:
    """Return the messages of taken blocks: pairs of first n and text."""
    names = Names(shard, pairs)
    count = len(names.numbers)
    names_ends = np.array([head[_NAMES_END] for head in names.heads])
    data = names.rows(names_ends, DATA.size)
    ends, extra_sizes = _number(data[:, :4]), _number(data[:, 4:])
    starts = names.starts(ends, names_ends + DATA.size * names.sizes)
    extras: Sequence[bytes] = Same(b"", count)
    if extra_sizes.any():
        extras = names.blobs(starts, starts + extra_sizes)
        starts = starts + extra_sizes
    return Batch(
        topics=names.topics(),
        ids=names.ids,
        bodies=names.blobs(starts, ends),
        extras=extras,
        due_ms=names.due_ms,
        **{name: names.column(name, BATCH_ARRAYS[name]) for name in _IN_HEADS},
        until_ms=names.column("lease_until_ms", np.int64),
        expires_ms=np.zeros(count, np.int64),
        state=np.full(count, State.LEASED, np.uint8),
        numbers=names.numbers,
        errors={},
        receipts=receipts_of(names.numbers, names.column("take", np.uint64), store),
    )


def _number(data: U8) -> I64:
    """Return big-endian numbers, one a row."""
    width = data.shape[1]
    wide = np.zeros((len(data), 8), np.uint8)
    wide[:, 8 - width :] = data
    return wide.view(">i8").reshape(-1).astype(np.int64)
