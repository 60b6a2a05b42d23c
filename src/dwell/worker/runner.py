"""A runner: takes the messages of one handler, runs it, and says what became of them."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dwell.errors import DwellError, StoreClosed, StoreError, StoreFailed
from dwell.message import MAX_BATCH_MESSAGES, Batch, Result
from dwell.queue import Queue
from dwell.threads import ThreadPool
from dwell.worker.job import Job
from dwell.worker.lanes import Lanes
from dwell.worker.leases import LeaseKeeper
from dwell.worker.outcome import Back, Dead, Done, Lost, Outcome, outcome_of

_log = logging.getLogger(__name__)

_WAIT = "1h"
_BACKOFF_MS = 1_000

#: How many messages to hold for each handler that may run, when some may wait for their key.
_HELD_BY_KEY = 4

#: How long a handler that was cancelled may take to end, seconds.
_LAST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Subscription:
    """One handler and how it wants its messages; ``retry_ms`` are its own retry delays, if any."""

    handler: Callable[[Any], Any]
    topics: tuple[str, ...]
    concurrency: int
    batch: int
    lease_ms: int
    by_key: bool
    retry_ms: tuple[int, ...]

    @property
    def lease(self) -> float | None:
        """The lease in seconds; None for each message's or its topic's own."""
        return self.lease_ms / 1000 or None


class Runner:
    """Runs one handler until it is stopped."""

    def __init__(self, queue: Queue, subscription: Subscription, owner: str) -> None:
        self._queue = queue
        self._sub = subscription
        self._owner = owner
        self._is_async = _is_async(subscription.handler)
        self._pool = ThreadPool(subscription.concurrency, "dwell-handler")
        self._lanes = Lanes(by_key=subscription.by_key)
        self._keeper = LeaseKeeper(queue, subscription.lease, self._lose)
        self._running: dict[asyncio.Task[None], Job] = {}
        self._held = 0
        self._room = asyncio.Event()
        self._is_stopping = False
        self._capacity = min(
            subscription.concurrency * (_HELD_BY_KEY if subscription.by_key else 1),
            MAX_BATCH_MESSAGES,
        )

    async def run(self) -> None:
        """Take and handle messages until cancelled; raises StoreError when the store is gone."""
        self._keeper.start()
        self._room.set()
        while True:
            await self._room.wait()
            try:
                batch = await self._take()
            except StoreError as error:
                if isinstance(error, StoreClosed | StoreFailed):
                    raise
                _log.exception("%s: could not take", ", ".join(self._sub.topics))
                await self._queue.clock.sleep(_BACKOFF_MS)
            else:
                self._accept(batch)

    async def stop(self, grace: "asyncio.Future[None]") -> None:
        """Let handlers end until ``grace`` is done, and give everything else back at once."""
        self._is_stopping = True
        waiting = self._lanes.drain()
        await asyncio.gather(*(self._settle(job, Back(0, None, counted=False)) for job in waiting))
        while self._running and not grace.done():
            await asyncio.wait([grace, *self._running], return_when=asyncio.FIRST_COMPLETED)
        if self._running:
            _log.warning("%d handlers did not end in time", len(self._running))
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running, timeout=_LAST_SECONDS)
            for job in [*self._running.values()]:
                # It ignores that it was cancelled, or it was cancelled before it began.
                await self._settle(job, Back(0, None, counted=False))
        await self._keeper.stop()
        self._pool.close()

    # --- from the queue to a handler ----------------------------------------------------------

    async def _take(self) -> Batch:
        sub = self._sub
        limit = sub.batch if sub.batch > 1 else self._capacity - self._held
        return await self._queue.take(
            sub.topics, limit, lease=sub.lease, owner=self._owner, wait=_WAIT
        )

    def _accept(self, batch: Batch) -> None:
        now_ms = self._queue.clock.now_ms()
        whole = [batch] if len(batch) and self._sub.batch > 1 else []
        for what in whole or batch:
            job = Job(what, now_ms)
            self._held += 1
            self._keeper.add(job)
            self._lanes.add(job)
        self._start()

    def _start(self) -> None:
        """Run what may run, as far as there are free handlers."""
        while len(self._running) < self._sub.concurrency and not self._is_stopping:
            job = self._lanes.next()
            if job is None:
                break
            if job.is_lost:
                self._leave(job)
                continue
            job.task = asyncio.get_running_loop().create_task(self._handle(job))
            self._running[job.task] = job
        self._look_for_room()

    def _look_for_room(self) -> None:
        if self._held < self._capacity:
            self._room.set()
        else:
            self._room.clear()

    async def _handle(self, job: Job) -> None:
        assert job.task is not None
        try:
            await self._settle(job, await self._outcome(job))
        finally:
            del self._running[job.task]
            self._leave(job)
            self._start()

    def _leave(self, job: Job) -> None:
        self._keeper.remove(job)
        self._lanes.done(job)
        self._held -= 1

    # --- the handler --------------------------------------------------------------------------

    async def _outcome(self, job: Job) -> Outcome:
        """Run the handler and return what follows."""
        outcome: Outcome = Done()
        try:
            await self._call(job)
        except asyncio.CancelledError:
            if self._is_stopping:
                outcome = Back(0, None, counted=False)
            else:
                outcome = Back(self._retry_ms(job), "CancelledError", counted=True)
        except Exception as error:
            outcome = outcome_of(error, self._retry_ms(job))
            if isinstance(outcome, Back) and outcome.error is not None:
                _log.warning("%r: attempt %d failed", job, job.attempt, exc_info=error)
        return Lost() if job.is_lost else outcome

    async def _call(self, job: Job) -> None:
        if self._is_async:
            await self._sub.handler(job.what)
            return
        answer = await asyncio.wrap_future(self._pool.submit(self._sub.handler, job.what))
        # A lambda, or a decorator, may hide a coroutine function.
        if inspect.isawaitable(answer):
            await answer

    def _retry_ms(self, job: Job) -> int | None:
        delays = self._sub.retry_ms
        return delays[min(max(job.attempt, 1), len(delays)) - 1] if delays else None

    def _lose(self, job: Job) -> None:
        """Tell a handler that its message is no longer its own; a thread cannot be told."""
        job.is_lost = True
        _log.warning("%r: the lease has ended, so nothing will be acked", job)
        if job.task is not None and self._is_async:
            job.task.cancel()

    # --- from a handler to the queue ----------------------------------------------------------

    async def _settle(self, job: Job, outcome: Outcome) -> None:
        """Say what became of a job's messages; what cannot be said, the end of the lease says."""
        self._keeper.remove(job)
        try:
            stale = await self._say(job.receipts, outcome)
        except DwellError:
            _log.exception("%r: could not be settled; its lease will end", job)
        else:
            if stale:
                _log.warning("%r: %d leases had ended before it was settled", job, stale)

    async def _say(self, receipts: list[str], outcome: Outcome) -> int:
        """Tell the queue, and return how many receipts were stale."""
        queue = self._queue
        if isinstance(outcome, Lost):
            return 0
        # A single receipt is gathered with those of other handlers that end in this moment.
        what: Any = receipts[0] if len(receipts) == 1 else receipts
        results: Any
        if isinstance(outcome, Done):
            results = await queue.ack(what)
        elif isinstance(outcome, Dead):
            results = await queue.bury(what, outcome.reason)
        else:
            results = await queue.release(
                what,
                (outcome.delay_ms or 0) / 1000,
                retry=outcome.delay_ms is None,
                error=outcome.error,
                counted=outcome.counted,
            )
        said = results if what is receipts else [results]
        return int(said.count(Result.STALE))


def _is_async(handler: Callable[[Any], Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - asked for its kind, not its presence
    )
