"""Work on files in a thread, while the event loop goes on."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


async def in_thread(
    function: Callable[[*Ts], T], *args: *Ts, stop: threading.Event | None = None
) -> T:
    """Run a function in a thread; who is cancelled sets ``stop``, and waits for its end.

    It uses files that the caller closes after that.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await asyncio.wait([task])
        raise
