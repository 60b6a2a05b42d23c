"""An event loop in a thread of its own, for callers that have none."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from dwell.errors import StoreClosed, StoreError

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """Runs coroutine functions in one event loop and hands their answers to any thread.

    The thread is a daemon: a program may end without closing it.
    """

    def __init__(self) -> None:
        self._started = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="dwell-loop", daemon=True)
        self._thread.start()
        self._started.wait()

    def run(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what the coroutine returns; when this thread is interrupted, it is cancelled.

        Raises StoreClosed after close, and StoreError in a process that was forked from the one
        that has the thread.
        """
        self._check()
        future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the event loop and its thread; closing twice does nothing."""
        if self._thread.is_alive() and os.getpid() == self._pid:
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"the store was opened in process {self._pid} and this is process {os.getpid()}, "
                "forked from it: open it after the fork"
            )
        if not self._thread.is_alive():
            raise StoreClosed("the queue was closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call inside the event loop that has to answer it")

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._started.set()
        await self._stop.wait()
