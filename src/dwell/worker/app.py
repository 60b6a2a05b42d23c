"""The worker: handlers by topic, run until the process is told to stop."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence, Set
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

from dwell.errors import InvalidInput, ServerUnreachable, StoreClosed
from dwell.given import values
from dwell.given.values import Delay
from dwell.handle import Handle
from dwell.handle import open as open_queue
from dwell.queue import Queue
from dwell.store.base import RemoteStore
from dwell.tasks import Standing, finished, whole
from dwell.threads.bridge import RunningLoop
from dwell.threads.pool import is_coroutine, is_generator
from dwell.threads.sync import SyncQueue
from dwell.urls import shown
from dwell.worker.declared import Declared, Declaring, check_words
from dwell.worker.middleware import Around, Middleware
from dwell.worker.runner import Runner, Subscription
from dwell.worker.tally import Tally
from dwell.worker.typed import typed

F = TypeVar("F", bound=Callable[[Any], Any])
T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How long to wait for a server to answer what was asked, when all has ended.
_CLOSING_SECONDS = 3.0

#: How soon to try again to reach a server at the start, and how often to say so.
_AGAIN_SECONDS = 0.5
_SAY_EACH_SECONDS = 30.0

#: How long handlers wait at the start for their schedules to be declared.
_DECLARING_SECONDS = 5.0

#: How long a store may take to open before somebody at a terminal is told what is waited for.
_SAY_AFTER_SECONDS = 1.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


#: An open or closed queue, a ``dwell.open(...)`` that is not open yet, or the URL of a store.
Source: TypeAlias = Queue | Handle | str | os.PathLike[str]


class Worker:
    """Handles messages of a queue, or of the store at a URL, with functions.

    ::

        worker = Worker("./data")

        @worker.on("emails", concurrency=4)
        async def send(message):
            ...

        worker.run()

    If the function returns, the message is acked. Retry requeues it for later, Bury makes it dead,
    and any other exception requeues it after its retry delay, with the exception as ``last_error``.
    SystemExit and KeyboardInterrupt (``sys.exit()``) do so too, then stop the worker gracefully.
    While a handler runs, the worker extends its lease. The handler may put to :attr:`queue`, or to
    :attr:`sync_queue` if it is a plain function. ``grace`` is how long handlers may still run after
    a stop; ``owner`` is the taker's name, by default host and process. ``app`` is the name of the
    program for schedules declared with :meth:`every`; a schedule that no running worker of the app
    declares is removed after ``keep_schedules``. ``middleware`` is called around each handler. A
    worker whose store is not a server's also fires the schedules of its store. Instead of a URL,
    ``dwell.open(URL, ...)`` says the options of the store.
    """

    def __init__(
        self,
        queue: Queue | Handle | str | os.PathLike[str],
        *,
        grace: Delay = "30s",
        owner: str = "",
        app: str = "",
        keep_schedules: Delay = "5m",
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._source = queue
        self._around = Around(_checked(middleware))
        self._tally = Tally()
        self._app = app
        self._keep_schedules_ms = values.delay_ms(keep_schedules, "keep_schedules")
        self._declared: list[Declared] = []
        self._grace_seconds = values.delay_ms(grace, "grace") / 1000
        self._owner = values.owner(owner) or f"{socket.gethostname()}:{os.getpid()}"
        self._subscriptions: list[Subscription] = []
        self._runners: list[Runner] = []
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_to_stop = self._has_run = False
        self._stopping = asyncio.Event()
        self._have_begun = asyncio.Event()
        self._grace: asyncio.Future[None] | None = None
        self._exit: BaseException | None = None
        self._queue: Queue | None = None
        self._sync: SyncQueue | None = None

    @property
    def described(self) -> str:
        """What it serves and where, in a line for people."""
        source = self._source
        place = "its queue" if isinstance(source, Queue | Handle) else shown(os.fspath(source))
        return f"serving {'; '.join(map(str, self._subscriptions)) or 'nothing'} at {place}"

    @property
    def source(self) -> Source:
        """The queue, the handle or the URL that it was made with."""
        return self._source

    @property
    def is_shareable(self) -> bool:
        """Whether other processes may open its store at the same time; raises InvalidUrl."""
        return _handle_of(self._source).store.is_shared

    @property
    def queue(self) -> Queue:
        """The queue of a worker that runs, for asynchronous handlers; raises StoreClosed."""
        return _running(self._queue)

    @property
    def sync_queue(self) -> SyncQueue:
        """The same for plain handlers, which run in threads; raises StoreClosed."""
        return _running(self._sync)

    def on(
        self,
        topics: str | Sequence[str],
        *,
        concurrency: int = 8,
        batch: int = 1,
        lease: Delay | None = None,
        by_key: bool = False,
        retry: Delay | Sequence[Delay] | None = None,
        kind: type[Any] | None = None,
        timeout: Delay | None = None,
        processes: bool = False,
        jitter: float | None = None,
        results: bool = False,
    ) -> Callable[[F], F]:
        """Handle the messages of one or more topics with the decorated function.

        The function gets a Message, or with ``batch`` above 1 a Batch of at most that many. It may
        be asynchronous or plain; plain functions run in threads. At most ``concurrency`` run at
        once. ``lease`` and ``retry`` (the delays after the first, second ... failure, the last
        delay repeats) default to the topic's settings. Each delay of ``retry`` is longer or shorter
        by up to ``jitter`` of it, by default a tenth if the delays grow. With ``by_key``, messages
        of one key are handled one after another in the order of their takes. With ``kind``, a type
        as for :meth:`dwell.Queue.topic`, the message has the ``value`` of its body; a body that is
        not of the type is buried with the reason.

        A handler that has run for ``timeout`` fails, and the attempt counts: an asynchronous one is
        cancelled, in a plain one an exception is raised with its next step in Python, and one that
        does not end within a second is left alone. With ``processes``, plain handlers run in
        processes, which are ended: functions at the top of a module that open their own queues.

        With ``results``, what the function returns is kept as the message's result: bytes as they
        are, anything else as JSON; a value that is no JSON, or over 1 MiB, is a failure. Raises
        InvalidInput for invalid values, a generator, and a second handler by key or of a schedule.
        """
        _refuse_batches(batch, by_key=by_key, kind=kind is not None, results=results)
        if self._loop is not None:
            raise InvalidInput("on: the worker runs, expected handlers before that")
        given = () if retry is None else retry if isinstance(retry, list | tuple) else (retry,)
        delays_ms = tuple(values.delay_ms(delay, "retry") for delay in given)
        subscribe = functools.partial(
            Subscription,
            topics=values.topics(topics),
            concurrency=values.limit(concurrency, "concurrency"),
            batch=values.limit(batch, "batch"),
            lease_ms=values.lease_ms(lease),
            by_key=by_key,
            retry_ms=delays_ms,
            timeout_ms=0 if timeout is None else _timeout_ms(timeout),
            processes=processes,
            jitter=_jitter(jitter, delays_ms),
            results=values.flag(results, "results"),
        )

        def register(handler: F) -> F:
            _check_handler(handler, processes=processes)
            self._add(subscribe(handler if kind is None else typed(handler, kind)))
            return handler

        return register

    def every(
        self,
        span: Delay | None = None,
        *,
        cron: str | None = None,
        rrule: str | None = None,
        name: str = "",
        topic: str = "",
        body: object = b"",
        concurrency: int = 1,
        retry: Delay | Sequence[Delay] | None = None,
        timeout: Delay | None = None,
        processes: bool = False,
        **words: Any,
    ) -> Callable[[F], F]:
        """Handle the messages of a schedule with the decorated function.

        The worker puts the schedule at its start, and updates it if the code has changed. The
        schedule is removed when no running worker of this ``app`` has declared it for
        ``keep_schedules``. If several versions of the code run, the newest declaration counts. The
        schedule is named ``name``, by default ``APP:FUNCTION``, and puts ``body`` into ``topic``,
        by default the name of the schedule. ``span``, ``cron``, ``rrule`` and ``words`` are as for
        :meth:`dwell.queue.schedules.Schedules.put`; ``concurrency``, ``retry``, ``timeout`` and
        ``processes`` as for :meth:`on`: by default, runs in one worker do not overlap. Raises
        InvalidInput.
        """
        if not self._app:
            raise InvalidInput("every: the worker has no name, expected Worker(..., app=...)")
        check_words(words)

        def register(handler: F) -> F:
            own = name or f"{self._app}:{getattr(handler, '__name__', '')}"
            self._check_name(own, handler)
            self._check_alone({topic or own}, handler)
            how: dict[str, Any] = {"retry": retry, "timeout": timeout, "processes": processes}
            self.on(topic or own, concurrency=concurrency, **how)(handler)
            rule = {"every": span, "cron": cron, "rrule": rrule}
            self._declared.append(Declared(own, topic or own, body, {**rule, **words}))
            return handler

        return register

    def _check_name(self, name: str, handler: object) -> None:
        """Refuse a schedule without a name of its own: it would get the runs of another."""
        if name == f"{self._app}:":
            raise InvalidInput(f"name: {handler!r:.80} has none, expected every(..., name=...)")
        if any(one.name == name for one in self._declared):
            raise InvalidInput(
                f"name: {name!r:.200} is declared already, expected every(..., name=...) with "
                "another, as for two functions of one name, or a decorator without functools.wraps"
            )

    def _check_alone(self, topics: Set[str], handler: object) -> None:
        """Refuse a second function for a topic of a schedule: each would get runs of the other."""
        others = [one for one in self._subscriptions if one.handler is not handler]
        if shared := sorted(topics & {topic for other in others for topic in other.topics}):
            raise InvalidInput(
                f"topic: {shared[0]} has a handler already, expected a topic of its own for each "
                "every(...), or one function for all messages of the topic"
            )

    def _add(self, new: Subscription) -> None:
        scheduled = {one.topic for one in self._declared}
        self._check_alone(scheduled.intersection(new.topics), new.handler)
        for old in self._subscriptions:
            shared = set(old.topics) & set(new.topics)
            if shared and (old.by_key or new.by_key):
                # Two that know nothing of each other would handle one key at a time each.
                raise InvalidInput(
                    f"topics: {min(shared)} has a handler already, expected one for a topic by key"
                )
        self._subscriptions.append(new)

    def run(self, *, topics: Sequence[str] = (), burst: bool = False, http: str = "") -> None:
        """Handle messages until SIGTERM or SIGINT, then stop gracefully and return.

        With ``topics`` it handles the messages of those only. In a ``burst`` it returns when
        nothing is left that can be taken now. At ``http``, HOST:PORT, it answers to ``/healthz``,
        ``/readyz`` and ``/metrics``. A second signal ends the grace. Raises InvalidInput,
        StoreError if the store cannot do its work, DwellError if no handler can be begun in a
        burst, and SystemExit or KeyboardInterrupt after a handler has raised it.
        """
        asyncio.run(self._run(topics=topics, burst=burst, http=http))

    async def serve(
        self,
        *,
        topics: Sequence[str] = (),
        burst: bool = False,
        http: str = "",
        queue: Queue | None = None,
    ) -> None:
        """Handle messages in the running event loop until :meth:`stop`.

        The arguments and the errors are those of :meth:`run`. ``queue`` is an open queue that it
        serves this time instead of its own. Cancelling the call stops the worker; cancelling it
        again ends the grace.
        """
        chosen = self._chosen(topics)
        self._begin()
        try:
            async with self._watched(http), self._opened(queue or self._source) as opened:
                if opened is not None:
                    await self._work(opened, chosen, burst=burst)
        finally:
            with self._lock:
                self._loop = None
        if self._exit is not None:
            raise self._exit

    def _chosen(self, topics: Sequence[str]) -> list[Subscription]:
        """Return the handlers with those of their topics that are named; all if none is."""
        known = {topic for sub in self._subscriptions for topic in sub.topics}
        if unknown := sorted(set(topics) - known):
            allowed = ", ".join(sorted(known)) or "none"
            raise InvalidInput(f"topics: got {unknown[0]!r:.80}, expected some of: {allowed}")
        if not topics:
            return list(self._subscriptions)
        named = [tuple(t for t in s.topics if t in topics) for s in self._subscriptions]
        pairs = zip(self._subscriptions, named, strict=True)
        return [dataclasses.replace(sub, topics=own) for sub, own in pairs if own]

    @contextlib.asynccontextmanager
    async def _watched(self, http: str) -> AsyncIterator[None]:
        """Tell those who watch what it does, if there is an address."""
        if not http:
            yield
            return
        try:
            from dwell.status import Status
            from dwell.worker.numbers import Numbers
        except ImportError as error:
            raise InvalidInput(f"http: needs pip install 'dwell[worker]': {error}") from None
        status = Status(http, Numbers(self._tally), self._why_not_ready)
        await status.start()
        try:
            yield
        finally:
            await status.stop()

    def _why_not_ready(self) -> str | None:
        if self._stopping.is_set():
            return "stopping"
        if self._queue is None:
            return "the store is not open"
        if not self._have_begun.is_set():
            return "the handlers have not begun"
        waiting = (runner.trouble for runner in self._runners if not runner.takes.is_set())
        return next(waiting, None)

    async def _work(self, queue: Queue, chosen: list[Subscription], *, burst: bool) -> None:
        loop = RunningLoop()
        self._queue, self._sync = queue, SyncQueue(queue, loop)
        # A server fires the schedules of its store.
        firing = Standing(queue.schedules.fire)
        declared, keep_ms = self._declared, self._keep_schedules_ms
        declaring = Declaring(queue, self._app, declared, keep_ms) if self._app else None
        renewing = Standing(declaring.run) if declaring is not None else None
        try:
            if declaring is not None and renewing is not None:
                renewing.start()
                await self._first_declared(declaring)
            if not isinstance(queue.store, RemoteStore):
                firing.start()
            how = (self._owner, self._end_all, self._around, self._tally)
            self._runners = [Runner(queue, s, *how) for s in chosen]
            self._have_begun.set()
            await self._run_until_stopped(self._runners, declaring, burst=burst)
        finally:
            await firing.stop()
            if renewing is not None:
                await renewing.stop()
            self._queue = self._sync = None
            self._runners = []
            loop.close()

    async def _first_declared(self, declaring: Declaring) -> None:
        """Wait until the schedules were declared, for a while; raises a mistake in the code.

        A store that drains takes none of them, and gets empty by what the handlers do.
        """
        loop = asyncio.get_running_loop()
        waits = (self._stopping.wait(), declaring.was_tried.wait())
        tasks = [loop.create_task(wait) for wait in waits]
        first = asyncio.FIRST_COMPLETED
        try:
            done, _ = await asyncio.wait(tasks, timeout=_DECLARING_SECONDS, return_when=first)
        finally:
            for task in tasks:
                task.cancel()
        if not done:
            _log.warning("schedules of %s: not declared yet, the handlers begin", self._app)
        declaring.check()

    def _begin(self) -> None:
        if not self._subscriptions:
            raise InvalidInput("on: got no handler, expected one or more before the worker runs")
        with self._lock:
            if self._loop is not None:
                raise InvalidInput("serve: the worker runs already, expected one at a time")
            self._loop = asyncio.get_running_loop()
            self._stopping, self._grace = asyncio.Event(), self._loop.create_future()
            self._have_begun = asyncio.Event()
            self._exit = None
            if self._is_to_stop:
                self._stopping.set()
            self._is_to_stop = False
            self._has_run = True

    async def taking(self) -> None:
        """Return when a worker that serves takes messages for each of its handlers."""
        await self._have_begun.wait()
        for runner in self._runners:
            await runner.takes.wait()

    def stop(self) -> None:
        """Stop taking messages, and end :meth:`serve` within the grace; from any thread.

        A second call ends the grace. A call before the first run takes effect at that run; a call
        after the end does nothing.
        """
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop)
            elif not self._has_run:
                self._is_to_stop = True

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._end_grace()
        self._stopping.set()

    def _end_all(self, error: BaseException) -> None:
        """Stop gracefully, and raise then what a handler has raised to end the program."""
        _log.warning("a handler raised %r, so the worker stops", error)
        self._exit = self._exit or error
        self._stopping.set()

    def _end_grace(self) -> None:
        if self._grace is not None and not self._grace.done():
            self._grace.set_result(None)

    async def _run(self, **how: Any) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            # Only the main thread may listen to signals; elsewhere stop() is the way.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self.stop)
        await self.serve(**how)

    @contextlib.asynccontextmanager
    async def _opened(self, source: Source) -> AsyncIterator[Queue | None]:
        """Open what was given, unless it is a queue that is open already; None after a stop."""
        if isinstance(source, Queue) and source.is_open:
            yield source
            return
        loop = asyncio.get_running_loop()
        opening = loop.create_task(_open_when_there(_handle_of(source)))
        stopping = loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                yield None
                return
            yield opening.result()
        finally:
            stopping.cancel()
            opening.cancel()
            await self._whole(_closed(opening))

    async def _run_until_stopped(
        self, runners: list[Runner], declaring: Declaring | None, *, burst: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        waits = [self._stopping.wait()]
        if declaring is not None:
            waits.append(declaring.has_failed.wait())
        ends = [loop.create_task(wait) for wait in waits]
        works = [_drained(runners)] if burst else [runner.run() for runner in runners]
        tasks = [loop.create_task(work) for work in works]
        try:
            await asyncio.wait([*ends, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*ends, *tasks):
                task.cancel()
            timer = loop.call_later(self._grace_seconds, self._end_grace)
            answers = await self._whole(_ended(tasks, runners, self._grace))
            timer.cancel()
        for answer in answers:
            if answer is not None:
                raise answer
        if declaring is not None:
            declaring.check()

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns; to be cancelled meanwhile ends the grace, not the work."""
        return await finished(whole(work), self._end_grace)


def _handle_of(source: Source) -> Handle | Queue:
    return source if isinstance(source, Queue | Handle) else open_queue(source)


async def _open_when_there(handle: Handle | Queue) -> Queue:
    """Open a queue; a server that cannot be reached is waited for."""
    loop, said_at = asyncio.get_running_loop(), float("-inf")
    slow = loop.call_later(_SAY_AFTER_SECONDS, _log.warning, "waiting for the store to open")
    try:
        while True:
            try:
                return await handle.__aenter__()
            except ServerUnreachable as error:
                if loop.time() - said_at >= _SAY_EACH_SECONDS:
                    _log.warning("waiting for the server: %s", error)
                    said_at = loop.time()
                await asyncio.sleep(_AGAIN_SECONDS)
    finally:
        slow.cancel()


def _check_handler(handler: object, *, processes: bool) -> None:
    if not callable(handler):
        raise values.refusal(InvalidInput, "handler", handler, "a function")
    if is_generator(handler):
        raise InvalidInput(
            f"handler: got {handler!r:.80}, a generator, of which a call runs nothing; "
            "expected a function"
        )
    if processes and is_coroutine(handler):
        raise InvalidInput(
            f"processes: got the asynchronous handler {handler!r:.80}, expected a plain one"
        )


def _refuse_batches(batch: object, **given: bool) -> None:
    """Raise InvalidInput for an option of single messages that is given for batches."""
    for name, is_given in given.items():
        if is_given and batch != 1:
            raise InvalidInput(f"{name}: got batch={batch!r:.40}, expected single messages")


def _jitter(jitter: float | None, delays_ms: Sequence[int]) -> float:
    if jitter is None:
        return 0.1 if any(one < other for one, other in pairwise(delays_ms)) else 0.0
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise values.refusal(InvalidInput, "jitter", jitter, "a part from 0 to 1")
    return float(jitter)


def _timeout_ms(timeout: Delay) -> int:
    found = values.delay_ms(timeout, "timeout")
    if not found:
        raise values.refusal(InvalidInput, "timeout", timeout, "a span above 0, or None")
    return found


def _checked(middleware: Sequence[Middleware]) -> Sequence[Middleware]:
    for one in middleware:
        if not isinstance(one, Middleware):
            raise values.refusal(
                InvalidInput, "middleware", one, "objects of dwell.worker.Middleware"
            )
    return middleware


def _running(queue: T | None) -> T:
    if queue is None:
        raise StoreClosed("the worker does not run, so it has no queue")
    return queue


async def _drained(runners: Sequence[Runner]) -> None:
    """Run all until nothing can be taken; handlers may put messages for each other meanwhile."""
    handled = -1
    while handled != (handled := sum(runner.handled for runner in runners)):
        try:
            async with asyncio.TaskGroup() as group:
                for runner in runners:
                    group.create_task(runner.run(burst=True))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None


async def _closed(opening: "asyncio.Task[Queue]") -> None:
    """Close a queue, if it was opened; a server that does not answer is not waited for."""
    await asyncio.wait([opening])
    if opening.cancelled() or opening.exception() is not None:
        return
    queue = opening.result()
    closing = whole(queue.close())
    limit_s = _CLOSING_SECONDS if isinstance(queue.store, RemoteStore) else None
    await asyncio.wait([closing], timeout=limit_s)
    if not closing.done():
        _log.warning("the server does not answer, so the queue is left as it is")
        # What is under way there fails with it, and so the queue closes.
        await queue.store.close()
        await asyncio.wait([closing])
    elif not closing.cancelled():
        closing.result()


async def _ended(
    tasks: Sequence["asyncio.Task[None]"],
    runners: Sequence[Runner],
    grace: "asyncio.Future[None] | None",
) -> list[BaseException | None]:
    """Stop all runners, and return what their tasks failed by."""
    assert grace is not None
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait(tasks)
    await asyncio.gather(*(whole(runner.stop(grace)) for runner in runners))
    return [task.exception() for task in tasks if task.done() and not task.cancelled()]
