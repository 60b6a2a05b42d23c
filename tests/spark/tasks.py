"""Writes as Spark makes them, without Spark: a driver that plans, tasks that write, a commit.

Each step is what Spark does in a process of its own: what goes from one to the next is pickled.
"""

import contextlib
import pickle

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema

from dwell.spark import DwellSource


class TaskFailed(Exception):
    """What ends an attempt of a task."""


@contextlib.contextmanager
def task(partition, **properties):
    """Let this process be a task of Spark."""
    before = TaskContext.get()
    TaskContext._setTaskContext(None)
    TaskContext(partitionId=partition, attemptNumber=0, localProperties=properties)
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


def cut(rows, sizes):
    """Return record batches of rows, of sizes that are used again and again."""
    at, number, batches = 0, 0, []
    while at < rows.num_rows:
        size = sizes[number % len(sizes)]
        batches.append(rows.slice(at, size))
        at, number = at + size, number + 1
    return batches


def failing_after(batches, count):
    """Yield some batches, then fail; all of them where ``count`` is None."""
    for number, batch in enumerate(batches):
        if number == count:
            raise TaskFailed
        yield batch
    if count is not None and count >= len(batches):
        raise TaskFailed


class Write:
    """One write, planned now; ``properties`` are what Spark lets its tasks know."""

    def __init__(self, schema: pa.Schema, options: dict[str, str], **properties: str) -> None:
        source = DwellSource(options)
        self._writer = pickle.dumps(source.writer(from_arrow_schema(schema), False))
        self._properties = {"spark.sql.session.timeZone": "UTC", **properties}

    def run(self, partition, batches, fails_after=None):
        """Run an attempt of a task, and return its message."""
        writer = pickle.loads(self._writer)
        with task(partition, **self._properties):
            return writer.write(failing_after(batches, fails_after))

    def commit(self, messages):
        pickle.loads(self._writer).commit(messages)

    def abort(self, messages):
        pickle.loads(self._writer).abort(messages)


def of_stream(query, run, batch):
    """Return what Spark lets the tasks of a micro-batch know."""
    return {
        "sql.streaming.queryId": query,
        "sql.streaming.runId": run,
        "streaming.sql.batchId": str(batch),
    }
