"""Changes of schedules: each applies to what it has seen, also while the schedule fires.

A change finds the schedule, reckons what it is to be, and replaces it in the version that it found.
When the schedule has fired meanwhile, or another change was quicker, it begins again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace as with_columns
from typing import NamedTuple

from msgspec.structs import replace

from dwell.batch.page import Cursor
from dwell.batch.puts import Puts, Row
from dwell.batch.results import results_of
from dwell.errors import IdExists, InvalidSchedule, StoreDamaged, StoreError
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import MAX_ATTEMPTS, U64, Message, Result, State
from dwell.queue.carrier import Carrier
from dwell.queue.schedules.schedule import (
    AHEAD_MS,
    NEVER_MS,
    TOPIC,
    Schedule,
    carried,
    next_ms,
    schedule_of,
    since_ms,
)
from dwell.queue.schedules.sidethread import in_time

_log = logging.getLogger(__name__)

#: How long, and how often, a change waits for whoever fires or changes the schedule just now.
_PATIENCE_S, _AGAIN_S = 30.0, 0.02

#: What a schedule becomes, given what it is; None leaves it as it is.
Changed = Callable[[Schedule | None], Schedule | None]

#: What may refuse a change by raising an error, given the schedule that is there, and the new one.
#: Either may be None: nothing is there or nobody can read it, and nothing takes its place.
Check = Callable[[Schedule | None, Schedule | None], None]


def unchecked(old: Schedule | None, new: Schedule | None) -> None:
    """Refuse nothing."""


class _Seen(NamedTuple):
    """A schedule as it was found: its message and the version of that, one number in an array.

    The version is None where an older server gives none; then any is changed.
    """

    message: Message
    version: U64 | None


class Changing:
    """Changes the schedules of one queue.

    ``check`` is called with what was found before each change, and is the last step before it.
    """

    def __init__(self, queue: Carrier, check: Check = unchecked) -> None:
        self._queue = queue
        self._check = check

    async def put(
        self,
        new: Schedule,
        *,
        anew: bool = False,
        check: Callable[[Schedule | None], None] = lambda old: None,
    ) -> Result:
        """Put a schedule, also in place of another of its name; one that is paused stays so.

        ``check`` may refuse the schedule that is there, by raising an error. With ``anew`` the
        schedule is also put where it is the same: whoever is about to remove it finds it changed.
        """

        def changed(old: Schedule | None) -> Schedule:
            check(old)
            return new if old is None else replace(new, paused=old.paused)

        return await self.change(new.name, changed, anew=anew)

    async def change(self, name: str, changed: Changed, *, anew: bool = False) -> Result:
        """Put what a schedule is to be now, whatever it was; waits for whoever fires it."""
        return await self._patiently(name, lambda: self._change(name, changed, anew=anew))

    async def remove(self, name: str, may: Callable[[], Awaitable[bool]] | None = None) -> Result:
        """Remove a schedule: ``cancelled`` or ``unknown``.

        ``may`` decides whether the schedule that was found goes; where it says no, the answer is
        ``kept``.
        """

        async def removed() -> Result:
            if may is None:
                self._check(None, None)
                return await self._queue.cancel(TOPIC, name)
            seen = await self._see(name)
            if seen is None:
                return Result.UNKNOWN
            if isinstance(seen, Result):
                return seen
            if not await may():
                return Result.KEPT
            self._check(_readable(seen.message), None)
            answer = await self._queue.store.cancel(TOPIC, [name.encode()], seen.version)
            return _or_again(results_of(answer)[0])

        return await self._patiently(name, removed)

    async def _see(self, name: str) -> _Seen | Result | None:
        """Return a schedule and its version; ``leased`` while somebody fires or changes it."""
        message = await self._queue.get(TOPIC, name)
        if message is None:
            return None
        if message.state is State.LEASED:
            return Result.LEASED
        before = Cursor(message.due_ms, message.number - 1)
        page = await self._queue.scan(TOPIC, message.state, cursor=before, limit=1)
        if list(page.messages.ids) != [name]:
            # It has moved on between the two looks.
            return Result.LEASED
        return _Seen(page.messages[0], page.versions if len(page.versions) else None)

    async def _change(self, name: str, changed: Changed, *, anew: bool) -> Result:
        """Change a schedule as it is found; ``leased`` where that has to be tried again."""
        try:
            seen = await self._see(name)
        except StoreDamaged as damage:
            return await self._put_for_damaged(name, changed(None), damage)
        if isinstance(seen, Result):
            return seen
        if seen is None:
            new = changed(None)
            return Result.UNKNOWN if new is None else await self._put_new(new)
        message, old = seen.message, _readable(seen.message)
        new = changed(old)
        if new is None:
            return Result.UNKNOWN
        # Whether it is the same is not for everybody.
        self._check(old, new)
        if old is not None:
            # The new message does not tell by itself what the old one had fired.
            old = carried(message, old)
            ran_ms = new.ran_ms or old.ran_ms
            new = replace(new, last_ms=old.last_ms, waits_ms=old.waits_ms, ran_ms=ran_ms)
        if old == new and message.state is not State.DEAD and not anew:
            return Result.KEPT
        puts = await self._puts(new, await self._since_ms(message, old))
        self._check(old, new)
        (done,) = await self._queue.store.put(with_columns(puts, versions=seen.version), "replace")
        return _or_again(done.result)

    async def _put_new(self, schedule: Schedule) -> Result:
        puts = await self._puts(schedule, self._queue.clock.now_ms())
        self._check(None, schedule)
        try:
            (done,) = await self._queue.store.put(puts, "error")
        except IdExists:
            # Somebody else was earlier, and this is a change of what is there now.
            return Result.LEASED
        return done.result

    async def _put_for_damaged(
        self, name: str, new: Schedule | None, damage: StoreDamaged
    ) -> Result:
        """Put a schedule in the place of one that the disk has damaged, if this says all of it."""
        if new is None:
            raise damage
        self._check(None, new)
        if await self._queue.cancel(TOPIC, name) is Result.LEASED:
            return Result.LEASED
        _log.warning("schedule %s: put again from now on, as it was damaged: %s", name, damage)
        return await self._put_new(new)

    async def _since_ms(self, message: Message, old: Schedule | None) -> int:
        """Return after when a schedule is to fire that takes the place of another.

        What that one has missed until now is not lost, and what it has fired is not fired again.
        """
        now_ms = self._queue.clock.now_ms()
        if old is None or old.paused:
            return now_ms
        told_ms, first_ms = since_ms(message, now_ms), next_ms(message)
        if told_ms is not None:
            # It may be due later only because what it puts was refused.
            found_ms = await next_after(old, told_ms)
            first_ms = first_ms if found_ms is None else found_ms
        return max(min(now_ms, first_ms - 1), told_ms or 0)

    async def _puts(self, schedule: Schedule, since_ms: int) -> Puts:
        row = await row_for(schedule, self._queue.clock.now_ms(), since_ms)
        return Puts.of_rows(TOPIC, [row])

    async def _patiently(self, name: str, do: Callable[[], Awaitable[Result]]) -> Result:
        """Do something to a schedule, again as long as others fire or change it meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE_S
        while (result := await do()) is Result.LEASED:
            if loop.time() > end:
                raise StoreError(
                    f"schedule {name}: somebody has fired or changed it for {_PATIENCE_S:g} s"
                )
            await asyncio.sleep(_AGAIN_S)
        return result


async def row_for(schedule: Schedule, now_ms: int, since_ms: int) -> Row:
    """Return the message of a schedule that is to fire after a moment; raises InvalidInput."""
    first_ms = now_ms + NEVER_MS if schedule.paused else await first_after(schedule, since_ms)
    return row_at(schedule.name, schedule.data, max(first_ms - AHEAD_MS, 0), now_ms)


def row_at(name: str, data: bytes, due_ms: int, now_ms: int) -> Row:
    """Return the message of a schedule that is due at a moment; raises InvalidInput."""
    return row_of(
        values.body(data),
        now_ms,
        due=due_ms,
        id=name,
        # What fires is given back without its attempt: only a crash of who fires it counts.
        max_attempts=MAX_ATTEMPTS,
    )


async def next_after(schedule: Schedule, ms: int) -> int | None:
    """Return the first moment after one; raises InvalidSchedule if that takes too long."""
    return await in_time(schedule.name, lambda: schedule.times.after(ms))


async def first_after(schedule: Schedule, ms: int) -> int:
    """Return the first moment after one; raises InvalidSchedule where there is none."""
    found = await next_after(schedule, ms)
    if found is None:
        raise InvalidSchedule(f"schedule {schedule.name}: never fires from now on")
    return found


def _or_again(result: Result) -> Result:
    """Return what was done to a schedule as it was seen; ``leased`` where it has changed."""
    return Result.LEASED if result is Result.UNKNOWN else result


def _readable(message: Message) -> Schedule | None:
    try:
        return schedule_of(message)
    except InvalidSchedule:
        return None
