"""Columns of Arrow as messages: values of the queue, and the names of a table's columns.

Raises InvalidInput for columns that are not valid; nulls and unknown types never make a message
due at once.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from dwell.batch.puts import Puts
from dwell.errors import BatchTooLarge, InvalidBody, InvalidHeaders, InvalidInput, InvalidTime
from dwell.given import columns, values
from dwell.given.options import MS_COLUMNS, TABLE_COLUMNS, WORD_COLUMNS
from dwell.given.values import Delay
from dwell.message import MAX_BATCH_BYTES, MAX_HEADERS
from dwell.queue.bulk import puts_of

#: Columns that say when a message falls due. A null would mean at once.
_WHEN = ("due", "delay", "delay_level")

#: Columns of whole numbers, which may be given as text or as floating point.
_WHOLE = (*MS_COLUMNS, "due", "due_ms", "expires_ms", "priority", "max_attempts", "delay_level")

#: The limit of headers of all messages of a stream together; each header is several objects.
MOST_HEADERS = 100_000
#: How many rows are read before other tasks run.
_TURN_ROWS = 500

_FORMS = "numbers, text, binary, moments, spans, or a map of text to text"

#: Where Arrow says that a column means something else than its values do.
_EXTENSION = b"ARROW:extension:name"
#: Where pandas says which columns are its index.
_PANDAS = b"pandas"
#: Patterns of a whole number in text, and of a number of milliseconds.
_NUMBER = "^[+-]?[0-9]+$"
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")


def pyarrow() -> Any:
    """Return the package, imported on first use; raises InvalidInput."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError:
        raise InvalidInput("arrow: pyarrow is missing; pip install 'dwell[arrow]'") from None
    return pyarrow


def check_schema(schema: Any) -> None:
    """Refuse columns that are no part of a put, say the same as others, or are of other types."""
    names = names_of(schema)
    if len(set(names)) != len(names):
        raise InvalidInput(f"arrow: got columns {values.shown(names)}, expected each name once")
    if "body" not in names:
        raise InvalidInput(f"arrow: got columns {values.shown(names)}, expected one named body")
    words = set[str]()
    for name in names:
        word = "body" if name == "body" else _word(name)
        if word is None or word in words:
            allowed = ", ".join(TABLE_COLUMNS)
            raise InvalidInput(
                f"arrow: got column {values.shown(name)}, expected one each of {allowed}"
            )
        words.add(word)
    for name in names:
        _check_field(pyarrow(), schema.field(name))


def names_of(schema: Any) -> list[str]:
    """Return the names of the columns, without an index of pandas that is no column of a put."""
    names: list[str] = schema.names
    try:
        index = json.loads((schema.metadata or {}).get(_PANDAS, b"{}"))["index_columns"]
        unwanted = {name for name in index if isinstance(name, str) and _word(name) is None}
    except (KeyError, RecursionError, TypeError, ValueError):
        return names
    return [name for name in names if name not in unwanted or name == "body"]


async def puts_of_table(table: Any, topic: str, now_ms: int, levels_ms: Sequence[int] = ()) -> Puts:
    """Return the rows of a table whose schema was checked as the columns of one put.

    Yields to other tasks in between. Raises InvalidInput for the first value that is not valid.
    """
    words: Any = {
        _word(name): _in_words(await _column(table.column(name), name), name)
        for name in names_of(table.schema)
        if name != "body"
    }
    _check_when(words)
    bodies = await _column(table.column("body"), "body")
    if None in bodies:
        raise InvalidBody(f"body[{bodies.index(None)}]: got null, expected bytes or text")
    return puts_of(topic, columns.bodies(bodies), now_ms, levels_ms, **words)


def _word(name: str) -> str | None:
    """Return the word of the queue for a column."""
    return WORD_COLUMNS.get(name) or MS_COLUMNS.get(name)


def _check_when(words: dict[str, Any]) -> None:
    """Refuse a null where the rows say when they are due; raises InvalidTime."""
    for word in _WHEN:
        if None in (many := words.get(word, ())):
            at = list(many).index(None)
            raise InvalidTime(f"{word}[{at}]: got null, expected a moment or a span")


def _in_words(many: Any, name: str) -> Any:
    """Return a column under the queue's name for it, where a span names its unit."""
    if name not in MS_COLUMNS:
        return many
    return [_millis(value, f"{name}[{at}]") for at, value in enumerate(many)]


def _millis(value: Any, field: str) -> Delay | None:
    if value is None or values.is_whole(value):
        return None if value is None else values.Millis(int(value))
    # A text with units of its own means something else.
    if type(value) is float or (isinstance(value, str) and _DECIMAL.fullmatch(value)):
        return f"{value}ms"
    raise values.refusal(InvalidTime, field, value, "a number of milliseconds")


async def _column(column: Any, name: str) -> Any:
    """Return a column as an array of whole numbers, or as a list."""
    pa, shown = pyarrow(), values.shown(name)
    if isinstance(column.type, pa.JsonType):
        column = column.cast(column.type.storage_type)
    if pa.types.is_dictionary(column.type) and pa.types.is_null(column.type.value_type):
        # Categories of pandas without a single value.
        column = column.cast(pa.null())
    size_bytes = sum(_unpacked_bytes(pa, chunk) for chunk in column.chunks)
    if size_bytes > MAX_BATCH_BYTES:
        raise BatchTooLarge(
            f"arrow: column {shown} has {size_bytes} bytes, expected {MAX_BATCH_BYTES} or fewer"
        )
    if pa.types.is_run_end_encoded(column.type):
        column = pa.chunked_array(
            [pa.compute.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type
        )
    if name in _WHOLE:
        column = _whole(pa, column, name)
    if name != "body" and pa.types.is_integer(column.type) and not column.null_count:
        return column.combine_chunks().to_numpy(zero_copy_only=False)
    if pa.types.is_map(column.type):
        _check_headers(column)
    try:
        micros, found = _in_micros(pa, column), list[Any]()
        value_of = _body if name == "body" else _value
        rows = _TURN_ROWS // 10 if pa.types.is_map(column.type) else _TURN_ROWS
        for at in range(0, len(column), rows):
            found += map(value_of, micros.slice(at, rows).to_pylist())
            await asyncio.sleep(0)
        return found
    except _UNREADABLE:
        raise _refusal(pa, column, name) from None


def _whole(pa: Any, column: Any, name: str) -> Any:
    """Return a column as whole numbers if all its values are some; others are refused by row.

    Text is what a file has, and floating point what pandas makes of whole numbers with nulls.
    """
    is_whole, types = False, pa.types
    try:
        if _is_text(pa, column.type) and name != "due":
            column = column.cast(pa.string())
            # Arrow's own cast reads hexadecimal numbers too.
            is_whole = _all(pa, pa.compute.match_substring_regex(column, _NUMBER))
        elif types.is_floating(column.type):
            is_whole = _all(pa, pa.compute.equal(column, pa.compute.floor(column)))
        return column.cast(pa.int64()) if is_whole else column
    except pa.ArrowException:
        return column


def _all(pa: Any, truths: Any) -> bool:
    return pa.compute.all(truths).as_py() is not False


def _check_field(pa: Any, field: Any) -> None:
    """Raise InvalidInput for a column that holds neither single values nor headers."""
    kind, shown = field.type, values.shown(field.name)
    extension = (field.metadata or {}).get(_EXTENSION)
    if extension is not None:
        named = values.shown(extension.decode(errors="replace"))
        raise InvalidInput(
            f"arrow: column {shown} is of the extension type {named}, expected {_FORMS}"
        )
    if isinstance(kind, pa.JsonType):
        kind = kind.storage_type
    if not _is_plain(pa, kind):
        raise InvalidInput(f"arrow: column {shown} is {str(kind)[:200]}, expected {_FORMS}")


#: Errors raised for a value that Python cannot represent; PyArrow's errors are among them.
_UNREADABLE = (ArithmeticError, KeyError, NotImplementedError, TypeError, ValueError)


def _refusal(pa: Any, column: Any, name: str) -> InvalidInput:
    """Return the error of a column, which names the row."""
    low, high = 0, len(column)
    while high - low > 1:
        # One of the rows from the first half on is bad, or one of the second half is.
        middle = (low + high) // 2
        try:
            list(map(_value, _in_micros(pa, column.slice(low, middle - low)).to_pylist()))
            low = middle
        except _UNREADABLE:
            high = middle
    for at in range(low, high):
        part = column.slice(at, 1)
        try:
            _value(_in_micros(pa, part).to_pylist()[0])
        except _UNREADABLE as error:
            got = " ".join(str(part).split())[:100]
            return InvalidInput(f"arrow: {name}[{at}]: got {got}, expected {_FORMS} ({error})")
    return InvalidInput(f"arrow: column {values.shown(name)} cannot be read as {_FORMS}")


def _in_micros(pa: Any, column: Any) -> Any:
    """Return moments and spans in microseconds, rounded up, so that nothing is early.

    A moment is the same in every zone, and not all zones of other programs are known here.
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        wanted = pa.timestamp("us", kind.tz and "UTC")
        nanos = pa.timestamp("ns", kind.tz and "UTC")
    elif pa.types.is_duration(kind):
        wanted, nanos = pa.duration("us"), pa.duration("ns")
    else:
        return column
    if kind.unit != "ns":
        return column.cast(wanted)
    rest = column.cast(nanos).cast(pa.int64())
    floored = column.cast(wanted, safe=False).cast(pa.int64())
    # The cast cuts towards zero, which is down only after 1970.
    up = pa.compute.greater(rest, pa.compute.multiply(floored, 1000))
    return pa.compute.add(floored, up.cast(pa.int64())).cast(wanted)


def _check_headers(column: Any) -> None:
    """Refuse more headers than a message or a request may have, before any object is made."""
    at = total = 0
    for chunk in column.chunks:
        counts = np.diff(chunk.offsets.to_numpy())
        if len(counts) and counts.max() > MAX_HEADERS:
            place = int(counts.argmax())
            got = f"headers[{at + place}]: got {counts[place]} headers"
            raise InvalidHeaders(f"{got}, expected at most {MAX_HEADERS}")
        at, total = at + len(chunk), total + int(counts.sum())
    if total > MOST_HEADERS:
        raise BatchTooLarge(
            f"headers: got {total} in one request, expected {MOST_HEADERS} or fewer in Arrow"
        )


def _value(value: Any) -> Any:
    """Return a value as the queue knows it; a moment without a zone is one of UTC."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "nanoseconds"):
        return _span(value)
    return _headers(value) if isinstance(value, list) else value


def _headers(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return headers; raises ValueError for a name that occurs twice."""
    headers = dict(pairs)
    if len(headers) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the header {twice!r:.80} occurs twice")
    return headers


def _body(value: Any) -> Any:
    """Return a body; a decimal is a number of JSON with all its digits, as in Spark's to_json."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    is_day = isinstance(value, date) and not isinstance(value, datetime)
    return value if is_day else _value(value)


def _span(interval: Any) -> timedelta:
    """Return an interval of days and nanoseconds; raises ValueError for one of months."""
    if interval.months:
        raise ValueError("months differ in length")
    return timedelta(days=interval.days, microseconds=-(-interval.nanoseconds // 1000))


def _is_plain(pa: Any, kind: Any) -> bool:
    """Tell whether a type is of single values or of headers."""
    types = pa.types
    if types.is_run_end_encoded(kind):
        inner = kind.value_type
        # PyArrow cannot unpack runs of these.
        is_packed = types.is_map(inner) or types.is_dictionary(inner) or _is_view(pa, inner)
        return not (is_packed or isinstance(inner, pa.BaseExtensionType)) and _is_plain(pa, inner)
    if types.is_dictionary(kind):
        return _is_text(pa, kind.value_type) or types.is_null(kind.value_type)
    if types.is_map(kind):
        return _is_text(pa, kind.key_type) and _is_text(pa, kind.item_type)
    checks = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_null,
        types.is_timestamp,
        types.is_duration,
        types.is_fixed_size_binary,
        types.is_date32,
        types.is_date64,
        types.is_decimal,
        types.is_interval,
    )
    return (
        _is_text(pa, kind) or isinstance(kind, pa.UuidType) or any(check(kind) for check in checks)
    )


def _is_text(pa: Any, kind: Any) -> bool:
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return _is_view(pa, kind) or any(check(kind) for check in checks)


def _is_view(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _unpacked_bytes(pa: Any, chunk: Any) -> int:
    """Return the size of the values one by one, as many may share the same bytes."""
    if pa.types.is_dictionary(chunk.type):
        sizes = _lengths(pa, chunk.dictionary).take(chunk.indices)
        return pa.compute.sum(sizes).as_py() or 0
    if pa.types.is_run_end_encoded(chunk.type):
        return _unpacked_runs(pa, chunk)
    if pa.types.is_map(chunk.type):
        parts = [part for part in (chunk.keys, chunk.items) if _is_view(pa, part.type)]
        viewed = sum(_unpacked_bytes(pa, part) for part in parts)
        return int(chunk.nbytes) + viewed
    if _is_view(pa, chunk.type):
        return pa.compute.sum(_lengths(pa, chunk)).as_py() or 0
    return int(chunk.nbytes)


def _unpacked_runs(pa: Any, chunk: Any) -> int:
    ends = np.clip(chunk.run_ends.to_numpy() - chunk.offset, 0, len(chunk))
    values, rows = chunk.values, np.diff(ends, prepend=0)
    if not _is_text(pa, values.type):
        # No other value has more than sixteen bytes, but of a fixed size.
        return len(chunk) * max(int(getattr(values.type, "byte_width", 16)), 16)
    sizes = pa.compute.fill_null(_lengths(pa, values), 0).to_numpy(zero_copy_only=False)
    return int((sizes * rows).sum())


def _lengths(pa: Any, texts: Any) -> Any:
    """Return how many bytes each text has."""
    if not _is_view(pa, texts.type):
        return pa.compute.binary_length(texts)
    # Each view is 16 bytes, and begins with its length; the buffer may be longer.
    count = 4 * (texts.offset + len(texts))
    views = np.frombuffer(texts.buffers()[1] or b"", dtype="<i4", count=count).reshape(-1, 4)
    return pa.array(views[texts.offset :, 0].astype(np.int64))
