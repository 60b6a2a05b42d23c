"""An event loop on simulated time: nothing sleeps, and what runs in a thread runs at drawn times.

When nothing can run, time moves to the next timer. Who is part of a process that has ended never
runs again: each callback belongs to the :class:`Life` in whose context it was made.
"""

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable
from typing import Any

from dwell.errors import DwellError

#: How many rounds of the loop there may be at one moment of simulated time.
_MOST_ROUNDS = 500


class Spinning(AssertionError):
    """Callbacks follow each other without end, and time stands still."""


class NothingLeft(AssertionError):
    """Somebody waits, and nothing will ever happen."""


class Life:
    """A process, as long as it is alive; ``context`` is that of all it does."""

    __slots__ = ("context", "is_over", "tasks")

    def __init__(self) -> None:
        self.is_over = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)


#: The process that a callback belongs to; what belongs to none is the world's, and never ends.
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("LIFE", default=None)


class _Waiting:
    """What the loop waits with: it lets time pass at once."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingLeft("nothing is left that could happen")
        self._loop.pass_time(timeout)
        return []

    def close(self) -> None:
        pass


class SimulatedLoop(asyncio.BaseEventLoop):
    """A loop that decides when what runs in threads is done; ``chance`` draws the times."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        #: How much longer than usual work in threads takes.
        self.slowness = 1.0
        self._now_s = 0.0
        self._rounds = 0
        self._selector = _Waiting(self)
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note)
        #: What nobody has met: errors of tasks that nobody asks, and of callbacks.
        self.unmet: list[dict[str, Any]] = []

    def time(self) -> float:
        """Return the simulated time, in seconds."""
        return self._now_s

    def pass_time(self, seconds: float) -> None:
        """Let time pass; raises Spinning when it has not for too long."""
        if seconds > 0:
            self._now_s += seconds
            self._rounds = 0
            return
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            self._rounds = 0
            raise Spinning(f"{_MOST_ROUNDS} rounds of callbacks at one moment")

    async def until_one_ends(self, *works: "asyncio.Future[None]") -> None:
        """Return when one of some works has ended; raises what it raised."""
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for work in works:
            if work.done():
                work.result()

    def end(self, life: Life) -> None:
        """Let nothing of a process run any more."""
        life.is_over = True
        for handle in [*self._ready, *self._scheduled]:  # type: ignore[attr-defined]
            if handle._context.get(LIFE) is life:
                handle.cancel()
        # What is closed may begin tasks of its own, which have to end too.
        while life.tasks:
            task = life.tasks.pop(0)
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                # Otherwise they would be closed whenever their memory is freed.
                with contextlib.suppress(RuntimeError, ValueError, OSError, DwellError):
                    life.context.copy().run(task.get_coro().close)

    # --- what asyncio asks for --------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Have something run in the next round, unless its process is over."""
        handle = super().call_soon(callback, *args, context=context)
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is not None and life.is_over:
            handle.cancel()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Have the same: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Have something run at a time, unless its process is over."""
        handle = super().call_at(when, callback, *args, context=context)
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is not None and life.is_over:
            handle.cancel()
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run a function at a drawn time, and tell its result at another."""
        future = self.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def run() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except Exception as raised:
                error = raised
            self.call_later(self.drawn_s(), tell, result, error)

        self.call_later(self.drawn_s(), run)
        return future

    def drawn_s(self) -> float:
        """Return how long a thread takes for something."""
        return self.slowness * self.chance.choice((1e-5, 1e-4, 1e-4, 1e-3, 5e-3))

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        task = asyncio.Task(coro, loop=loop, **kwargs)
        life = LIFE.get()
        if life is not None:
            life.tasks.append(task)
            if len(life.tasks) > 256:
                life.tasks = [task for task in life.tasks if not task.done()]
        return task

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        life = LIFE.get()
        if life is None or not life.is_over:
            self.unmet.append(context)

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
