"""An event loop in a thread of its own, for callers that have none."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from dwell.errors import StoreClosed, StoreError
from dwell.tasks import end, whole

P = ParamSpec("P")
T = TypeVar("T")

#: How long an interrupted call waits until its answer is undone.
_UNDO_S = 5.0


class LoopThread:
    """Runs coroutine functions in one event loop and hands their answers to any thread.

    The thread is a daemon: a program may end without closing it.
    """

    def __init__(self) -> None:
        self._started = threading.Event()
        self._is_closing = False
        self._pid = os.getpid()
        self._asked: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="dwell-loop", daemon=True)
        self._thread.start()
        self._started.wait()

    def run(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of a coroutine; an interrupt of this thread cancels it.

        Raises StoreClosed after close, and StoreError in a process that was forked from the process
        of the thread.
        """
        answers: list[T] = []
        self.hand(answers, None, function, args, kwargs)
        return answers[0]

    def hand(
        self,
        answers: list[T],
        undo: Callable[[T], Awaitable[object]] | None,
        function: Callable[..., Coroutine[Any, Any, T]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Run as :meth:`run` does, and append the answer to ``answers``.

        If this thread is interrupted, an answer that is not in ``answers`` yet is undone; an answer
        in it belongs to the caller.
        """
        self._check()
        answer: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            try:
                task = whole(function(*args, **kwargs))
            except Exception as error:
                # Arguments that the function does not have.
                answer.set_exception(error)
                return
            tasks.append(task)
            task.add_done_callback(lambda task: _tell(answer, task))

        self._asked.add(answer)
        answer.add_done_callback(self._asked.discard)
        try:
            self._soon(start)
            answers.append(answer.result())
        except BaseException as error:
            if not answer.done() or answer.cancelled() or answer.exception() is not error:
                self._break_off(tasks, undo)
            raise

    def _soon(self, function: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise StoreClosed("the queue was closed") from None

    def _break_off(
        self,
        tasks: "list[asyncio.Task[T]]",
        undo: Callable[[T], Awaitable[object]] | None,
    ) -> None:
        """Cancel a call whose caller was interrupted; an answer received by then is undone."""

        async def break_off() -> None:
            for task in tasks:
                end(task)
                await asyncio.wait([task])
                if undo is not None and not task.cancelled() and task.exception() is None:
                    await undo(task.result())

        # The caller gets its own error, whatever happens to this one.
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(break_off(), self.loop).result(_UNDO_S)

    def close(self) -> None:
        """End the event loop and its thread; closing twice does nothing."""
        if self._thread.is_alive() and not self.is_elsewhere:
            self._is_closing = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the process of the thread."""
        return os.getpid() != self._pid

    def _check(self) -> None:
        if self.is_elsewhere:
            raise StoreError(
                f"the store was opened in process {self._pid} and this is process {os.getpid()}, "
                "forked from it: open it after the fork"
            )
        if not self._thread.is_alive():
            raise StoreClosed("the queue was closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call inside the event loop that has to answer it")

    def _serve(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self.loop = runner.get_loop()
                self.loop.call_soon(self._started.set)
                # Code in the loop may cancel any task and stop the loop; neither ends the thread.
                while not self._is_closing:
                    self.loop.run_forever()
        finally:
            # Fails the calls that came while the loop ended, as no other code answers them.
            for answer in list(self._asked):
                with contextlib.suppress(Exception):
                    answer.set_exception(StoreClosed("the queue was closed"))


class RunningLoop(LoopThread):
    """The same for the event loop that calls this, which is not ended by close."""

    def __init__(self) -> None:
        self._is_closing = False
        self._pid = os.getpid()
        self._asked = set()
        self._thread = threading.current_thread()
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Stop answering: pending and later calls raise StoreClosed."""
        self._is_closing = True
        for answer in list(self._asked):
            with contextlib.suppress(Exception):
                answer.set_exception(StoreClosed("the queue was closed"))

    def _soon(self, function: Callable[[], object]) -> None:
        # The call is registered before this check, so either this or close sees the other.
        if self._is_closing:
            raise StoreClosed("the queue was closed")
        super()._soon(function)


def _tell(answer: "Future[T]", task: "asyncio.Task[T]") -> None:
    if answer.done():
        return
    if task.cancelled():
        answer.cancel()
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())
