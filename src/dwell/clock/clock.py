"""Time as an argument: the real clock, and a simulated clock that tests move by hand.

Deadlines are wall-clock milliseconds since the epoch (they must mean the same after a restart).
Sleeping is monotonic, so a jump of the wall clock wakes no sleeper early.
"""

import asyncio
import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Awaitable
from typing import Protocol


def monotonic_ms() -> int:
    """Return a time in milliseconds that no step of the wall clock moves, to measure spans by."""
    return time.monotonic_ns() // 1_000_000


# A clock that continues while the machine is suspended, if the system has it.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed_s() -> float:
    """Return seconds since some moment, with those during which the machine was suspended.

    No step of the wall clock moves it. On systems without such a clock a suspended machine's time
    is left out.
    """
    return time.monotonic() if _ELAPSED is None else time.clock_gettime(_ELAPSED)


class Clock(Protocol):
    """The functions of time that a queue needs."""

    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since the epoch."""

    def least_ms(self) -> int:
        """Return the least time that the wall clock may show, for a clock known only roughly."""

    def monotonic_ms(self) -> int:
        """Return a time in milliseconds that no step of the wall clock moves."""

    def sleep(self, delay_ms: float) -> Awaitable[None]:
        """Return after ``delay_ms`` milliseconds."""


class RealClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def least_ms(self) -> int:
        """Return the wall clock: a machine knows its own."""
        return self.now_ms()

    def monotonic_ms(self) -> int:
        """Return the time since some start, to measure spans by."""
        return monotonic_ms()

    async def sleep(self, delay_ms: float) -> None:
        """Return after ``delay_ms`` milliseconds of monotonic time."""
        await asyncio.sleep(delay_ms / 1000)


class SimulatedClock:
    """A clock that stands still until a test moves it, in any thread."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the simulated time, in milliseconds since the epoch."""
        return self._now_ms

    def least_ms(self) -> int:
        """Return the simulated time, which is exact."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the simulated time: this clock has only one."""
        return self._now_ms

    def sleep(self, delay_ms: float) -> "asyncio.Future[None]":
        """Return once the clock was moved ``delay_ms`` milliseconds on from this call.

        A coroutine would count from its first step, and miss a move in between.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            entry = (self._now_ms + max(delay_ms, 0), next(self._order), future)
            heapq.heappush(self._sleepers, entry)
        self._wake()
        return future

    def advance(self, delta_ms: int) -> None:
        """Move the clock by ``delta_ms`` (back if negative) and wake sleepers that are due."""
        with self._lock:
            self._now_ms += delta_ms
        self._wake()

    def _wake(self) -> None:
        while (future := self._next_awake()) is not None:
            if future.get_loop() is _running_loop():
                _end(future)
            else:
                # A loop that was closed has no sleepers left.
                with contextlib.suppress(RuntimeError):
                    future.get_loop().call_soon_threadsafe(_end, future)

    def _next_awake(self) -> "asyncio.Future[None] | None":
        with self._lock:
            if self._sleepers and self._sleepers[0][0] <= self._now_ms:
                return heapq.heappop(self._sleepers)[2]
        return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


def _end(sleep: "asyncio.Future[None]") -> None:
    if not sleep.done():
        sleep.set_result(None)
