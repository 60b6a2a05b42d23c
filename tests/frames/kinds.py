"""Kinds of columns that frames are drawn from, and what each value means in plain Python.

A kind has a type of Arrow, values to draw, and a function from a value to what the message has; it
raises Bad for a value that no message can have. A null is drawn in every column.
"""

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import strategies as st

NOW_MS = 1_000_000_000_000
_LAST_MS = NOW_MS + 100 * 366 * 86_400_000
MAX_PRIORITY = 2**32 - 1


class Bad(Exception):
    """A value that no message can have."""


@dataclass(frozen=True)
class Kind:
    """A type of a column, the values that are drawn for it, and their meaning.

    ``tools`` are those that have such a column; ``in_duckdb`` is the type that DuckDB casts to.
    """

    name: str
    type: pa.DataType
    drawn: st.SearchStrategy[Any]
    means: Callable[[Any], Any]
    tools: str = "pyarrow polars pandas duckdb"
    in_duckdb: str = ""

    def __repr__(self) -> str:
        return self.name


def moment_ms(moment: dt.datetime) -> int:
    """Return a moment in epoch milliseconds, rounded up; one without a zone is of UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return within(
        -(-(aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1))
    )


def within(due_ms: int) -> int:
    if not 0 <= due_ms <= _LAST_MS:
        raise Bad(due_ms)
    return due_ms


def at_day(day: dt.date) -> int:
    return moment_ms(dt.datetime(day.year, day.month, day.day))


def after(span: dt.timedelta) -> int:
    if span < dt.timedelta(0):
        raise Bad(span)
    return NOW_MS + -(-span // dt.timedelta(milliseconds=1))


def whole(low: int, high: int) -> Callable[[Any], int]:
    def means(value: Any) -> int:
        if value != int(value) or not low <= value <= high:
            raise Bad(value)
        return int(value)

    return means


def json_of(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def own_id(text: str) -> str:
    if not text or text.startswith("~"):
        raise Bad(text)
    return text


def digits(text: str) -> int:
    if not text.isdecimal():
        raise Bad(text)
    return int(text)


_TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
_MOMENTS = st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2095, 1, 1))
_IN_UTC = _MOMENTS.map(lambda one: one.replace(tzinfo=dt.UTC))
_SPANS = st.timedeltas(dt.timedelta(seconds=-5), dt.timedelta(days=40))
_DAYS = st.dates(dt.date(1960, 1, 1), dt.date(2099, 1, 1))
#: The last is beyond what any queue takes, whatever its clock.
_EPOCHS = st.integers(-5, 5) | st.integers(NOW_MS, 4 * 10**12) | st.just(2**62)
_UUIDS = st.uuids()
#: Where pandas has another type, such as floating point for whole numbers with nulls.
_NO_PANDAS = "pyarrow polars duckdb"


def _cut(unit: str) -> Callable[[dt.datetime], dt.datetime]:
    """Return a function that cuts a moment to what a unit can say."""
    step = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    return lambda one: one.replace(microsecond=one.microsecond // step * step)


def _zoned(zone: str) -> Callable[[dt.datetime], dt.datetime]:
    return lambda one: one.replace(tzinfo=dt.UTC).astimezone(ZoneInfo(zone))


BODIES = [
    Kind("text", pa.string(), _TEXTS, str.encode),
    Kind("large text", pa.large_string(), _TEXTS, str.encode, "pyarrow"),
    Kind("views", pa.string_view(), _TEXTS, str.encode, "pyarrow"),
    Kind(
        "categories", pa.dictionary(pa.int32(), pa.string()), _TEXTS, str.encode, "pyarrow pandas"
    ),
    Kind("bytes", pa.binary(), st.binary(max_size=8), bytes, in_duckdb="BLOB"),
    Kind("byte views", pa.binary_view(), st.binary(max_size=8), bytes, "pyarrow"),
    Kind("four bytes", pa.binary(4), st.binary(min_size=4, max_size=4), bytes, "pyarrow"),
    Kind("int8", pa.int8(), st.integers(-128, 127), json_of, _NO_PANDAS, "TINYINT"),
    Kind("uint16", pa.uint16(), st.integers(0, 65_535), json_of, _NO_PANDAS, "USMALLINT"),
    Kind("int64", pa.int64(), st.integers(-(2**63), 2**63 - 1), json_of, _NO_PANDAS, "BIGINT"),
    Kind("uint64", pa.uint64(), st.integers(0, 2**64 - 1), json_of, _NO_PANDAS, "UBIGINT"),
    Kind("truths", pa.bool_(), st.booleans(), json_of, in_duckdb="BOOLEAN"),
    Kind(
        "doubles",
        pa.float64(),
        st.floats(-1e6, 1e6).map(lambda one: round(one, 3) + 0.0005),
        json_of,
        in_duckdb="DOUBLE",
    ),
    Kind(
        "decimals",
        pa.decimal128(20, 2),
        st.decimals(-9999, 9999, places=2),
        lambda one: f"{one:f}".encode(),
        _NO_PANDAS,
        "DECIMAL(20,2)",
    ),
    Kind("days", pa.date32(), _DAYS, lambda one: json_of(one.isoformat()), _NO_PANDAS, "DATE"),
    Kind("UUIDs", pa.uuid(), _UUIDS, lambda one: str(one).encode(), "pyarrow"),
    Kind(
        "JSON",
        pa.json_(),
        st.lists(st.integers(), max_size=2).map(json.dumps),
        str.encode,
        "pyarrow",
    ),
]
DUES = [
    *(
        Kind(f"moments of {unit}", pa.timestamp(unit, "UTC"), _IN_UTC.map(_cut(unit)), moment_ms)
        for unit in ("s", "ms", "us")
    ),
    Kind("nanoseconds", pa.timestamp("ns", "UTC"), _IN_UTC, moment_ms),
    Kind(
        "moments in Rome",
        pa.timestamp("us", "Europe/Rome"),
        _MOMENTS.map(_zoned("Europe/Rome")),
        moment_ms,
    ),
    Kind("moments without a zone", pa.timestamp("us"), _MOMENTS, moment_ms, in_duckdb="TIMESTAMP"),
    Kind("dates", pa.date32(), _DAYS, at_day, _NO_PANDAS, "DATE"),
    Kind("epoch", pa.int64(), _EPOCHS, within, in_duckdb="BIGINT"),
    Kind("large epoch", pa.decimal128(38, 0), _EPOCHS, within, _NO_PANDAS, "HUGEINT"),
    Kind(
        "ISO",
        pa.string(),
        _IN_UTC.map(dt.datetime.isoformat),
        lambda one: moment_ms(dt.datetime.fromisoformat(one)),
    ),
]
DUES_MS = [
    Kind("whole", pa.int64(), _EPOCHS, within, in_duckdb="BIGINT"),
    Kind("uint32", pa.uint32(), st.integers(0, 5), within, in_duckdb="UINTEGER"),
    Kind("digits", pa.string(), _EPOCHS.map(str), lambda one: within(digits(one))),
]
DELAYS = [
    Kind("spans", pa.duration("us"), _SPANS, after, "pyarrow polars pandas"),
    Kind(
        "seconds",
        pa.int32(),
        st.integers(-5, 10**6),
        lambda one: after(dt.timedelta(seconds=one)),
        in_duckdb="INTEGER",
    ),
    Kind(
        "words",
        pa.string(),
        st.integers(0, 59).map("1h{}m".format),
        lambda one: NOW_MS + 3_600_000 + int(one[2:-1]) * 60_000,
    ),
    Kind(
        "Decimals",
        pa.decimal128(12, 3),
        st.decimals(-5, 10**6, places=3),
        lambda one: after(dt.timedelta(milliseconds=int(one * 1000))),
        _NO_PANDAS,
        "DECIMAL(12,3)",
    ),
]
DELAYS_MS = [
    Kind(
        "whole spans",
        pa.int64(),
        st.integers(-5, 10**9),
        lambda one: after(dt.timedelta(milliseconds=one)),
        in_duckdb="BIGINT",
    ),
    Kind(
        "spans in words",
        pa.string(),
        st.sampled_from(["0", "1500", "0x10", "1h30", "5 ", "1e3"]),
        lambda one: NOW_MS + digits(one),
    ),
]
IDS = [
    Kind("names", pa.string(), _TEXTS | st.text("~ab", max_size=2), own_id),
    Kind("UUID", pa.uuid(), _UUIDS, str, "pyarrow"),
    Kind("UUID of DuckDB", pa.string(), _UUIDS.map(str), str, "duckdb", "UUID"),
]
PRIORITIES = [
    Kind("small", pa.int8(), st.integers(-3, 127), whole(0, MAX_PRIORITY), in_duckdb="TINYINT"),
    Kind("numbers", pa.int64(), st.integers(-3, 2**33), whole(0, MAX_PRIORITY), in_duckdb="BIGINT"),
    Kind(
        "floats",
        pa.float64(),
        st.integers(0, 99).map(float) | st.just(2.5),
        whole(0, MAX_PRIORITY),
        in_duckdb="DOUBLE",
    ),
    Kind("number texts", pa.string(), st.sampled_from(["0", "7", "0x10", "7.0", ""]), digits),
]
_PAIRS = st.lists(st.tuples(st.text("ab", min_size=1, max_size=2), _TEXTS), max_size=3)


def headers_of(pairs: list[tuple[str, str]]) -> dict[str, str]:
    if len(dict(pairs)) < len(pairs):
        raise Bad(pairs)
    return dict(pairs)


HEADERS = [Kind("maps", pa.map_(pa.string(), pa.string()), _PAIRS, headers_of, "pyarrow")]

#: The kinds of each column, and whether a null in it makes its row a bad one.
COLUMNS: dict[str, tuple[list[Kind], bool]] = {
    "body": (BODIES, True),
    "due": (DUES, True),
    "due_ms": (DUES_MS, True),
    "delay": (DELAYS, True),
    "delay_ms": (DELAYS_MS, True),
    "id": (IDS, True),
    "priority": (PRIORITIES, False),
    "headers": (HEADERS, False),
}
WHEN = ("due", "due_ms", "delay", "delay_ms")
