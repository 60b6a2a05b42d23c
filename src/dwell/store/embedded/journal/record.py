"""A record is one verb's batch: everything that the state machine needs to repeat it.

::

    0     1     2         4         8               16               24
    +-----+-----+---------+---------+---------------+----------------+------+---------+-------+
    | kind|flags| meta len| count   | time_ms       | blobs length   | meta | columns | blobs |
    +-----+-----+---------+---------+---------------+----------------+------+---------+-------+

``meta`` is MessagePack (class Meta). The columns of each kind are listed in SCHEMAS, one after
another, ``count`` values each; before them, if ``flags`` is 1, the call number of each message (8
bytes). ``meta`` and the blobs are filled up with zeros to a multiple of 8 bytes, as are the columns
together. A blob is one message's id, extra and body, without gaps, or the result of its ack
(DONE, from format 4 on).
"""

import itertools
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from dwell.message import I64, Rows, TopicSettings
from dwell.store.embedded.disk import Buffer

_HEADER = struct.Struct("<BBHIqQ")
#: A bit of ``flags``: the call number of each message precedes the other columns.
_HAS_CALLS = 1
_CALLS: dict[str, type[np.generic]] = {"calls": np.uint64}


class RecordKind(IntEnum):
    """The verbs as the journal knows them; the numbers are part of the format."""

    PUT = 1
    PUT_OWN = 2
    REPLACE = 3
    TAKE = 4
    ACK = 5
    RELEASE = 6
    TOUCH = 7
    BURY = 8
    KICK = 9
    CANCEL = 10
    MOVE = 11
    LAPSE = 12
    EXPIRE = 13
    CONFIGURE = 14
    COPY = 15
    DONE = 16
    FORGET = 17


_BODY: dict[str, type[np.generic]] = {
    "due_ms": np.int64,
    "expires_ms": np.int64,
    "rows": np.uint32,
    "priority": np.uint32,
    "lease_ms": np.uint32,
    "size_bytes": np.uint32,
    "id_bytes": np.uint16,
    "extra_bytes": np.uint16,
    "max_attempts": np.uint16,
}
_ROWS: dict[str, type[np.generic]] = {"rows": np.uint32}
_ROWS_DUE: dict[str, type[np.generic]] = {"due_ms": np.int64, "rows": np.uint32}
_ROWS_LEASE: dict[str, type[np.generic]] = {"lease_until_ms": np.int64, "rows": np.uint32}

SCHEMAS: dict[RecordKind, dict[str, type[np.generic]]] = {
    RecordKind.PUT: _BODY,
    RecordKind.PUT_OWN: {"id_hash": np.uint64, "id_check": np.uint32, **_BODY},
    RecordKind.REPLACE: _BODY,
    RecordKind.TAKE: _ROWS_LEASE,
    RecordKind.ACK: _ROWS,
    RecordKind.RELEASE: _ROWS_DUE,
    RecordKind.TOUCH: _ROWS_LEASE,
    RecordKind.BURY: _ROWS,
    RecordKind.KICK: _ROWS_DUE,
    RecordKind.CANCEL: _ROWS,
    RecordKind.MOVE: _ROWS_DUE,
    RecordKind.LAPSE: _ROWS,
    RecordKind.EXPIRE: _ROWS,
    RecordKind.CONFIGURE: {},
    RecordKind.COPY: {"rows": np.uint32, "size_bytes": np.uint32},
    RecordKind.DONE: {"rows": np.uint32, "size_bytes": np.uint32},
    RecordKind.FORGET: _ROWS,
}


class Meta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The fields of a record that hold for its whole batch."""

    topic: str = ""
    owner: str = ""
    error: str | None = None
    counted: bool = True
    settings: TopicSettings | None = None
    first_seq: int = 0
    priority: int | None = None
    #: An error for each message, instead of one for all.
    errors: list[str | None] | None = None
    #: The number of the first take of a TAKE; the others have the numbers after it.
    first_take: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Meta)


class Record:
    """One record; ``blobs_at`` is the journal position of the first blob, once it is known."""

    __slots__ = ("blobs", "blobs_at", "columns", "kind", "meta", "time_ms")

    def __init__(
        self,
        kind: RecordKind,
        time_ms: int,
        columns: dict[str, np.ndarray],
        meta: Meta | None = None,
        blobs: Buffer = b"",
    ) -> None:
        self.kind = kind
        self.time_ms = time_ms
        self.columns = columns
        self.meta = meta or _PLAIN
        self.blobs = blobs
        self.blobs_at = 0

    def __len__(self) -> int:
        return len(self.columns["rows"]) if "rows" in self.columns else 0

    @property
    def rows(self) -> Rows:
        """The rows of its messages."""
        return self.columns["rows"].astype(np.intp, copy=False)

    def errors(self) -> dict[int, str]:
        """Return the errors by row."""
        rows = self.rows.tolist()
        if self.meta.errors is None:
            return {} if self.meta.error is None else dict.fromkeys(rows, self.meta.error)
        told = zip(rows, self.meta.errors, strict=True)
        return {row: error for row, error in told if error is not None}

    def keep(self, live: np.ndarray) -> None:
        """Drop all rows except the live rows."""
        self.columns = {name: column[live] for name, column in self.columns.items()}
        if self.meta.errors is not None:
            own = list(itertools.compress(self.meta.errors, live))
            self.meta = msgspec.structs.replace(self.meta, errors=own)

    def positions(self) -> I64:
        """Return the journal position of each message's blob."""
        sizes = self.columns["size_bytes"].astype(np.int64)
        return self.blobs_at + np.cumsum(sizes) - sizes

    def encode(self) -> tuple[bytes, Buffer, bytes]:
        """Return the record as bytes: header and columns, blobs, padding."""
        meta = _PLAIN_BYTES if self.meta is _PLAIN else _padded(_encoder.encode(self.meta))
        columns = self.columns
        has_calls = "calls" in columns
        count, blob_bytes = len(self), len(self.blobs)
        schema, row_bytes = _LAYOUTS[self.kind, has_calls]
        parts: list[Buffer] = [
            _HEADER.pack(self.kind, has_calls, len(meta), count, self.time_ms, blob_bytes),
            meta,
            *[columns[name].astype(dtype, copy=False).data for name, dtype in schema.items()],
            bytes(-row_bytes * count % 8),
        ]
        return b"".join(parts), self.blobs, bytes(-blob_bytes % 8)


_PLAIN = Meta()


def _layout(columns: dict[str, type[np.generic]]) -> tuple[dict[str, np.dtype[Any]], int]:
    types = {name: np.dtype(kind) for name, kind in columns.items()}
    return types, sum(kind.itemsize for kind in types.values())


#: The columns of a record by its kind and whether it has call numbers, and the bytes of a row.
_LAYOUTS = {
    (kind, has_calls): _layout({**_CALLS, **columns} if has_calls else columns)
    for kind, columns in SCHEMAS.items()
    for has_calls in (False, True)
}


def _padded(data: bytes) -> bytes:
    # MessagePack is self-delimiting: the zeros after it are not read.
    return len(data).to_bytes(2, "little") + data + bytes(-(len(data) + 2) % 8)


_PLAIN_BYTES = _padded(_encoder.encode(_PLAIN))


def records_in(data: memoryview, start: int, end: int, base: int) -> Iterator[Record]:
    """Yield the records between two offsets of a segment that begins at position ``base``."""
    while start < end:
        record, start = _decode(data, start, base)
        yield record


def _decode(data: memoryview, at: int, base: int) -> tuple[Record, int]:
    kind, flags, meta_bytes, count, time_ms, blob_bytes = _HEADER.unpack_from(data, at)
    at += _HEADER.size
    own_bytes = int.from_bytes(data[at : at + 2], "little")
    meta = _decoder.decode(data[at + 2 : at + 2 + own_bytes])
    at += meta_bytes
    kind, columns, size = RecordKind(kind), {}, 0
    for name, dtype in _LAYOUTS[kind, flags == _HAS_CALLS][0].items():
        columns[name] = np.frombuffer(data, dtype=dtype, count=count, offset=at + size)
        size += columns[name].nbytes
    at += size + -size % 8
    record = Record(kind, time_ms, columns, meta)
    record.blobs_at = base + at
    return record, at + blob_bytes + -blob_bytes % 8
