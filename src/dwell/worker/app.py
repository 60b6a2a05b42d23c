"""The worker: handlers by topic, run until the process is told to stop."""

import asyncio
import contextlib
import functools
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from dwell import values
from dwell.errors import InvalidInput
from dwell.handle import open as open_queue
from dwell.queue import Queue
from dwell.values import Delay
from dwell.worker.runner import Runner, Subscription

F = TypeVar("F", bound=Callable[[Any], Any])

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Handles messages with functions, of a queue or of the store that a URL names.

    ::

        worker = Worker("./data")

        @worker.on("emails", concurrency=4)
        async def send(message):
            ...

        worker.run()

    Returning acks. Raising Retry gives the message back for later, Bury sets it aside, and any
    other exception gives it back for its retry delay with the exception as its ``last_error``.
    While a handler runs its lease is kept alive. ``grace`` is how long handlers may still run
    after a stop; ``owner`` is the name under which messages are taken, by default host and
    process.
    """

    def __init__(
        self, queue: Queue | str | os.PathLike[str], *, grace: Delay = "30s", owner: str = ""
    ) -> None:
        self._source = queue
        self._grace_seconds = values.delay_ms(grace, "grace") / 1000
        self._owner = values.owner(owner) or f"{socket.gethostname()}:{os.getpid()}"
        self._subscriptions: list[Subscription] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._grace: asyncio.Future[None] | None = None

    def on(
        self,
        topics: str | Sequence[str],
        *,
        concurrency: int = 8,
        batch: int = 1,
        lease: Delay | None = None,
        by_key: bool = False,
        retry: Delay | Sequence[Delay] | None = None,
    ) -> Callable[[F], F]:
        """Handle the messages of one or more topics with the function that follows.

        It gets one Message, or with ``batch`` above 1 a Batch of at most so many. It may be
        asynchronous or plain; plain ones run in threads. At most ``concurrency`` run at once.
        ``lease`` and ``retry`` (the delays after the first, second ... failure, the last one
        repeats) are the topic's when left out. With ``by_key`` messages of one key are handled one
        after another in the order they were taken.
        """
        if by_key and batch != 1:
            raise InvalidInput(f"by_key: got batch={batch!r:.40}, expected single messages by key")
        delays = () if retry is None else retry if isinstance(retry, list | tuple) else (retry,)
        subscribe = functools.partial(
            Subscription,
            topics=values.topics(topics),
            concurrency=values.limit(concurrency, "concurrency"),
            batch=values.limit(batch, "batch"),
            lease_ms=values.lease_ms(lease),
            by_key=by_key,
            retry_ms=tuple(values.delay_ms(delay, "retry") for delay in delays),
        )

        def register(handler: F) -> F:
            self._subscriptions.append(subscribe(handler))
            return handler

        return register

    def run(self) -> None:
        """Handle messages until SIGTERM or SIGINT, then stop gracefully and return.

        A second signal ends the grace. Raises StoreError when the store cannot do its work.
        """
        asyncio.run(self._run())

    async def serve(self) -> None:
        """Handle messages in the running event loop until :meth:`stop`; raises StoreError."""
        self._loop = asyncio.get_running_loop()
        self._stopping, self._grace = asyncio.Event(), self._loop.create_future()
        async with self._opened() as queue:
            runners = [Runner(queue, sub, self._owner) for sub in self._subscriptions]
            await self._run_until_stopped(runners)

    def stop(self) -> None:
        """Take no more messages, and let :meth:`serve` end within the grace; from any thread.

        A second call ends the grace.
        """
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        assert self._stopping is not None
        if self._stopping.is_set():
            self._end_grace()
        self._stopping.set()

    def _end_grace(self) -> None:
        if self._grace is not None and not self._grace.done():
            self._grace.set_result(None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            # Only the main thread may listen to signals; elsewhere stop() is the way.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self.stop)
        await self.serve()

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Queue]:
        """Open what was given, unless it is a queue that is open already."""
        source = self._source
        if isinstance(source, Queue) and source.is_open:
            yield source
        else:
            async with source if isinstance(source, Queue) else open_queue(source) as queue:
                yield queue

    async def _run_until_stopped(self, runners: list[Runner]) -> None:
        assert self._stopping is not None
        assert self._grace is not None
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(self._stopping.wait())
        tasks = [loop.create_task(runner.run()) for runner in runners]
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopping, *tasks):
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            timer = loop.call_later(self._grace_seconds, self._end_grace)
            await asyncio.gather(*(runner.stop(self._grace) for runner in runners))
            timer.cancel()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
