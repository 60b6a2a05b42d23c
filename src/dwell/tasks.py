"""Tasks that keep running when a program cancels all tasks of the event loop.

asyncio.run does so at its end, and some programs do it earlier. Work that others wait for must
still complete, and work that serves others must continue for them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dwell.errors import DwellError, ServerUnreachable

T = TypeVar("T")

#: How soon cancelled work is started again. An event loop that ends has ended by then.
_AGAIN_S = 0.1


class WholeTask(asyncio.Task[T]):
    """Work that must run to its end: other tasks cannot cancel it.

    Its own time limits can, since they cancel it outside of any task, in a running loop.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task unless another task asks for that; return whether it was cancelled."""
        loop = self.get_loop()
        if not loop.is_running() or asyncio.current_task(loop) not in (None, self):
            return False
        return super().cancel(msg)


def whole(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work that must run to its end; needs a running event loop."""
    return _begun(WholeTask, work)


def _begun(kind: type[asyncio.Task[T]], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work as a kind of task; a loop with its own kind of tasks must know all tasks."""
    loop = asyncio.get_running_loop()
    return kind(work, loop=loop) if loop.get_task_factory() is None else loop.create_task(work)


def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task that :func:`whole` has started; only its starter may do this."""
    asyncio.Task.cancel(task)


async def finished(task: asyncio.Task[T], on_cancel: Callable[[], object] | None = None) -> T:
    """Return the result of a task; a cancellation of the caller is raised after its end."""
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


def log_failure(log: logging.Logger, what: str, error: Exception) -> None:
    """Log why work that is tried again failed; only what nobody expected needs its traceback."""
    if isinstance(error, DwellError):
        is_away = isinstance(error, ServerUnreachable)
        log.log(logging.WARNING if is_away else logging.ERROR, "%s: %s", what, error)
    else:
        log.error("%s", what, exc_info=error)


class _StandingTask(asyncio.Task[None]):
    """A task that is cancelled again until it has ended.

    A cancellation may be lost: a connection attempt turns it into a time-out, and before Python
    3.12 so does asyncio.wait_for, which then returns the result that has just come.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, and look soon whether it has ended."""
        if not super().cancel(msg):
            return False
        self.get_loop().call_later(_AGAIN_S, self.cancel)
        return True


class Standing:
    """Endless work: it starts again after each cancellation, until it is stopped."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._is_stopped = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the work unless it runs; needs a running event loop."""
        self._is_stopped = False
        self._begin()

    async def stop(self) -> None:
        """Cancel the work for good, and wait for its end."""
        self._is_stopped = True
        while self._task is not None and not self._task.done():
            # A connection attempt may turn a cancellation into a time-out.
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_AGAIN_S)

    async def ended(self) -> None:
        """Wait for the work to end by itself after a request to do so; it does not start again."""
        self._is_stopped = True
        await self.wait(None)

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for the end of the work, or of its present run, for at most ``timeout_s``."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)

    def _begin(self) -> None:
        if not self._is_stopped and (self._task is None or self._task.done()):
            self._task = _begun(_StandingTask, self._work())
            self._task.add_done_callback(self._again)

    def _again(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            task.get_loop().call_later(_AGAIN_S, self._begin)
