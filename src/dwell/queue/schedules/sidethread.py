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
from typing import Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from dwell.errors import InvalidSchedule

P = ParamSpec("P")
T = TypeVar("T")

#: How long a caller waits for a reckoning; and how many reckonings run at once of callers that
#: change schedules, and of callers that only read, who must not hold up the others.
_MOST_S, _MOST_CHANGING, _MOST_READING = 20.0, 4, 2
_Places: TypeAlias = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
_changing: _Places = WeakKeyDictionary()
_reading: _Places = WeakKeyDictionary()


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


async def in_time(name: str, function: Callable[[], T], *, is_reading: bool = False) -> T:
    """Return the result of a function for the schedule ``name``, or raise its error.

    Raises InvalidSchedule if it takes longer than 20 seconds. Callers that only read
    (``is_reading``) wait for each other alone.
    """
    places, most = (_reading, _MOST_READING) if is_reading else (_changing, _MOST_CHANGING)
    loop = asyncio.get_running_loop()
    async with places.setdefault(loop, asyncio.Semaphore(most)):
        try:
            return await asyncio.wait_for(begun(function), _MOST_S)
        except TimeoutError:
            raise InvalidSchedule(f"schedule {name}: not reckoned within {_MOST_S:g} s") from None
