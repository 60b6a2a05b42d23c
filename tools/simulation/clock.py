"""The wall clock of a simulated machine: it runs with the loop, and is set to other times."""

import asyncio

from dwell.clock import RealClock

_START_MS = 1_700_000_000_000


class SteppedClock(RealClock):
    """Milliseconds since the epoch, off by what it was set; sleeping does not mind that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ahead_ms = 0
        #: When it was last set, in seconds of the loop, and by how much in all.
        self.stepped_at_s = -1e9
        self.steps = 0

    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since the epoch."""
        return _START_MS + self._ahead_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        """Return the time since the start of the run."""
        return int(self._loop.time() * 1000)

    async def sleep(self, delay_ms: float) -> None:
        """Return after ``delay_ms`` milliseconds of monotonic time."""
        await asyncio.sleep(delay_ms / 1000)

    def step(self, delta_ms: int) -> None:
        """Set the clock so much ahead, or back when negative."""
        self._ahead_ms += delta_ms
        self.stepped_at_s = self._loop.time()
        self.steps += 1
