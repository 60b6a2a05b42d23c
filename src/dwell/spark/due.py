"""The stream of the view ``due``: messages that are due, held while Spark works on them.

The offset counts chunks. A chunk is the result of one take, held at the server by an owner of its
own, ``NAME/NUMBER``; so a restarted task or driver that knows name and number can ask for the same
messages again. The offset also has the first chunk that may not be acked yet.

A query with a fixed name that starts with a new checkpoint may hold chunks from before. They come
first, each as itself: the numbers start at theirs, so that no new chunk is taken under a name that
still holds one.

A batch that is full shows that more is due, so the next one is taken while Spark works on it. The
chunks of that one belong to the query already: a driver that starts again finds them too.

Spark reports a finished batch only when there is a next one. But it asks for the latest offset from
the end of the last batch on as soon as that batch is committed, so all earlier chunks are acked
there. (This is the order of calls in Spark's MicroBatchExecution.)
"""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NotRequired, TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dwell.batch.batch import Batch
from dwell.errors import DwellError, ServerUnreachable
from dwell.given import values
from dwell.queue import Queue
from dwell.spark.ahead import Ahead, each
from dwell.spark.keeper import Keeper
from dwell.spark.options import ReadOptions
from dwell.spark.parts import cut
from dwell.spark.remote import Remote, again
from dwell.spark.tables import message_table

#: How many messages one take asks for, and how many chunks one task reads.
_CHUNK = 5_000
_CHUNKS_A_TASK = 10
#: The default for the messages of one micro-batch.
_MOST = 200_000
#: How many owners one query has, and how many of them may hold one batch: a third, because the
#: batches before and after it may hold some too.
_OWNERS = 3072
_MOST_CHUNKS = _OWNERS // 3
#: How many owners are queried at once, when it is unknown which of them hold messages.
_ASKED_AT_ONCE = 32
#: How long one call for more may wait for the first message.
_WAIT_MS = 50


class Offset(TypedDict):
    """The end of a batch: before ``chunk``. Chunks from ``unacked`` on may not be acked yet.

    Chunks before ``held`` were taken by an earlier run, before this checkpoint began.
    """

    name: str
    chunk: int
    unacked: int
    held: NotRequired[int]


class Chunks(InputPartition):
    """The chunks of one task."""

    def __init__(self, name: str, start: int, stop: int) -> None:
        self.name, self.start, self.stop = name, start, stop

    @property
    def owners(self) -> list[str]:
        """The owners of the messages."""
        return [owner_of(self.name, chunk) for chunk in range(self.start, self.stop)]


def owner_of(name: str, chunk: int) -> str:
    """Return the owner of a chunk; names are reused, because the store remembers owners."""
    return f"{name}/{chunk % _OWNERS}"


class DueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the messages that fall due. One reader a query lives at the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        options.check()
        message_table(schema)
        self._options, self._schema = options, schema
        self._remote = Remote(options)
        self._keeper = Keeper(self._remote, options.lease)
        #: How many more messages a query of present messages may take.
        self._left: int | None = None
        self._acked: int | None = None
        self._is_new = True
        #: The chunks of the next batch: the number after the last, and how many messages they have.
        self._ahead = Ahead[tuple[int, int]]()

    # --- where ----------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802
        """Return the start of a new query: an unused name, or the chunks that its name holds."""
        name = self._options.owner or f"spark-{secrets.token_hex(8)}"
        first, stop = _arc(self._slots(name)) if self._options.owner else (0, 0)
        offset: Offset = {"name": name, "chunk": first, "unacked": first}
        return {**offset, "held": stop} if stop else offset

    def _slots(self, name: str) -> list[int]:
        """Return which owners of a name hold messages; none if nothing is held at all."""
        topics = self._remote.queue.stats().topics
        if not any(topics[one].leased for one in self._options.topic_names if one in topics):
            return []
        return asyncio.run(_held(self._options, name))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how many messages a micro-batch may have."""
        return ReadMaxRows(self._options.max_rows_per_batch or _MOST)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]  # noqa: N802
        """Ack earlier chunks, take due messages, and return the offset after them."""
        self._ack(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else _MOST
        if isinstance(limit, ReadAllAvailable) and self._left is not None:
            most = self._left
        first = chunk = start["chunk"]
        while chunk < start.get("held", 0) and most > 0 and chunk - first < _MOST_CHUNKS:
            most -= self._keeper.find(owner_of(start["name"], chunk))
            chunk += 1
        if chunk > first:
            rest = {"held": start["held"]} if chunk < start["held"] else {}
            return {"name": start["name"], "chunk": chunk, "unacked": first, **rest}  # type: ignore[typeddict-item]
        name, (chunk, taken) = start["name"], self._taken_ahead() or (first, 0)
        chunk, left = self._fill(name, chunk, most - taken, chunk - first)
        if chunk == first:
            return start
        if left <= 0:
            # There is more, and Spark will want it as soon as it has worked on this batch.
            self._ahead.start(lambda: self._filled(name, chunk, most))
        return {"name": name, "chunk": chunk, "unacked": first}

    def _taken_ahead(self) -> tuple[int, int] | None:
        try:
            return self._ahead.result()
        except DwellError:
            # Some chunks may have been taken: they are found as those of an earlier run are.
            self._is_new = True
            return None

    def _filled(self, name: str, first: int, most: int) -> tuple[int, int]:
        """Take chunks, and return the number after the last, and how many messages they have."""
        chunk, left = self._fill(name, first, most, 0)
        return chunk, most - left

    def _fill(self, name: str, chunk: int, left: int, count: int) -> tuple[int, int]:
        """Take chunks from one on, after ``count`` others of the batch, up to so many messages.

        Returns the number after the last, and how many messages could still be taken. A chunk that
        is not full had all due messages; further calls would collect single messages.
        """
        is_full = True
        while is_full and left > 0 and count < _MOST_CHUNKS:
            asked = min(left, _CHUNK)
            taken = self._take(name, chunk, asked, wait=not count)
            is_full = taken >= asked
            chunk, count, left = chunk + (taken > 0), count + (taken > 0), left - taken
        return chunk, left

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how many messages are due now: the query ends after as many."""
        topics = self._remote.queue.stats().topics
        known = [topics[name] for name in self._options.topic_names if name in topics]
        self._left = sum(counts.ready for counts in known)

    def _take(self, name: str, chunk: int, limit: int, *, wait: bool) -> int:
        """Take a chunk, and return how many messages it has.

        A restarted driver first finds chunks that were taken before and are not part of a batch
        yet.
        """
        owner = owner_of(name, chunk)
        if self._is_new:
            held = self._keeper.find(owner)
            if held:
                return held
            self._is_new = False
        if self._left is not None:
            limit, wait = min(limit, self._left), False
        if not limit:
            return 0
        batch = self._ask(owner, limit, wait=wait)
        if self._left is not None:
            self._left -= len(batch)
        self._keeper.keep(owner, batch)
        return len(batch)

    def _ask(self, owner: str, limit: int, *, wait: bool) -> Batch:
        """Take messages; if the answer to a take was lost, return the owner's messages."""
        queue, options = self._remote.queue, self._options
        wait_for = values.Millis(_WAIT_MS if wait else 0)
        try:
            return queue.take(
                options.topic_names, limit, lease=options.lease, owner=owner, wait=wait_for
            )
        except ServerUnreachable:
            held = again(lambda: queue.held(owner))
        return held if len(held) else self._ask(owner, limit, wait=wait)

    # --- done -----------------------------------------------------------------------------------

    def commit(self, end: Offset) -> None:  # type: ignore[override]
        """Ack the messages that Spark has processed."""
        self._ack(end)

    def _ack(self, done: Offset) -> None:
        """Ack the chunks before an offset; chunks of an earlier run of the driver are read now."""
        first = done["unacked"] if self._acked is None else self._acked
        for chunk in range(first, done["chunk"]):
            self._keeper.ack(owner_of(done["name"], chunk))
        self._acked = max(done["chunk"], first)

    # --- what -----------------------------------------------------------------------------------

    def partitions(  # type: ignore[override]
        self, start: Offset, end: Offset
    ) -> Sequence[InputPartition]:
        """Return the chunks of a micro-batch, some for each task, and extend their leases."""
        name, first, stop = end["name"], start["chunk"], end["chunk"]
        for chunk in range(first, stop):
            self._keeper.find(owner_of(name, chunk))
        ranges = cut(first, stop, self._options.partitions, _CHUNKS_A_TASK)
        return [Chunks(name, *ends) for ends in ranges if first < stop]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of some chunks."""
        if not isinstance(partition, Chunks):
            return
        table = message_table(self._schema)
        with self._options.opened() as queue:
            for held in each(queue.held, partition.owners):
                if len(held):
                    yield table.batch(held)

    def stop(self) -> None:
        """Keep the held messages: the query may be started again."""
        self._keeper.stop()
        self._remote.close()


async def _held(options: ReadOptions, name: str) -> list[int]:
    """Return the numbers of the owners that hold messages."""
    left = iter(range(_OWNERS))

    async def ask(queue: Queue) -> list[int]:
        return [slot for slot in left if len(await queue.held(owner_of(name, slot)))]

    async with options.opened() as queue:
        found = await asyncio.gather(*(ask(queue) for _ in range(_ASKED_AT_ONCE)))
    return sorted(chain.from_iterable(found))


def _arc(slots: list[int]) -> tuple[int, int]:
    """Return the shortest range of chunks with all of these owners; it may wrap around.

    The chunks were taken one after another, so it is about as long as the number of owners.
    """
    if not slots:
        return 0, 0
    after = [*slots[1:], slots[0] + _OWNERS]
    gaps = [following - slot for slot, following in zip(slots, after, strict=True)]
    widest = gaps.index(max(gaps))
    first = after[widest] % _OWNERS
    return first, first + _OWNERS - max(gaps) + 1
