"""The sync face: every public coroutine method of :class:`dwell.Queue` as a plain method.

Nothing is written twice: the methods are made from the queue's, with their signatures and
docstrings. Type checkers read sync.pyi, which ``python -m tools.stubs`` makes from the same source.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeAlias, TypeVar

from dwell.batch.batch import Batch
from dwell.errors import StoreClosed
from dwell.queue import Queue
from dwell.queue.codec import TypedMessage
from dwell.queue.schedules.schedules import Schedules
from dwell.queue.typed import Typed
from dwell.threads.bridge import LoopThread

T = TypeVar("T")

_NO_MORE = object()
_TAKES = (Queue.take, Queue.take_ids, Queue.take_where)


class SyncQueue:
    """A delay queue for plain threads: a :class:`dwell.Queue` in an event loop of its own.

    Any thread may call it. A call that is interrupted (Ctrl-C) is cancelled, and messages that it
    had taken are released.
    """

    def __init__(self, queue: Queue, thread: LoopThread | None = None) -> None:
        """Wrap a queue that is not open, or an open queue and the thread of its loop."""
        self._queue = queue
        self._thread = thread

    def open(self) -> None:
        """Start the event loop and open the store; raises StoreError."""
        self._thread = LoopThread()
        try:
            self._thread.run(self._queue.open)
        except BaseException:
            self._thread.close()
            raise

    def close(self) -> None:
        """Close the store and end the event loop.

        Closing twice does nothing, nor does it in a process that was forked: it is the parent's.
        """
        thread, self._thread = self._thread, None
        if thread is not None and not thread.is_elsewhere:
            try:
                thread.run(self._queue.close)
            finally:
                thread.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def schedules(self) -> "SyncSchedules":
        """The schedules of the queue, which put messages repeatedly by a calendar."""
        return SyncSchedules(self._queue.schedules, self._run)

    def topic(self, name: str, kind: type[T]) -> "SyncTyped[T]":
        """Return a topic whose bodies are values of a type."""
        return SyncTyped(self._queue.topic(name, kind), self)

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._loop_thread().run(function, *args, **kwargs)

    def _take(
        self,
        taken: list[Batch],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Run a verb that takes; on an interrupt, messages not in ``taken`` are released."""
        whole = (self._queue, *args)
        self._loop_thread().hand(taken, self._give_back, function, whole, kwargs)

    def _let_go(self, taken: list[Batch]) -> None:
        """Release messages that an interrupted caller did not receive."""
        for batch in taken:
            with contextlib.suppress(Exception):
                self._run(self._give_back, batch)

    async def _give_back(self, batch: Batch) -> None:
        if len(batch):
            await self._queue.release(batch, counted=False)

    def _loop_thread(self) -> LoopThread:
        thread = self._thread
        if thread is None:
            raise StoreClosed("the queue is not open")
        return thread


class SyncTyped(Generic[T]):
    """A topic of values of a type for plain threads: ``queue.topic(name, kind)``."""

    def __init__(self, typed: Typed[T], queue: SyncQueue) -> None:
        self._queue = typed
        self._run = queue._run
        self._sync = queue

    def take(self, limit: int = 1, **words: Any) -> list[TypedMessage[T]]:
        """Take messages as the queue does; an interrupt releases them."""
        batch = self._sync.take(self._queue.name, limit, **words)
        try:
            found: list[TypedMessage[T]] = self._run(self._queue.fitting, batch)
        except BaseException:
            self._sync._let_go([batch])
            raise
        return found


class SyncSchedules:
    """The schedules of a queue for plain threads: ``queue.schedules``."""

    def __init__(self, schedules: Schedules, run: Callable[..., Any]) -> None:
        self._queue = schedules
        self._run = run


_Face: TypeAlias = SyncQueue | SyncSchedules | SyncTyped[Any]


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain method that runs a coroutine method of the queue."""

    @functools.wraps(function)
    def call(self: _Face, *args: Any, **kwargs: Any) -> Any:
        return self._run(function, self._queue, *args, **kwargs)

    @functools.wraps(function)
    def take(self: SyncQueue, *args: Any, **kwargs: Any) -> Any:
        # An interrupt may be raised after any call; the call that hands over the messages is last.
        taken: list[Batch] = []
        try:
            self._take(taken, function, args, kwargs)
            return taken[0]
        except BaseException:
            self._let_go(taken)
            raise

    return take if function in _TAKES else call


def _iterator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a generator method that runs an asynchronous generator method of the queue."""

    @functools.wraps(function)
    def iterate(self: _Face, *args: Any, **kwargs: Any) -> Iterator[Any]:
        source = function(self._queue, *args, **kwargs)
        try:
            while (item := self._run(_next, source)) is not _NO_MORE:
                yield item
        finally:
            self._run(source.aclose)

    return iterate


async def _next(source: Any) -> Any:
    return await anext(source, _NO_MORE)


def _make(face: type, source: type) -> None:
    """Add the public coroutine methods of another class to a class as blocking methods.

    Methods that the class has stay.
    """
    for name, function in inspect.getmembers(source, inspect.isfunction):
        if name.startswith("_") or name in vars(face):
            continue
        if inspect.iscoroutinefunction(function):
            setattr(face, name, _plain(function))
        elif inspect.isasyncgenfunction(function):
            setattr(face, name, _iterator(function))


_make(SyncQueue, Queue)
_make(SyncSchedules, Schedules)
_make(SyncTyped, Typed)
