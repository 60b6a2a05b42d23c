"""Records: what the scripts answer, loose messages and blocks, as batches of messages."""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dwell.message import I64, QUEUE_ID_MARK, U8, Batch, State
from dwell.store.redis.blocks import HEAD, SLOT_BYTES
from dwell.store.redis.numbers import number, receipts_of

#: state, attempt, take, end of lease, due, priority, expiry, lease, most attempts, then sizes.
_RECORD = struct.Struct(">BHI6s6sI6sIHBHHHH")
_NO_ERROR = 65_535


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
    lease_until_ms: int
    expires_ms: int
    state: int
    take: int
    error: str | None


def loose(n: int, shard: int, text: bytes, now_ms: int) -> Row:
    """Return a loose message; one that waits is ready when its due has come."""
    (state, attempt, take, ends, due, priority, expires, lease, most, *sizes) = _RECORD.unpack_from(
        text
    )
    parts, at = [], _RECORD.size
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


class Leased:
    """The messages of a take, gathered shard by shard."""

    def __init__(self, store: int) -> None:
        self._store = store
        self._parts: list[Batch] = []
        self._rows: list[Row] = []

    def add(self, shard: int, entries: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        """Add what was taken of one shard: members with their texts, None for what is gone."""
        for entry, text in entries:
            if text is None:
                continue
            n = int.from_bytes(entry[:7], "big")
            if len(entry) == 7:
                self._rows.append(loose(n, shard, text, now_ms))
            else:
                self._end_rows()
                self._parts.append(_block_batch(n, shard, text, self._store))

    def __len__(self) -> int:
        return len(self._rows) + sum(map(len, self._parts))

    def batch(self) -> Batch:
        """Return all of them."""
        self._end_rows()
        return joined(self._parts)

    def _end_rows(self) -> None:
        if self._rows:
            self._parts.append(batch_of(self._rows, self._store))
            self._rows = []


def batch_of(rows: Sequence[Row], store: int | None = None) -> Batch:
    """Return messages as a batch, with receipts when ``store`` is the number of one."""
    columns = zip(*rows, strict=True) if rows else iter([()] * len(Row._fields))
    (
        numbers,
        topics,
        ids,
        bodies,
        extras,
        due,
        priority,
        attempt,
        most,
        lease,
        ends,
        expires,
        *last,
    ) = (list(column) for column in columns)
    states, takes, errors = last
    numbered = np.array(numbers, np.uint64)
    receipts = None
    if store is not None:
        receipts = receipts_of(numbered, np.array(takes, np.uint64), store)
    return Batch(
        topics=topics,
        ids=ids,
        bodies=bodies,
        extras=extras,
        due_ms=np.array(due, np.int64),
        priority=np.array(priority, np.uint32),
        attempt=np.array(attempt, np.uint16),
        max_attempts=np.array(most, np.uint16),
        lease_ms=np.array(lease, np.uint32),
        lease_until_ms=np.array(ends, np.int64),
        expires_ms=np.array(expires, np.int64),
        state=np.array(states, np.uint8),
        numbers=numbered,
        errors={at: error for at, error in enumerate(errors) if error is not None},
        receipts=receipts,
    )


class Names(NamedTuple):
    """The slots of a block that are still there: which, their dues and ids, where data starts."""

    slots: I64
    due_ms: I64
    ids: list[str]
    data_starts: I64
    data_ends: I64
    extra_sizes: I64


def names_of(n: int, shard: int, index: U8, text: bytes, ids_at: int, offset: int = 0) -> Names:
    """Read the index of a block, shape (size, 17); ``offset`` is that of ``text`` in the block."""
    due_ms, id_ends = _number(index[:, 1:7]), _number(index[:, 7:11]) - offset
    data_ends = _number(index[:, 11:15])
    id_starts = np.concatenate([[ids_at], id_ends[:-1]])
    data_starts = np.concatenate([[int(id_ends[-1]) + offset], data_ends[:-1]])
    live = np.flatnonzero(index[:, 0] == 0)
    if int(id_ends[-1]) == ids_at:
        first = number(n, shard)
        ids = [f"{QUEUE_ID_MARK}{first + (slot << 8):x}" for slot in live.tolist()]
    else:
        ends = zip(id_starts[live].tolist(), id_ends[live].tolist(), strict=True)
        ids = [text[start:end].decode() for start, end in ends]
    sizes = _number(index[:, 15:17])
    return Names(live, due_ms[live], ids, data_starts[live], data_ends[live], sizes[live])


def _block_batch(n: int, shard: int, text: bytes, store: int) -> Batch:
    """Return the messages of a block that was taken."""
    (_, size, _, _, attempt, take, ends, priority, lease, most, _, _, _, topic) = HEAD.unpack_from(
        text
    )
    index_at = HEAD.size + topic
    index = np.frombuffer(text, np.uint8, SLOT_BYTES * size, index_at).reshape(size, SLOT_BYTES)
    names = names_of(n, shard, index, text, index_at + SLOT_BYTES * size)
    count = len(names.slots)
    extra_ends = names.data_starts + names.extra_sizes
    spans = zip(
        names.data_starts.tolist(), extra_ends.tolist(), names.data_ends.tolist(), strict=True
    )
    pieces = [(text[start:mid], text[mid:end]) for start, mid, end in spans]
    numbers = np.uint64(number(n, shard)) + (names.slots.astype(np.uint64) << np.uint64(8))
    return Batch(
        topics=[text[HEAD.size : index_at].decode()] * count,
        ids=names.ids,
        bodies=[body for _, body in pieces],
        extras=[extra for extra, _ in pieces],
        due_ms=names.due_ms,
        priority=np.full(count, priority, np.uint32),
        attempt=np.full(count, attempt, np.uint16),
        max_attempts=np.full(count, most, np.uint16),
        lease_ms=np.full(count, lease, np.uint32),
        lease_until_ms=np.full(count, int.from_bytes(ends, "big"), np.int64),
        expires_ms=np.zeros(count, np.int64),
        state=np.full(count, State.LEASED, np.uint8),
        numbers=numbers,
        errors={},
        receipts=receipts_of(numbers, np.full(count, take, np.uint64), store),
    )


_SEQUENCES = ("topics", "ids", "bodies", "extras")
_ARRAYS = (
    *("due_ms", "priority", "attempt", "max_attempts", "lease_ms", "lease_until_ms"),
    *("expires_ms", "state", "numbers", "receipts"),
)


def joined(parts: Sequence[Batch]) -> Batch:
    """Return batches, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Batch.empty()
    errors, at = {}, 0
    for part in parts:
        errors.update({at + place: error for place, error in part.errors.items()})
        at += len(part)
    columns: dict[str, Any] = {
        name: _chained([getattr(part, name) for part in parts]) for name in _SEQUENCES
    }
    columns |= {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    return Batch(**columns, errors=errors)


def _chained(parts: Iterable[Sequence]) -> list:  # type: ignore[type-arg]
    return [value for part in parts for value in part]


def _number(data: U8) -> I64:
    """Return numbers that are written in bytes, the highest first, one a row."""
    width = data.shape[1]
    wide = np.zeros((len(data), 8), np.uint8)
    wide[:, 8 - width :] = data
    return wide.view(">i8").reshape(-1).astype(np.int64)
