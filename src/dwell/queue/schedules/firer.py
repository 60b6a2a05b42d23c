"""The firer: takes the schedules that are due, puts their messages, and gives them back for later.

That is done a little ahead, and the messages fall due at their moments.

Any number may run over one store. A schedule is its taker's until its lease is over; whoever takes
it after a crash puts the same ids once more, which changes nothing.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import groupby

from dwell.batch.batch import Batch
from dwell.batch.puts import Row
from dwell.calendar import missing
from dwell.errors import DwellError, InvalidInput, StoreClosed
from dwell.given.values import Millis
from dwell.message import Message
from dwell.queue.carrier import Carrier
from dwell.queue.schedules.schedule import (
    AHEAD_MS,
    TOPIC,
    Schedule,
    fired_text,
    next_ms,
    schedule_of,
    since_ms,
    since_text,
)
from dwell.queue.schedules.times import Plan, plan

_log = logging.getLogger(__name__)

#: Few enough that to reckon when they fire next stops an event loop for some milliseconds only.
_MOST = 64
_LEASE = Millis(10_000)
_OWNER = "schedules"
#: How long to reckon before what is reckoned is put: one slow rule is not to hold up the others.
_RECKONING_S = 0.5
#: How long to let more come due before the next are taken. All is put further ahead than this, and
#: to take, put and release each alone costs far more.
_REST_S = 0.05
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
                batch = await self._taken()
                await self._fire(batch)
                if len(batch) < _MOST:
                    await asyncio.sleep(_REST_S)
            except StoreClosed:
                return
            except DwellError as error:
                self._say(f"schedules cannot be fired now: {error}")
                await asyncio.sleep(_AGAIN.ms / 1000)
            except Exception:
                _log.exception("schedules could not be fired")
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
        # Some rules take long to reckon, and the event loop has other work.
        work, bad, left = await asyncio.to_thread(_reckoned, list(batch), now_ms)
        for message, reason in bad:
            _log.warning("%s", reason)
            await self._queue.bury(message, reason)
        for message in left:
            await self._queue.release(message, counted=False)
        # A process that was stopped for long must not put what another has put and forgotten.
        now_ms = self._queue.clock.now_ms()
        work = [one for one in work if one[0].lease_until_ms - now_ms >= _LEASE.ms / 2]
        by_topic = groupby(sorted(work, key=_topic_of), key=_topic_of)
        groups = [(topic, list(some)) for topic, some in by_topic]
        await asyncio.gather(*(self._fire_into(topic, some, now_ms) for topic, some in groups))

    async def _fire_into(self, topic: str, work: Sequence[_Work], now_ms: int) -> None:
        """Put what is due into one topic, then give the schedules back."""
        try:
            rows = [schedule.row(ms, now_ms) for _, schedule, to_do in work for ms in to_do.moments]
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
        told = _told(message, to_do)
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
        told = _told(message, to_do)
        if to_do.fired_ms is not None:
            told = fired_text(to_do.fired_ms)
        delay = Millis(max(to_do.next_ms - AHEAD_MS - self._queue.clock.now_ms(), 0))
        await self._queue.release(message, delay, error=told, counted=False)


def _reckoned(
    messages: Sequence[Message], now_ms: int
) -> tuple[list[_Work], list[tuple[Message, str]], Sequence[Message]]:
    """Return what is to be done, what is no schedule and why, and what there was no time for."""
    work, bad, end = list[_Work](), list[tuple[Message, str]](), time.monotonic() + _RECKONING_S
    for at, message in enumerate(messages):
        if at and time.monotonic() > end:
            return work, bad, messages[at:]
        try:
            schedule = schedule_of(message)
            work.append((message, schedule, _plan_of(message, schedule, now_ms)))
        except InvalidInput as error:
            bad.append((message, str(error)))
        except Exception as error:
            # Whatever somebody has put there, the others go on.
            bad.append((message, f"schedule {message.id}: {type(error).__name__}: {error}"))
    return work, bad, ()


def _plan_of(message: Message, schedule: Schedule, now_ms: int) -> Plan:
    told_ms = since_ms(message)
    # One that says nothing was put to be due at its first moment.
    after_ms = next_ms(message) - 1 if told_ms is None else told_ms
    how = (schedule.misfire, schedule.grace_ms)
    return plan(schedule.times, after_ms, now_ms, *how, ahead_ms=AHEAD_MS)


def _told(message: Message, to_do: Plan) -> str:
    """Return what a schedule says that has not fired now: its due may be later than its moment."""
    return message.last_error or since_text(to_do.since_ms)


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
