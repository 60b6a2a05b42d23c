"""Run the flights job: a year in about a minute, killed once on the way, ending in a report."""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from examples.flights import audit, report
from examples.flights.data import load
from examples.flights.plan import Flights

_YEAR_MIN = 365 * 24 * 60
_HEAD_START_MS = 6_000


def main() -> int:
    """Run the job and report; 0 if everything adds up."""
    options = _parser().parse_args()
    folder = Path(options.out) / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    flights = load(options.flights)
    print(f"{len(flights):,} flights, {options.speed:,.0f} times as fast as the year was")
    start_ms = time.time_ns() // 1_000_000 + _HEAD_START_MS
    killed = _run(folder, flights, start_ms, options.speed, kill=not options.no_kill)
    books = audit.audit(folder / "store", flights, killed)
    page = Path(options.out) / "flights.html"
    page.write_text(report.page(books, flights))
    report.show(books)
    print(f"\nThe report with its charts: {page}")
    shutil.rmtree(folder)
    return 0 if books.is_balanced else 1


def _run(
    folder: Path, flights: Flights, start_ms: int, speed: float, *, kill: bool
) -> audit.Outage | None:
    """Run the replay to its end; return when it was killed and when it went on, if it was."""
    flights.save(folder / "flights")
    words = [str(folder), str(start_ms), str(speed)]
    command = [sys.executable, "-m", "examples.flights.replay", *words]
    first = subprocess.Popen(command)
    outage = None
    if kill:
        span_ms = int((flights.due.max() - flights.news.min()) * 60_000 / speed)
        time.sleep(max(start_ms + span_ms * 0.4 - time.time_ns() // 1_000_000, 0) / 1000)
        first.send_signal(signal.SIGKILL)
        first.wait()
        down_ms = time.time_ns() // 1_000_000
        print("killed the process (SIGKILL); starting it again on the same store")
        (folder / "ready").unlink(missing_ok=True)
        first = subprocess.Popen(command)
        while not (folder / "ready").exists() and first.poll() is None:
            time.sleep(0.005)
        outage = audit.Outage(down_ms, time.time_ns() // 1_000_000)
    if first.wait() != 0:
        raise SystemExit(f"the replay ended with status {first.returncode}")
    return outage


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--out", default="report", help="folder of the report (default: report)")
    parser.add_argument("--speed", type=float, default=_YEAR_MIN, help="times real time")
    parser.add_argument("--flights", type=int, default=None, help="only the first so many")
    parser.add_argument("--no-kill", action="store_true", help="leave the process alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
