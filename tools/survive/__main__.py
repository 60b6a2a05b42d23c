"""Let real things fail, and write what came of it to docs/reliability.md.

``python -m tools.survive [--runs SCALE] [--small] [--only WORDS]``: the usual scale, 1, takes ten
minutes. ``--small`` takes about one, without Spark, and writes no page; nor does ``--only``, which
runs the scenarios in whose names all of the words are. Status 1 says that a promise was broken.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

from tools.survive import disks, flips, kills, page, spark
from tools.survive.books import Row
from tools.survive.flips import Flips
from tools.survive.quiet import quiet

_AT_ONCE = 2
_SMALL = 0.07
_DISK_RUNS, _FLIPS, _SPARK_RUNS = 30, 150, 2
_MOST_TOLD = 10


class Task(NamedTuple):
    """One scenario: its name, and what runs it."""

    name: str
    run: Callable[[], Row | Flips]


def _tasks(scale: float) -> Iterator[Task]:
    """Yield all scenarios in the order of the page."""
    for seed, (make, failure, runs) in enumerate(kills.SCENARIOS):
        name = f"{make.__name__}: {failure}"
        yield Task(name, partial(kills.run, make, failure, _scaled(runs, scale), seed))
    for make in spark.SCENARIOS:
        name = f"{make.__name__}: {spark.FAILURE}"
        yield Task(name, partial(spark.run, make, _scaled(_SPARK_RUNS, scale)))
    for failure in disks.FAULTS:
        yield Task(f"disk: {failure}", partial(disks.run, failure, _scaled(_DISK_RUNS, scale), 1))
    for kind in flips.KINDS:
        yield Task(f"flips: {kind}", partial(flips.run, kind, _scaled(_FLIPS, scale), 1))


def _scaled(runs: int, scale: float) -> int:
    return max(round(runs * scale), 1)


def _outcomes(tasks: list[Task]) -> Iterator[Row | Flips]:
    """Run all, some at once, and yield what came of each."""
    context = get_context("spawn")
    with ProcessPoolExecutor(_AT_ONCE, mp_context=context, initializer=quiet) as pool:
        futures: list[Future[Any]] = [pool.submit(task.run) for task in tasks]
        for task, future in zip(tasks, futures, strict=True):
            try:
                outcome = future.result()
            except BaseException:
                print(f"{task.name}: it could not be run to its end", flush=True)
                pool.shutdown(cancel_futures=True)
                raise
            print(f"{task.name}: {_told(outcome)}", flush=True)
            for words in outcome.wrong[:_MOST_TOLD]:
                print(f"    {words}", flush=True)
            yield outcome


def _told(outcome: Row | Flips) -> str:
    if isinstance(outcome, Flips):
        return ", ".join(f"{count} {words}" for words, count in outcome.outcomes.items())
    doubled = ", ".join(f"{count} {rule}" for rule, count in outcome.doubled.items())
    return (
        f"{outcome.runs} runs, {outcome.puts} puts, {outcome.lost} lost, {outcome.early} early, "
        f"{outcome.expired} expired, doubled: {doubled or 0}; on after {outcome.median_s:.2f} s"
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tools.survive", description=__doc__)
    parser.add_argument("--runs", type=float, default=1.0, help="1 is ten minutes")
    parser.add_argument("--small", action="store_true", help="a minute, and no page")
    parser.add_argument("--only", default="", help="words in the names of scenarios; no page")
    options = parser.parse_args()
    words = options.only.split()
    tasks = list(_tasks(_SMALL if options.small else options.runs))
    if options.small:
        # Spark alone needs the minute to start.
        tasks = [task for task in tasks if spark.FAILURE not in task.name]
    tasks = [task for task in tasks if all(word in task.name for word in words)]
    start = time.monotonic()
    outcomes = list(_outcomes(tasks))
    rows = [outcome for outcome in outcomes if isinstance(outcome, Row)]
    many = [outcome for outcome in outcomes if isinstance(outcome, Flips)]
    text = page.made(rows, many, (time.monotonic() - start) / 60)
    print(text)
    if not options.small and not words:
        page.write(text)
    sys.exit(any(outcome.wrong for outcome in outcomes))


if __name__ == "__main__":
    main()
