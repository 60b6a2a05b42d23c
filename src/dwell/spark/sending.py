"""The sender: the rows of one task, batch by batch, a few of them in flight at once."""

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

#: How many batches of one task are in flight at once.
_UNDER_WAY = 3

#: A batch is cut so that its bodies fill at most this part of the limit of one call.
_FULL = 0.75


#: Runs a verb on rows of a topic, with their places in the partition.
Verb = Callable[[str, pa.RecordBatch, I64], Awaitable[U8]]


class Sender:
    """Sends rows; ``name`` is the prefix for the ids of rows without an id.

    ``zone`` is the session's zone, for times without one.
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
        """Send rows, when few enough are in flight; raises BadRow."""
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
        """Return how many rows had which result, once all results are there."""
        while self._tasks:
            await self._settle(asyncio.ALL_COMPLETED)
        return self._results

    async def give_up(self) -> None:
        """Cancel the batches in flight, because the task has failed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _settle(self, when: str) -> None:
        done, self._tasks = await asyncio.wait(self._tasks, return_when=when)
        for task in done:
            task.result()

    async def _send(self, rows: pa.RecordBatch, first: int) -> None:
        """Process rows, topic by topic; ``first`` is the place of the first in its partition."""
        for topic, part, places in by_topic(rows, self._options.topic):
            await self._send_part(topic, part, places + first)

    async def _send_part(self, topic: str | None, rows: pa.RecordBatch, places: I64) -> None:
        """Process rows of one topic; if a row is refused, halve them until it is alone.

        A refused row was not sent, because all rows are checked before; so no verb is sent twice.
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
            # They may contain only the row's place: the cut into batches, the refused rows and the
            # topics may all differ when the task runs again.
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
    """Return the dues of rows in the form of a verb's arguments."""
    if "due" in rows.schema.names:
        return {"due": moments(rows.column("due"), "due")}
    return {"delay": spans(rows.column("delay"), "delay")} if "delay" in rows.schema.names else {}


def _rows_a_batch(rows: pa.RecordBatch, most: int) -> int:
    """Return how many rows make one batch by count and by bytes."""
    each: int = max(rows.nbytes // max(rows.num_rows, 1), 1)
    return max(min(most, int(MAX_BATCH_BYTES * _FULL) // each), 1)
