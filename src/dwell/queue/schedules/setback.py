"""Setbacks: repairs schedules after a clock that was ahead has been put right.

A schedule that fired by that clock would be due only after the time that the clock showed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace as with_columns
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from dwell.batch.page import Page
from dwell.batch.puts import Puts, Row
from dwell.batch.results import results_of
from dwell.errors import (
    AccessDenied,
    DwellError,
    IdExists,
    InvalidInput,
    InvalidSchedule,
    StoreClosed,
)
from dwell.message import Kind, Message, Result, State
from dwell.queue.carrier import Carrier
from dwell.queue.lookback import pages_before
from dwell.queue.schedules.changing import row_at
from dwell.queue.schedules.schedule import (
    AHEAD_MS,
    OWNER,
    SETBACK_MS,
    TOPIC,
    Schedule,
    carried,
    next_ms,
    schedule_of,
    told_ms,
)
from dwell.queue.schedules.sidethread import begun

_log = logging.getLogger(__name__)

#: How often to look whether the clock went back.
_LOOK_S = 0.5
#: How long to reckon the schedules of a page that have never fired.
_RECKONING_S = 2.0
_MOST_NAMES = 5
_MADE_DUE = (Result.MOVED, Result.REPLACED)
#: How many of the last ended schedules are kept, and their bytes, to be put again after a setback.
_MOST_ENDED, _MOST_ENDED_BYTES = 10_000, 16 * 1024 * 1024
#: How long the event log is searched for later changes of these.
_LOOK_BACK_S = 10.0


class _Ended(NamedTuple):
    """When a schedule ended, and its body as it would be put again."""

    at_ms: int
    data: bytes


class Setback:
    """Notices when the clock of a queue goes back, and makes its schedules due again."""

    def __init__(self, queue: Carrier) -> None:
        self._queue = queue
        #: When the clock went forward by more than time has passed, if that was its last step.
        self.forward_ms: int | None = None
        self._latest_ms = self._seen_ms = queue.clock.now_ms()
        self._seen_monotonic_ms = queue.clock.monotonic_ms()
        self._ended: dict[str, _Ended] = {}
        self._ended_bytes = 0

    def note(self, now_ms: int) -> None:
        """Note the time of a firing, and whether the clock was set since the last one."""
        monotonic_ms = self._queue.clock.monotonic_ms()
        step_ms = now_ms - self._seen_ms - (monotonic_ms - self._seen_monotonic_ms)
        if abs(step_ms) > SETBACK_MS:
            self.forward_ms = now_ms if step_ms > 0 else None
        self._seen_ms, self._seen_monotonic_ms = now_ms, monotonic_ms
        self._latest_ms = max(self._latest_ms, now_ms)

    def note_end(self, message: Message, schedule: Schedule, fired_ms: int) -> None:
        """Note a schedule that has just ended, and its last moment."""
        data = replace(carried(message, schedule), last_ms=fired_ms).data
        self._forget(message.id)
        self._ended[message.id] = _Ended(self._queue.clock.now_ms(), data)
        self._ended_bytes += len(data)
        while len(self._ended) > _MOST_ENDED or self._ended_bytes > _MOST_ENDED_BYTES:
            self._forget(next(iter(self._ended)))

    def _forget(self, name: str) -> None:
        if (ended := self._ended.pop(name, None)) is not None:
            self._ended_bytes -= len(ended.data)

    async def _put_ended(self) -> None:
        """Put schedules again that ended in the future, unless others have removed them since.

        A put again has the last moment with it: if the clock is behind now, it fires nothing again.
        """
        now_ms = self._queue.clock.now_ms()
        ended = {id_: one for id_, one in self._ended.items() if one.at_ms > now_ms + SETBACK_MS}
        others = set[str]()
        # A token may have no right to read events.
        with contextlib.suppress(AccessDenied):
            others = await self._changed_since(ended)
        again = list[str]()
        for id_, one in ended.items():
            if id_ not in others and await self._put_again(id_, one.data, now_ms):
                again.append(id_)
            self._forget(id_)
        if again:
            _say(again)

    async def _put_again(self, name: str, data: bytes, now_ms: int) -> bool:
        """Put a schedule, and tell whether it was put."""
        try:
            # It fires after now, as those do that say up to when they have fired.
            row = row_at(name, data, max(now_ms + 1 - AHEAD_MS, 0), now_ms)
            await self._queue.store.put(Puts.of_rows(TOPIC, [row]), "error")
        except IdExists:
            return False
        except InvalidInput as error:
            # Its last moment needs some bytes of the body.
            _log.warning("a schedule that ended by a clock that was ahead is lost: %s", error)
            return False
        return True

    async def _changed_since(self, ended: Collection[str]) -> set[str]:
        """Return the schedules whose last event, by the event log, is not their end."""
        left, others = set(ended), set[str]()
        if not left:
            return others
        ends_s = time.monotonic() + _LOOK_BACK_S
        async for _, events, _ in pages_before(self._queue.events):
            topics, ids = events.topics, events.ids
            for at in range(len(ids) - 1, -1, -1):
                if ids[at] in left and topics[at] == TOPIC:
                    left.discard(ids[at])
                    if events[at].kind is not Kind.ACK:
                        others.add(ids[at])
            if not left or time.monotonic() > ends_s:
                break
        return others

    async def run(self) -> None:
        """Look at all schedules now and after each setback, until the queue is closed."""
        is_to_look, is_back = True, False
        while True:
            try:
                if is_back:
                    await self._put_ended()
                    is_back = False
                if is_to_look:
                    await self._release_held()
                    is_to_look = not await self._make_due()
            except StoreClosed:
                return
            except DwellError as error:
                _log.warning("schedules could not be looked at: %s", error)
            await asyncio.sleep(_LOOK_S)
            now_ms = self._queue.clock.now_ms()
            if now_ms < self._latest_ms - SETBACK_MS:
                self._latest_ms, is_to_look, is_back = now_ms, True, True
            self.note(now_ms)

    async def _release_held(self) -> None:
        """Release schedules whose leases end later than a lease that begins now.

        The process that took them by a clock that was ahead may have died. A process that still
        fires them finds that its lease has ended, and its messages are not put twice.
        """
        # A token may have no right to see what is held.
        with contextlib.suppress(AccessDenied):
            latest_ms = self._queue.clock.now_ms() + SETBACK_MS
            for message in await self._queue.store.held(OWNER):
                if message.topic == TOPIC and message.lease_until_ms > latest_ms:
                    await self._queue.release(message, counted=False)

    async def _make_due(self) -> bool:
        """Make schedules due that wait for too long, so that firers compute their next moments.

        Returns False if some have changed at the same time.
        """
        names: list[str] = []
        cursor, is_done = None, True
        while True:
            page = await self._queue.scan(TOPIC, State.DELAYED, cursor=cursor)
            if len(page.versions) < len(page.messages):
                # An old server returns no versions, and does this itself.
                return True
            answers = await self._make_due_of(page)
            found = [id_ for id_, answer in answers.items() if answer in _MADE_DUE]
            is_done &= len(found) == len(answers)
            names += found
            if (cursor := page.cursor) is None:
                break
        if names:
            _say(names)
        return is_done

    async def _make_due_of(self, page: Page) -> dict[str, Result]:
        """Make schedules of a page due, each only in the version that was read."""
        now_ms, messages = self._queue.clock.now_ms(), page.messages
        ahead, due_ms = await _ahead(messages, now_ms), max(now_ms - AHEAD_MS, 0)
        rows = _rows(ahead, due_ms, now_ms)
        answers = dict[str, Result]()
        if rows:
            puts = Puts.of_rows(TOPIC, [*rows.values()])
            puts = with_columns(puts, versions=page.versions[[*rows]])
            answers |= {put.id: put.result for put in await self._queue.store.put(puts, "replace")}
        if places := [at for at in ahead if at not in rows]:
            ids, dues = [messages.ids[at] for at in places], np.full(len(places), due_ms, np.int64)
            moved = await self._queue.store.reschedule(
                TOPIC, [id_.encode() for id_ in ids], dues, versions=page.versions[places]
            )
            answers |= zip(ids, results_of(moved), strict=True)
        return answers


async def _ahead(messages: Iterable[Message], now_ms: int) -> dict[int, Schedule | None]:
    """Return the places of the schedules that wait for longer than their rules say.

    The text of a schedule that has fired tells. Otherwise a clock that was ahead may have put it,
    so its rule is computed. Such a schedule comes with its place if it is to be put again, as if it
    had fired up to the moment before its next one: if the clock is behind now, that one still comes
    next when it is right again.
    """
    ahead, unfired = dict[int, Schedule | None](), dict[int, tuple[Schedule, int]]()
    for at, message in enumerate(messages):
        told = told_ms(message)
        if (message.due_ms if told is None else told) - SETBACK_MS <= now_ms:
            continue
        schedule = _active(message)
        if schedule is not None and told is None:
            unfired[at] = schedule, next_ms(message)
        elif schedule is not None:
            ahead[at] = None
    return ahead | await _ahead_by_rule(unfired, now_ms) if unfired else ahead


async def _ahead_by_rule(
    unfired: Mapping[int, tuple[Schedule, int]], now_ms: int
) -> dict[int, Schedule | None]:
    """Return the places whose rules fire before their moments, or take too long to compute."""
    asked = dict[int, tuple[bool, Schedule | None]]()

    def ask() -> None:
        for at, (schedule, moment_ms) in unfired.items():
            try:
                first_ms = schedule.times.after(now_ms)
                is_ahead = first_ms is not None and first_ms < moment_ms - SETBACK_MS
                last_ms = schedule.times.before(moment_ms - 1) if is_ahead else None
            except Exception:
                # Its taker will bury it with the reason.
                is_ahead, last_ms = False, None
            last_ms = max(last_ms or 0, schedule.last_ms or 0)
            asked[at] = is_ahead, replace(schedule, last_ms=last_ms) if last_ms else None

    asking = begun(ask)
    await asyncio.wait({asking}, timeout=_RECKONING_S)
    asking.cancel()
    found = {at: asked.get(at, (True, None)) for at in unfired}
    return {at: marked for at, (is_ahead, marked) in found.items() if is_ahead}


def _rows(ahead: Mapping[int, Schedule | None], due_ms: int, now_ms: int) -> dict[int, Row]:
    """Return the rows that put schedules again, by their places, but for bodies without room."""
    rows = dict[int, Row]()
    for at, schedule in ahead.items():
        if schedule is not None:
            with contextlib.suppress(InvalidInput):
                rows[at] = row_at(schedule.name, schedule.data, due_ms, now_ms)
    return rows


def _active(message: Message) -> Schedule | None:
    """Return the schedule of a message; None if it is paused or unreadable."""
    try:
        schedule = schedule_of(message)
    except InvalidSchedule:
        return None
    return None if schedule.paused else schedule


def _say(names: Sequence[str]) -> None:
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    _log.warning("%d schedules were ahead of the clock and are due again: %s", len(names), shown)
