"""Tasks of an event loop that do not end with it when a program cancels all that run there.

asyncio.run does that at its end, and some programs do it before: what others wait for must come to
its end all the same, and what serves others must go on for those that stay.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: How soon work that somebody cancelled is begun anew: a loop that ends has ended by then.
_AGAIN_S = 0.1


class WholeTask(asyncio.Task[T]):
    """Work that has an end and must not be cut in half: other tasks cannot cancel it.

    What it has set itself can, as time limits do: they call from no task, in a loop that runs.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it when no other task asks for that; tell whether it was."""
        loop = self.get_loop()
        if not loop.is_running() or asyncio.current_task(loop) not in (None, self):
            return False
        return super().cancel(msg)


def whole(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin work that is done as a whole; needs a running event loop."""
    loop = asyncio.get_running_loop()
    # A loop that makes tasks of its own kind is to know all of them.
    return WholeTask(work, loop=loop) if loop.get_task_factory() is None else loop.create_task(work)


def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task that :func:`whole` has begun, as only who has begun it may."""
    asyncio.Task.cancel(task)


async def finished(task: asyncio.Task[T], on_cancel: Callable[[], object] | None = None) -> T:
    """Return what a task returns; to be cancelled meanwhile, however often, is raised then."""
    was_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            was_cancelled = True
            if on_cancel is not None:
                on_cancel()
    if was_cancelled:
        raise asyncio.CancelledError
    return task.result()


class Standing:
    """Work without an end of its own: it is begun anew until it is stopped, whoever cancels it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._is_stopped = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; needs a running event loop."""
        self._is_stopped = False
        self._begin()

    async def stop(self) -> None:
        """Cancel it for good, and return when it has ended."""
        self._is_stopped = True
        while self._task is not None and not self._task.done():
            # A connection that is being made can answer a cancellation with a time-out.
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_AGAIN_S)

    async def ended(self) -> None:
        """Return when it has ended by itself, as somebody has told it to; it is not begun anew."""
        self._is_stopped = True
        await self.wait(None)

    async def wait(self, timeout_s: float | None) -> None:
        """Return when it has ended, by itself or for now, or when the time is over."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)

    def _begin(self) -> None:
        if not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(self._again)

    def _again(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            task.get_loop().call_later(_AGAIN_S, self._begin)
