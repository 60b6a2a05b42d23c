"""The progress of Spark, on standard error, while a pipeline runs."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from pyspark.sql import SparkSession

_EVERY_S = 1.0


@contextlib.contextmanager
def shown(spark: SparkSession, name: str) -> Iterator[None]:
    """Show the progress of Spark once a second, while the block runs."""
    watcher = _Watcher(spark, name, sys.stderr)
    thread = threading.Thread(target=watcher.watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watcher.done.set()
        thread.join()


class _Watcher:
    """Asks Spark once a second, and prints changes."""

    def __init__(self, spark: SparkSession, name: str, out: TextIO) -> None:
        self.done = threading.Event()
        self._spark = spark
        self._name = name
        self._out = out
        self._last = ""

    def watch(self) -> None:
        """Print until it is done."""
        # Spark may be shutting down, and a line of progress is not worth an error.
        with contextlib.suppress(Exception):
            while not self.done.wait(_EVERY_S):
                self._print(", ".join([*_streams(self._spark), *_stages(self._spark)]))
        if self._last and self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _print(self, text: str) -> None:
        if not text or text == self._last:
            return
        self._last = text
        # On a terminal one line is overwritten again and again; in a log each stays.
        line = f"\r\x1b[K{self._name}: {text}"
        self._out.write(line if self._out.isatty() else f"{self._name}: {text}\n")
        self._out.flush()


def _stages(spark: SparkSession) -> Iterator[str]:
    tracker = spark.sparkContext.statusTracker()
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None:
            failed = f", {info.numFailedTasks} failed" if info.numFailedTasks else ""
            yield f"stage {stage}: {info.numCompletedTasks} of {info.numTasks} tasks{failed}"


def _streams(spark: SparkSession) -> Iterator[str]:
    for query in spark.streams.active:
        progress = query.lastProgress
        if progress is not None:
            rows = f"{progress['numInputRows']:,} rows"
            yield f"{query.name or 'stream'}: batch {progress['batchId']}, {rows}"
