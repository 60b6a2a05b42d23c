"""The sender: the rows of one task, batch by batch, a few of them under way at once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dwell.errors import InvalidInput
from dwell.given import values
from dwell.message import I64, MAX_BATCH_BYTES, U8, Result
from dwell.queue import Queue
from dwell.spark.badrows import BadRows
from dwell.spark.options import WriteOptions
from dwell.spark.plain import plain
from dwell.spark.rows import by_topic, check_refused, moments, puts_of_rows, spans, texts, versions

#: How many batches of one task are under way at once.
_UNDER_WAY = 3

#: A batch is cut so that its bodies fill at most this part of what one call may have.
_FULL = 0.75


#: What does some rows of a topic, whose places in the partition it is told.
Verb = Callable[[str, pa.RecordBatch, I64], Awaitable[U8]]


class Sender:
    """Sends rows; ``name`` is the first part of the ids of rows that have none.

    ``zone`` is that of the session, by which times without one are read.
    """

    def __init__(
        self,
        queue: Queue,
        options: WriteOptions,
        name: str,
        bad: BadRows,
        zone: str | None = "UTC",
    ) -> None:
        self._queue, self._options, self._name, self._bad = queue, options, name, bad
        self._zone = zone
        self._results: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent = 0
        verbs: dict[str, Verb] = {
            "put": self._put,
            "cancel": self._cancel,
            "reschedule": self._reschedule,
            "kick": self._kick,
        }
        self._do = verbs[options.op]

    async def send(self, rows: pa.RecordBatch) -> None:
        """Send rows, once there are not too many under way; raises BadRow."""
        rows = plain(rows, self._zone)
        size = _rows_a_batch(rows, self._options.batch)
        for at in range(0, rows.num_rows, size):
            while len(self._tasks) >= _UNDER_WAY:
                await self._settle(asyncio.FIRST_COMPLETED)
            part = rows.slice(at, size)
            task = asyncio.create_task(self._send(part, self._sent))
            self._sent += part.num_rows
            self._tasks.add(task)

    async def finish(self) -> Counter[str]:
        """Return how many rows had which result, once all have one."""
        while self._tasks:
            await self._settle(asyncio.ALL_COMPLETED)
        return self._results

    async def give_up(self) -> None:
        """Send no more of what is under way, as the task has failed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _settle(self, when: str) -> None:
        done, self._tasks = await asyncio.wait(self._tasks, return_when=when)
        for task in done:
            task.result()

    async def _send(self, rows: pa.RecordBatch, first: int) -> None:
        """Do some rows, topic by topic; ``first`` is the place of the first in its partition."""
        for topic, part, places in by_topic(rows, self._options.topic):
            await self._send_part(topic, part, places + first)

    async def _send_part(self, topic: str | None, rows: pa.RecordBatch, places: I64) -> None:
        """Do some rows of one topic; where one is refused, halve them until it is alone.

        What is refused was not sent, as all is checked before; so no verb is sent twice.
        """
        try:
            check_refused(rows)
            self._note(await self._do(values.topic(topic), rows, places))
        except InvalidInput as error:
            if rows.num_rows == 1:
                self._bad.add(rows, error)
                self._results["bad"] += 1
                return
            half = rows.num_rows // 2
            await self._send_part(topic, rows.slice(0, half), places[:half])
            await self._send_part(topic, rows.slice(half), places[half:])

    def _note(self, codes: U8) -> None:
        found, counts = np.unique(codes, return_counts=True)
        for code, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._results[str(Result(code))] += count

    # --- verbs ----------------------------------------------------------------------------------

    async def _put(self, topic: str, rows: pa.RecordBatch, places: I64) -> U8:
        made = None
        if "id" not in rows.schema.names:
            # Nothing but the row's place may be in them: how rows are cut into batches, what is
            # refused and which topics there are may all be different when the task runs again.
            made = [f"{self._name}-{place}" for place in places.tolist()]
        puts = puts_of_rows(topic, rows, self._queue.clock.now_ms(), made)
        return (await self._queue.put_puts(puts, self._options.on_conflict)).results

    async def _cancel(self, topic: str, rows: pa.RecordBatch, places: I64) -> U8:
        ids = texts(rows.column("id"), "id")
        return (await self._queue.cancel(topic, ids, versions=versions(rows))).codes

    async def _reschedule(self, topic: str, rows: pa.RecordBatch, places: I64) -> U8:
        ids = texts(rows.column("id"), "id")
        verb = self._queue.reschedule
        return (await verb(topic, ids, **_when(rows), versions=versions(rows))).codes

    async def _kick(self, topic: str, rows: pa.RecordBatch, places: I64) -> U8:
        ids = texts(rows.column("id"), "id")
        return (await self._queue.kick(topic, ids, **_when(rows), versions=versions(rows))).codes


def _when(rows: pa.RecordBatch) -> dict[str, Any]:
    """Return when rows say that their messages fall due, in the words of a verb."""
    if "due" in rows.schema.names:
        return {"due": moments(rows.column("due"), "due")}
    return {"delay": spans(rows.column("delay"), "delay")} if "delay" in rows.schema.names else {}


def _rows_a_batch(rows: pa.RecordBatch, most: int) -> int:
    """Return how many rows are one batch by count and by bytes."""
    each: int = max(rows.nbytes // max(rows.num_rows, 1), 1)
    return max(min(most, int(MAX_BATCH_BYTES * _FULL) // each), 1)
