"""The lease keeper: touches what a worker holds, at a third of each lease."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from math import inf

from dwell.alarm import Alarm
from dwell.message import MAX_BATCH_MESSAGES, Result
from dwell.queue import Queue
from dwell.worker.job import Job

_log = logging.getLogger(__name__)


class LeaseKeeper:
    """Keeps the leases of jobs alive, those that run and those that wait.

    Each is touched with the lease that was given; a touch without it would set the messages' or
    their topics' own, which may end before the next touch. ``on_lost`` is told of a job whose lease
    ended all the same: its messages may be with somebody else by now.
    """

    def __init__(self, queue: Queue, on_lost: Callable[[Job], None]) -> None:
        self._queue = queue
        self._on_lost = on_lost
        self._alarm = Alarm(queue.clock)
        self._jobs: set[Job] = set()
        self._wakes_at_ms: float = inf
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to keep; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Keep nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, job: Job) -> None:
        """Keep a job's leases from now on."""
        self._jobs.add(job)
        if job.touch_at_ms < self._wakes_at_ms:
            self._alarm.ring()

    def remove(self, job: Job) -> None:
        """Leave a job's leases alone; it is about to be settled."""
        self._jobs.discard(job)

    async def _run(self) -> None:
        while True:
            now_ms = self._queue.clock.now_ms()
            for lease_ms, jobs in _by_lease(job for job in self._jobs if job.touch_at_ms <= now_ms):
                await self._touch(jobs, lease_ms)
            self._wakes_at_ms = min((job.touch_at_ms for job in self._jobs), default=inf)
            asleep_ms = max(self._wakes_at_ms - self._queue.clock.now_ms(), 1)
            await self._alarm.sleep(None if asleep_ms == inf else asleep_ms)

    async def _touch(self, jobs: list[Job], lease_ms: int) -> None:
        now_ms = self._queue.clock.now_ms()
        for job in jobs:
            job.touch_at_ms = now_ms + max(lease_ms // 3, 1)
        receipts = [receipt for job in jobs for receipt in job.receipts]
        results: list[Result] = []
        try:
            for at in range(0, len(receipts), MAX_BATCH_MESSAGES):
                part = receipts[at : at + MAX_BATCH_MESSAGES]
                results += await self._queue.touch(part, lease_ms / 1000)
        except Exception:
            # Whatever it was, the leases of all others have to be kept.
            _log.exception("could not touch %d leases", len(receipts))
            return
        self._report(jobs, results, now_ms)

    def _report(self, jobs: list[Job], results: list[Result], now_ms: int) -> None:
        answers = iter(results)
        for job in jobs:
            stale = list(itertools.islice(answers, len(job))).count(Result.STALE)
            # A job that was settled while its touch was under way is stale for that reason.
            if job not in self._jobs:
                continue
            if not stale:
                job.leased_from(now_ms)
                continue
            if stale < len(job):
                _log.warning("%r: %d of its leases have ended", job, stale)
                continue
            self._jobs.discard(job)
            self._on_lost(job)


def _by_lease(jobs: Iterable[Job]) -> list[tuple[int, list[Job]]]:
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.lease_ms, []).append(job)
    return list(groups.items())
