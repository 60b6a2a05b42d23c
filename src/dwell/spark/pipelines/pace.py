"""A pace: limits messages a second, with dues spread and spaced over all partitions.

A pace needs the place of each row among all rows. One partition with all rows would not do for
fifty million, so the rows are sorted into ranges; only the size and the latest end of each range
come to the driver; and then each range is spaced on its own, knowing the totals before it.
"""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from dwell.errors import InvalidInput, InvalidSettings
from dwell.given import values

#: The form of a start.
START_FORM = "a time with its zone, such as 2026-12-24T09:00:00Z"

_PACE = re.compile(r"([1-9][0-9]{0,6})/(s|m|h)")
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
_MOST = 1_000_000

_RANGE, _PLACE = "_range", "_place"
# monotonically_increasing_id has the partition's number in its upper bits, the place in these.
_PLACE_BITS = (1 << 33) - 1
_NEVER = -(1 << 62)

#: The rows that a run has cached.
_kept: ContextVar[list[DataFrame]] = ContextVar("kept")


class Pace(NamedTuple):
    """At most ``most`` in any ``unit_ms``, evenly."""

    most: int
    unit_ms: int

    def span_ms(self, count: int) -> int:
        """Return how long a number of messages takes."""
        return count * self.unit_ms // self.most


def pace(text: str | None) -> Pace | None:
    """Return a pace such as "5000/s"; raises InvalidSettings."""
    if text is None:
        return None
    found = _PACE.fullmatch(text)
    if found is None or int(found[1]) > _MOST:
        allowed = f'"5000/s", "300/m" or "1000/h", from 1 to {_MOST:,}'
        raise values.refusal(InvalidSettings, "--pace", text, allowed)
    return Pace(int(found[1]), _UNITS_MS[found[2]])


def start_ms(text: str | None) -> int | None:
    """Return the time in a text, if there is one; raises InvalidSettings."""
    if text is None:
        return None
    try:
        return values.due_ms(datetime.fromisoformat(text), now_ms(), "--start")
    except (InvalidInput, ValueError):
        raise values.refusal(InvalidSettings, "--start", text, START_FORM) from None


def now_ms() -> int:
    """Return the present time on the driver."""
    return time.time_ns() // 1_000_000


def jitter_ms(name: Column, spread: str | None) -> Column:
    """Return a part of the spread derived from a name alone: the same in every run."""
    if spread is None:
        return F.lit(0).cast("long")
    span_ms = values.delay_ms(spread, "--spread")
    return F.pmod(F.xxhash64(name), F.lit(max(span_ms, 1)))


@contextlib.contextmanager
def letting_go() -> Iterator[None]:
    """Release at the end all rows that were cached in the block.

    Spark uses a cache for every query that looks the same, even if a file of that name has other
    rows by then.
    """
    token = _kept.set([])
    try:
        yield
    finally:
        for rows in _kept.get():
            rows.unpersist()
        _kept.reset(token)


def keep(rows: DataFrame) -> DataFrame:
    """Return rows that Spark caches once it has made them."""
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    _kept.get([]).append(kept)
    return kept


# --- places ---------------------------------------------------------------------------------------


def sorted_once(rows: DataFrame, order: Sequence[Column]) -> DataFrame:
    """Return the rows in ranges of an order, with their range and their place in it.

    They are cached, because the borders of the ranges are estimated from a sample: another pass
    over the source could set them differently, and the places of the first pass would be wrong in
    the next.
    """
    count = max(rows.sparkSession.sparkContext.defaultParallelism, 2)
    ranges = rows.repartitionByRange(count, *order).sortWithinPartitions(*order)
    place = F.monotonically_increasing_id().bitwiseAND(F.lit(_PLACE_BITS))
    placed = ranges.withColumns({_RANGE: F.spark_partition_id(), _PLACE: place})
    return keep(placed)


def numbered(rows: DataFrame, name: str, order: Sequence[Column]) -> DataFrame:
    """Return the rows with their index among all, from 0, in one more column."""
    placed = sorted_once(rows, order)
    sizes = placed.groupBy(_RANGE).agg(F.count(F.lit(1)).alias("rows")).collect()
    firsts = _firsts({row[_RANGE]: row["rows"] for row in sizes})
    first = F.lit(0).cast("long")
    for number, before in firsts.items():
        first = F.when(F.col(_RANGE) == number, F.lit(before).cast("long")).otherwise(first)
    return placed.withColumn(name, first + F.col(_PLACE)).drop(_RANGE, _PLACE)


def _firsts(sizes: dict[int, int]) -> dict[int, int]:
    """Return how many rows precede each range."""
    firsts, before = {}, 0
    for number in sorted(sizes):
        firsts[number] = before
        before += sizes[number]
    return firsts


# --- spacing --------------------------------------------------------------------------------------

# Row i of all rows, in order of due, falls due at the earliest time that is neither before its own
# due nor less than a step (unit / most) after the previous row:
#
#     paced(i) = max over j <= i of (due(j) + (i - j) * step)
#              = i * step + max over j <= i of (due(j) - j * step)
#
# The last term is a running maximum, and the only value that a range needs from earlier ranges.
# Everything is multiplied by most, so that whole numbers stay exact; rounding down at the end
# cannot go below a due, which is whole.


def paced(rows: DataFrame, due: str, at: Pace | None, order: Sequence[Column]) -> DataFrame:
    """Return the rows with dues (milliseconds, in the column ``due``) moved back to keep a pace.

    Rows of the same due keep the given order. No row falls due earlier than before, or later than
    necessary; a row without a due stays without.
    """
    if at is None:
        return rows
    placed = sorted_once(rows, [F.col(due).asc_nulls_last(), *order])
    spacing = _Spacing(due, at, _starts(placed, due, at))
    return placed.mapInArrow(spacing, placed.schema).drop(_RANGE, _PLACE)


class _Start(NamedTuple):
    """The values that a range needs from earlier ranges: their rows, and their latest end."""

    first: int
    latest: int


def _starts(placed: DataFrame, due: str, at: Pace) -> dict[int, _Start]:
    slack = F.col(due) * F.lit(at.most) - F.col(_PLACE) * F.lit(at.unit_ms)
    found = placed.groupBy(_RANGE).agg(F.count(F.lit(1)).alias("rows"), F.max(slack).alias("end"))
    ranges = {row[_RANGE]: row for row in found.collect()}
    firsts = _firsts({number: row["rows"] for number, row in ranges.items()})
    starts, latest = {}, _NEVER
    for number, first in firsts.items():
        starts[number] = _Start(first, latest)
        end = ranges[number]["end"]
        latest = latest if end is None else max(latest, end - first * at.unit_ms)
    return starts


class _Spacing:
    """Spaces the rows of one range, batch after batch: runs on an executor."""

    def __init__(self, due: str, at: Pace, starts: dict[int, _Start]) -> None:
        self._due = due
        self._pace = at
        self._starts = starts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        latest = _NEVER
        for batch in batches:
            if batch.num_rows:
                start = self._starts[batch[_RANGE][0].as_py()]
                dues, latest = self._spaced(batch, start, max(latest, start.latest))
                batch = batch.set_column(batch.schema.get_field_index(self._due), self._due, dues)
            yield batch

    def _spaced(self, batch: pa.RecordBatch, start: _Start, latest: int) -> tuple[Any, int]:
        given = batch[self._due]
        known = np.asarray(given.is_valid())
        due_ms = np.asarray(given.fill_null(0))
        steps = (start.first + np.asarray(batch[_PLACE])) * self._pace.unit_ms
        slack = np.where(known, due_ms * self._pace.most - steps, _NEVER)
        slack = np.maximum.accumulate(np.maximum(slack, latest))
        # A row without a due has no time either; its sum is arbitrary.
        spaced_ms = np.where(known, (slack + steps) // self._pace.most, 0)
        return pa.array(spaced_ms, pa.int64(), mask=~known), int(slack[-1])
