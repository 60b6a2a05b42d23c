"""Writers: each task sends its rows in batches, and returns the counts of results.

A repeated task changes nothing: its ids are the same, so a put finds the earlier messages, even if
these were delivered and acked since (for as long as the topic remembers ids). Rows without ids get
ids that depend only on the write, the partition and the place in it; a write of a stream is
identified by its query, its batch and its turn in it.
"""

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from dwell.errors import InvalidSettings
from dwell.given import values
from dwell.spark import turns
from dwell.spark.badrows import BadRows
from dwell.spark.options import WriteOptions
from dwell.spark.plain import check_types
from dwell.spark.rows import check_columns
from dwell.spark.sending import Sender
from dwell.spark.turns import Turn

#: The prefix of the tags of a job from Spark Connect.
_CONNECT = "SparkConnect_"


@dataclass
class Counts(WriterCommitMessage):
    """How many rows of one task had which result, and the turn of its write in a stream."""

    results: dict[str, int] = field(default_factory=dict)
    turn: Turn | None = None


class Task(NamedTuple):
    """The name of a task, the same when it runs again, and the zone of its session."""

    name: str
    turn: Turn | None
    zone: str | None


class Writing:
    """One write: the work of its tasks, and of the driver at its end.

    The sink of a stream ``is_alone`` in its batch; a write of ``foreachBatch`` may have others next
    to it.
    """

    def __init__(
        self, options: WriteOptions, schema: StructType, *, is_alone: bool = False
    ) -> None:
        check_columns(schema.names, options)
        if options.topic is not None:
            values.topic(options.topic)
        check_types(schema)
        options.opened()
        self._options = options
        self._number = secrets.token_hex(8)
        self._makes_ids = options.op == "put" and "id" not in schema.names
        self._is_alone = is_alone
        self._ended = {} if is_alone else turns.ended_writes()

    def run(self, rows: Iterator[pa.RecordBatch]) -> Counts:
        """Write the rows of one task."""
        task = self.task()
        bad = BadRows(self._options.bad_rows, task.name)
        results = asyncio.run(self._send(rows, task, bad))
        return Counts(dict(results), task.turn)

    async def _send(self, rows: Iterator[pa.RecordBatch], task: Task, bad: BadRows) -> Counter[str]:
        async with self._options.opened() as queue:
            sender = Sender(queue, self._options, task.name, bad, task.zone)
            try:
                while (batch := await asyncio.to_thread(next, rows, None)) is not None:
                    await sender.send(batch)
                results = await sender.finish()
            except BaseException:
                await sender.give_up()
                raise
        bad.close()
        return results

    def task(self) -> Task:
        """Return Spark's data about the present task."""
        context = TaskContext.get()
        assert context is not None, "a writer writes in a task"
        zone = context.getLocalProperty("spark.sql.session.timeZone")
        query = context.getLocalProperty("sql.streaming.queryId")
        if query is None:
            return Task(f"{self._name_of_batch(context)}-{context.partitionId()}", None, zone)
        batch = context.getLocalProperty("streaming.sql.batchId") or ""
        name = f"{query}-{batch}-{context.partitionId()}"
        if self._options.write_name is not None:
            return Task(f"{name}-w.{self._options.write_name}", None, zone)
        if self._is_alone:
            return Task(name, None, zone)
        run = context.getLocalProperty("sql.streaming.runId")
        run = run or context.getLocalProperty("spark.jobGroup.id") or ""
        turn = turns.turn_of(run, batch, self._ended)
        return Task(f"{name}{turn.suffix}", turn, zone)

    def _name_of_batch(self, context: TaskContext) -> str:
        """Return the name of a write outside of a stream; raises InvalidSettings.

        Spark Connect tells the tasks of a ``foreachBatch`` nothing of their stream, so there a
        write may be a repeated micro-batch.
        """
        if self._options.write_name is not None:
            return f"w.{self._options.write_name}"
        tags = context.getLocalProperty("spark.job.tags") or ""
        if self._makes_ids and _CONNECT in tags:
            raise InvalidSettings(
                "writeName: got none for rows without ids over Spark Connect, expected a name that "
                "is the same when the write runs again (with the number of the micro-batch in it), "
                "or a column id"
            )
        return self._number

    def ended(self, messages: Sequence[WriterCommitMessage | None]) -> Counter[str]:
        """Note that the write has ended, and return how many rows had which result."""
        total: Counter[str] = Counter()
        turn = None
        for message in messages:
            if isinstance(message, Counts):
                total.update(message.results)
                turn = message.turn
        if turn is not None:
            turns.end(turn, is_named=self._makes_ids or total["bad"] > 0)
        return total

    def done(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Add up the counts, show them, and write them to the file in the options."""
        total = self.ended(messages)
        words = ", ".join(f"{count:,} {word}" for word, count in sorted(total.items()))
        print(f"dwell: {self._options.op}: {words or 'no rows'}", file=sys.stderr)
        if self._options.counts is not None:
            _add(Path(self._options.counts), total)


def _add(path: Path, counts: Counter[str]) -> None:
    """Add counts to a file: the counts of a stream come batch after batch."""
    before: dict[str, int] = {}
    try:
        before = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    except msgspec.MsgspecError as error:
        print(f"dwell: {path}: cannot be read, counting from 0: {error}", file=sys.stderr)
    whole = path.with_name(f"{path.name}.new")
    whole.write_bytes(msgspec.json.encode(Counter(before) + counts))
    whole.replace(path)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writing = Writing(options, schema)
        if options.counts is not None:
            Path(options.counts).unlink(missing_ok=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        return self._writing.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Show the counts of results."""
        self._writing.done(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note that the write has ended: rows already put stay."""
        self._writing.ended(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writing = Writing(options, schema, is_alone=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task of a micro-batch."""
        return self._writing.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Show the counts of results."""
        self._writing.done(messages)
