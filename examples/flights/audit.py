"""The books of the flights job: what the audit found, beside the data set, flight by flight."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from dwell.spark.pipelines import audit
from dwell.spark.pipelines.command import PipelineFailed
from examples.flights.plan import TOPIC
from examples.flights.processes import Outage

_CAUGHT_UP_MS = 20
_UNEXPLAINED = "unexplained"
_RETRY = "retry: the handler failed"


class Check(NamedTuple):
    """One line of the books: what the queue says, what the data set says."""

    what: str
    queue: int
    data: int

    @property
    def holds(self) -> bool:
        """Whether both say the same."""
        return self.queue == self.data


class Day(NamedTuple):
    """The reminders of one day of the year."""

    day: date
    planned: int
    cancelled: int
    moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What became of everything.

    ``line`` is what the audit says, and ``is_sound`` whether its books balance by themselves.
    ``again`` counts the deliveries beyond the first by their reason. ``late_ms`` counts the first
    deliveries by how late they were, ``outage_ms`` those that were late because the server was
    away: from the kill until the worker has caught up.
    """

    line: str
    is_sound: bool
    checks: tuple[Check, ...]
    deliveries: int
    again: Mapping[str, int]
    late_ms: Mapping[int, int]
    outage_ms: Mapping[int, int]
    days: tuple[Day, ...]
    outage: Outage | None

    @property
    def is_balanced(self) -> bool:
        """Whether the audit's books balance, all is explained, and the data set agrees."""
        holds = all(check.holds for check in self.checks)
        return self.is_sound and holds and not self.again.get(_UNEXPLAINED)


def balance(
    spark: SparkSession,
    url: str,
    out: Path,
    flights: DataFrame,
    outage: Outage | None,
    *,
    by_relay: bool = False,
    **more: Any,
) -> Books:
    """Run the audit of a server into a folder, and set its tables beside the data set.

    ``by_relay`` says that relays took the messages: they give back what a broker is too slow to
    take, and no data set knows how often. ``more`` are settings of the audit, such as where it
    reads the events.
    """
    try:
        line, is_sound = audit.run(spark, audit.AuditSettings(url=url, out=str(out), **more)), True
    except PipelineFailed as error:
        line, is_sound = str(error), False
    events = spark.read.parquet(str(out / "events")).where(F.col("topic") == TOPIC)
    events = events.dropDuplicates(["position"])
    again = reasons(events, spark.read.parquet(str(out / "findings")), outage)
    lives = lives_of(events).cache()
    sums = lives.selectExpr("sum(takes) AS takes", f"{_caught_up(outage)} AS caught_up").head()
    assert sums is not None, "sums are one row"
    down = f"first_ms BETWEEN {outage.down_ms} AND {sums.caught_up}" if outage else "false"
    books = Books(
        line=line,
        is_sound=is_sound,
        checks=checks(lives, flights, None if by_relay else again),
        deliveries=sums.takes or 0,
        again=again,
        late_ms=_lateness(lives.where(f"NOT ({down})")),
        outage_ms=_lateness(lives.where(down)),
        days=_days(flights),
        outage=outage,
    )
    lives.unpersist()
    return books


def lives_of(events: DataFrame) -> DataFrame:
    """Return what the events say of each message; of its first delivery, when and for which due."""
    return events.groupBy("id").agg(
        *_columns(
            puts="count_if(kind = 'put')",
            takes="count_if(kind = 'take')",
            moves="count_if(kind = 'move')",
            end="max_by(kind, position)",
            first_ms="unix_millis(min(time) FILTER (WHERE kind = 'take'))",
            taken_due_ms="unix_millis(min_by(due, position) FILTER (WHERE kind = 'take'))",
        )
    )


def checks(
    lives: DataFrame, flights: DataFrame, again: Mapping[str, int] | None
) -> tuple[Check, ...]:
    """Return all that must hold between the queue and the data set.

    ``again`` are the deliveries beyond the first; None where the data set knows nothing of them.
    """
    row = flights.join(lives, "id", "full").agg(*_columns(**_SUMS)).head()
    assert row is not None, "sums are one row"
    kept = row.flights - row.gone
    held = (
        Check("accepted = flights", row.accepted, row.flights),
        Check("cancelled = flights that never left", row.cancelled, row.gone),
        Check("moved = flights 15 minutes late or more", row.moved, row.late),
        Check("dead = reminders without an address", row.dead, row.without_address),
        Check("acked = all others", row.acked, kept - row.without_address),
        Check("each flight's end is the right one", row.right_end, row.flights),
        Check("each was sent for the right due", row.right_due, kept),
    )
    if again is None:
        return held
    return (*held, Check("retries = handlers that failed", again.get(_RETRY, 0), row.failing))


_SUMS = {
    "flights": "count(planned_ms)",
    "gone": "count_if(is_cancelled)",
    "late": "count_if(is_late)",
    "without_address": "count_if(kind = 'bury')",
    "failing": "count_if(kind = 'ack' AND fails_once)",
    "accepted": "coalesce(sum(puts), 0)",
    "cancelled": "count_if(end = 'cancel')",
    "moved": "count_if(moves > 0)",
    "dead": "count_if(end IN ('bury', 'exhaust', 'expire'))",
    "acked": "count_if(end = 'ack')",
    "right_end": "count_if(end = kind)",
    "right_due": "count_if(taken_due_ms = due_ms AND NOT is_cancelled)",
}


def reasons(events: DataFrame, findings: DataFrame, outage: Outage | None) -> dict[str, int]:
    """Count the deliveries beyond the first by what ended the delivery before."""
    again = findings.where("again").select("id", "position", "origin")
    takes = events.where("kind = 'take'").selectExpr("id", "position AS taken", "time")
    before = again.join(takes, "id").where("taken < position")
    taken = before.groupBy("id", "position", "origin").agg(*_columns(at="unix_millis(max(time))"))
    reason = f"""CASE
        WHEN origin = 'release' THEN '{_RETRY}'
        WHEN origin = 'lapse' AND at <= {outage.down_ms if outage else 0}
            THEN 'crash: one of both was killed while the worker had the message'
        WHEN origin = 'lapse' THEN 'lease ended while the handler was at work'
        ELSE '{_UNEXPLAINED}' END AS reason"""
    rows = taken.selectExpr(reason).groupBy("reason").count().collect()
    return {row.reason: _count(row) for row in rows}


def _caught_up(outage: Outage | None) -> str:
    """Return the SQL of when the worker has sent what fell due while the server was away."""
    after = f"first_ms > {outage.up_ms if outage else 0}"
    in_time = f"first_ms - taken_due_ms < {_CAUGHT_UP_MS}"
    return f"coalesce(min(first_ms) FILTER (WHERE {after} AND {in_time}), max(first_ms), 0)"


def _lateness(lives: DataFrame) -> dict[int, int]:
    late = lives.where("takes > 0").selectExpr("first_ms - taken_due_ms AS late_ms")
    return {row.late_ms: _count(row) for row in late.groupBy("late_ms").count().collect()}


def _days(flights: DataFrame) -> tuple[Day, ...]:
    sums = _columns(
        planned="count(*)", cancelled="count_if(is_cancelled)", moved="count_if(is_late)"
    )
    return tuple(Day(*row) for row in flights.groupBy("day").agg(*sums).orderBy("day").collect())


def _columns(**named: str) -> list[Column]:
    return [F.expr(text).alias(name) for name, text in named.items()]


def _count(row: Row) -> int:
    # A row is a tuple too, so its count by name would be that of tuples.
    return int(row["count"])
