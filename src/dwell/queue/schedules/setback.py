"""Setbacks: repairs schedules after a clock that was ahead has been put right.

A schedule that fired by that clock is due again only after the time that the clock showed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import numpy as np

from dwell.batch.puts import Puts
from dwell.batch.results import results_of
from dwell.errors import DwellError, IdExists, InvalidSchedule, StoreClosed
from dwell.message import Message, Result, State
from dwell.queue.carrier import Carrier
from dwell.queue.schedules.changing import row_at
from dwell.queue.schedules.schedule import SETBACK_MS, TOPIC, put_again, schedule_of, told_ms

_log = logging.getLogger(__name__)

#: How often to look whether the clock went back.
_LOOK_S = 0.5
#: A schedule that has never fired does not say after when it was put, so at the start only one that
#: is far away is reckoned anew.
_FAR_MS = 24 * 3_600_000
_MOST_NAMES = 5
#: How many of the schedules that ended last are known, to be put again after a setback.
_MOST_ENDED = 10_000


class Setback:
    """Notices when the clock of a queue goes back, and makes its schedules due again."""

    def __init__(self, queue: Carrier) -> None:
        self._queue = queue
        self._latest_ms = queue.clock.now_ms()
        self._ended: dict[str, tuple[int, Message]] = {}

    def note(self, now_ms: int) -> None:
        """Note a time by which schedules are fired."""
        self._latest_ms = max(self._latest_ms, now_ms)

    def note_end(self, message: Message) -> None:
        """Note a schedule that has just ended, as it was taken."""
        self._ended[message.id] = self._queue.clock.now_ms(), message
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    async def _put_ended(self) -> None:
        """Put schedules again that ended by a time to come; others of their names stay."""
        now_ms = self._queue.clock.now_ms()
        ended = [message for at_ms, message in self._ended.values() if at_ms > now_ms + SETBACK_MS]
        for message in ended:
            row = row_at(message.id, *put_again(message), now_ms)
            with contextlib.suppress(IdExists):
                await self._queue.store.put(Puts.of_rows(TOPIC, [row]), "error")
            del self._ended[message.id]
        if ended:
            _say([message.id for message in ended])

    async def run(self) -> None:
        """Look at all schedules now and after each setback, until the queue is closed."""
        far_ms: int | None = _FAR_MS
        is_back = False
        while True:
            try:
                if is_back:
                    await self._put_ended()
                    is_back = False
                if far_ms is not None and await self._make_due(far_ms):
                    far_ms = None
            except StoreClosed:
                return
            except DwellError as error:
                _log.warning("schedules could not be looked at: %s", error)
            await asyncio.sleep(_LOOK_S)
            now_ms = self._queue.clock.now_ms()
            if now_ms < self._latest_ms - SETBACK_MS:
                far_ms, self._latest_ms, is_back = SETBACK_MS, now_ms, True
            self.note(now_ms)

    async def _make_due(self, far_ms: int) -> bool:
        """Make schedules due that wait for a time to come; who takes them reckons from now on.

        Tells whether all are; others may have changed some just then.
        """
        names: list[str] = []
        cursor, is_done = None, True
        while True:
            page = await self._queue.scan(TOPIC, State.DELAYED, cursor=cursor)
            if len(page.versions) < len(page.messages):
                # The server that has them does this itself.
                return True
            now_ms = self._queue.clock.now_ms()
            places = [at for at, m in enumerate(page.messages) if _is_ahead(m, now_ms, far_ms)]
            if places:
                ids, dues = page.messages.ids, np.full(len(places), now_ms, np.int64)
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


def _is_ahead(message: Message, now_ms: int, far_ms: int) -> bool:
    """Tell whether a schedule may wait for longer than its rule says."""
    told = told_ms(message)
    if (message.due_ms - far_ms if told is None else told - SETBACK_MS) <= now_ms:
        return False
    try:
        return not schedule_of(message).paused
    except InvalidSchedule:
        return False


def _say(names: Sequence[str]) -> None:
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    _log.warning("%d schedules were ahead of the clock and are due again: %s", len(names), shown)
