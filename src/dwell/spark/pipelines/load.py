"""The load: messages that fall due, by topic and minute."""

from typing import NamedTuple

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from dwell.message import I64
from dwell.spark.pipelines.backlog import MINUTE_MS, Backlog, backlog

HOUR_MS, DAY_MS = 3_600_000, 86_400_000

#: How many topics are listed, the largest first.
MOST_TOPICS = 1_000


class Topic(NamedTuple):
    """The due messages of one topic, how many of them are overdue, and its fullest minute."""

    name: str
    due: int
    overdue: int
    peak: int
    peak_ms: int


class Load(NamedTuple):
    """The messages that fall due in each minute from ``start_ms`` on, the minute of ``now_ms``."""

    start_ms: int
    now_ms: int
    due: I64
    overdue: int
    topics: list[Topic]
    topic_count: int
    capacity: float | None
    backlog: Backlog | None

    @property
    def total(self) -> int:
        """How many messages fall due."""
        return int(self.due.sum())

    @property
    def peak(self) -> tuple[int, int]:
        """How many messages fall due in the fullest minute, and its start."""
        fullest = int(self.due.argmax())
        return int(self.due[fullest]), self.start_ms + fullest * MINUTE_MS

    def by(self, span_ms: int) -> list[tuple[int, int]]:
        """Return the starts of the spans (hours or days, in UTC), with the messages due in each."""
        starts = self.start_ms + np.arange(len(self.due)) * MINUTE_MS
        spans, place = np.unique(starts // span_ms * span_ms, return_inverse=True)
        sums = np.bincount(place, weights=self.due).astype(np.int64)
        return list(zip(spans.tolist(), sums.tolist(), strict=True))


def by_minute(messages: DataFrame, now_ms: int, end_ms: int) -> DataFrame:
    """Return how many messages fall due, by topic and minute, before ``end_ms``.

    ``messages`` has the columns of the view ``messages``. Overdue messages count in the minute of
    ``now_ms``. Dead messages do not fall due, and leased messages already did.
    """
    waiting = messages.where(
        F.col("state").isin("delayed", "ready") & (F.col("due") < F.timestamp_millis(F.lit(end_ms)))
    )
    due_ms = F.greatest(F.unix_millis("due"), F.lit(now_ms))
    minute = F.timestamp_millis(due_ms - due_ms % MINUTE_MS).alias("minute")
    overdue = F.count_if(F.unix_millis("due") <= now_ms).alias("overdue")
    return waiting.groupBy("topic", minute).agg(F.count("*").alias("due"), overdue)


def load(table: DataFrame, now_ms: int, end_ms: int, capacity: float | None = None) -> Load:
    """Return the sums of a table of topics and minutes."""
    start_ms = now_ms // MINUTE_MS * MINUTE_MS
    due = np.zeros(-(-(end_ms - start_ms) // MINUTE_MS), dtype=np.int64)
    minutes = table.groupBy(F.unix_millis("minute").alias("ms")).agg(F.sum("due").alias("n"))
    for row in minutes.collect():
        due[(row.ms - start_ms) // MINUTE_MS] = row.n
    topics = table.groupBy("topic").agg(
        F.sum("due").alias("due"),
        F.sum("overdue").alias("overdue"),
        F.max("due").alias("peak"),
        F.max_by(F.unix_millis("minute"), "due").alias("peak_ms"),
    )
    sums = table.agg(F.sum("overdue"), F.count_distinct("topic")).collect()[0]
    largest = topics.orderBy(F.desc("due"), "topic").limit(MOST_TOPICS).collect()
    return Load(
        start_ms=start_ms,
        now_ms=now_ms,
        due=due,
        overdue=int(sums[0] or 0),
        topics=[Topic(*row) for row in largest],
        topic_count=int(sums[1]),
        capacity=capacity,
        backlog=None if capacity is None else backlog(start_ms, now_ms, due, capacity),
    )
