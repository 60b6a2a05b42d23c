"""Writers: each task sends its rows in batches, and says how many had which result.

A task that runs again changes nothing: its ids are the same, so a put finds what it put, also when
that was delivered and acked meanwhile (for as long as the topic remembers ids). Rows without ids
get some that depend only on the write, the partition and the place in it.
"""

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from dwell import values
from dwell.spark.badrows import BadRows
from dwell.spark.options import WriteOptions
from dwell.spark.rows import check_columns
from dwell.spark.sending import Sender


@dataclass
class Counts(WriterCommitMessage):
    """How many rows of one task had which result."""

    results: dict[str, int] = field(default_factory=dict)


class Writing:
    """One write: what its tasks do, and what the driver does at its end."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema.names, options)
        if options.topic is not None:
            values.topic(options.topic)
        options.opened()
        self._options = options
        self._number = secrets.token_hex(8)

    def run(self, rows: Iterator[pa.RecordBatch], name: str) -> Counts:
        """Write the rows of one task; ``name`` is the same when the task runs again."""
        bad = BadRows(self._options.bad_rows, name)
        results = asyncio.run(self._send(rows, name, bad))
        return Counts(dict(results))

    async def _send(self, rows: Iterator[pa.RecordBatch], name: str, bad: BadRows) -> Counter[str]:
        async with self._options.opened() as queue:
            sender = Sender(queue, self._options, name, bad)
            while (batch := await asyncio.to_thread(next, rows, None)) is not None:
                await sender.send(batch)
            results = await sender.finish()
        bad.close()
        return results

    def name(self) -> str:
        """Return what a task of this write is called, in a stream also when it is started anew."""
        context = TaskContext.get()
        assert context is not None, "a writer writes in a task"
        query = context.getLocalProperty("sql.streaming.queryId")
        if query is None:
            return f"{self._number}-{context.partitionId()}"
        batch = context.getLocalProperty("streaming.sql.batchId")
        return f"{query}-{batch}-{context.partitionId()}"

    def done(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Add up the counts, show them, and leave them where the options say."""
        total: Counter[str] = Counter()
        for message in messages:
            if isinstance(message, Counts):
                total.update(message.results)
        words = ", ".join(f"{count:,} {word}" for word, count in sorted(total.items()))
        print(f"dwell: {self._options.op}: {words or 'no rows'}", file=sys.stderr)
        if self._options.counts is not None:
            _add(Path(self._options.counts), total)


def _add(path: Path, counts: Counter[str]) -> None:
    """Add counts to those of a file: those of a stream come batch after batch."""
    before = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(Counter(before) + counts))


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writing = Writing(options, schema)
        if options.counts is not None:
            Path(options.counts).unlink(missing_ok=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        return self._writing.run(iterator, self._writing.name())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Show what became of the rows."""
        self._writing.done(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writing = Writing(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task of a micro-batch."""
        return self._writing.run(iterator, self._writing.name())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Show what became of the rows."""
        self._writing.done(messages)
