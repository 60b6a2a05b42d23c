"""A timer inside one process: functions that run later, once or repeatedly.

It does what a timing wheel or a scheduled thread pool does, over the store in memory. Work that
must survive the process belongs in a message of a queue, which a worker handles.
"""

import asyncio
import contextvars
import inspect
import itertools
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dwell.clock import Clock, RealClock
from dwell.errors import InvalidInput, InvalidTime, StoreClosed
from dwell.given import values
from dwell.given.values import Delay, Due
from dwell.message import MAX_BATCH_MESSAGES, MAX_DELAY_MS
from dwell.queue import Queue
from dwell.slices import slices
from dwell.store.memory import MemoryStore
from dwell.tasks import Standing, finished, whole
from dwell.threads.bridge import LoopThread
from dwell.threads.pool import ThreadPool, end_child, is_generator

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger(__name__)

_TOPIC = "timer"
_WAIT = "1d"
_BACKOFF_MS = 1_000


class _Phase(Enum):
    WAITING = 1
    RUNNING = 2
    OVER = 3


#: The timers whose functions this code runs in.
_inside: contextvars.ContextVar[tuple["Timer", ...]] = contextvars.ContextVar("inside", default=())


class _SpanClock:
    """A clock for a store that steps of the wall clock do not change."""

    def __init__(self, clock: Clock) -> None:
        self.now_ms = self.least_ms = self.monotonic_ms = clock.monotonic_ms
        self.sleep = clock.sleep


class _Wheel:
    """The calls of one clock: a queue in memory, and a task that starts the due calls."""

    def __init__(self, clock: Clock, begin: Callable[[Sequence[str]], None]) -> None:
        self.clock = clock
        self.inbox: list[Call] = []
        self.is_told = False
        self._begin = begin
        self._queue = Queue(MemoryStore(clock, max_events=0))
        self._standing = Standing(self._serve)

    async def open(self) -> None:
        await self._queue.open()
        # An id is used once, so there is nothing to remember.
        await self._queue.configure(_TOPIC, remember_ms=0)
        self._standing.start()

    async def stop(self) -> None:
        """Start no further calls."""
        await self._standing.stop()

    async def close(self) -> None:
        await self._queue.close()

    async def apply(self, inbox: "list[Call]") -> None:
        """Put and cancel the calls that were planned and cancelled since the last time."""
        new = [call for call in inbox if call._phase is _Phase.WAITING]
        for part in slices(new, MAX_BATCH_MESSAGES):
            due_ms = np.array([call._due_ms for call in part], dtype=np.int64)
            # After a setback of the clock, the farthest due would be refused, with all others.
            due_ms = due_ms.clip(max=self.clock.now_ms() + MAX_DELAY_MS)
            await self._queue.put_many(
                _TOPIC, [b""] * len(part), ids=[call._id for call in part], due=due_ms
            )
        old = [call._id for call in inbox if call._phase is _Phase.OVER]
        for ids in slices(old, MAX_BATCH_MESSAGES):
            await self._queue.cancel(_TOPIC, ids)

    async def _serve(self) -> None:
        while True:
            try:
                # Wait for the next due calls, and start all of them.
                due = await self._queue.take(_TOPIC, 1000, wait=_WAIT)
                # A started call must not start again if the ack is cancelled.
                self._begin(due.ids)
                await self._queue.ack(due)
            except Exception:
                # An error must not lose the calls that are due later.
                _log.exception("the timer could not learn what is due")
                await self.clock.sleep(_BACKOFF_MS)


class Call:
    """A function that will run."""

    __slots__ = (
        "_args",
        "_due_ms",
        "_function",
        "_id",
        "_interval_ms",
        "_phase",
        "_timer",
        "_wheel",
    )

    def __init__(
        self,
        timer: "Timer",
        wheel: _Wheel,
        due_ms: int,
        interval_ms: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        self._timer = timer
        self._wheel = wheel
        self._due_ms = due_ms
        self._interval_ms = interval_ms
        self._function = function
        self._args = args
        self._phase = _Phase.WAITING
        self._id = ""

    @property
    def due_ms(self) -> int:
        """When it will run, in epoch milliseconds; a span moves with the wall clock."""
        return self._due_ms + self._timer._clock.now_ms() - self._wheel.clock.now_ms()

    def cancel(self) -> bool:
        """Prevent further runs; return True if that prevented a run, False if none was left.

        A running function is not interrupted.
        """
        return self._timer._cancel(self)

    def __repr__(self) -> str:
        # The repr of a function may fail, so it is not used here.
        name = getattr(self._function, "__qualname__", None)
        named = name if isinstance(name, str) else type(self._function).__qualname__
        return f"<Call of {named} due {self.due_ms} {self._phase.name.lower()}>"


class Timer:
    """Runs functions when they are due.

    ``async with Timer()`` runs them in the running event loop, ``with Timer()`` in its own loop.
    Coroutine functions run in the loop, plain functions in a pool of ``threads`` threads. Any
    exception of a function is logged. :meth:`after`, :meth:`every` and :meth:`at` may be called
    from any thread; they raise InvalidTime for an invalid time, InvalidInput for objects that
    cannot be called and for generator functions, and StoreClosed if the timer is not open. Spans
    are measured by a monotonic clock.
    """

    def __init__(self, *, threads: int = 4, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._threads = values.limit(threads, "threads")
        # A signal may interrupt the thread that has the lock, and its handler may plan a call.
        self._lock = threading.RLock()
        self._ids = map(str, itertools.count(1))
        self._calls: dict[str, Call] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._threaded: set[Future[None]] = set()

    # --- what a caller uses -------------------------------------------------------------------

    def after(self, delay: Delay, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
        """Run ``function(*args, **kwargs)`` once, when ``delay`` is over."""
        return self._add_span(values.delay_ms(delay), 0, _bound(function, kwargs), args)

    def at(self, due: Due, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
        """Run ``function(*args, **kwargs)`` once at a moment, or at once if it has passed."""
        _check(function)
        due_ms = values.due_ms(due, self._clock.now_ms())
        with self._lock:
            self._check_open()
            return self._post(Call(self, self._points, due_ms, 0, _bound(function, kwargs), args))

    def every(
        self, interval: Delay, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Call:
        """Run ``function(*args, **kwargs)`` at a fixed rate, first when one ``interval`` is over.

        Runs never overlap and never pile up: a run that would start during the previous run is
        skipped.
        """
        interval_ms = values.delay_ms(interval, "interval")
        if interval_ms == 0:
            raise values.refusal(InvalidTime, "interval", interval, "1 ms or more")
        return self._add_span(interval_ms, interval_ms, _bound(function, kwargs), args)

    def __enter__(self) -> Self:
        self._check_new()
        self._thread = LoopThread()
        self._thread.run(self._open)
        return self

    def __exit__(self, *error: object) -> None:
        self._check_outside()
        assert self._thread is not None
        try:
            self._thread.run(self._close)
        finally:
            self._thread.close()

    async def __aenter__(self) -> Self:
        self._check_new()
        await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._check_outside()
        await self._close()

    # --- in the event loop --------------------------------------------------------------------

    async def _open(self) -> None:
        self._pool = ThreadPool(self._threads, "dwell-timer")
        self._points = _Wheel(self._clock, self._begin_due)
        self._spans = _Wheel(_SpanClock(self._clock), self._begin_due)
        for wheel in self._wheels:
            await wheel.open()
        self._home = self._loop = asyncio.get_running_loop()

    @property
    def _wheels(self) -> tuple[_Wheel, _Wheel]:
        return self._points, self._spans

    async def _close(self) -> None:
        await finished(whole(self._end_all()))

    async def _end_all(self) -> None:
        """Start nothing more, and wait for the running functions."""
        with self._lock:
            self._loop = None
            for wheel in self._wheels:
                wheel.inbox = []
            for call in self._calls.values():
                call._phase = _Phase.OVER
            self._calls = {}
        for wheel in self._wheels:
            await wheel.stop()
        if self._threaded:
            await asyncio.wait(list(map(asyncio.wrap_future, self._threaded)))
        while self._tasks:
            await asyncio.wait(self._tasks)
        for wheel in self._wheels:
            await wheel.close()
        self._pool.close()

    def _begin_due(self, ids: Sequence[str]) -> None:
        self._threaded = {future for future in self._threaded if not future.done()}
        for id_ in ids:
            call = self._calls.get(id_)
            if call is not None:
                self._begin(call)

    def _begin(self, call: Call) -> None:
        try:
            if inspect.iscoroutinefunction(call._function):
                self._spawn(call, self._run(call))
            else:
                self._threaded.add(self._pool.submit(self._run_plain, call))
        except Exception:
            # Other due calls must start anyway, and so must its own next run.
            _log.exception("%r could not begin", call)
            if self._may_start(call):
                self._end(call)

    async def _run(self, call: Call, work: Awaitable[Any] | None = None) -> None:
        """Run a coroutine function, or await the result of a plain function."""
        if work is None and not self._may_start(call):
            return
        _inside.set((*_inside.get(), self))
        try:
            await (call._function(*call._args) if work is None else work)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            _log.exception("%r failed", call)
        finally:
            self._end(call)

    def _run_plain(self, call: Call) -> None:
        """Run a plain function, in a thread of the pool."""
        if not self._may_start(call):
            return
        _inside.set((*_inside.get(), self))
        pid, is_over = os.getpid(), True
        try:
            answer = call._function(*call._args)
            # A partial or a lambda may hide a coroutine function; it runs in the event loop.
            if inspect.isawaitable(answer):
                self._home.call_soon_threadsafe(self._spawn, call, self._run(call, answer))
                is_over = False
            elif inspect.isgenerator(answer) or inspect.isasyncgen(answer):
                _log.error("%r returned %r, of which nothing has run", call, answer)
        except BaseException:
            # A function must not end a thread of the pool, which other calls need.
            _log.exception("%r failed", call)
        finally:
            end_child(pid)
            if is_over:
                self._end(call)

    def _spawn(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        self._keep(self._home.create_task(work)).add_done_callback(
            partial(self._ended, call, call._id)
        )

    def _keep(self, task: "asyncio.Task[None]") -> "asyncio.Task[None]":
        """Remember a task until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ended(self, call: Call, id_: str, task: "asyncio.Task[None]") -> None:
        """End a run whose task was cancelled before it started, as no other code has done so."""
        if not task.cancelled() or call._id != id_:
            return
        if call._phase is _Phase.RUNNING or self._may_start(call):
            self._end(call)

    def _may_start(self, call: Call) -> bool:
        """Return whether a call may start: it was not cancelled, and the timer is open."""
        with self._lock:
            if call._phase is not _Phase.WAITING or call._id not in self._calls:
                return False
            call._phase = _Phase.RUNNING
            del self._calls[call._id]
            return True

    def _end(self, call: Call) -> None:
        """Plan the next run of a recurring call: the first future moment of its rate."""
        with self._lock:
            if call._phase is _Phase.OVER or not call._interval_ms or self._loop is None:
                call._phase = _Phase.OVER
                return
            missed = max(call._wheel.clock.now_ms() - call._due_ms, 0) // call._interval_ms
            call._due_ms += (missed + 1) * call._interval_ms
            call._phase = _Phase.WAITING
            self._post(call)

    # --- from any thread ----------------------------------------------------------------------

    def _add_span(
        self, span_ms: int, interval_ms: int, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Call:
        _check(function)
        with self._lock:
            self._check_open()
            due_ms = self._spans.clock.now_ms() + span_ms
            return self._post(Call(self, self._spans, due_ms, interval_ms, function, args))

    def _check_new(self) -> None:
        if self._loop is not None:
            raise RuntimeError("the timer is open already")

    def _check_outside(self) -> None:
        if self in _inside.get():
            raise RuntimeError("a function of the timer cannot close it, which waits for its end")

    def _check_open(self) -> None:
        if self._loop is None:
            raise StoreClosed("the timer is not open")

    def _cancel(self, call: Call) -> bool:
        with self._lock:
            was_to_run = call._phase is _Phase.WAITING or (
                call._phase is _Phase.RUNNING and call._interval_ms > 0
            )
            if call._phase is _Phase.WAITING:
                del self._calls[call._id]
                self._tell(call)
            if was_to_run:
                call._phase = _Phase.OVER
            return was_to_run

    def _post(self, call: Call) -> Call:
        """Plan one run; the lock is held. Each run has an id of its own."""
        call._id = next(self._ids)
        self._calls[call._id] = call
        self._tell(call)
        return call

    def _tell(self, call: Call) -> None:
        """Tell the event loop of a call; one message carries all calls of a moment."""
        assert self._loop is not None
        wheel = call._wheel
        if not wheel.is_told:
            wheel.is_told = True
            self._loop.call_soon_threadsafe(self._empty, wheel)
        wheel.inbox.append(call)

    def _empty(self, wheel: _Wheel) -> None:
        with self._lock:
            wheel.is_told = False
            inbox, wheel.inbox = wheel.inbox, []
        if inbox:
            self._keep(whole(wheel.apply(inbox)))


def _bound(function: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    if not kwargs:
        return function
    _check(function)
    return partial(function, **kwargs)


def _check(function: Callable[..., Any]) -> None:
    """Raise InvalidInput for objects that cannot be called, and for generator functions."""
    if not callable(function) or is_generator(function):
        kind = "a generator" if callable(function) else "what cannot be called"
        raise InvalidInput(f"function: got {function!r:.80}, {kind}, expected a function")
