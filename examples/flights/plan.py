"""The plan: what is to become of each flight's reminder, as SQL over the table of flights."""

from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

TOPIC = "reminder"

#: What names a flight: carrier, number, date, origin and hour.
ID = "concat_ws('-', carrier, flight, year, month, day, origin, sched_dep_time)"
BODY = "concat_ws(' ', carrier, flight, origin, dest, coalesce(tailnum, '?'))"

#: How long before its reminder what really happened to a flight becomes known, in the replay's
#: own time: a day of the year passes in a sixth of a second, and a write of Spark's takes longer.
#: It has to cover the time between two writes, and one in which the server is killed.
NEWS_MS = 15_000

_MINUTE_MS = 60_000
_REMINDER_MS = 2 * 60 * _MINUTE_MS
_LATE_MIN = 15

#: One reminder in a thousand fails at first, and one in twenty thousand has no address.
FAILS_EVERY, FAILS = 1_000, 1
NO_ADDRESS_EVERY, NO_ADDRESS = 20_000, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """From the times of 2013 to those at which they are replayed (epoch milliseconds).

    The reminder that was due at ``first_ms`` is due at ``start_ms``; everything up to ``last_ms``,
    after which nothing is due, comes ``speed`` times as fast as the year was.
    """

    first_ms: int
    last_ms: int
    start_ms: int
    speed: float

    @classmethod
    def of(cls, flights: pa.Table, start_ms: int, speed: float) -> Self:
        """Return the replay of a table of flights."""
        planned_ms = pc.cast(flights["departure"], pa.int64()).to_numpy() // 1000 - _REMINDER_MS
        late_ms = pc.fill_null(flights["dep_delay"], 0).to_numpy() * _MINUTE_MS
        last_ms = int((planned_ms + late_ms).max())
        return cls(first_ms=int(planned_ms.min()), last_ms=last_ms, start_ms=start_ms, speed=speed)

    @property
    def end_ms(self) -> int:
        """When nothing falls due any more."""
        return self.part_ms(1)

    def part_ms(self, part: float) -> int:
        """Return when a part of the replay is over, from 0 to 1."""
        return self.start_ms + int((self.last_ms - self.first_ms) / self.speed * part)

    def due_ms(self, late_min: str = "0") -> str:
        """Return the SQL of when a reminder is due, for a flight that is so many minutes late."""
        planned_ms = f"unix_millis(departure) - {_REMINDER_MS + self.first_ms}"
        return (
            f"{self.start_ms} + bigint(({planned_ms} + {late_min} * {_MINUTE_MS}) / {self.speed}D)"
        )


def expected(spark: SparkSession, path: str, replay: Replay) -> DataFrame:
    """Return what is to become of each reminder.

    ``planned_ms`` is when it was due at first and ``due_ms`` in the end, ``news_ms`` when it
    becomes known whether the flight ``is_cancelled`` or ``is_late``; ``kind`` is the event that
    ends it.
    """
    return (
        spark.read.parquet(path)
        .selectExpr(
            f"{ID} AS id",
            "dep_time IS NULL AS is_cancelled",
            f"dep_time IS NOT NULL AND dep_delay >= {_LATE_MIN} AS is_late",
            f"{replay.due_ms()} AS planned_ms",
            f"{replay.due_ms('dep_delay')} AS late_ms",
            f"date(timestamp_millis(unix_millis(departure) - {_REMINDER_MS})) AS day",
            "crc32(binary(id)) AS code",
        )
        .selectExpr(
            *("id", "is_cancelled", "is_late", "planned_ms", "day"),
            "IF(is_late, late_ms, planned_ms) AS due_ms",
            f"planned_ms - {NEWS_MS} AS news_ms",
            f"code % {FAILS_EVERY} = {FAILS} AS fails_once",
            f"CASE WHEN is_cancelled THEN 'cancel' WHEN code % {NO_ADDRESS_EVERY} = {NO_ADDRESS}"
            " THEN 'bury' ELSE 'ack' END AS kind",
        )
    )
