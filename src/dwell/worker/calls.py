"""Calls of plain handlers, each in a thread of its own, which can be ended."""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from dwell.threads.pool import end_child


class Expired(BaseException):
    """Raised in the thread of a handler that has run longer than it may."""


class ThreadCall:
    """One call of a handler; returns the handler's result and its exception."""

    def __init__(self, handler: Callable[[Any], Any], what: object) -> None:
        self._handler, self._what = handler, what
        self._lock = threading.Lock()
        self._ident: int | None = None

    def __call__(self) -> tuple[Any, BaseException | None]:
        """Run the handler in this thread."""
        pid = os.getpid()
        with self._lock:
            self._ident = threading.get_ident()
        found: tuple[Any, BaseException | None]
        try:
            found = self._handler(self._what), None
        except BaseException as error:
            found = None, error
        finally:
            end_child(pid)
        return self._ended(found)

    def _ended(self, found: tuple[Any, BaseException | None]) -> tuple[Any, BaseException | None]:
        """Disable :meth:`end`; catches an Expired that is already pending."""
        while True:
            try:
                with self._lock:
                    self._ident = None
                # One that is pending is raised here. If it is withdrawn, Python keeps a note of it
                # for the whole process, which is slow then, and hangs in a profiler.
                time.sleep(0)
            except Expired as error:
                found = None, error
            else:
                return found

    def end(self) -> None:
        """Raise Expired in the handler; it ends with its next step in Python."""
        with self._lock:
            if self._ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._ident), ctypes.py_object(Expired)
                )
