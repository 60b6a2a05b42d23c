"""Work on files in threads, while the event loop goes on."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
I = TypeVar("I", contravariant=True)  # noqa: E741 - an item


class Work(Protocol[I]):
    """What a thread does with what it is given."""

    def steps(self, items: Sequence[I], now_s: Callable[[], float], last: bool) -> Iterator[None]:
        """Work off what has gathered; between two steps others may do something."""

    def patience_s(self, now_s: float) -> float | None:
        """Return how long to wait for items before a pass is made without any; None for ever."""

    def fail(self, error: BaseException) -> None:
        """Take note of what a pass has raised; no other follows it."""


class Gathering(Generic[T]):
    """A thread that works off what it is given, with one pass for all that came meanwhile.

    ``put(item)`` gives it something.
    """

    put: Callable[[T], None]

    def __init__(self, work: Work[T], name: str) -> None:
        self._work = work
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self.put = self._queue.put
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> list[T]:
        """Make the last pass and end the thread; return what is left after an error."""
        self._queue.put(None)
        self._thread.join()
        left = []
        while not self._queue.empty():
            left.append(self._queue.get())
        return [item for item in left if item is not None]

    def _run(self) -> None:
        try:
            last = False
            while not last:
                gathered = self._gather()
                last = None in gathered
                items = [item for item in gathered if item is not None]
                for _ in self._work.steps(items, time.monotonic, last):
                    pass
        except BaseException as error:
            self._work.fail(error)

    def _gather(self) -> list[T | None]:
        gathered: list[T | None] = []
        with contextlib.suppress(queue.Empty):
            gathered.append(self._queue.get(timeout=self._work.patience_s(time.monotonic())))
            while True:
                gathered.append(self._queue.get_nowait())
        return gathered


async def in_thread(
    function: Callable[[*Ts], T], *args: *Ts, stop: threading.Event | None = None
) -> T:
    """Run a function in a thread; who is cancelled sets ``stop``, and waits for its end.

    It uses files that the caller closes after that.
    """
    # A future and not a task: who cancels all tasks cannot end it before the thread does.
    future = asyncio.get_running_loop().run_in_executor(None, function, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await asyncio.wait([future])
        raise
