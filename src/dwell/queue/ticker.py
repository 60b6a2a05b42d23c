"""The ticker: sleeps until the store's next deadline, then makes the store process it."""

import asyncio
import logging
from collections.abc import Callable

from dwell.clock.alarm import Alarm
from dwell.queue.spacing import Spacing
from dwell.store.base import Store
from dwell.tasks import Standing, log_failure

_log = logging.getLogger(__name__)

#: The longest time between two ticks.
MAX_SLEEP_MS = 60_000

#: The longest sleep: deadlines are wall-clock times, and a step of that clock ends no sleep.
LOOK_MS = 500

#: How long to leave a store alone that could not tick.
_BACKOFF_MS = 1_000

#: The name under which ticks are spaced.
_TICKS = "ticks"


class Ticker:
    """One task that keeps a store's time. ``on_error`` is called when the store cannot tick.

    ``spacing`` may delay ticks under a stream of deadlines: each then handles several deadlines.
    """

    def __init__(self, store: Store, on_error: Callable[[Exception], None]) -> None:
        self.spacing = Spacing()
        self._store = store
        self._on_error = on_error
        self._alarm = Alarm(store.clock)
        self._is_stopping = False
        self._is_planned = False
        self._standing = Standing(self._run)

    def start(self) -> None:
        """Begin to tick; needs a running event loop."""
        self._is_stopping = False
        self._standing.start()

    async def stop(self) -> None:
        """Stop ticking; a running tick ends first, as a store expects of its verbs."""
        self._is_stopping = True
        self._alarm.ring()
        await self._standing.ended()

    def plan(self) -> None:
        """Ask the store for its next deadline again, as it may be earlier now."""
        self._is_planned = True
        self._alarm.ring()

    async def _run(self) -> None:
        is_failing = False
        while not self._is_stopping:
            try:
                await self._wait_for_turn()
                self._is_planned = False
                deadline_ms = await self._store.tick(self._store.clock.now_ms())
                is_failing = False
                await self._sleep_until(deadline_ms)
            except Exception as error:
                if not is_failing:
                    log_failure(_log, "the store could not tick", error)
                is_failing = True
                self._on_error(error)
                await self._alarm.sleep(_BACKOFF_MS)

    async def _wait_for_turn(self) -> None:
        if self.spacing.seconds:
            now = asyncio.get_running_loop().time()
            at = self.spacing.spend(_TICKS, now)
            if at > now:
                await asyncio.sleep(at - now)

    async def _sleep_until(self, deadline_ms: int | None) -> None:
        clock = self._store.clock
        before_ms = clock.now_ms()
        latest_ms = before_ms + MAX_SLEEP_MS
        deadline_ms = latest_ms if deadline_ms is None else min(deadline_ms, latest_ms)
        while not (self._is_planned or self._is_stopping):
            now_ms = clock.now_ms()
            # After a step back the latest moment would be as far away as the step was long.
            if now_ms >= deadline_ms or now_ms < before_ms:
                # A store whose next deadline is always now must not block the loop.
                await asyncio.sleep(0)
                return
            before_ms = now_ms
            await self._alarm.sleep(min(deadline_ms - now_ms, LOOK_MS))
