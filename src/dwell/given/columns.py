"""The columns of a batch: the checks of :mod:`dwell.given.values` for many values at once.

A value may be given once for all messages or as a sequence or array of the batch's length. Arrays
of whole numbers are checked by NumPy. No Python object is made for each message, unless the
caller's values have to be converted.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from dwell.batch.blobs import Blobs, Sized, firsts_of, sizes_of
from dwell.batch.puts import DUE_COUNTED, EXPIRY_COUNTED
from dwell.errors import (
    BatchTooLarge,
    InvalidAttempts,
    InvalidBody,
    InvalidHeaders,
    InvalidId,
    InvalidInput,
    InvalidKey,
    InvalidPriority,
    InvalidTime,
)
from dwell.given import values
from dwell.message import (
    F64,
    I64,
    MAX_ATTEMPTS,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_BODY_BYTES,
    MAX_DELAY_MS,
    MAX_ID_BYTES,
    MAX_PRIORITY,
    QUEUE_ID_MARK,
    U8,
    U16,
    U32,
    U64,
    encode_extra,
)

One: TypeAlias = Callable[[Any, str], int]

_MARK = QUEUE_ID_MARK.encode()
_NEVER = -1
_MAX_NUMBER = 2**63 - 1


def sized(
    given: object, field: str, error: type[InvalidInput], allowed: str = "a sequence"
) -> Sequence[Any]:
    """Return a value if it is a sequence of values; text and bytes are single values."""
    if isinstance(given, list | tuple | Blobs):
        return given
    is_single = isinstance(given, str | bytes | bytearray | memoryview | Mapping)
    if is_single or not isinstance(given, Iterable) or _has_no_length(given):
        raise values.refusal(error, field, given, allowed)
    return list(given)


def _has_no_length(given: object) -> bool:
    """Tell whether this is an array of no dimension: one value, although it looks like many."""
    return getattr(given, "ndim", None) == 0


def check_count(count: int, field: str) -> None:
    """Refuse more messages than one request may have; raises BatchTooLarge."""
    if count > MAX_BATCH_MESSAGES:
        raise BatchTooLarge(
            f"{field}: got {count} messages, expected {MAX_BATCH_MESSAGES} or fewer"
        )


# --- bodies and ids ---------------------------------------------------------------------------


def bodies(given: object) -> Sequence[bytes]:
    """Return bodies as bytes; raises BatchTooLarge before it looks at any of them."""
    many = sized(given, "bodies", InvalidBody)
    check_count(len(many), "bodies")
    if not isinstance(many, Blobs):
        is_bytes = set(map(type, many)) <= {bytes}
        many = Sized(many if is_bytes else map(_unlimited, many, range(len(many))))
    check_sizes(sizes_of(many))
    return many


def results(given: object, size: int) -> list[bytes | None]:
    """Return the results of an ack as bytes, each or None; raises InvalidBody, BatchTooLarge."""
    many = sized(given, "results", InvalidBody)
    if len(many) != size:
        raise InvalidBody(f"results: got {len(many)} values, expected {size}, one for each message")
    found = [
        None if one is None else values.body(one, f"results[{at}]") for at, one in enumerate(many)
    ]
    total = sum(map(len, filter(None, found)))
    if total > MAX_BATCH_BYTES:
        raise BatchTooLarge(f"results: got {total} bytes, expected {MAX_BATCH_BYTES} or fewer")
    return found


def _unlimited(value: object, at: int) -> bytes:
    return value if type(value) is bytes else values.body(value, f"bodies[{at}]")


def check_sizes(sizes: I64) -> None:
    """Refuse bodies that are too large; raises BatchTooLarge or InvalidBody."""
    size = int(sizes.sum())
    check_size(size)
    if size > MAX_BODY_BYTES and sizes.max() > MAX_BODY_BYTES:
        at = int(sizes.argmax())
        raise InvalidBody(f"bodies[{at}]: got {sizes[at]} bytes, expected at most {MAX_BODY_BYTES}")


def check_size(size_bytes: int) -> None:
    """Refuse bodies that are too large together; raises BatchTooLarge."""
    if size_bytes > MAX_BATCH_BYTES:
        raise BatchTooLarge(f"bodies: got {size_bytes} bytes, expected {MAX_BATCH_BYTES} or fewer")


def own_ids(given: object, size: int) -> Sequence[bytes] | None:
    """Return the caller's ids as UTF-8, or None if the queue is to make them."""
    if given is None:
        return None
    many = sized(given, "ids", InvalidId)
    if len(many) != size:
        raise InvalidId(f"ids: got {len(many)} values, expected {size}, one for each body")
    data = many if isinstance(many, Blobs) else _joined_ids(many)
    if data is not None and _are_own_ids(data):
        return data
    texts = map(_said, many) if isinstance(many, Blobs) else many
    return [values.own_id(text, f"ids[{at}]") for at, text in enumerate(texts)]


def _joined_ids(many: Sequence[str]) -> Blobs | None:
    """Return ids as UTF-8 in one piece, or None when one of them cannot be."""
    try:
        text = "".join(many)
        if text.isascii():
            return Blobs.packed(text.encode(), sizes_of(many))
        return Blobs.of(list(map(str.encode, many)))
    except (TypeError, UnicodeEncodeError):
        return None


def _said(id_: bytes) -> object:
    try:
        return id_.decode()
    except UnicodeDecodeError:
        return id_


def _are_own_ids(ids: Blobs) -> bool:
    """Tell whether ids in UTF-8 are all such as a caller may choose, without looking at each."""
    sizes = ids.sizes
    if not len(ids):
        return True
    if not 0 < sizes.min() <= sizes.max() <= MAX_ID_BYTES:
        return False
    data = ids.join()
    if _MARK in data and (firsts_of(ids) == _MARK[0]).any():
        return False
    if data.isascii():
        return True
    # An id begins with the first byte of a sign.
    if ((firsts_of(ids) & 0xC0) == 0x80).any():
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def any_ids(given: object) -> Sequence[bytes]:
    """Return ids of the caller's or the queue's as UTF-8; raises InvalidId or BatchTooLarge."""
    many = sized(given, "ids", InvalidId)
    check_count(len(many), "ids")
    data = _encoded_ids(many)
    if data is None:
        return [values.any_id(value, f"ids[{at}]") for at, value in enumerate(many)]
    return data


def _encoded_ids(many: Sequence[str]) -> Sized | None:
    """Return ids as UTF-8, or None when one of them has to be refused."""
    try:
        data = Sized(map(str.encode, many))
    except (TypeError, UnicodeEncodeError):
        return None
    is_good = not data or 0 < data.sizes.min() <= data.sizes.max() <= MAX_ID_BYTES
    return data if is_good else None


# --- numbers ----------------------------------------------------------------------------------


def _is_many(given: object) -> bool:
    if isinstance(given, list | tuple):
        return True
    return hasattr(given, "__array__") and not _has_no_length(given)


@lru_cache(maxsize=256)
def _uniform(value: int, size: int, dtype: type[np.generic]) -> np.ndarray:
    """Return one value ``size`` times; the array is shared by all calls, so it is read-only."""
    column = np.full(size, value, dtype=dtype)
    column.flags.writeable = False
    return column


def _column(
    given: object, size: int, field: str, error: type[InvalidInput], one: One, low: int, high: int
) -> I64:
    """Return one value for all, or many, as a column; ``one`` checks and converts an item."""
    if not _is_many(given):
        return np.full(size, one(given, field), dtype=np.int64)
    many: Any = given if isinstance(given, list | tuple) else np.asarray(given)
    shape = many.shape if isinstance(many, np.ndarray) else (len(many),)
    if shape != (size,):
        raise error(f"{field}: got shape {shape}, expected one value or {size}")
    column = _whole(many, low, high)
    if column is not None:
        return column
    try:
        items = [one(value, field) for value in many]
    except InvalidInput:
        # The names of items are made only for an error.
        items = [one(value, f"{field}[{at}]") for at, value in enumerate(many)]
    return np.array(items, dtype=np.int64)


def _whole(many: Any, low: int, high: int) -> I64 | None:
    """Return whole numbers that are all in range as a new column, else None."""
    if not isinstance(many, np.ndarray):
        if set(map(type, many)) != {int}:
            return None
        try:
            many = np.array(many, dtype=np.int64)
        except OverflowError:
            return None
    if many.dtype.kind not in "iu" or (len(many) and not low <= many.min() <= many.max() <= high):
        return None
    return np.array(many, dtype=np.int64)


def priorities(given: object, size: int) -> U32:
    """Return priorities; raises InvalidPriority."""
    one = values.priority
    if not _is_many(given):
        return _uniform(one(given), size, np.uint32)
    column = _column(given, size, "priority", InvalidPriority, one, 0, MAX_PRIORITY)
    return column.astype(np.uint32)


def max_attempts(given: object, size: int) -> U16:
    """Return limits of attempts, 0 where the topic's own holds; raises InvalidAttempts."""
    one = values.max_attempts
    if not _is_many(given):
        return _uniform(one(given), size, np.uint16)
    column = _column(given, size, "max_attempts", InvalidAttempts, one, 1, MAX_ATTEMPTS)
    return column.astype(np.uint16)


def leases(given: object, size: int) -> U32:
    """Return leases in milliseconds, 0 where the topic's own holds; raises InvalidTime."""
    one = values.lease_ms
    if not _is_many(given):
        return _uniform(one(given), size, np.uint32)
    return _column(given, size, "lease", InvalidTime, one, 1, 0).astype(np.uint32)


def numbers(given: object) -> U64:
    """Return the numbers of messages; raises InvalidId."""
    is_array = isinstance(given, np.ndarray) and given.ndim > 0
    many: Any = given if is_array else sized(given, "numbers", InvalidId)
    check_count(len(many), "numbers")

    def one(value: object, field: str) -> int:
        if values.is_whole(value) and 0 <= value <= _MAX_NUMBER:
            return int(value)
        raise values.refusal(InvalidId, field, value, f"a whole number from 0 to {_MAX_NUMBER}")

    return _column(many, len(many), "numbers", InvalidId, one, 0, _MAX_NUMBER).astype(np.uint64)


def versions(given: object, size: int) -> U64:
    """Return the versions of messages, one for each id; raises InvalidInput."""
    many = given if isinstance(given, np.ndarray) else sized(given, "versions", InvalidInput)
    try:
        found = np.asarray(many, dtype=np.uint64)
    except (TypeError, ValueError, OverflowError):
        raise values.refusal(
            InvalidInput, "versions", given, "whole numbers, 0 to 2**64 - 1"
        ) from None
    if found.shape != (size,):
        raise InvalidInput(f"versions: got {len(many)} values, expected {size}, one for each id")
    return found


# --- times ------------------------------------------------------------------------------------


def dues(
    delay: object,
    due: object,
    delay_level: object,
    size: int,
    now_ms: int,
    levels_ms: Sequence[int] = (),
) -> I64:
    """Return when each message falls due; at most one of the three arguments may be given."""
    one_of(delay=delay, due=due, delay_level=delay_level)
    if due is not None:
        return _due_points(due, size, now_ms)
    if delay is not None:
        return now_ms + _spans(delay, size, "delay")
    if delay_level is not None:

        def one(value: object, field: str) -> int:
            return values.level_ms(value, levels_ms, field)

        return now_ms + _column(delay_level, size, "delay_level", InvalidTime, one, 1, 0)
    return np.full(size, now_ms, dtype=np.int64)


def delays(given: object, size: int) -> int | I64:
    """Return one delay in milliseconds for all, or one for each."""
    return _spans(given, size, "delay") if _is_many(given) else values.delay_ms(given)


def expiries(expires: object, ttl: object, due_ms: I64, now_ms: int) -> I64:
    """Return when each message expires, 0 for never; a ttl counts from now."""
    one_of(expires=expires, ttl=ttl)
    size = len(due_ms)
    if expires is not None:
        return _expiry_points(expires, size, now_ms)
    if ttl is None:
        return _uniform(0, size, np.int64)
    spans = _spans(ttl, size, "ttl", absent=_NEVER)
    ends = np.where(spans == _NEVER, 0, now_ms + spans)
    check_ttl(bool(np.any((ends <= due_ms) & (ends != 0))))
    return ends


def counted(due: object, ttl: object, size: int) -> U8:
    """Return the values of each message that are counted from now: a missing due, and a ttl."""
    no_due, has_ttl = _are_none(due, size), ~_are_none(ttl, size)
    return no_due * np.uint8(DUE_COUNTED) | has_ttl * np.uint8(EXPIRY_COUNTED)


def _are_none(given: object, size: int) -> np.ndarray:
    """Tell for each message whether no value is given."""
    if isinstance(given, list | tuple):
        return np.array([one is None for one in given], dtype=bool)
    return _uniform(given is None, size, np.bool_)


def check_ttl(over: bool) -> None:
    """Refuse a ttl that ends before its message falls due, as the message could not be taken."""
    if over:
        raise InvalidTime("ttl: ends before the message falls due, expected more than the delay")


def one_of(**given: object) -> None:
    """Refuse two ways to say the same thing; raises InvalidTime."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidTime(f"{names[0]}: got {' and '.join(names)} together, expected one of them")


def _due_points(given: object, size: int, now_ms: int) -> I64:
    def one(value: object, name: str) -> int:
        return now_ms if value is None else values.due_ms(value, now_ms, name)

    column = _column(given, size, "due", InvalidTime, one, 0, now_ms + MAX_DELAY_MS)
    _check_seconds(given, column, now_ms, "due", one)
    return column


def _check_seconds(given: Any, column: I64, now_ms: int, field: str, one: One) -> None:
    """Check values that look like seconds one by one, in a column that was converted as a whole."""
    seconds = values.SECONDS
    if not len(column) or not column.min() < seconds.stop < now_ms:
        return
    many = given if _is_many(given) else [given] * len(column)
    for at in np.flatnonzero((column >= seconds.start) & (column < seconds.stop)).tolist():
        one(many[at], f"{field}[{at}]")


def _expiry_points(given: object, size: int, now_ms: int) -> I64:
    def one(value: object, name: str) -> int:
        return 0 if value is None else values.expires_ms(value, now_ms, name)

    column = _column(given, size, "expires", InvalidTime, one, 1, now_ms + MAX_DELAY_MS)
    _check_seconds(given, column, now_ms, "expires", one)
    return column


def _spans(given: object, size: int, field: str, absent: int = 0) -> I64:
    """Return spans in milliseconds; an item that is None is ``absent``."""
    seconds = _seconds(given, size)
    if seconds is not None:
        return np.rint(seconds * 1000.0).astype(np.int64)
    if _is_millis(given, size):
        return np.array(given, dtype=np.int64)
    if isinstance(given, list) and len(given) == size and set(map(type, given)) == {str}:
        # Usually a few texts are repeated, so each is parsed once; a bad one is named below.
        with contextlib.suppress(InvalidInput):
            known = {text: values.delay_ms(text) for text in set(given)}
            return np.array([known[text] for text in given], dtype=np.int64)

    def one(value: object, name: str) -> int:
        return absent if value is None else values.delay_ms(value, name)

    return _column(given, size, field, InvalidTime, one, 1, 0)


def _seconds(given: object, size: int) -> F64 | None:
    """Return an array of seconds that are all in range, else None; NaN is in no range."""
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "iuf" or given.shape != (size,):
        return None
    # A narrow type may be too small for the milliseconds.
    seconds = given.astype(np.float64)
    return seconds if np.all((seconds >= 0) & (seconds <= MAX_DELAY_MS / 1000)) else None


def _is_millis(given: object, size: int) -> bool:
    """Whether this is an array of NumPy's milliseconds that are all in range, which NaT is not."""
    if not isinstance(given, np.ndarray) or given.dtype != "m8[ms]" or given.shape != (size,):
        return False
    ms = given.view(np.int64)
    return bool(np.all((ms >= 0) & (ms <= MAX_DELAY_MS)))


# --- key and headers --------------------------------------------------------------------------


def extras(key: object, headers: object, size: int) -> Sequence[bytes] | None:
    """Return key and headers of each message as bytes, or None when no message has any."""
    if key is None and headers is None:
        return None
    if not _is_many(key) and not _is_many(headers):
        return [encode_extra(values.key(key), values.headers(headers))] * size
    keys = _each(key, size, "key", InvalidKey)
    many = _each(headers, size, "headers", InvalidHeaders)
    return [
        encode_extra(values.key(one, f"key[{at}]"), values.headers(some, f"headers[{at}]"))
        for at, (one, some) in enumerate(zip(keys, many, strict=True))
    ]


def _each(given: Any, size: int, field: str, error: type[InvalidInput]) -> Sequence[Any]:
    if not _is_many(given):
        return [given] * size
    if len(given) != size:
        raise error(f"{field}: got {len(given)} values, expected one value or {size}")
    return given if isinstance(given, list | tuple) else np.asarray(given).tolist()


def errors(given: object, size: int) -> str | Sequence[str | None] | None:
    """Return one error for all messages, or one for each, cut to the kept length."""
    if not _is_many(given):
        return values.error_text(given)
    each = _each(given, size, "error", InvalidInput)
    return [values.error_text(one, f"error[{at}]") for at, one in enumerate(each)]
