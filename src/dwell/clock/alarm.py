"""A sleep that can be cut short."""

import asyncio

from dwell.clock.clock import Clock


class Alarm:
    """Sleeps by a clock until a delay has passed or until it is rung, whichever comes first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the sleep, or the next sleep if none is running."""
        self._rung.set()

    async def sleep(self, delay_ms: float | None) -> None:
        """Return after ``delay_ms`` milliseconds, never when None, or as soon as it is rung."""
        if delay_ms is None:
            await self._rung.wait()
        elif not self._rung.is_set():
            sleeper = asyncio.ensure_future(self._clock.sleep(delay_ms))
            sleeper.add_done_callback(self._end)
            try:
                await self._rung.wait()
            finally:
                sleeper.remove_done_callback(self._end)
                sleeper.cancel()
        self._rung.clear()

    def _end(self, _: object) -> None:
        self._rung.set()
