"""The schedules of a queue: puts, reads, changes, pauses and removes them."""

import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import date, datetime
from functools import partial
from itertools import islice
from typing import Any

from msgspec.structs import replace

from dwell.batch.puts import Put
from dwell.calendar import zone_of
from dwell.calendar.epoch import from_ms
from dwell.errors import InvalidSchedule
from dwell.given import values
from dwell.given.values import Delay, Due
from dwell.message import DEFAULT_PRIORITY, Result, State
from dwell.queue.carrier import Carrier
from dwell.queue.schedules.changing import Changing, Check, first_after, never_text, unchecked
from dwell.queue.schedules.firer import Firer
from dwell.queue.schedules.past import PastRuns, past_runs
from dwell.queue.schedules.schedule import (
    RUN_HEADER,
    SETBACK_MS,
    TOPIC,
    Planned,
    Preview,
    Schedule,
    planned,
)
from dwell.queue.schedules.sidethread import in_time
from dwell.queue.schedules.times import plan
from dwell.queue.schedules.words import changed, made

#: The states that a schedule goes through as it fires, and how often each is read, since a schedule
#: may change its state between two reads.
_STATES = (State.LEASED, State.READY, State.DELAYED)
_LAPS = 2
#: How many messages put by hand ``overlap`` counts, and how many milliseconds are tried for the id
#: of such a message.
_MOST_RUNS, _MOST_TRIED = 100, 1000
#: How long after its note a message put by hand may still be on its way.
_PUTTING_MS = 60_000


class Schedules:
    """The schedules of a queue: ``queue.schedules``.

    They fire in each server, worker and call of :meth:`fire`; however many of these run, each
    moment is one message, with the id ``NAME@TIME``. ``check`` may refuse changes.
    """

    def __init__(self, queue: Carrier, check: Check = unchecked) -> None:
        self._queue = queue
        self._changing = Changing(queue, check)

    async def put(
        self,
        name: str,
        topic: str,
        body: object,
        *,
        cron: str | None = None,
        dialect: str = "crontab",
        every: Delay | None = None,
        rrule: str | None = None,
        zone: str = "UTC",
        start: Due | None = None,
        end: Due | None = None,
        days_off: Iterable[str | date] = (),
        when_off: str = "skip",
        jitter: Delay = 0,
        misfire: str = "once",
        overlap: str = "queue",
        grace: Delay = "1m",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = DEFAULT_PRIORITY,
        lease: Delay | None = None,
        max_attempts: int | None = None,
        ttl: Delay | None = None,
        app: str = "",
    ) -> Result:
        """Put a schedule: ``created``, ``replaced``, or ``kept`` if an equal schedule exists.

        ``cron`` is a line of crontab(5), with seconds first if it has six fields, or of another
        ``dialect`` (``quartz``, ``eventbridge``, ``apscheduler``, ``celery``, ``robfig``), which is
        translated; ``every`` is a span, ``rrule`` a rule of RFC 5545, or the lines of a calendar
        (``DTSTART``, ``RRULE``, ``RDATE``, ``EXDATE``); the first and the last are read in
        ``zone``, and a DTSTART names its own. The schedule fires from ``start`` to ``end``, and
        each message is due up to ``jitter`` later. On ``days_off``, weekdays such as ``sat`` and
        dates, a moment of ``cron`` or ``rrule`` is left out (``when_off="skip"``), or moved to the
        nearest day ``before`` or ``after``. If no process fired for a while, ``misfire`` selects
        the missed moments that are put: ``once`` the last, ``all`` each, ``skip`` only moments at
        most ``grace`` ago. If the previous message is not done, ``overlap`` decides: ``queue`` puts
        the next message too, ``skip`` leaves it out, ``replace`` puts it and cancels the previous
        one, unless a worker has it. The messages have ``body`` and the other options, as
        :meth:`dwell.Queue.put` takes them, and the headers ``dwell-schedule`` and ``dwell-time``. A
        paused schedule stays paused; one that the code of an app declares is nobody's from then on,
        and no worker replaces or removes it. Raises InvalidSchedule if the rule cannot be read or
        would never fire.
        """
        now_ms = self._queue.clock.now_ms()
        words: dict[str, object] = {"cron": cron, "dialect": dialect, "every": every}
        words |= {"rrule": rrule, "zone": zone, "start": start}
        words |= {"end": end, "jitter": jitter, "misfire": misfire, "grace": grace, "key": key}
        words |= {"headers": headers, "priority": priority, "lease": lease}
        words |= {"max_attempts": max_attempts, "ttl": ttl, "overlap": overlap}
        words |= {"days_off": days_off, "when_off": when_off}
        schedule = made(name, topic, body, words, now_ms, app)
        await first_after(schedule, now_ms)
        return await self._changing.put(schedule)

    async def change(self, name: str, **words: Any) -> Result:
        """Change the options in ``words`` of a schedule: ``replaced``, ``kept`` or ``unknown``.

        The options are ``topic``, ``body`` and the options of :meth:`put`. All others stay
        unchanged, even if another caller changes them at the same time. None restores the default
        of an option, and a new rule replaces the old rule. Raises InvalidSchedule as :meth:`put`
        does.
        """
        now_ms, found = self._queue.clock.now_ms(), await self.get(name)
        if found is None:
            return Result.UNKNOWN
        # An invalid change is refused before it makes a firer wait. A moment whose message was
        # refused also counts as a next moment.
        after_ms = (found.next_ms or now_ms) - 1 if found.owed_ms is None else found.owed_ms
        await first_after(changed(found.schedule, words, now_ms), min(now_ms, after_ms))
        return await self._changing.change(
            name, lambda old: None if old is None else changed(old, words, now_ms)
        )

    async def get(self, name: str) -> Planned | None:
        """Return a schedule, or None if no schedule has that name."""
        message = await self._queue.get(TOPIC, values.topic(name, "name"))
        return None if message is None else planned(message)

    async def each(self, app: str | None = None) -> AsyncIterator[Planned]:
        """Yield the schedules, the next to fire first; only the schedules of ``app``, if given."""
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
        """Return when a schedule fires next, in its zone; empty while it is paused or dead.

        Raises InvalidSchedule if no schedule has that name.
        """
        found = await self._existing(name)
        if found.next_ms is None:
            return []
        now_ms = self._queue.clock.now_ms()
        if found.owed_ms is not None or found.next_ms <= now_ms:
            since_ms = found.next_ms - 1 if found.owed_ms is None else found.owed_ms
            return await self._owed(found.schedule, since_ms, count)
        # After a setback of less than a minute, fired moments do not fire again.
        last_ms = found.last_ms or 0
        is_ahead = last_ms > now_ms + SETBACK_MS
        return await self._following(found.schedule, count, 0 if is_ahead else last_ms)

    async def _owed(self, schedule: Schedule, since_ms: int, count: int) -> list[datetime]:
        """Return the moments whose messages are still to be put, and the moments after them."""
        now_ms, how = self._queue.clock.now_ms(), (schedule.misfire, schedule.grace_ms)
        times = schedule.times
        owed = await in_time(
            schedule.name, lambda: plan(times, since_ms, now_ms, *how), is_reading=True
        )
        return [*_shown(schedule, owed.moments), *await self._following(schedule, count)][:count]

    async def preview(self, count: int = 5, **when: Any) -> Preview:
        """Return the next runs of a schedule that is not put, in its zone, and its line of cron.

        ``when`` are the options of :meth:`put` from ``cron`` to ``when_off``. Raises
        InvalidSchedule as :meth:`put` does.
        """
        now_ms = self._queue.clock.now_ms()
        schedule = made("preview", "preview", b"", when, now_ms)
        runs = await self._following(schedule, count)
        if not runs:
            raise InvalidSchedule(never_text(schedule))
        return Preview(runs, schedule.cron)

    async def _following(self, schedule: Schedule, count: int, since_ms: int = 0) -> list[datetime]:
        most = values.limit(count, "count")
        after_ms = max(self._queue.clock.now_ms(), since_ms)

        def following() -> list[int]:
            return list(islice(schedule.times.following(after_ms), most))

        return _shown(schedule, await in_time(schedule.name, following, is_reading=True))

    async def runs(self, name: str, count: int = 20, *, within: Delay = "10s") -> PastRuns:
        """Return the last messages of a schedule, and what became of each, by the event log.

        The search goes back from the newest event, for at most ``within``; ``is_whole`` tells
        whether it was complete. Raises InvalidSchedule if no schedule has that name.
        """
        found, most = await self._existing(name), values.limit(count, "count")
        within_s = values.delay_ms(within, "within") / 1000
        return await past_runs(self._queue, found.schedule, most, within_s)

    async def pause(self, name: str) -> Result:
        """Pause a schedule: ``replaced``, ``kept`` if it was paused already, or ``unknown``."""
        return await self._set_paused(name, paused=True)

    async def resume(self, name: str) -> Result:
        """Resume a schedule, from now on: ``replaced``, ``kept`` or ``unknown``."""
        return await self._set_paused(name, paused=False)

    async def run(self, name: str | Planned) -> Put:
        """Put the message of a schedule at once, even if the schedule is paused.

        The id has the present moment, or the next millisecond without a run. The next moment of the
        schedule stays. ``overlap`` does not hold up this message, but counts it from then on.
        Raises InvalidSchedule if no schedule has that name.
        """
        found = name if isinstance(name, Planned) else await self._existing(name)
        schedule, ms = found.schedule, self._queue.clock.now_ms()
        run = secrets.token_hex(8)
        while True:
            # The ids of its own moments belong to the schedule's own runs.
            ms = await in_time(schedule.name, partial(_between, schedule, ms))
            row = schedule.row_now(ms, run)
            if schedule.overlap != "queue":
                await self._note_run(schedule, ms)
            (put,) = await self._queue.put_rows(schedule.topic, [row])
            if put.result is not Result.KEPT:
                return put
            # Its own message, if the answer to the put was lost, so that the put was repeated. One
            # that is done by now may be of another run of the same millisecond.
            (message,) = await self._queue.get(schedule.topic, [put.id])
            if message is not None and message.headers.get(RUN_HEADER) == run:
                return Put(put.id, Result.CREATED, message.number)
            ms += 1

    async def _note_run(self, schedule: Schedule, ms: int) -> None:
        """Let the next moments know of a message that is put by hand for ``ms``."""
        ids = [schedule.id_of(ran) for ran in schedule.ran_ms]
        there = await self._queue.get(schedule.topic, ids) if ids else []
        # The caller of a late one may be about to put its message.
        put_ms = self._queue.clock.now_ms() - _PUTTING_MS
        known = list(zip(schedule.ran_ms, there, strict=True))
        coming = [ran for ran, message in known if message is None and ran >= put_ms]
        running = [ran for ran, message in known if message and message.state is not State.DEAD]
        # Without room for all, moments without a message are dropped first.
        more = max(len(running) + len(coming) + 1 - _MOST_RUNS, 0)
        done = {*schedule.ran_ms} - {*running} - {*coming[more:]}

        def changed(old: Schedule | None) -> Schedule | None:
            if old is None:
                return None
            ran = [one for one in old.ran_ms if one not in done]
            return replace(old, ran_ms=(*ran, ms)[-_MOST_RUNS:])

        await self._changing.change(schedule.name, changed, revives=False)

    async def remove(self, name: str) -> Result:
        """Remove a schedule: ``cancelled`` or ``unknown``. Its messages stay."""
        return await self._changing.remove(values.topic(name, "name"))

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
        return await self._changing.change(
            values.topic(name, "name"),
            lambda old: None if old is None else replace(old, paused=paused),
        )


def _between(schedule: Schedule, ms: int) -> int:
    """Return the first millisecond from ``ms`` on that is not a moment of the schedule.

    A schedule that fires each millisecond has none, and then the result is just later.
    """
    for _ in range(_MOST_TRIED):
        if schedule.times.before(ms) != ms:
            break
        ms += 1
    return ms


def _shown(schedule: Schedule, moments: Iterable[int]) -> list[datetime]:
    """Return moments in the zone of a schedule."""
    return [from_ms(ms).astimezone(zone_of(schedule.zone)) for ms in moments]
