"""The positions of some events: their range, and the gaps."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

_BLOCK = 100_000


@dataclass(frozen=True, slots=True)
class Span:
    """The positions of the books: from ``first`` to before ``following``."""

    first: int
    following: int

    @classmethod
    def of(cls, events: DataFrame, since: int = 0, until: int | None = None) -> "Span":
        """Return the span from the first existing event to ``until`` or the last."""
        there = _between(events, since, until)
        row = there.agg(F.min("position").alias("first"), F.max("position").alias("last")).collect()
        first = row[0].first
        if first is None:
            end = since if until is None else max(since, until)
            return cls(end, end)
        return cls(int(first), int(row[0].last) + 1 if until is None else until)

    def __len__(self) -> int:
        return self.following - self.first

    @property
    def is_from_start(self) -> bool:
        """Whether it starts with the first event of a store."""
        return self.first == 0

    def of_events(self, events: DataFrame) -> DataFrame:
        """Return the events in the span."""
        return _between(events, self.first, self.following)


def gaps(events: DataFrame, span: Span, limit: int) -> list[tuple[int, int]]:
    """Return the first and last position of each gap in a span."""
    there = span.of_events(events)
    blocks = there.select("position", F.expr(f"position div {_BLOCK}").alias("block"))
    inside = Window.partitionBy("block").orderBy("position")
    within = blocks.select(F.lag("position").over(inside).alias("low"), F.col("position"))
    # There is one row for each block, few enough to be sorted in one place.
    ends = blocks.groupBy("block").agg(F.min("position").alias("a"), F.max("position").alias("z"))
    order = Window.orderBy("block")
    low = F.coalesce(F.lag("z").over(order), F.lit(span.first - 1))
    between = ends.select(low.alias("low"), F.col("a").alias("position"))
    high = there.agg(F.coalesce(F.max("position"), F.lit(span.first - 1)).alias("low"))
    after = high.select("low", F.lit(span.following).alias("position"))
    found = within.union(between).union(after).where(F.col("position") - F.col("low") > 1)
    rows = found.orderBy("position").limit(limit).collect()
    return [(int(row.low) + 1, int(row.position) - 1) for row in rows]


def _between(events: DataFrame, first: int, following: int | None) -> DataFrame:
    later = events.where(F.col("position") >= first)
    return later if following is None else later.where(F.col("position") < following)
