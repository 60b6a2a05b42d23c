"""Columns of messages in Arrow, and blobs from columns of Arrow; no object is made for a message.

Imported only where PyArrow is needed, as it is an extra.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dwell.batch.batch import Batch
from dwell.batch.blobs import Blobs, LazyIds, Same, joined, sizes_of
from dwell.message import I64, State, decode_extra, keys_of

_HEADERS = pa.map_(pa.string(), pa.string())


def moments(times_ms: np.ndarray, absent: int | None = None) -> pa.Array:
    """Return epoch milliseconds as moments in UTC, null for the value ``absent``."""
    none = None if absent is None else times_ms == absent
    return pa.array(times_ms * 1000, pa.timestamp("us", tz="UTC"), mask=none)


def words(codes: np.ndarray, names: dict[int, str]) -> pa.Array:
    """Return the names of codes."""
    each = pa.array([names.get(code, "") for code in range(max(names) + 1)])
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), each).dictionary_decode()


def texts(values: Sequence[str]) -> pa.Array:
    """Return texts; a caller's ids lie in one piece already."""
    if isinstance(values, Same) and len(values):
        return pa.repeat(pa.scalar(values[0], pa.string()), len(values))
    if isinstance(values, LazyIds) and (own := values.own()) is not None:
        return _of_blobs(own, pa.string())
    return pa.array(list(values), pa.string())


def _blobs(values: Sequence[bytes]) -> pa.Array:
    if not isinstance(values, Blobs):
        return pa.array(list(values), pa.binary())
    return _of_blobs(values, pa.binary())


def _of_blobs(values: Blobs, kind: pa.DataType) -> pa.Array:
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes_of(values), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(joined(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def blobs_of(column: pa.Array) -> Blobs:
    """Return the values of a column of binary or text, without a copy of each."""
    _, offsets, data = column.buffers()
    every = np.frombuffer(offsets, np.int32)
    ends: I64 = every[column.offset : column.offset + len(column) + 1].astype(np.int64)
    start = int(ends[0]) if len(ends) else 0
    piece = memoryview(data)[start : int(ends[-1])].tobytes() if data is not None else b""
    return Blobs(piece, ends[:-1] - start, ends[1:] - start)


def _has_extras(batch: Batch) -> bool:
    return bool(sizes_of(batch.extras).any())


def _keys(batch: Batch) -> pa.Array:
    if not _has_extras(batch):
        return pa.nulls(len(batch), pa.string())
    return pa.array(keys_of(batch.extras), pa.string())


def _headers(batch: Batch) -> pa.Array:
    if not _has_extras(batch):
        return pa.nulls(len(batch), _HEADERS)
    many = (decode_extra(extra).headers for extra in batch.extras)
    return pa.array([list(headers.items()) or None for headers in many], _HEADERS)


def _errors(batch: Batch) -> pa.Array:
    if not batch.errors:
        return pa.nulls(len(batch), pa.string())
    return pa.array([batch.errors.get(at) for at in range(len(batch))], pa.string())


STATE_WORDS = {int(state): state.name.lower() for state in State}

#: The columns of messages, in their order. Spark's view and an export have the same.
MESSAGE_COLUMNS: dict[str, Callable[[Batch], pa.Array]] = {
    "topic": lambda batch: texts(batch.topics),
    "id": lambda batch: texts(batch.ids),
    "body": lambda batch: _blobs(batch.bodies),
    "due": lambda batch: moments(batch.due_ms),
    "state": lambda batch: words(batch.state, STATE_WORDS),
    "priority": lambda batch: pa.array(batch.priority.astype(np.int64)),
    "attempt": lambda batch: pa.array(batch.attempt.astype(np.int32)),
    "max_attempts": lambda batch: pa.array(batch.max_attempts.astype(np.int32)),
    "lease_ms": lambda batch: pa.array(batch.lease_ms.astype(np.int64)),
    "lease_until": lambda batch: moments(batch.lease_until_ms, absent=0),
    "died": lambda batch: moments(batch.died_ms, absent=0),
    "expires": lambda batch: moments(batch.expires_ms, absent=0),
    "key": _keys,
    "headers": _headers,
    "last_error": _errors,
    "number": lambda batch: pa.array(batch.numbers.view(np.int64)),
}
