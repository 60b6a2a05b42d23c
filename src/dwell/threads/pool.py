"""A small pool of daemon threads, for functions that are not asynchronous.

Unlike the threads of :mod:`concurrent.futures`, its threads do not delay the end of the process.
"""

import contextvars
import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class ThreadPool:
    """Runs functions in at most ``size`` threads, which are started as they are needed."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._count = 0

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Run a function in a thread, with the context variables of the caller."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(context.run(function, *args))
            except BaseException as error:
                future.set_exception(error)

        # First the thread: if none can be started, the caller gets an error and nothing may run.
        self._staff()
        self._work.put(run)
        return future

    def close(self) -> None:
        """End each thread once it has nothing to do; returns at once."""
        with self._lock:
            for _ in range(self._count):
                self._work.put(None)

    def replace_one(self) -> None:
        """Allow one further thread, in place of a thread that does not end."""
        with self._lock:
            self._size += 1

    def _staff(self) -> None:
        """Start a thread unless one is idle or the pool has enough.

        Raises RuntimeError if no thread can be started and the pool has none.
        """
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._count < self._size:
                name = f"{self._name}-{self._count + 1}"
                try:
                    threading.Thread(target=self._serve, name=name, daemon=True).start()
                except RuntimeError:
                    if not self._count:
                        raise
                else:
                    self._count += 1

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            work()
            # Frees the result of a function before the next one comes.
            del work
            self._idle.release()


def end_child(pid: int) -> None:
    """End a process that a function has forked and returned from; ``pid`` is the parent.

    It would continue with its parent's connections and files, as if it were the parent.
    """
    if os.getpid() != pid:
        os._exit(0)


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Tell whether a function is a coroutine function, or an object whose calls are coroutines."""
    return any(map(inspect.iscoroutinefunction, _kinds(function)))


def is_generator(function: Callable[..., Any]) -> bool:
    """Tell whether a call of a function only makes a generator, and runs nothing."""
    kinds = _kinds(function)
    return any(map(inspect.isgeneratorfunction, kinds)) or any(
        map(inspect.isasyncgenfunction, kinds)
    )


def _kinds(function: Callable[..., Any]) -> tuple[Any, Any]:
    # For a callable object, its ``__call__`` has the kind.
    return function, getattr(function, "__call__", None)  # noqa: B004 - its kind, not its presence
