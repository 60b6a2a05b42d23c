"""A watch on the event loop: how late it is."""

import asyncio
import time
from contextlib import suppress


class Watch:
    """Notes how late the event loop is for a sleep of a millisecond."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            self.late_ms.append((time.perf_counter() - start) * 1000 - 1)

    async def stop(self) -> list[float]:
        """Return what it noted, in order."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        return sorted(self.late_ms)
