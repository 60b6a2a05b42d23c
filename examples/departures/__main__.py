"""Put three million rows by Spark while the server is killed, put them again, drain, and audit."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

import dwell
import dwell.spark
from dwell.spark.pipelines import audit
from dwell.spark.pipelines.command import PipelineFailed
from dwell.spark.pipelines.schedule import ScheduleSettings
from dwell.spark.pipelines.schedule import run as schedule
from examples.departures import data
from examples.flights.processes import Server, store_of
from examples.flights.sessions import session

TOPIC = "departure"
ID = "concat_ws('-', date, origin, destination, distance, coalesce(delay, 'none'))"
#: A zone of no airport here.
_ZONE = "Asia/Kathmandu"
#: A local time in the zone of its row; to_utc_timestamp would read it in the session's zone first.
DUE = "cast(concat(date, ' ', zone) AS TIMESTAMP)"
#: The server is killed when so many rows are put.
_KILL_AT = 0.3
_MOST_ROWS = 200_000

T = TypeVar("T")


def main() -> int:
    """Run the job; 0 if each row became what it was to become, and the books balance."""
    options = _parser().parse_args()
    out = Path(options.out).resolve()
    folder = out / "departures"
    shutil.rmtree(folder, ignore_errors=True)
    table = data.load(options.rows)
    data.save(table, folder / "rows")
    spark = session("departures", folder, more={"spark.sql.session.timeZone": _ZONE})
    try:
        with store_of(options.store, folder) as store, Server(folder, store) as server:
            is_right = _run(spark, server, folder, data.truth(table), len(table))
    finally:
        spark.stop()
    shutil.rmtree(folder)
    return 0 if is_right else 1


def _run(spark: SparkSession, server: Server, folder: Path, truth: data.Truth, rows: int) -> bool:
    settings = ScheduleSettings(
        url=server.url,
        source=str(folder / "rows"),
        format="parquet",
        id=ID,
        due=DUE,
        topic=TOPIC,
        bad_rows=str(folder / "bad"),
    )
    with ThreadPoolExecutor(1) as aside:
        killing = aside.submit(_kill, server, int(rows * _KILL_AT))
        first = _timed(rows, lambda: schedule(spark, settings))
        killing.result()
    again = _timed(rows, lambda: schedule(spark, settings))
    with dwell.open(server.url) as queue:
        created = queue.stats().totals["put"]
    drained = _timed(truth.created, lambda: _drain(spark, server.url, folder))
    checks = {
        # A task that the kill has failed finds what it had put before.
        f"{truth.created:,} created": created == truth.created,
        f"{truth.bad:,} without a zone are bad rows": f" {truth.bad:,} bad" in first,
        f"{truth.kept + truth.created:,} kept when put again": (
            f"0 created, {truth.kept + truth.created:,} kept" in again
        ),
        f"dues in {len(truth.sums)} zones are those of zoneinfo": drained == truth.sums,
    }
    try:
        print(audit.run(spark, audit.AuditSettings(url=server.url, out=str(folder / "audit"))))
    except PipelineFailed as error:
        checks[str(error)] = False
    for what, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}: {what}")
    return all(checks.values())


def _drain(spark: SparkSession, url: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Take and ack all messages as a stream; return count and sum of the dues of each zone."""
    options: dict[str, str | int] = {
        "url": url,
        "view": "due",
        "topics": TOPIC,
        "maxRowsPerBatch": _MOST_ROWS,
    }
    due = spark.readStream.format("dwell").options(**options).load()
    taken = due.selectExpr("id", "due", "from_json(string(body), 'zone STRING').zone AS zone")
    writer = taken.writeStream.format("parquet").option("path", str(folder / "taken"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    found = spark.read.parquet(str(folder / "taken")).dropDuplicates(["id"])
    minutes = F.sum(F.expr("unix_millis(due) div 60000"))
    sums = found.groupBy("zone").agg(F.count("id").alias("messages"), minutes.alias("minutes"))
    return {row.zone: (row.messages, row.minutes) for row in sums.collect()}


def _kill(server: Server, messages: int) -> None:
    """Kill the server, and start it again on its store, when so many messages are put."""
    with dwell.open(server.url) as queue:
        while queue.stats().totals["put"] < messages:
            time.sleep(0.1)
    print("killing the server (SIGKILL) and starting it again on the same store", flush=True)
    server.kill()


def _timed(rows: int, work: Callable[[], T]) -> T:
    """Do some work, and print what it returned and how many rows a second it handled."""
    begin = time.perf_counter()
    found = work()
    took_s = time.perf_counter() - begin
    said = found if isinstance(found, str) else f"drain: {rows:,} messages"
    print(f"{said} ({rows / took_s:,.0f} a second)", flush=True)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.departures", description=__doc__)
    parser.add_argument("--out", default="report", help="folder for the work (default: report)")
    parser.add_argument("--rows", type=int, default=None, help="only so many of the rows")
    parser.add_argument("--store", choices=["embedded", "redis"], default="embedded")
    return parser


if __name__ == "__main__":
    sys.exit(main())
