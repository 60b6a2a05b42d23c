"""The firer: takes the schedules that are due, puts their messages, and gives them back for later.

Any number may run over one store. A schedule is its taker's until its lease is over; whoever takes
it after a crash puts the same ids once more, which changes nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby

from dwell.batch.batch import Batch
from dwell.batch.puts import Row
from dwell.calendar import missing
from dwell.errors import DwellError, InvalidInput, StoreClosed
from dwell.given.values import Millis
from dwell.message import Message
from dwell.queue.schedules.carrier import Carrier
from dwell.queue.schedules.schedule import TOPIC, Schedule, fired_ms, fired_text, schedule_of
from dwell.queue.schedules.times import Plan, plan

_log = logging.getLogger(__name__)

#: Few enough that to reckon when they fire next stops an event loop for some milliseconds only.
_MOST = 64
_LEASE = Millis(10_000)
_OWNER = "schedules"
#: How soon to try again what a store or a full topic refused.
_AGAIN = Millis(1_000)

_SAY_EACH_S = 30.0

#: One schedule that was taken, and what is to be done.
_Work = tuple[Message, Schedule, Plan]


class Firer:
    """Fires the schedules of one queue."""

    def __init__(self, queue: Carrier) -> None:
        self._queue = queue
        self._said_at: dict[str, float] = {}

    async def run(self) -> None:
        """Fire until the task is cancelled, or the queue is closed.

        Where the packages that read rules are missing, it is left to others.
        """
        if packages := missing():
            _log.info("no schedules are fired here, where %s is missing", " and ".join(packages))
            return
        while True:
            try:
                await self._fire(await self._taken())
            except StoreClosed:
                return
            except DwellError as error:
                self._say(f"schedules cannot be fired now: {error}")
                await asyncio.sleep(_AGAIN.ms / 1000)

    def _say(self, problem: str) -> None:
        """Log a problem, the same one only once a while."""
        now = asyncio.get_running_loop().time()
        self._said_at = {told: at for told, at in self._said_at.items() if now - at < _SAY_EACH_S}
        if problem not in self._said_at:
            self._said_at[problem] = now
            _log.warning("%s", problem)

    async def _taken(self) -> Batch:
        """Return schedules that are due, when there are some."""
        batch = await self._queue.take(TOPIC, _MOST, lease=_LEASE, owner=_OWNER)
        if len(batch):
            return batch
        return await self._queue.take(TOPIC, lease=_LEASE, owner=_OWNER, wait="1h")

    async def _fire(self, batch: Batch) -> None:
        now_ms = self._queue.clock.now_ms()
        work: list[_Work] = []
        for message in batch:
            try:
                schedule = schedule_of(message)
                work.append((message, schedule, _plan_of(message, schedule, now_ms)))
            except InvalidInput as error:
                _log.warning("%s", error)
                await self._queue.bury(message, str(error))
        if any(m.lease_until_ms - now_ms < _LEASE.ms / 2 for m, *_ in work):
            # A process that was stopped for long must not put what another has put and forgotten.
            return
        by_topic = groupby(sorted(work, key=_topic_of), key=_topic_of)
        await asyncio.gather(
            *(self._fire_into(topic, list(some), now_ms) for topic, some in by_topic)
        )

    async def _fire_into(self, topic: str, work: Sequence[_Work], now_ms: int) -> None:
        """Put what is due into one topic, then give the schedules back."""
        rows = [schedule.row(ms, now_ms) for _, schedule, to_do in work for ms in to_do.moments]
        try:
            for part in _parts(rows):
                await self._queue.put_rows(topic, part)
        except DwellError as error:
            self._say(f"schedules into {topic} are tried again: {error}")
            for one in work:
                await self._fire_as_far_as_it_goes(*one, now_ms)
            return
        await asyncio.gather(*(self._give_back(message, to_do) for message, _, to_do in work))

    async def _fire_as_far_as_it_goes(
        self, message: Message, schedule: Schedule, to_do: Plan, now_ms: int
    ) -> None:
        """Put one message after the other, and try those that are refused again a little later."""
        # What was due stays due, although the message is due later now.
        told = fired_text(to_do.since_ms)
        for ms in to_do.moments:
            try:
                await self._queue.put_rows(schedule.topic, [schedule.row(ms, now_ms)])
            except DwellError:
                await self._queue.release(message, _AGAIN, error=told, counted=False)
                return
            told = fired_text(ms)
        await self._give_back(message, to_do)

    async def _give_back(self, message: Message, to_do: Plan) -> None:
        if to_do.next_ms is None:
            await self._queue.ack(message)
            return
        told = None if to_do.fired_ms is None else fired_text(to_do.fired_ms)
        delay = Millis(max(to_do.next_ms - self._queue.clock.now_ms(), 0))
        await self._queue.release(message, delay, error=told, counted=False)


def _plan_of(message: Message, schedule: Schedule, now_ms: int) -> Plan:
    since_ms = fired_ms(message)
    if since_ms is None:
        # It has not fired since it was put, and was put to be due at its first moment.
        since_ms = message.due_ms - 1
    return plan(schedule.times, since_ms, now_ms, schedule.misfire, schedule.grace_ms)


def _topic_of(work: _Work) -> str:
    return work[1].topic


#: A part of a put is not larger than this, where it is more than one message.
_PART_ROWS, _PART_BYTES = 1000, 4 * 1024 * 1024


def _parts(rows: Sequence[Row]) -> list[list[Row]]:
    parts: list[list[Row]] = []
    size = 0
    for row in rows:
        size += len(row.body)
        if not parts or len(parts[-1]) >= _PART_ROWS or size > _PART_BYTES:
            parts.append([])
            size = len(row.body)
        parts[-1].append(row)
    return parts
