"""Changes of schedules: one at a time, also while the schedule fires."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from dwell.errors import DwellError, IdExists, InvalidSchedule, StoreError
from dwell.given.values import Millis
from dwell.message import MAX_ATTEMPTS, Message, Result, State
from dwell.queue.carrier import Carrier
from dwell.queue.schedules.schedule import (
    AHEAD_MS,
    CHANGING,
    TOPIC,
    Schedule,
    fired_ms,
    next_ms,
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

#: What a schedule becomes, given what it is; None leaves it as it is.
Changed = Callable[[Schedule | None], Schedule | None]


class Changing:
    """Changes the schedules of one queue."""

    def __init__(self, queue: Carrier) -> None:
        self._queue = queue

    async def put(
        self,
        new: Schedule,
        *,
        locked: bool = False,
        check: Callable[[Schedule | None], None] = lambda old: None,
    ) -> Result:
        """Put a schedule, also in place of another of its name; one that is paused stays so.

        ``check`` may refuse the schedule that is there, by raising an error.
        """

        def changed(old: Schedule | None) -> Schedule:
            check(old)
            return new if old is None else replace(new, paused=old.paused)

        return await self.change(new.name, changed, locked=locked)

    async def change(self, name: str, changed: Changed, *, locked: bool = False) -> Result:
        """Put what a schedule is to be now, whatever it was; waits for whoever fires it.

        With ``locked`` no other change is under way, not even where nothing has to be changed.
        """

        async def put() -> Result:
            if not locked:
                said = await self._changed(name, changed, is_alone=False)
                if said is not Result.REPLACED:
                    return said
            return await self._alone(name, lambda: self._changed(name, changed, is_alone=True))

        return await self._patiently(name, put)

    async def remove(self, name: str, may: Callable[[], Awaitable[bool]] | None = None) -> Result:
        """Remove a schedule: ``cancelled`` or ``unknown``.

        ``may`` decides while nobody else changes it; where it says no, the answer is ``kept``.
        """

        async def removed() -> Result:
            if may is not None and not await may():
                return Result.KEPT
            return await self._queue.cancel(TOPIC, name)

        return await self._patiently(name, lambda: self._alone(name, removed))

    async def _changed(self, name: str, changed: Changed, *, is_alone: bool) -> Result:
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
        told_ms, first_ms = since_ms(message, now_ms), next_ms(message)
        if told_ms is not None:
            # It may be due later only because what it puts was refused.
            found_ms = await asyncio.to_thread(old.times.after, told_ms)
            first_ms = first_ms if found_ms is None else found_ms
        return max(min(now_ms, first_ms - 1), told_ms or 0)

    async def _put(self, schedule: Schedule, since_ms: int, *, is_new: bool) -> Result:
        now_ms = self._queue.clock.now_ms()
        first_ms = now_ms + _NEVER_MS if schedule.paused else await first_after(schedule, since_ms)
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

    async def _patiently(self, name: str, do: Callable[[], Awaitable[Result]]) -> Result:
        """Do something to a schedule; while somebody fires it, it is his."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE_S
        while (result := await do()) is Result.LEASED:
            if loop.time() > end:
                raise StoreError(
                    f"schedule {name}: somebody has fired or changed it for {_PATIENCE_S:g} s"
                )
            await asyncio.sleep(_AGAIN_S)
        return result


async def first_after(schedule: Schedule, ms: int) -> int:
    """Return the first moment after one; raises InvalidSchedule where there is none.

    Some rules take long to reckon, so that is done in a thread.
    """
    found = await asyncio.to_thread(lambda: schedule.times.after(ms))
    if found is None:
        raise InvalidSchedule(f"schedule {schedule.name}: never fires from now on")
    return found


def _readable(message: Message) -> Schedule | None:
    try:
        return schedule_of(message)
    except InvalidSchedule:
        return None
