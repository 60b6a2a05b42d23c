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
    """The work of a thread on its items."""

    def steps(self, items: Sequence[I], now_s: Callable[[], float], last: bool) -> Iterator[None]:
        """Process the gathered items; between two steps other code may run."""

    def patience_s(self, now_s: float) -> float | None:
        """Return how long to wait for items before a pass without any; None for no limit."""

    def fail(self, error: BaseException) -> None:
        """Record the error of a pass; no other pass follows."""


class Gathering(Generic[T]):
    """A thread that processes items, with one pass for all that gathered before it.

    ``put(item)`` adds an item.
    """

    put: Callable[[T], None]

    def __init__(self, work: Work[T], name: str) -> None:
        self._work = work
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self.put = self._queue.put
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> list[T]:
        """Make the last pass and end the thread; return the items left after an error."""
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
    """Run a function in a thread; a cancelled call sets ``stop``, and waits for its end.

    It uses files that the caller closes afterwards.
    """
    # A future and not a task: code that cancels all tasks cannot end it before the thread does.
    future = asyncio.get_running_loop().run_in_executor(None, function, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await asyncio.wait([future])
        raise
