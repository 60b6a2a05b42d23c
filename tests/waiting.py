"""Waiting until something is true, in a thread and in a coroutine."""

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Far beyond what a busy machine needs, and less than what comes without what is tested. Runs that
#: are to fail (tools.mutants) are given less.
PATIENCE_S = int(os.environ.get("DWELL_PATIENCE_S", "60"))


def until(
    condition: Callable[[], T],
    what: str | Callable[[], object] = "it did not become true",
    seconds: float = PATIENCE_S,
) -> T:
    """Wait until a condition holds, and return it; fail with what was not so after so many seconds.

    ``what`` may be a function, which is asked when it fails.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.005)
    return found


async def until_async(
    condition: Callable[[], object],
    what: str | Callable[[], object] = "it did not become true",
    seconds: float = PATIENCE_S,
    pause_s: float = 0.002,
) -> None:
    """Do the same in a coroutine; the condition may be a coroutine function."""
    end = time.monotonic() + seconds
    while not (await found if inspect.isawaitable(found := condition()) else found):
        assert time.monotonic() < end, what() if callable(what) else what
        await asyncio.sleep(pause_s)
