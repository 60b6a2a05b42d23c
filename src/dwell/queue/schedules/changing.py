"""Changes of schedules: each applies to the version that it has read, also during a firing.

A change reads the schedule, computes the new one, and replaces the version that it has read. If
the schedule has fired since, or another change came first, the change starts over.
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
    told_ms,
)
from dwell.queue.schedules.sidethread import in_time

_log = logging.getLogger(__name__)

#: How long a change waits for another change or a firing, and how often it looks.
_PATIENCE_S, _AGAIN_S = 30.0, 0.02

#: Returns the new schedule for the present one; None leaves it unchanged.
Changed = Callable[[Schedule | None], Schedule | None]

#: Raises an error to refuse a change, given the present and the new schedule. The present one is
#: None if it does not exist or is unreadable; the new one is None if the schedule is removed.
Check = Callable[[Schedule | None, Schedule | None], None]


def unchecked(old: Schedule | None, new: Schedule | None) -> None:
    """Allow every change."""


class _Seen(NamedTuple):
    """A schedule as it was read: its message and its version, an array of one number.

    The version is None if an older server returns none; the change then applies to any version.
    """

    message: Message
    version: U64 | None


class Changing:
    """Changes the schedules of one queue.

    ``check`` is called right before each change, with the present and the new schedule.
    ``patience_s`` is how long a change waits for another change or a firing.
    """

    def __init__(
        self, queue: Carrier, check: Check = unchecked, *, patience_s: float = _PATIENCE_S
    ) -> None:
        self._queue = queue
        self._check = check
        self._patience_s = patience_s

    async def put(
        self,
        new: Schedule,
        *,
        anew: bool = False,
        check: Callable[[Schedule | None], None] = lambda old: None,
    ) -> Result:
        """Put a schedule, or replace the schedule of its name, which stays paused if it was.

        ``check`` may refuse to replace the present schedule by raising an error. With ``anew`` an
        equal schedule is put too, so that a concurrent removal finds another version.
        """

        def changed(old: Schedule | None) -> Schedule:
            check(old)
            return new if old is None else replace(new, paused=old.paused)

        return await self.change(new.name, changed, anew=anew)

    async def change(
        self, name: str, changed: Changed, *, anew: bool = False, revives: bool = True
    ) -> Result:
        """Replace a schedule by what ``changed`` returns for it; waits while it fires.

        A dead schedule is ``kept`` unless ``revives``.
        """
        return await self._patiently(
            name, lambda: self._change(name, changed, anew=anew, revives=revives)
        )

    async def remove(self, name: str, may: Callable[[], Awaitable[bool]] | None = None) -> Result:
        """Remove a schedule: ``cancelled`` or ``unknown``.

        ``may`` decides whether the schedule is removed; if not, the result is ``kept``.
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
        """Return a schedule and its version, or ``leased`` while it fires or is changed."""
        message = await self._queue.get(TOPIC, name)
        if message is None:
            return None
        if message.state is State.LEASED:
            return Result.LEASED
        before = Cursor(message.due_ms, message.number - 1)
        page = await self._queue.scan(TOPIC, message.state, cursor=before, limit=1)
        if list(page.messages.ids) != [name]:
            # It has changed between the two reads.
            return Result.LEASED
        return _Seen(page.messages[0], page.versions if len(page.versions) else None)

    async def _change(self, name: str, changed: Changed, *, anew: bool, revives: bool) -> Result:
        """Change the version of a schedule that is read; ``leased`` if the caller must retry."""
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
        if message.state is State.DEAD and not revives:
            return Result.KEPT
        new = changed(old)
        if new is None:
            return Result.UNKNOWN
        # A caller without the right must not learn whether the schedules are equal.
        self._check(old, new)
        if old is not None:
            # The new message has no text yet that says up to when the schedule has fired.
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
            # Another caller was first, so this becomes a change of that schedule.
            return Result.LEASED
        return done.result

    async def _put_for_damaged(
        self, name: str, new: Schedule | None, damage: StoreDamaged
    ) -> Result:
        """Replace a schedule that the disk has damaged; a partial change raises the damage."""
        if new is None:
            raise damage
        self._check(None, new)
        if await self._queue.cancel(TOPIC, name) is Result.LEASED:
            return Result.LEASED
        _log.warning("schedule %s: put again from now on, as it was damaged: %s", name, damage)
        return await self._put_new(new)

    async def _since_ms(self, message: Message, old: Schedule | None) -> int:
        """Return the moment after which the new version of a schedule fires.

        Moments that the old version has missed are kept, and moments that it has fired are not
        fired again.
        """
        now_ms = self._queue.clock.now_ms()
        if old is None or old.paused:
            return now_ms
        least_ms, first_ms = since_ms(message, now_ms, old), next_ms(message)
        if told_ms(message) is None:
            least_ms = min(least_ms, now_ms)
        else:
            # The due may be the time of a repeated try, later than the moment.
            found_ms = await next_after(old, least_ms)
            first_ms = first_ms if found_ms is None else found_ms
        return max(min(now_ms, first_ms - 1), least_ms)

    async def _puts(self, schedule: Schedule, since_ms: int) -> Puts:
        row = await row_for(schedule, self._queue.clock.now_ms(), since_ms)
        return Puts.of_rows(TOPIC, [row])

    async def _patiently(self, name: str, do: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat an operation on a schedule while others fire or change the schedule."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience_s
        while (result := await do()) is Result.LEASED:
            if loop.time() > end:
                raise StoreError(
                    f"schedule {name}: somebody has fired or changed it for {self._patience_s:g} s"
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
        values.body(data, f"schedule {name}, stored with its body in base64"),
        now_ms,
        due=due_ms,
        id=name,
        # A release does not count the attempt; only crashes of firers do.
        max_attempts=MAX_ATTEMPTS,
    )


async def next_after(schedule: Schedule, ms: int) -> int | None:
    """Return the first moment after ``ms``; raises InvalidSchedule if that takes too long."""
    return await in_time(schedule.name, lambda: schedule.times.after(ms))


async def first_after(schedule: Schedule, ms: int) -> int:
    """Return the first moment after ``ms``; raises InvalidSchedule if no moment follows."""
    found = await next_after(schedule, ms)
    if found is None:
        raise InvalidSchedule(never_text(schedule))
    return found


def never_text(schedule: Schedule) -> str:
    """Return the error of a schedule without a next moment."""
    return f"schedule {schedule.name}: never fires from now on"


def _or_again(result: Result) -> Result:
    """Return the result of a change by version: ``leased`` if the version has changed."""
    return Result.LEASED if result is Result.UNKNOWN else result


def _readable(message: Message) -> Schedule | None:
    try:
        return schedule_of(message)
    except InvalidSchedule:
        return None
