"""Forecast the messages that fall due, by topic and minute, for the next hours and days.

With a capacity it shows the peaks, the backlog, and when the backlog is gone.
"""

import csv
import io
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from pyspark.sql import DataFrame, SparkSession

from dwell.errors import InvalidSettings
from dwell.given.values import refusal
from dwell.spark.pipelines import forecast_page
from dwell.spark.pipelines.backlog import MINUTE_MS, Late
from dwell.spark.pipelines.command import main
from dwell.spark.pipelines.files import literal
from dwell.spark.pipelines.load import DAY_MS, HOUR_MS, Load, by_minute, load
from dwell.spark.pipelines.page import inside, moment, save

_MOST_DAYS = 3_660


class ForecastSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The messages, the period, and the capacity."""

    url: Annotated[str, Meta(description="The queue: the address of a server.")]
    out: Annotated[str, Meta(description="The folder of the result: tables and forecast.html.")]
    topics: Annotated[tuple[str, ...], Meta(description="A topic. Without it, all topics.")] = ()
    hours: Annotated[float, Meta(ge=0, le=_MOST_DAYS * 24, description="How many hours ahead.")] = (
        24
    )
    days: Annotated[
        Annotated[float, Meta(ge=0, le=_MOST_DAYS)] | None,
        Meta(description="Or how many days ahead, instead of hours."),
    ] = None
    capacity: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="How many messages a second can be worked off."),
    ] = None
    report: Annotated[bool, Meta(description="Write forecast.html. Default: yes.")] = True


def run(spark: SparkSession, settings: ForecastSettings) -> str:
    """Forecast, and write the tables and the page."""
    now_ms = time.time_ns() // 1_000_000
    ahead_ms = _ahead_ms(settings)
    end_ms = now_ms + ahead_ms
    reader = spark.read.format("dwell").option("url", settings.url).option("view", "messages")
    if settings.topics:
        reader = reader.option("topics", ",".join(settings.topics))
    table = _kept(by_minute(reader.load(), now_ms, end_ms), settings)
    found = load(table, now_ms, end_ms, settings.capacity)
    _write(spark, settings, table, found)
    return _line(found, ahead_ms, settings)


def _kept(table: DataFrame, settings: ForecastSettings) -> DataFrame:
    """Write the table of minutes, and return it as stored.

    Everything else is made from it: a second read of the queue would differ.
    """
    place = inside(settings.out, "minutes")
    table.orderBy("minute", "topic").coalesce(1).write.mode("overwrite").parquet(place)
    return table.sparkSession.read.parquet(literal(place))


def _ahead_ms(settings: ForecastSettings) -> int:
    hours, days = settings.hours, settings.days
    ahead_ms = round(hours * HOUR_MS if days is None else days * DAY_MS)
    if ahead_ms < MINUTE_MS:
        field, value = ("hours", hours) if days is None else ("days", days)
        raise refusal(InvalidSettings, field, value, "a minute or more")
    return ahead_ms


# --- results --------------------------------------------------------------------------------------


def _write(spark: SparkSession, settings: ForecastSettings, table: DataFrame, found: Load) -> None:
    out = settings.out
    ordered = table.orderBy("minute", "topic").coalesce(1)
    ordered.write.mode("overwrite").option("header", True).csv(inside(out, "minutes_csv"))
    save(spark, inside(out, "hours.csv"), _csv("hour", found.by(HOUR_MS)))
    save(spark, inside(out, "days.csv"), _csv("day", found.by(DAY_MS)))
    if settings.report:
        text = forecast_page.page(found)
        save(spark, inside(out, "forecast.html"), text)


def _csv(name: str, rows: Sequence[tuple[int, int]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name, "due"])
    writer.writerows((moment(start_ms), due) for start_ms, due in rows)
    return text.getvalue()


def _line(found: Load, ahead_ms: int, settings: ForecastSettings) -> str:
    parts = [f"{found.total:,} fall due in {_span(ahead_ms)}"]
    if found.overdue:
        parts.append(f"{found.overdue:,} of them overdue")
    if found.total:
        parts.append(_peak(found))
    if found.backlog is not None:
        parts.append(_late(found, found.backlog.stretches))
    end = f"; report {inside(settings.out, 'forecast.html')}" if settings.report else ""
    return "forecast: " + ", ".join(parts) + end


def _span(ms: int) -> str:
    return f"{ms / HOUR_MS:g} h" if ms < 3 * DAY_MS else f"{ms / DAY_MS:g} days"


def _peak(found: Load) -> str:
    peak, peak_ms = found.peak
    times = ""
    if found.capacity is not None:
        times = f" ({peak / 60 / found.capacity:.1f}x of the capacity {found.capacity:g}/s)"
    return f"peak {peak:,}/min at {_clock(found, peak_ms)}{times}"


def _late(found: Load, stretches: Sequence[Late]) -> str:
    if not stretches:
        return "never late"
    most_ms = max(late.late_ms for late in stretches)
    times = "" if len(stretches) == 1 else f" in {len(stretches):,} stretches"
    until = _clock(found, stretches[-1].end_ms)
    return f"late{times} until {until} ({most_ms / MINUTE_MS:.1f} min at most)"


def _clock(found: Load, ms: int) -> str:
    """Return a time of day, with the date unless it is today."""
    text = moment(ms - ms % MINUTE_MS)[:16]
    return text[11:] if ms // DAY_MS == found.now_ms // DAY_MS else text


if __name__ == "__main__":
    sys.exit(main("forecast"))
