"""Threads for what may take any time, as the reckoning of a rule may.

Each function has a thread of its own, which holds up no end of the process. Cancelling its future
ends the thread when it next does something that is not a call of the system.
"""

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from dwell.errors import InvalidSchedule

P = ParamSpec("P")
T = TypeVar("T")

#: How long a caller waits for a reckoning, and how many reckonings of callers run at once.
_MOST_S, _MOST_AT_ONCE = 20.0, 4
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class _Ended(BaseException):
    """Raised in a thread whose result nobody waits for."""


class _SideThread(Future[T]):
    """The result of a function that runs from now on."""

    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__()
        self._function = function
        self._thread = threading.Thread(target=self._run, name="dwell-reckoning", daemon=True)
        self._thread.start()

    def cancel(self) -> bool:
        """End the thread; nobody is told its result."""
        ident = self._thread.ident
        if ident is not None and not self.done() and self._thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(ident), ctypes.py_object(_Ended)
            )
        return super().cancel()

    def _run(self) -> None:
        with contextlib.suppress(_Ended, InvalidStateError):
            try:
                self.set_result(self._function())
            except Exception as error:
                self.set_exception(error)


class _SideThreads(Executor):
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return _SideThread(partial(fn, *args, **kwargs))


_threads = _SideThreads()


def begun(function: Callable[[], T]) -> "asyncio.Future[T]":
    """Run a function in a thread of its own; cancelling the future ends the thread."""
    loop: Any = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.run_in_executor(_threads, function)
    return future


async def in_time(name: str, function: Callable[[], T]) -> T:
    """Return what a function reckons for the schedule of that name, or raise what it raises.

    Raises InvalidSchedule if it takes longer than 20 seconds.
    """
    loop = asyncio.get_running_loop()
    async with _places.setdefault(loop, asyncio.Semaphore(_MOST_AT_ONCE)):
        try:
            return await asyncio.wait_for(begun(function), _MOST_S)
        except TimeoutError:
            raise InvalidSchedule(f"schedule {name}: not reckoned within {_MOST_S:g} s") from None
