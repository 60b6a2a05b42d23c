"""The firer: takes the schedules that are due, puts their messages and releases the schedules.

It works a little ahead of time, and the messages fall due at their moments.

Any number of firers may run over one store. The lease of a schedule keeps other firers away. After
a crash the next firer puts messages with the same ids again, which changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeVar
from weakref import WeakValueDictionary

from dwell.batch.batch import Batch
from dwell.batch.puts import Put
from dwell.calendar import missing
from dwell.errors import DwellError, StoreClosed
from dwell.given.values import Millis
from dwell.message import Message, Result, State
from dwell.queue.carrier import Carrier
from dwell.queue.schedules.reckoning import Bad, Reckoning, Work
from dwell.queue.schedules.schedule import (
    AHEAD_MS,
    OWNER,
    SETBACK_MS,
    TOPIC,
    Schedule,
    fired_text,
    held_text,
    mark_ms,
    marked,
    put_ms,
    since_ms,
    since_text,
    told_ms,
    told_text,
    waits_ms,
    with_mark,
)
from dwell.queue.schedules.setback import Setback
from dwell.queue.schedules.times import Plan

_log = logging.getLogger(__name__)

#: How many schedules are taken at a time. Putting and releasing them stops the event loop for some
#: milliseconds.
_MOST = 128
_LEASE = Millis(10_000)
#: How long rules are computed before the messages found so far are put, so that a slow rule does
#: not delay the other schedules.
_RECKONING_S = 0.5
#: How many slow rules are computed at the same time, each in its own thread; how often the lease of
#: each is extended, and how many times before the schedule is buried. Extensions are counted
#: instead of time, since a process that was stopped for an hour has extended the lease once.
_MOST_SLOW, _TOUCH_S, _MOST_TOUCHES = 4, 2.0, 10
#: When a slow schedule is tried again if all threads were busy.
_LATER = Millis(30_000)
#: How long to wait for more due schedules before the next take. Messages are put further ahead than
#: this, and batches of one cost far more.
_REST_S = 0.05
#: How soon a put is repeated that a store or a full topic refused.
_AGAIN = Millis(1_000)
#: The delay of what is due at once: without a delay a message returns to its old place.
_AT_ONCE = Millis(1)

_SAY_EACH_S = 30.0
#: How many messages are looked up at a time.
_MOST_LOOKED_AT = 1000
#: How many moments are put and looked up before the leases of other schedules are extended, unless
#: a single schedule has more.
_MOST_MOMENTS = 1000
#: The largest part of a put, unless it is a single message. Making and putting the rows of a part
#: stops the event loop for some milliseconds.
_PART_ROWS, _PART_BYTES = 250, 4 * 1024 * 1024

_T = TypeVar("_T")


class _Firing:
    """The state that all firers of one store in this process share.

    ``names`` are the schedules that a firer is working on. ``unsaid`` has the body and the last
    moment of each schedule that has fired, but whose lease ended before its release could say so.
    """

    def __init__(self) -> None:
        self.names = set[str]()
        self.unsaid: dict[str, tuple[bytes, int]] = {}


_firings: WeakValueDictionary[int, _Firing] = WeakValueDictionary()


class Firer:
    """Fires the schedules of one queue."""

    def __init__(self, queue: Carrier) -> None:
        self._queue = queue
        self._said_at: dict[str, float] = {}
        self._slow: set[asyncio.Task[None]] = set()
        self._setback = Setback(queue)
        store = queue.store
        # A copy of a folder has its number, and is another store.
        key = store.number if store.is_shared else id(store)
        self._firing = _firings.setdefault(key, _Firing())

    async def run(self) -> None:
        """Fire until the task is cancelled, or the queue is closed.

        Without the packages that read rules it does nothing, and leaves the work to others.
        """
        if packages := missing():
            _log.info("no schedules are fired here, where %s is missing", " and ".join(packages))
            return
        setback = asyncio.create_task(self._setback.run())
        try:
            await self._run()
        finally:
            tasks = [setback, *self._slow]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
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
        """Log a problem, but not the same one again within 30 seconds."""
        now = asyncio.get_running_loop().time()
        self._said_at = {told: at for told, at in self._said_at.items() if now - at < _SAY_EACH_S}
        if problem not in self._said_at:
            self._said_at[problem] = now
            _log.warning("%s", problem)

    async def _taken(self) -> Batch:
        """Wait for schedules that are due, and take them."""
        batch = await self._queue.take(TOPIC, _MOST, lease=_LEASE, owner=OWNER)
        if len(batch):
            return batch
        return await self._queue.take(TOPIC, lease=_LEASE, owner=OWNER, wait="1h")

    async def _fire(self, batch: Batch) -> None:
        now_ms, firing = self._queue.clock.now_ms(), self._firing.names
        self._setback.note(now_ms)
        # Their leases have ended, but another firer here may have put some messages already.
        others = [message for message in batch if message.id in firing]
        own = [message for message in batch if message.id not in firing]
        await asyncio.gather(*(self._leave(message, _AGAIN) for message in others))
        if not own:
            return
        names = {message.id for message in own}
        firing |= names
        try:
            await self._fire_own(own, now_ms)
        finally:
            firing -= names - {task.get_name() for task in self._slow}

    async def _leave(self, message: Message, delay: Millis) -> None:
        """Release a schedule without firing it."""
        # Its new due no longer says when it is to fire.
        told = since_text(since_ms(message, self._queue.clock.now_ms()), waits_ms(message))
        await self._release(message, delay, told)

    async def _release(
        self, message: Message, delay: Millis, told: str, held: DwellError | None = None
    ) -> Result:
        """Release a schedule with its text, and with the error that holds it up."""
        told = with_mark(told, message)
        if held is not None:
            told = held_text(told, held)
        return await self._queue.release(message, delay, error=told, counted=False)

    async def _fire_own(self, messages: Sequence[Message], now_ms: int) -> None:
        # Some rules take long to compute, and the event loop has other work.
        fired, forward_ms = self._fired(messages, now_ms), self._setback.forward_ms
        reckoning = Reckoning(messages, now_ms, fired, forward_ms)
        await reckoning.wait(_RECKONING_S)
        found, slow, left = reckoning.cut()
        if slow is not None:
            await self._set_apart(slow, reckoning)
        await asyncio.gather(*(self._queue.release(one, counted=False) for one in left))
        # After a long stop, another process may have put the same messages, and dropped their ids.
        least_ms = self._queue.clock.now_ms() + _LEASE.ms / 2
        await self._fire_found([one for one in found if _is_held(one, least_ms)])

    async def _fire_found(self, found: Sequence[Work | Bad]) -> None:
        work = list[Work]()
        for one in found:
            if isinstance(one, Work):
                work.append(one)
            else:
                await self._bury(*one)
        for number, part in enumerate(_in_parts(work, _moments_of, _MOST_MOMENTS)):
            held = await self._touched(part) if number else part
            now_ms = self._queue.clock.now_ms()
            to_fire = await self._without_overlaps(held, now_ms)
            await asyncio.gather(*(self._fire_into(*group, now_ms) for group in _by_topic(to_fire)))

    async def _touched(self, work: Sequence[Work]) -> Sequence[Work]:
        """Extend the leases of schedules that had to wait; return the work that is still leased."""
        said = await asyncio.gather(*(self._queue.touch(one.message, _LEASE) for one in work))
        return [one for one, how in zip(work, said, strict=True) if how is Result.TOUCHED]

    async def _without_overlaps(self, work: Sequence[Work], now_ms: int) -> list[Work]:
        """Apply ``overlap`` to schedules whose earlier message may not be done."""
        looked = [one for one in work if one.schedule.overlap != "queue" and one.to_do.fired_ms]
        names = {one.message.id for one in looked}
        found = [one for one in work if one.message.id not in names]
        looks = (self._without_overlaps_in(*group, now_ms) for group in _by_topic(looked))
        for some in await asyncio.gather(*looks):
            found += some
        return found

    async def _without_overlaps_in(
        self, topic: str, work: Sequence[Work], now_ms: int
    ) -> Sequence[Work]:
        """Apply ``overlap`` to the schedules of one topic."""
        moments = {one.message.id: _may_be_put(one, now_ms) for one in work}
        ids = [one.schedule.id_of(ms) for one in work for ms in moments[one.message.id]]
        there: dict[str, Message] = {}
        try:
            for first in range(0, len(ids), _MOST_LOOKED_AT):
                found = await self._queue.get(topic, ids[first : first + _MOST_LOOKED_AT])
                there |= {one.id: one for one in found if one and one.state is not State.DEAD}
        except DwellError as error:
            self._say(f"schedules into {topic} are tried again: {error}")
            await asyncio.gather(*(self._leave(one.message, _AGAIN) for one in work))
            return ()
        return [
            _apart(
                one,
                [ms for ms in moments[one.message.id] if one.schedule.id_of(ms) in there],
                there,
                now_ms,
            )
            for one in work
        ]

    async def _bury(self, message: Message, reason: str) -> None:
        _log.warning("%s", reason)
        await self._queue.bury(message, reason)

    async def _set_apart(self, message: Message, reckoning: Reckoning) -> None:
        """Compute a slow schedule in the background, unless too many are computed already."""
        if len(self._slow) < _MOST_SLOW:
            task = asyncio.create_task(self._fire_slow(message, reckoning), name=message.id)
            self._slow.add(task)
            task.add_done_callback(self._slow.discard)
            return
        reckoning.end()
        await self._leave(message, _LATER)

    async def _fire_slow(self, message: Message, reckoning: Reckoning) -> None:
        """Fire a slow schedule when its rule is computed; bury it if that takes too long."""
        try:
            for _ in range(_MOST_TOUCHES):
                if await self._queue.touch(message, _LEASE) is not Result.TOUCHED:
                    return
                if await reckoning.wait(_TOUCH_S):
                    # After a stop of this process the lease may have ended.
                    if await self._queue.touch(message, _LEASE) is Result.TOUCHED:
                        await self._fire_found([reckoning.last])
                    return
            took_s = round(_MOST_TOUCHES * _TOUCH_S)
            await self._bury(message, f"schedule {message.id}: not reckoned within {took_s} s")
        except DwellError as error:
            self._say(f"schedule {message.id} cannot be fired now: {error}")
        finally:
            reckoning.end()
            self._firing.names.discard(message.id)

    async def _fire_into(self, topic: str, work: Sequence[Work], now_ms: int) -> None:
        """Put the due messages into one topic, then release the schedules."""
        try:
            due = [(schedule, ms) for _, schedule, to_do in work for ms in to_do.moments]
            puts = list[Put]()
            for part in _in_parts(due, _size_of, _PART_BYTES):
                rows = [schedule.row(ms, now_ms) for schedule, ms in part]
                puts += await self._queue.put_rows(topic, rows)
            self._note_dropped(topic, puts)
        except DwellError as error:
            self._say(f"schedules into {topic} are tried again: {error}")
            for one in work:
                await self._fire_as_far_as_it_goes(one, now_ms)
            return
        results = {put.id: put.result for put in puts}
        await asyncio.gather(*(self._finish(one, results) for one in work))

    async def _finish(self, work: Work, results: Mapping[str, Result]) -> None:
        """Cancel the messages that a schedule has replaced, and release it."""
        try:
            done = await self._replaced(work, results)
        except DwellError as error:
            self._say(f"schedule {work.message.id} is tried again: {error}")
            await self._leave(work.message, _AGAIN)
        else:
            await self._give_back(done)

    async def _replaced(self, work: Work, results: Mapping[str, Result]) -> Work:
        """Cancel the replaced messages, unless the topic has dropped the new one."""
        schedule, to_do = work.schedule, work.to_do
        if not to_do.replaces:
            return work
        if to_do.moments and results.get(schedule.id_of(to_do.moments[-1])) is Result.DROPPED:
            return work._replace(to_do=to_do._replace(waits_ms=to_do.replaces[-1]))
        ids = map(schedule.id_of, to_do.replaces)
        await asyncio.gather(*(self._queue.cancel(schedule.topic, id_) for id_ in ids))
        return work

    def _note_dropped(self, topic: str, puts: Sequence[Put]) -> None:
        if any(put.result is Result.DROPPED for put in puts):
            self._say(f"topic {topic!r} is full and drops what schedules put into it")

    async def _fire_as_far_as_it_goes(self, work: Work, now_ms: int) -> None:
        """Put messages one by one up to the first that is refused, which is tried again later."""
        message, schedule, to_do = work
        # The text keeps the due moments, since the schedule's own due becomes that of the next try.
        told, results = _told(message, to_do), dict[str, Result]()
        for ms in to_do.moments:
            try:
                puts = await self._queue.put_rows(schedule.topic, [schedule.row(ms, now_ms)])
                self._note_dropped(schedule.topic, puts)
                results |= {put.id: put.result for put in puts}
            except DwellError as error:
                await self._release(message, _AGAIN, told, error)
                return
            told = fired_text(ms)
        await self._finish(work, results)

    async def _give_back(self, work: Work) -> None:
        message, schedule, to_do = work
        now_ms = self._queue.clock.now_ms()
        done_ms = to_do.since_ms if to_do.fired_ms is None else to_do.fired_ms
        if done_ms > now_ms + SETBACK_MS:
            # All this was computed by a clock that was ahead, and has been put right since.
            told = marked(since_text(now_ms, to_do.waits_ms), done_ms)
            said = await self._release(message, _AT_ONCE, told)
        elif to_do.next_ms is None:
            said = await self._queue.ack(message)
            if to_do.fired_ms is not None:
                self._setback.note_end(message, schedule, to_do.fired_ms)
        else:
            told = _told(message, to_do)
            if to_do.fired_ms is not None:
                told = fired_text(to_do.fired_ms, to_do.waits_ms)
            delay = Millis(max(to_do.next_ms - AHEAD_MS - now_ms, 0))
            said = await self._release(message, delay, told)
        if said is Result.STALE:
            # The lease has ended. The next take must not put these messages again, even if their
            # ids are no longer remembered, as after large steps of a simulated clock.
            self._firing.unsaid[message.id] = (message.body, to_do.fired_ms or to_do.since_ms)
        else:
            self._firing.unsaid.pop(message.id, None)

    def _fired(self, messages: Sequence[Message], now_ms: int) -> dict[str, int]:
        """Return up to when schedules have fired whose releases came too late to say so."""
        unsaid = self._firing.unsaid
        found = {message.id: unsaid.get(message.id, (b"", -1)) for message in messages}
        bodies = {message.id: message.body for message in messages}
        return {
            id_: ms
            for id_, (body, ms) in found.items()
            if body == bodies[id_] and ms <= now_ms + SETBACK_MS
        }


def _is_held(one: Work | Bad, until_ms: float) -> bool:
    return isinstance(one, Bad) or one.message.lease_until_ms >= until_ms


def _may_be_put(work: Work, now_ms: int) -> list[int]:
    """Return the moments whose messages may exist, in order: also all since the last firing.

    The last firer may have died after its put and before its release.
    """
    to_do = work.to_do
    told = put_ms(work.message, work.schedule, now_ms)
    # This process may know of a firing that the message does not tell.
    return sorted({*told, to_do.since_ms, *to_do.passed, *to_do.moments})


def _apart(work: Work, there_ms: Sequence[int], there: Mapping[str, Message], now_ms: int) -> Work:
    """Return the work of a schedule after ``overlap`` is applied, given the existing messages."""
    to_do, is_replacing = work.to_do, work.schedule.overlap == "replace"
    if not there_ms:
        moments = to_do.moments[-1:] if is_replacing else to_do.moments[:1]
        # Only the first is put, since the others would overlap it.
        is_waiting = not is_replacing and len(to_do.moments) > 1
        waits_ms = moments[0] if is_waiting else None
        return work._replace(to_do=to_do._replace(moments=moments, waits_ms=waits_ms))
    *older, last_ms = there_ms
    last = there[work.schedule.id_of(last_ms)]
    # A message that is not due yet is not late, even with a short interval or a long jitter.
    is_new = last_ms not in to_do.moments[-1:]
    if is_replacing and to_do.moments and is_new and last.due_ms <= now_ms:
        moments = to_do.moments[-1:]
        return work._replace(to_do=to_do._replace(moments=moments, replaces=there_ms))
    replaces = older if is_replacing else ()
    # A run by hand is known to the schedule until it is done, and another message by this only.
    waits_ms = max(set(there_ms) - set(work.schedule.ran_ms), default=last_ms)
    return work._replace(to_do=to_do._replace(moments=[], waits_ms=waits_ms, replaces=replaces))


def _told(message: Message, to_do: Plan) -> str:
    """Return the text of a schedule that has not fired: its due may be later than its moment."""
    is_told = told_ms(message) == to_do.since_ms
    told = told_text(message) if is_told else None
    text = fired_text if to_do.since_ms == mark_ms(message) else since_text
    return told or text(to_do.since_ms, waits_ms(message))


def _by_topic(work: Sequence[Work]) -> list[tuple[str, list[Work]]]:
    groups = groupby(sorted(work, key=_topic_of), key=_topic_of)
    return [(topic, list(some)) for topic, some in groups]


def _topic_of(work: Work) -> str:
    return work.schedule.topic


def _moments_of(work: Work) -> int:
    return len(work.to_do.moments) + len(work.to_do.passed)


def _size_of(due: tuple[Schedule, int]) -> int:
    return max(len(due[0].body), _PART_BYTES // _PART_ROWS)


def _in_parts(items: Sequence[_T], size_of: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """Yield items in parts of at most some size together, where a part has more than one."""
    part, size = list[_T](), 0
    for item in items:
        size += size_of(item)
        if part and size > most:
            yield part
            part, size = [], size_of(item)
        part.append(item)
    if part:
        yield part
