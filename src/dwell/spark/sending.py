"""The sender: the rows of one task, batch by batch, a few of them under way at once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dwell.errors import InvalidInput
from dwell.given import columns, values
from dwell.given.values import Millis
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


#: In how many parts messages are kicked that are to have dues of their own.
_KICKED_PARTS = 16

#: Kicks the rows at some places, due after so many milliseconds.
Kick = Callable[[I64, int], Awaitable[None]]

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
        if "due" in rows.schema.names:
            due = moments(rows.column("due"), "due")
            when: dict[str, Any] = {"due": due}
        else:
            when = {"delay": spans(rows.column("delay"), "delay")}
        return (await self._queue.reschedule(topic, ids, **when, versions=versions(rows))).codes

    async def _kick(self, topic: str, rows: pa.RecordBatch, places: I64) -> U8:
        ids = texts(rows.column("id"), "id")
        seen = versions(rows)
        columns.any_ids(ids)
        codes = np.zeros(len(ids), np.uint8)

        async def kick(some: I64, delay_ms: int) -> None:
            own = [ids[at] for at in some.tolist()]
            own_seen = None if seen is None else seen[some]
            delay = Millis(delay_ms)
            kicked = await self._queue.kick(topic, own, delay=delay, versions=own_seen)
            codes[some] = kicked.codes

        if "due" in rows.schema.names:
            await self._kick_by_due(topic, ids, rows, codes, kick)
        else:
            # One kick has one delay, so those that are alike go together; all of them are checked
            # before the first is sent.
            delays = spans(rows.column("delay"), "delay") if "delay" in rows.schema.names else []
            delays_ms = np.array(
                [values.delay_ms(delay or 0) for delay in delays or [0] * len(ids)]
            )
            for delay_ms in dict.fromkeys(delays_ms.tolist()):
                await kick(np.flatnonzero(delays_ms == delay_ms), delay_ms)
        return codes

    async def _kick_by_due(
        self, topic: str, ids: list[str], rows: pa.RecordBatch, codes: U8, kick: Kick
    ) -> None:
        """Kick messages in a few parts by due, and then give each that was kicked its own.

        Until then each is due with the last of its part, so that none is taken early.
        """
        now_ms = self._queue.clock.now_ms()
        due_ms = columns.dues(None, moments(rows.column("due"), "due"), None, len(ids), now_ms)
        for part in np.array_split(np.argsort(due_ms, kind="stable"), _KICKED_PARTS):
            if len(part):
                await kick(part, max(int(due_ms[part[-1]]) - now_ms, 0))
        ahead = np.flatnonzero((codes == Result.KICKED) & (due_ms > now_ms))
        if len(ahead):
            own = [ids[at] for at in ahead.tolist()]
            await self._queue.reschedule(topic, own, due=due_ms[ahead])


def _rows_a_batch(rows: pa.RecordBatch, most: int) -> int:
    """Return how many rows are one batch by count and by bytes."""
    each: int = max(rows.nbytes // max(rows.num_rows, 1), 1)
    return max(min(most, int(MAX_BATCH_BYTES * _FULL) // each), 1)
