"""Run the flights job: a year on Spark, the server killed once on the way, ending in a report."""

import argparse
import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from examples.flights import audit, data, replay, report
from examples.flights.plan import Replay, expected
from examples.flights.processes import Server, now_ms, store_of
from examples.flights.sessions import session

_YEAR_MIN = 365 * 24 * 60

#: How long Spark has to schedule before anything falls due: to begin with, and for each row.
_HEAD_START_MS = 12_000
_ROWS_A_MS = 20


def main() -> int:
    """Run the job and report; 0 if everything adds up."""
    options = _parser().parse_args()
    out = Path(options.out).resolve()
    folder, kept = out / "work", out / "audit"
    for old in (folder, kept):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    spark = session("flights", folder)
    try:
        with store_of(options.store, folder) as store, Server(folder, store) as server:
            books = _run(spark, server, folder, kept, options)
    finally:
        spark.stop()
    page = out / "flights.html"
    page.write_text(report.page(books, "audit/audit.html"))
    report.show(books)
    print(f"\nThe report with its charts: {page}, and of the audit: {kept / 'audit.html'}")
    shutil.rmtree(folder)
    return 0 if books.is_balanced else 1


def _run(
    spark: SparkSession, server: Server, folder: Path, kept: Path, options: argparse.Namespace
) -> audit.Books:
    """Replay the flights against a server, and balance the books."""
    flights = data.load(options.flights)
    source = folder / "flights.parquet"
    data.save(flights, source)
    print(f"{len(flights):,} flights, {options.speed:,.0f} times as fast as the year was")
    _warm_up(spark, server.url)
    start_ms = now_ms() + _HEAD_START_MS + len(flights) // _ROWS_A_MS
    times = Replay.of(flights, start_ms, options.speed)
    outage = replay.run(spark, server, str(source), times, kill=not options.no_kill)
    truth = expected(spark, str(source), times)
    return audit.balance(spark, server.url, kept, truth, outage)


def _warm_up(spark: SparkSession, url: str) -> None:
    """Let Spark start what it needs to talk to the server: that takes seconds, and only once."""
    spark.read.format("dwell").option("url", url).load().count()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--out", default="report", help="folder of the report (default: report)")
    parser.add_argument("--speed", type=float, default=_YEAR_MIN, help="times real time")
    parser.add_argument("--flights", type=int, default=None, help="only the first so many")
    parser.add_argument("--store", choices=["embedded", "redis"], default="embedded")
    parser.add_argument("--no-kill", action="store_true", help="leave the server alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
