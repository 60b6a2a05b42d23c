"""Setbacks: repairs schedules after a clock that was ahead has been put right.

A schedule that fired by that clock would be due only after the time that the clock showed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from dwell.batch.puts import Puts
from dwell.batch.results import results_of
from dwell.errors import AccessDenied, DwellError, IdExists, InvalidSchedule, StoreClosed
from dwell.message import Kind, Message, Result, State
from dwell.queue.carrier import Carrier
from dwell.queue.lookback import pages_before
from dwell.queue.schedules.changing import row_at
from dwell.queue.schedules.schedule import (
    AHEAD_MS,
    SETBACK_MS,
    TOPIC,
    Schedule,
    carried,
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
        # It fires after now, as those do that say up to when they have fired.
        due_ms = max(now_ms + 1 - AHEAD_MS, 0)
        for id_, one in ended.items():
            if id_ not in others:
                row = row_at(id_, one.data, due_ms, now_ms)
                with contextlib.suppress(IdExists):
                    await self._queue.store.put(Puts.of_rows(TOPIC, [row]), "error")
            self._forget(id_)
        if again := [id_ for id_ in ended if id_ not in others]:
            _say(again)

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
                is_to_look = is_to_look and not await self._make_due()
            except StoreClosed:
                return
            except DwellError as error:
                _log.warning("schedules could not be looked at: %s", error)
            await asyncio.sleep(_LOOK_S)
            now_ms = self._queue.clock.now_ms()
            if now_ms < self._latest_ms - SETBACK_MS:
                self._latest_ms, is_to_look, is_back = now_ms, True, True
            self.note(now_ms)

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
            now_ms = self._queue.clock.now_ms()
            places = await _ahead(page.messages, now_ms)
            if places:
                ids = page.messages.ids
                dues = np.full(len(places), max(now_ms - AHEAD_MS, 0), np.int64)
                some = [ids[at].encode() for at in places]
                moved = await self._queue.store.reschedule(
                    TOPIC, some, dues, versions=page.versions[places]
                )
                is_done &= bool((moved == Result.MOVED).all())
                answers = zip(places, results_of(moved), strict=True)
                names += [ids[at] for at, answer in answers if answer is Result.MOVED]
            if (cursor := page.cursor) is None:
                break
        if names:
            _say(names)
        return is_done


async def _ahead(messages: Iterable[Message], now_ms: int) -> list[int]:
    """Return the places of the schedules that wait for longer than their rules say.

    The text of a schedule that has fired tells. Otherwise a clock that was ahead may have put it,
    so its rule is computed.
    """
    ahead, unfired = list[int](), dict[int, tuple[Schedule, int]]()
    for at, message in enumerate(messages):
        told = told_ms(message)
        if (message.due_ms if told is None else told) - SETBACK_MS <= now_ms:
            continue
        schedule = _active(message)
        if schedule is not None and told is None:
            unfired[at] = schedule, message.due_ms
        elif schedule is not None:
            ahead.append(at)
    return ahead + await _ahead_by_rule(unfired, now_ms) if unfired else ahead


async def _ahead_by_rule(unfired: Mapping[int, tuple[Schedule, int]], now_ms: int) -> list[int]:
    """Return the places whose rules fire before their dues, or take too long to compute."""
    asked = dict[int, bool]()

    def ask() -> None:
        for at, (schedule, due_ms) in unfired.items():
            try:
                first_ms = schedule.times.after(now_ms)
            except Exception:
                # Its taker will bury it with the reason.
                first_ms = None
            asked[at] = first_ms is not None and first_ms - AHEAD_MS < due_ms - SETBACK_MS

    asking = begun(ask)
    await asyncio.wait({asking}, timeout=_RECKONING_S)
    asking.cancel()
    return [at for at in unfired if asked.get(at, True)]


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
