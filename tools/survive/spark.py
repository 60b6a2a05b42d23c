"""The Spark driver, killed in the middle of a campaign and run again with the same ids."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import dwell
from tools.survive import places
from tools.survive.actor import TOPICS
from tools.survive.books import Books, Row
from tools.survive.crew import ROOT, Crew, environment
from tools.survive.kills import everything, set_up
from tools.survive.places import Place

FAILURE = "SIGKILL of the Spark driver"
SCENARIOS: list[Callable[..., AbstractContextManager[Place]]] = [
    places.folder_over_http,
    places.redis_in_process,
]
_COUNT = 20_000
_PATIENCE_S = 600.0


class Driver:
    """A driver in a process group of its own, which its workers belong to."""

    def __init__(self, url: str, first_due_ms: int, log: Path) -> None:
        words = [url, str(_COUNT), str(first_due_ms)]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.survive.campaign", *words],
                cwd=ROOT,
                env=environment(),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the driver and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> int:
        """Return the status that it ends with."""
        return self._process.wait(_PATIENCE_S)


def _put_count(queue: dwell.SyncQueue) -> int:
    return queue.stats().totals.get("put", 0)


def _campaign(place: Place, folder: Path) -> Row:
    """Write a campaign with a driver that is killed, while takers work on it."""
    books, row = Books(), Row(place.store, place.over, FAILURE)
    asyncio.run(set_up(place.url))
    first_due_ms = time.time_ns() // 1_000_000 + 5_000
    at_s, ids = time.monotonic(), [f"row{n}" for n in range(_COUNT)]
    lines = [
        [at_s, "put", name, TOPICS[0], first_due_ms + n % 2000, 0] for n, name in enumerate(ids)
    ]
    books.enter("spark", lines)
    crew = Crew(books, place.url, ["take", "take"], None)
    crew.start()
    try:
        driver = Driver(place.url, first_due_ms, folder / "spark.log")
        with dwell.open(place.url) as queue:
            while not _put_count(queue) and driver.is_running:
                time.sleep(0.02)
        was_running = driver.is_running
        killed_s = time.monotonic()
        driver.kill()
        row.runs = int(was_running)
        again = Driver(place.url, first_due_ms, folder / "spark.log")
        if again.wait():
            raise RuntimeError((folder / "spark.log").read_text()[-3000:])
        row.seconds.append(time.monotonic() - killed_s)
        # The write was answered as a whole.
        books.enter("spark", [[time.monotonic(), "answered", ids]])
        books.until(lambda: not books.pending(), "messages are left over", _PATIENCE_S)
    finally:
        crew.stop()
    return books.settle(row, asyncio.run(everything(place.url)))


def run(make: Callable[..., AbstractContextManager[Place]], runs: int) -> Row:
    """Kill so many drivers."""
    total: Row | None = None
    for _ in range(runs):
        with (
            tempfile.TemporaryDirectory(prefix="dwell-survive-") as text,
            make(Path(text)) as place,
        ):
            row = _campaign(place, Path(text))
        if total is None:
            total = row
        else:
            total.add(row)
    assert total is not None
    return total
