"""A runner: takes the messages of one handler, runs it, and says what became of them."""

import asyncio
import contextlib
import inspect
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dwell.batch.batch import Batch
from dwell.errors import (
    AccessDenied,
    DiskFull,
    DwellError,
    InvalidInput,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    TopicFull,
)
from dwell.given.values import Delay, Millis
from dwell.message import MAX_BATCH_MESSAGES, MAX_DELAY_MS, Message, Result
from dwell.queue import Queue
from dwell.queue.then import Then
from dwell.retries import retry_delay_ms
from dwell.tasks import finished, whole
from dwell.threads.pool import ThreadPool, end_child, is_coroutine
from dwell.worker.calls import Expired, ThreadCall
from dwell.worker.job import Job, JobTask
from dwell.worker.lanes import Lanes
from dwell.worker.leases import LeaseKeeper
from dwell.worker.middleware import Around
from dwell.worker.outcome import (
    AS_IT_WAS,
    TIMEOUT,
    Back,
    Bury,
    CountsFailures,
    Dead,
    Done,
    Lost,
    Outcome,
    Retry,
    outcome_of,
    refuse_many,
    result_of,
)
from dwell.worker.processes import NoPlace, ProcessCall, ProcessPool, Returned, check_handler
from dwell.worker.tally import Tally

_log = logging.getLogger(__name__)

_WAIT = "1h"
_BACKOFF_MS = 1_000
#: A burst ends after this many failed starts of calls in a row, for each handler at once.
_MOST_UNBEGUN = 3
#: How often a burst looks whether a handler still runs, seconds.
_LOOK_S = 0.1
#: How soon to say again what could not be said.
_AGAIN_MS = 500

#: How many messages to hold for each handler that may run, when some may wait for their key.
_HELD_BY_KEY = 4

#: How long a handler that has run too long may take to end, seconds.
_ENDS_SECONDS = 0.9

#: How long a handler that was cancelled may take to end, seconds; and how long the outcomes of
#: the messages of other handlers may take to be sent.
_LAST_SECONDS = 5.0
_SAYING_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Subscription:
    """One handler and how it wants its messages.

    ``retry_ms`` are its own retry delays, if any, ``timeout_ms`` is how long a call may take, or 0;
    with ``processes`` it runs in processes of its own. Each retry delay is up to ``jitter`` of it
    longer or shorter, so that messages that fail together are not tried again together. With
    ``results`` what the handler returns is kept.
    """

    handler: Callable[[Any], Any]
    topics: tuple[str, ...]
    concurrency: int
    batch: int
    lease_ms: int
    by_key: bool
    retry_ms: tuple[int, ...]
    timeout_ms: int = 0
    processes: bool = False
    jitter: float = 0.0
    results: bool = False

    def __str__(self) -> str:
        how = ", by key" if self.by_key else ""
        return f"{', '.join(self.topics)} ({self.concurrency} at once{how})"

    @property
    def lease(self) -> float | None:
        """The lease in seconds; None for each message's or its topic's own."""
        return self.lease_ms / 1000 or None


class Runner:
    """Runs one handler until it is stopped; ``on_exit`` is told when it asks for the end of all.

    ``around`` is called before and after each call, and ``tally`` counts what became of them.
    Raises InvalidInput for a handler that is to run in processes and cannot.
    """

    def __init__(
        self,
        queue: Queue,
        subscription: Subscription,
        owner: str,
        on_exit: Callable[[BaseException], None],
        around: Around,
        tally: Tally,
    ) -> None:
        self._queue = queue
        self._sub = subscription
        self._owner = owner
        self._on_exit = on_exit
        self._around = around
        self._tally = tally
        self._is_async = is_coroutine(subscription.handler)
        self._pool = ThreadPool(subscription.concurrency, "dwell-handler")
        self._processes: ProcessPool | None = None
        if subscription.processes:
            check_handler(subscription.handler)
            self._processes = ProcessPool(subscription.handler, keeps_results=subscription.results)
        self._lanes = Lanes(by_key=subscription.by_key)
        self._keeper = LeaseKeeper(queue, self._lose)
        self._running: dict[asyncio.Task[None], Job] = {}
        self._random = random.Random()
        self._held = 0
        #: Whether takes are answered, and why not while they are not.
        self.takes = asyncio.Event()
        self.trouble = f"{', '.join(subscription.topics)}: nothing was taken yet"
        #: How many calls have started.
        self.handled = 0
        #: How many calls in a row could not start, and why the last could not.
        self._unbegun = 0
        self._no_place: BaseException | None = None
        self._room = asyncio.Event()
        self._is_stopping = False
        self._is_over = False
        self._capacity = min(
            subscription.concurrency * (_HELD_BY_KEY if subscription.by_key else 1),
            MAX_BATCH_MESSAGES,
        )

    async def run(self, *, burst: bool = False) -> None:
        """Take and handle messages until cancelled; raises StoreError when the store is gone.

        In a ``burst`` it returns when nothing can be taken and no handler runs, and raises NoPlace
        when no handler can start.
        """
        self._keeper.start()
        self._room.set()
        while True:
            await self._room.wait()
            try:
                # A take that waits would not tell for long that takes are answered again.
                is_known = self.takes.is_set()
                batch = await self._take(_WAIT if is_known and not burst else 0)
            except (StoreClosed, StoreFailed, AccessDenied):
                raise
            except Exception as error:
                # The next answer may be better.
                is_ours = isinstance(error, DwellError)
                topics = ", ".join(self._sub.topics)
                self.takes.clear()
                self.trouble = f"{topics}: could not take: {error}"
                _log.warning("%s: could not take: %s", topics, error, exc_info=not is_ours)
                await self._queue.clock.sleep(_BACKOFF_MS)
            else:
                self.takes.set()
                self._accept(batch)
                if burst and self._unbegun >= _MOST_UNBEGUN * self._sub.concurrency:
                    assert self._no_place is not None
                    raise self._no_place
                if burst and not len(batch):
                    if not self._running:
                        return
                    # One that is left alone is not waited for.
                    await asyncio.wait(
                        self._running, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                    )

    async def stop(self, grace: "asyncio.Future[None]") -> None:
        """Wait for handlers until ``grace`` is done, and give everything else back as it was.

        Messages that wait for their key are given back when the earlier message is settled: nobody
        else may have them while it is handled. To be cancelled ends the grace.
        """
        self._is_stopping = True
        self._start()
        try:
            while self._running and not grace.done():
                await asyncio.wait([grace, *self._running], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            _log.info("%s: the grace was cut short", ", ".join(self._sub.topics))
        if self._running:
            _log.warning("%d handlers did not end in time", len(self._running))
            await self._end_running()
        await self._keeper.stop()
        self._pool.close()
        if self._processes is not None:
            await asyncio.to_thread(self._processes.close)

    async def _end_running(self) -> None:
        """Cancel what runs; what does not heed it is given back all the same."""
        self._is_over = True
        for task, job in self._running.items():
            # A job with an outcome is about to say it.
            if job.outcome is None:
                task.cancel()
        loop = asyncio.get_running_loop()
        last = loop.time() + _LAST_SECONDS
        while self._running and (left := last - loop.time()) > 0:
            # This has an end of its own, before which nobody may close the queue.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(self._running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        jobs = [*self._running.values(), *self._lanes.drain()]
        self._running.clear()
        says = [loop.create_task(self._is_said(job, job.outcome or AS_IT_WAS)) for job in jobs]
        if says:
            # Nothing waits for an answer any longer: the end of the leases says the same.
            await asyncio.wait(says, timeout=_SAYING_SECONDS)
        for say in says:
            say.cancel()

    # --- from the queue to a handler ----------------------------------------------------------

    async def _take(self, wait: Delay) -> Batch:
        sub = self._sub
        limit = sub.batch if sub.batch > 1 else self._capacity - self._held
        return await self._queue.take(
            sub.topics, limit, lease=sub.lease, owner=self._owner, wait=wait
        )

    def _accept(self, batch: Batch) -> None:
        now_ms = self._queue.clock.now_ms()
        whole = [batch] if len(batch) and self._sub.batch > 1 else []
        for what in whole or batch:
            job = Job(what, now_ms, self._sub.lease_ms)
            self._held += 1
            self._keeper.add(job)
            self._lanes.add(job)
        self._start()

    def _start(self) -> None:
        """Run jobs for all free handlers; give them back after a stop."""
        while self._is_stopping or len(self._running) < self._sub.concurrency:
            job = self._lanes.next()
            if job is None:
                break
            if job.is_lost:
                self._leave(job)
            elif self._is_stopping:
                self._spawn(job, self._settle(job, AS_IT_WAS))
            else:
                self._spawn(job, self._handle(job))
        self._look_for_room()

    def _spawn(self, job: Job, work: Coroutine[Any, Any, None]) -> None:
        job.task = JobTask(work, job)
        self._running[job.task] = job
        job.task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Run the next job, however this job ended."""
        job = self._running.pop(task, None)
        if job is None:
            return
        if job.outcome is None:
            # It was cancelled before it began, or failed where nothing should.
            failed = None if task.cancelled() else task.exception()
            outcome = AS_IT_WAS if failed is None else outcome_of(failed, self._retry_ms(job))
            self._spawn(job, self._settle(job, outcome))
            return
        self._leave(job)
        self._start()

    def _look_for_room(self) -> None:
        if self._held < self._capacity:
            self._room.set()
        else:
            self._room.clear()

    async def _handle(self, job: Job) -> None:
        self.handled += 1
        begun_s = time.perf_counter()
        outcome = await self._outcome(job)
        if not job.is_given_up:
            seconds = time.perf_counter() - begun_s
            await self._settle(job, outcome)
            self._count(job, seconds)

    def _count(self, job: Job, seconds: float) -> None:
        """Count a call by what the store has answered; without an answer its message comes back."""
        heard = job.outcome if job.is_heard and job.outcome is not None else Lost()
        self._tally.add(job.topic, heard, seconds)

    def _leave(self, job: Job) -> None:
        self._keeper.remove(job)
        self._lanes.done(job)
        self._held -= 1

    # --- handlers that run too long -----------------------------------------------------------

    async def _limited(self, job: Job) -> BaseException | None:
        """Run the handler for as long as it may, and return what it raised."""
        limit_s = self._sub.timeout_ms / 1000
        if not limit_s or self._processes is not None:
            return await self._failure(job)
        loop = asyncio.get_running_loop()
        timers = (
            loop.call_later(limit_s, self._expire, job),
            loop.call_later(limit_s + _ENDS_SECONDS, self._give_up, job),
        )
        try:
            return await self._failure(job)
        finally:
            for timer in timers:
                timer.cancel()
            if job.is_late and job.is_in_loop and job.task is not None:
                job.task.uncancel()

    def _expire(self, job: Job) -> None:
        """Tell a handler that has run as long as it may to end."""
        self._note_late(job)
        if job.is_in_loop and job.task is not None:
            job.task.cancel()
        elif job.call is not None:
            job.call()

    def _note_late(self, job: Job) -> None:
        job.is_late = True
        self._tally.timeouts[job.topic] += 1
        _log.warning("%r: attempt %d has run as long as it may", job, job.attempt)

    def _give_up(self, job: Job) -> None:
        """Free the place of a handler that does not end, and give its message back."""
        if job.task is None or self._running.pop(job.task, None) is None:
            return
        if job.outcome is not None:
            # It is about to say what became of the message.
            self._running[job.task] = job
            return
        job.is_given_up = True
        _log.error("%r: the handler does not end, and is left alone", job)
        if not job.is_in_loop:
            self._pool.replace_one()
        outcome = self._late(job)
        self._spawn(job, self._settle_late(job, outcome))

    async def _settle_late(self, job: Job, outcome: Outcome) -> None:
        job.outcome = outcome
        if self._around:
            await self._around.after(job.what, Expired())
        await self._settle(job, outcome)
        self._count(job, self._sub.timeout_ms / 1000)

    def _late(self, job: Job) -> Outcome:
        if job.is_lost:
            return Lost()
        told = f"{TIMEOUT} the handler ran longer than {self._sub.timeout_ms / 1000:g} s"
        if isinstance(self._sub.handler, CountsFailures) and isinstance(job.what, Message):
            told = self._sub.handler.late_text(job.what, told)
        return Back(self._retry_ms(job), told, counted=True)

    # --- the handler --------------------------------------------------------------------------

    async def _outcome(self, job: Job) -> Outcome:
        """Run the handler and return what follows."""
        error = await self._around.before(job.what) if self._around else None
        if error is None and job.is_lost:
            # Another may have the message by now.
            error = asyncio.CancelledError("the lease has ended before the handler began")
        if error is None:
            error = await self._limited(job)
        self._unbegun = self._unbegun + 1 if issubclass(type(error), NoPlace) else 0
        if self._around and not job.is_given_up:
            await self._around.after(job.what, error)
        if job.is_lost:
            return Lost()
        if error is None:
            return Done(job.result, job.then)
        if job.is_late and not (job.is_cancelled or issubclass(type(error), Retry | Bury)):
            return self._late(job)
        # An exception may report any class as its own.
        if issubclass(type(error), asyncio.CancelledError) and job.is_cancelled:
            return AS_IT_WAS
        if issubclass(type(error), SystemExit | KeyboardInterrupt):
            self._on_exit(error)
        if issubclass(type(error), NoPlace):
            return await self._unhandled(job, error)
        outcome = outcome_of(error, self._retry_ms(job))
        if isinstance(outcome, Back) and outcome.error is not None:
            _log.warning("%r: attempt %d failed", job, job.attempt, exc_info=error)
        return outcome

    async def _failure(self, job: Job) -> BaseException | None:
        """Run the handler and return what it raised, whatever that is.

        It is returned and not raised, as neither a coroutine nor a future lets StopIteration pass.
        """
        pid = os.getpid()
        try:
            if self._is_async:
                answer = self._sub.handler(job.what)
            elif self._processes is not None:
                return await self._in_process(job, self._processes)
            else:
                call = ThreadCall(self._sub.handler, job.what)
                job.call = call.end
                answer, error = await asyncio.wrap_future(self._submit(call))
                if isinstance(error, BaseException):
                    return error
            # A lambda, or a decorator, may hide a coroutine function, or a generator.
            if inspect.isawaitable(answer):
                job.is_in_loop = True
                answer = await answer
            elif inspect.isgenerator(answer) or inspect.isasyncgen(answer):
                return TypeError(f"the handler returned {answer!r:.80}, of which nothing has run")
            self._note(job, answer)
        except GeneratorExit as error:
            if job.task is None or not job.task.get_loop().is_running():
                raise
            return error
        except BaseException as error:
            return error
        finally:
            end_child(pid)
        return None

    def _note(self, job: Job, answer: object) -> None:
        """Note what a handler returned, as far as that says something; raises InvalidInput."""
        if isinstance(answer, Then):
            self._check_then(answer)
            job.then, answer = answer, answer.result
        refuse_many(answer)
        if self._sub.results or (job.then is not None and answer is not None):
            job.result = result_of(answer)

    def _check_then(self, then: Then | None) -> None:
        if then is not None and self._sub.batch != 1:
            raise InvalidInput("then: got it from a handler of batches, expected one message")

    async def _in_process(self, job: Job, processes: ProcessPool) -> BaseException | None:
        call = ProcessCall(processes, job.what, self._sub.timeout_ms / 1000)
        try:
            told: BaseException | Returned = await asyncio.wrap_future(self._submit(call))
        except asyncio.CancelledError:
            call.end()
            raise
        if isinstance(told, Returned):
            self._check_then(told.then)
            job.result, job.then = told
            return None
        if isinstance(told, Expired):
            self._note_late(job)
        return told

    def _submit(self, call: Callable[[], Any]) -> "Future[Any]":
        try:
            return self._pool.submit(call)
        except RuntimeError as error:
            raise NoPlace(f"no thread could be started: {error}") from error

    async def _unhandled(self, job: Job, error: BaseException) -> Outcome:
        """Return what follows where no handler has run: that is no failure of the handler.

        The place stays empty for a moment, as the next start would fail as well.
        """
        _log.error("%r: given back as it was: %s", job, error)
        self._no_place = error
        await self._queue.clock.sleep(_BACKOFF_MS)
        return Lost() if job.is_lost else AS_IT_WAS

    def _retry_ms(self, job: Job) -> int | None:
        delays_ms, jitter = self._sub.retry_ms, self._sub.jitter
        if not delays_ms:
            return None
        delay_ms = retry_delay_ms(delays_ms, job.attempt)
        varied_ms = round(delay_ms * (1 + jitter * self._random.uniform(-1, 1)))
        return min(varied_ms, MAX_DELAY_MS)

    def _lose(self, job: Job) -> None:
        """Tell a handler that its message is no longer its own; a thread cannot be told."""
        job.is_lost = True
        _log.warning("%r: the lease has ended, so nothing will be acked", job)
        if job.task is not None and job.is_in_loop:
            job.task.cancel()

    # --- from a handler to the queue ----------------------------------------------------------

    async def _settle(self, job: Job, outcome: Outcome) -> None:
        """Say what became of a job's messages, until it is heard or their lease has ended."""
        job.outcome = outcome
        self._keeper.remove(job)
        try:
            while not await self._is_said(job, outcome):
                await self._queue.clock.sleep(_AGAIN_MS)
        except asyncio.CancelledError:
            # The work of the handler is done, so that is said, and not that it was cancelled.
            if not job.is_settled:
                await finished(whole(self._is_said(job, outcome)))

    async def _is_said(self, job: Job, outcome: Outcome) -> bool:
        """Say what became of a job's messages; False when that is worth another try."""
        job.is_settled = await self._is_heard(job, outcome)
        return job.is_settled

    async def _is_heard(self, job: Job, outcome: Outcome) -> bool:
        try:
            said = await self._say(job.receipts, outcome)
        except (StoreError, TopicFull) as error:
            will_end = self._queue.clock.now_ms() + _AGAIN_MS >= job.ends_at_ms
            if not (will_end or self._is_over) and not isinstance(error, StoreClosed | StoreFailed):
                _log.warning("%r: could not be settled yet: %s", job, error)
                return False
            is_full = isinstance(error, TopicFull | StoreFull | DiskFull)
            if is_full and isinstance(outcome, Done) and outcome.brings_more:
                # There was no room for the follow-up, or the result, while the lease ran.
                return await self._is_heard_as_failed(job, error)
            _log.exception("%r: could not be settled; its lease will end", job)
        except (InvalidInput, AccessDenied) as error:
            if isinstance(outcome, Done) and outcome.brings_more:
                # A result that cannot be kept or put is a failure of the handler.
                return await self._is_heard_as_failed(job, error)
            _log.exception("%r: could not be settled; its lease will end", job)
        except Exception:
            _log.exception("%r: could not be settled; its lease will end", job)
        else:
            stale = said.count(Result.STALE)
            job.is_heard = stale < len(job)
            if stale:
                _log.warning("%r: %d leases had ended before it was settled", job, stale)
            if said.count(Result.BURIED):
                why = outcome.reason if isinstance(outcome, Dead) else "its attempts are used up"
                _log.warning("%r: dead: %s", job, why)
        return True

    async def _is_heard_as_failed(self, job: Job, error: DwellError) -> bool:
        failure: Exception = error
        if isinstance(self._sub.handler, CountsFailures) and isinstance(job.what, Message):
            # It may call what blocks, as a handler that fails may.
            self._keeper.add(job)
            try:
                failure = await asyncio.to_thread(self._sub.handler.failure_of, job.what, error)
            except Exception:
                _log.exception("%r: its failure could not be told by its handler", job)
            finally:
                self._keeper.remove(job)
        job.outcome = outcome_of(failure, self._retry_ms(job))
        return await self._is_heard(job, job.outcome)

    async def _say(self, receipts: list[str], outcome: Outcome) -> Sequence[Result]:
        """Tell the queue, and return what it answers for each."""
        queue = self._queue
        if isinstance(outcome, Lost):
            return ()
        # A single receipt is gathered with receipts of other handlers that end in this moment.
        what: Any = receipts[0] if len(receipts) == 1 else receipts
        results: Any
        if isinstance(outcome, Done):
            results = await queue.ack(what, result=outcome.result, then=outcome.then)
        elif isinstance(outcome, Dead):
            results = await queue.bury(what, outcome.reason)
        else:
            results = await queue.release(
                what,
                Millis(outcome.delay_ms or 0),
                retry=outcome.delay_ms is None,
                error=outcome.error,
                counted=outcome.counted,
            )
        answered: Sequence[Result] = results if what is receipts else [results]
        return answered
