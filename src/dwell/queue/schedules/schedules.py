"""The schedules of a queue: put, looked at, held up and taken away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from dwell.calendar import zone_of
from dwell.calendar.epoch import from_ms
from dwell.errors import DwellError, IdExists, InvalidSchedule, StoreError
from dwell.given import values
from dwell.given.values import Delay, Due, Millis
from dwell.message import DEFAULT_PRIORITY, MAX_ATTEMPTS, Message, Result, State
from dwell.queue.carrier import Carrier
from dwell.queue.schedules.firer import Firer
from dwell.queue.schedules.schedule import (
    AHEAD_MS,
    CHANGING,
    TOPIC,
    Planned,
    Schedule,
    fired_ms,
    next_ms,
    planned,
    schedule_of,
    since_ms,
)
from dwell.tasks import finished, whole

#: When a schedule that is paused would fire.
_NEVER_MS = 50 * 366 * 24 * 3_600_000

#: How long, and how often, a change waits for whoever fires or changes the schedule just now.
_PATIENCE_S, _AGAIN_S = 30.0, 0.02
#: How long nobody else changes a schedule whose change has not come to its end.
_HELD = Millis(15_000)

#: The states that a schedule goes through as it fires, and how often each is looked at: one that
#: moves on meanwhile may have been where nobody looked.
_STATES = (State.LEASED, State.READY, State.DELAYED)
_LAPS = 2
_MISFIRES = ("skip", "once", "all")


class Schedules:
    """What a queue puts again and again: ``queue.schedules``.

    They fire wherever a server or a worker runs, or :meth:`fire` does; however many those are, each
    moment is one message, with the id ``NAME@TIME``.
    """

    def __init__(self, queue: Carrier) -> None:
        self._queue = queue

    async def put(
        self,
        name: str,
        topic: str,
        body: object,
        *,
        cron: str | None = None,
        every: Delay | None = None,
        rrule: str | None = None,
        zone: str = "UTC",
        start: Due | None = None,
        end: Due | None = None,
        jitter: Delay = 0,
        misfire: str = "once",
        grace: Delay = "1m",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = DEFAULT_PRIORITY,
        lease: Delay | None = None,
        max_attempts: int | None = None,
        ttl: Delay | None = None,
        app: str = "",
    ) -> Result:
        """Put a schedule, or change it: ``created``, ``replaced``, or ``kept`` as it was the same.

        ``cron`` is a line of crontab(5), with seconds first if it has six fields; ``every`` is a
        span, ``rrule`` a rule of RFC 5545; the first and the last are read in ``zone``. It fires
        from ``start`` to ``end``, each message up to ``jitter`` later. After a time in which nobody
        fired, ``misfire`` says what is put for the moments that were missed: ``once`` the last of
        them, ``all`` each, ``skip`` those that are not later than ``grace``. What the messages have
        are ``body`` and the rest, as :meth:`dwell.Queue.put` takes them, and the headers
        ``dwell-schedule`` and ``dwell-time``. One that is paused stays so. Raises InvalidSchedule
        for what cannot be read, and what would never fire.
        """
        now_ms = self._queue.clock.now_ms()
        schedule = Schedule(
            name=values.topic(name, "name"),
            topic=values.topic(topic),
            body=values.body(body),
            cron=cron,
            rrule=rrule,
            every_ms=None if every is None else values.delay_ms(every, "every"),
            zone=zone,
            start_ms=None if start is None else values.due_ms(start, now_ms, "start"),
            end_ms=None if end is None else values.due_ms(end, now_ms, "end"),
            jitter_ms=values.delay_ms(jitter, "jitter"),
            misfire=_misfire(misfire),
            grace_ms=values.delay_ms(grace, "grace"),
            app=app,
            key=values.key(key),
            headers=values.headers(headers) or {},
            priority=values.priority(priority),
            lease_ms=values.lease_ms(lease),
            max_attempts=0 if max_attempts is None else values.max_attempts(max_attempts),
            ttl_ms=0 if ttl is None else values.delay_ms(ttl, "ttl"),
        )
        schedule.check()
        await _after(schedule, now_ms)
        return await self._change(name, lambda old: _kept_paused(schedule, old))

    async def get(self, name: str) -> Planned | None:
        """Return a schedule as it stands, or None where there is none of that name."""
        message = await self._queue.get(TOPIC, values.topic(name, "name"))
        return None if message is None else planned(message)

    async def each(self, app: str | None = None) -> AsyncIterator[Planned]:
        """Yield the schedules, those that fire next first; of one ``app`` only, if it is given."""
        seen = set[str]()
        for state in (*_STATES * _LAPS, State.DEAD):
            async for batch in self._queue.pages(TOPIC, state):
                for message in batch:
                    try:
                        found = planned(message)
                    except InvalidSchedule:
                        continue
                    if message.id not in seen and app in (None, found.schedule.app):
                        yield found
                    seen.add(message.id)

    async def next(self, name: str, count: int = 5) -> list[datetime]:
        """Return when a schedule fires next, in its zone; not at all as long as it is paused.

        Raises InvalidSchedule when there is none of that name.
        """
        schedule = (await self._existing(name)).schedule
        if schedule.paused:
            return []
        now_ms, most, zone = self._queue.clock.now_ms(), values.limit(count, "count"), schedule.zone

        def found() -> list[int]:
            return list(islice(schedule.times.following(now_ms), most))

        moments = await asyncio.to_thread(found)
        return [from_ms(ms).astimezone(zone_of(zone)) for ms in moments]

    async def pause(self, name: str) -> Result:
        """Let a schedule fire no more: ``replaced``, ``kept`` when it was paused, ``unknown``."""
        return await self._set_paused(name, paused=True)

    async def resume(self, name: str) -> Result:
        """Let a schedule fire again, from now on: ``replaced``, ``kept`` or ``unknown``."""
        return await self._set_paused(name, paused=False)

    async def remove(self, name: str) -> Result:
        """Take a schedule away: ``cancelled`` or ``unknown``. What it has put stays."""
        name = values.topic(name, "name")

        async def removed() -> Result:
            return await self._queue.cancel(TOPIC, name)

        return await self._patiently(name, lambda: self._alone(name, removed))

    async def fire(self) -> None:
        """Fire schedules until the call is cancelled, or the queue is closed."""
        await Firer(self._queue).run()

    # --- changes ------------------------------------------------------------------------------

    async def _existing(self, name: str) -> Planned:
        found = await self.get(name)
        if found is None:
            raise InvalidSchedule(f"schedule: there is none that is called {name!r:.80}")
        return found

    async def _set_paused(self, name: str, *, paused: bool) -> Result:
        def changed(old: Schedule | None) -> Schedule | None:
            return None if old is None else replace(old, paused=paused)

        return await self._change(values.topic(name, "name"), changed)

    async def _change(
        self, name: str, changed: Callable[[Schedule | None], Schedule | None]
    ) -> Result:
        """Put what a schedule is to be now, whatever it was; who fires it is waited for."""

        async def put() -> Result:
            said = await self._changed(name, changed, is_alone=False)
            if said is not Result.REPLACED:
                return said
            return await self._alone(name, lambda: self._changed(name, changed, is_alone=True))

        return await self._patiently(name, put)

    async def _changed(
        self, name: str, changed: Callable[[Schedule | None], Schedule | None], *, is_alone: bool
    ) -> Result:
        """Change a schedule as it is now; only say ``replaced`` where that has to be done alone."""
        message = await self._queue.get(TOPIC, name)
        old = None if message is None else _readable(message)
        new = changed(old)
        if new is None:
            return Result.UNKNOWN
        if message is not None and old is not None:
            # The new message does not tell by itself what the old one had fired.
            last_ms = fired_ms(message) or old.last_ms
            old, new = replace(old, last_ms=last_ms), replace(new, last_ms=last_ms)
        if old == new and message is not None and message.state is not State.DEAD:
            return Result.KEPT
        if message is not None and not is_alone:
            return Result.REPLACED
        return await self._put(new, await self._since_ms(message, old), is_new=message is None)

    async def _alone(self, name: str, do: Callable[[], Awaitable[Result]]) -> Result:
        """Do something to a schedule while nobody else changes it; ``leased`` where somebody does.

        A message beside it says so. It falls due when who has put it is gone, and the firer, or who
        wants to change the schedule next, takes it away.
        """
        # Whoever is cancelled on the way would leave it there.
        return await finished(whole(self._with_note(name + CHANGING, do)))

    async def _with_note(self, note: str, do: Callable[[], Awaitable[Result]]) -> Result:
        try:
            await self._queue.put(TOPIC, b"", id=note, delay=_HELD, on_conflict="error")
        except IdExists:
            there = await self._queue.get(TOPIC, note)
            if there is not None and there.state in (State.READY, State.DEAD):
                await self._queue.cancel(TOPIC, note)
            return Result.LEASED
        try:
            return await do()
        finally:
            # What was done is done, and the note ends by itself.
            with suppress(DwellError):
                await self._queue.cancel(TOPIC, note)

    async def _since_ms(self, message: Message | None, old: Schedule | None) -> int:
        """Return after when a schedule is to fire that takes the place of another.

        What that one has missed until now is not lost, and what it has fired is not fired again.
        """
        now_ms = self._queue.clock.now_ms()
        if message is None or old is None or old.paused:
            return now_ms
        told_ms, first_ms = since_ms(message), next_ms(message)
        if told_ms is not None:
            # It may be due later only because what it puts was refused.
            found_ms = await asyncio.to_thread(old.times.after, told_ms)
            first_ms = first_ms if found_ms is None else found_ms
        return max(min(now_ms, first_ms - 1), told_ms or 0)

    async def _put(self, schedule: Schedule, since_ms: int, *, is_new: bool) -> Result:
        now_ms = self._queue.clock.now_ms()
        first_ms = now_ms + _NEVER_MS if schedule.paused else await _after(schedule, since_ms)
        # What fires is given back without its attempt: only a crash of who fires it counts.
        try:
            answer = await self._queue.put(
                TOPIC,
                msgspec.json.encode(schedule),
                due=max(first_ms - AHEAD_MS, 0),
                id=schedule.name,
                max_attempts=MAX_ATTEMPTS,
                on_conflict="error" if is_new else "replace",
            )
        except IdExists:
            # Somebody else was earlier, and this is a change of what he has put.
            return Result.LEASED
        return answer.result

    async def _patiently(self, name: str, do: Callable[[], Any]) -> Result:
        """Do something to a schedule; while somebody fires it, it is his."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE_S
        while (result := await do()) is Result.LEASED:
            if loop.time() > end:
                raise StoreError(
                    f"schedule {name}: somebody has fired or changed it for {_PATIENCE_S:g} s"
                )
            await asyncio.sleep(_AGAIN_S)
        return Result(result)


async def _after(schedule: Schedule, ms: int) -> int:
    """Return the first moment after one; raises InvalidSchedule where there is none.

    Some rules take long to reckon, so that is done in a thread.
    """
    found = await asyncio.to_thread(lambda: schedule.times.after(ms))
    if found is None:
        raise InvalidSchedule(f"schedule {schedule.name}: never fires from now on")
    return found


def _misfire(word: str) -> Any:
    if word not in _MISFIRES:
        raise values.refusal(InvalidSchedule, "misfire", word, f"one of {', '.join(_MISFIRES)}")
    return word


def _kept_paused(new: Schedule, old: Schedule | None) -> Schedule:
    return new if old is None else replace(new, paused=old.paused)


def _readable(message: Message) -> Schedule | None:
    try:
        return schedule_of(message)
    except InvalidSchedule:
        return None
