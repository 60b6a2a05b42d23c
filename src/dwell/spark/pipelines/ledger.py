"""The ledger: each event with the previous event of its message, and a verdict.

It takes a single sort by message: each event is judged by the previous event of its message, and
the table of transitions has the valid pairs.
"""

from typing import Self

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.storagelevel import StorageLevel

from dwell.message import MAX_ATTEMPTS, Kind
from dwell.spark.pipelines import rules
from dwell.spark.pipelines.positions import Span

HOUR_MS = 3_600_000

_PARTS = "spark.sql.shuffle.partitions"

# A part of this size can be sorted in one gigabyte of memory shared by two tasks.
_PART_EVENTS = 500_000

# Above this, lateness is rounded to four digits, which limits the number of values.
_EXACT_MS = 10_000

#: The origin of a delivery whose reason is before the first known event.
BEFORE = 0


class Ledger:
    """The entries of some events, kept by Spark for as long as the block runs.

    ``entries`` has one row an event; ``cells`` has counts of them, and all sums are made from it.
    """

    def __init__(self, events: DataFrame, span: Span, early_ms: int = 0) -> None:
        self._spark = events.sparkSession
        self._cores = self._spark.sparkContext.defaultParallelism
        self._parts = max(self._cores, -(-len(span) // _PART_EVENTS))
        self._parts_before: str | None = None
        self.entries = _entries(span.of_events(events), span.is_from_start, early_ms)
        self.cells = _cells(self.entries).coalesce(self._cores)

    def __enter__(self) -> Self:
        # Kept data do not adapt the number of parts to their size, so it is set here.
        self._parts_before = self._spark.conf.get(_PARTS)
        self._spark.conf.set(_PARTS, str(self._parts))
        self.entries.persist(StorageLevel.DISK_ONLY)
        self.cells.persist(StorageLevel.MEMORY_AND_DISK)
        return self

    def __exit__(self, *error: object) -> None:
        self.cells.unpersist()
        self.entries.unpersist()
        self._spark.conf.set(_PARTS, str(self._parts_before))


def code(kind: Column) -> Column:
    """Return the number of a kind by name; 0 for an unknown kind."""
    found = [F.when(kind == str(known), F.lit(int(known))) for known in Kind]
    return F.coalesce(*found, F.lit(rules.NONE)).cast("byte")


def name(kind: Column) -> Column:
    """Return the name of a kind by number; null for 0."""
    return F.coalesce(*(F.when(kind == int(known), F.lit(str(known))) for known in Kind))


def is_kind(*kinds: int) -> Column:
    """Tell whether an entry has one of some kinds."""
    return F.col("kind").isin([int(kind) for kind in kinds])


# --- entries --------------------------------------------------------------------------------------


def _entries(events: DataFrame, from_start: bool, early_ms: int) -> DataFrame:
    """Judge each event by the earlier events of the same message."""
    narrow = events.select(
        "topic",
        "id",
        "position",
        code(F.col("kind")).alias("kind"),
        F.unix_millis("time").alias("time_ms"),
        F.unix_millis("due").alias("due_ms"),
        F.col("attempt").cast("int").alias("attempt"),
        # Rows are sorted by this number first: comparing ids would take most of the time.
        F.xxhash64("topic", "id").alias("hash"),
    )
    judged = _judged(_beside(narrow), from_start, early_ms)
    return judged.select(
        "topic",
        F.expr(f"time_ms div {HOUR_MS}").alias("hour"),
        *("kind", "prior", "origin", "is_last", "is_known", "is_repeat"),
        *("is_broken", "is_doubled", "is_early", "is_again", "is_first"),
        *("position", "time_ms", "due_ms", "attempt", "prior_attempt", "is_miscounted"),
        # Only listed events need their id, which is the widest part of a row.
        F.when(_is_listed(), F.col("id")).alias("id"),
    )


def _beside(events: DataFrame) -> DataFrame:
    """Add to each event the values before it."""
    message = Window.partitionBy("hash", "topic", "id").orderBy("position")
    before = message.rowsBetween(Window.unboundedPreceding, -1)

    def last(value: str, *kinds: Kind) -> Column:
        return F.last(F.when(is_kind(*kinds), F.col(value)), ignorenulls=True).over(before)

    lasting = [kind for kind in Kind if kind != Kind.MOVE]
    return events.select(
        "*",
        F.coalesce(F.lag("kind").over(message), F.lit(rules.NONE)).alias("prior"),
        F.lag("position").over(message).alias("prior_position"),
        F.lag("attempt").over(message).alias("prior_attempt"),
        F.lag("due_ms").over(message).alias("asked_ms"),
        F.lead("position").over(message).isNull().alias("is_last"),
        # A message that waits for another delivery may be moved before it: that is not a reason.
        last("kind", *lasting).alias("origin"),
        last("position", Kind.PUT, Kind.REPLACE).alias("begun"),
        last("position", Kind.TAKE).alias("taken"),
    )


def _judged(beside: DataFrame, from_start: bool, early_ms: int) -> DataFrame:
    """Add the verdict on each event."""
    lawful = (F.col("prior") * F.lit(rules.BASE) + F.col("kind")).isin(
        rules.lawful_pairs(from_start=from_start)
    )
    take, first_known = is_kind(Kind.TAKE), F.col("prior") == rules.NONE
    # Two dues count: the due requested last, and the take's own.
    early = F.col("time_ms") < F.greatest("due_ms", "asked_ms") - early_ms
    returned = F.col("origin").isin(int(Kind.RELEASE), int(Kind.LAPSE))
    before = F.col("begun").isNull() & ((F.col("attempt") > 1) | F.coalesce(returned, F.lit(False)))
    again = F.coalesce(F.col("taken") > F.coalesce("begun", F.lit(-1)), before)
    repeat = F.coalesce(F.col("prior_position") == F.col("position"), F.lit(False))
    judged = beside.withColumns(
        {
            "is_repeat": repeat,
            "is_known": first_known & ~is_kind(Kind.PUT) & F.lit(not from_start),
            "is_doubled": ~repeat & take & ~lawful & ~first_known,
            "is_miscounted": lawful & ~_has_right_attempt(),
        }
    )
    once = ~F.col("is_repeat") & ~F.col("is_doubled")
    return judged.withColumns(
        {
            "is_broken": once & (~lawful | F.col("is_miscounted")),
            "is_early": ~F.col("is_repeat") & take & early,
            "is_again": once & take & again,
            "is_first": once & take & ~again,
            "origin": F.coalesce("origin", F.lit(BEFORE)),
        }
    )


def _has_right_attempt() -> Column:
    """Tell whether an event has the attempt that follows from the previous event.

    A take adds one; a release may give its attempt back; a new life, and a life after death, start
    again. For the first known event of a message only a put is known.
    """
    now, before = F.col("attempt"), F.col("prior_attempt")
    more = F.least(before + 1, F.lit(MAX_ATTEMPTS))
    right = (
        F.when(is_kind(Kind.PUT, Kind.REPLACE, Kind.KICK), now == 0)
        .when(before.isNull(), F.lit(True))
        .when(is_kind(Kind.TAKE), now == more)
        .when(is_kind(Kind.RELEASE), now.isin(before, before - 1))
        .otherwise(now == before)
    )
    return F.coalesce(right, F.lit(False))


def _is_listed() -> Column:
    names = ("is_broken", "is_doubled", "is_early", "is_again", "is_repeat")
    found = F.col(names[0])
    for other in names[1:]:
        found = found | F.col(other)
    return found


# --- cells ----------------------------------------------------------------------------------------


def _cells(entries: DataFrame) -> DataFrame:
    """Count the entries that are equal in everything that the sums need."""
    late_ms = F.greatest(F.col("time_ms") - F.col("due_ms"), F.lit(0))
    return (
        entries.withColumn("late_ms", F.when(F.col("is_first"), late_ms))
        .groupBy(
            *("topic", "hour", "kind", "is_last", "is_known", "is_repeat"),
            *("is_broken", "is_doubled", "is_early", "is_again"),
            F.when(F.col("is_again"), F.col("origin")).alias("origin"),
            F.when(is_kind(Kind.ACK), F.col("attempt")).alias("attempt"),
            _rounded("late_ms").alias("late_ms"),
        )
        .agg(F.count("*").alias("n"), F.max("late_ms").alias("late_max_ms"))
    )


def _rounded(late_ms: str) -> Column:
    """Return lateness unchanged up to ten seconds, and above with four digits."""
    step = F.pow(F.lit(10), F.floor(F.log10(F.col(late_ms))) - 3)
    coarse = (F.floor(F.col(late_ms) / step) * step).cast("long")
    return F.when(F.col(late_ms) < _EXACT_MS, F.col(late_ms)).otherwise(coarse)
