"""The lease keeper: touches the leases of a worker, at a third of each lease."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from dwell.clock.alarm import Alarm
from dwell.message import Result
from dwell.queue import Queue
from dwell.queue.foreign import each_of_its_own
from dwell.tasks import Standing
from dwell.worker.job import Job

_log = logging.getLogger(__name__)

#: How often to check whether the wall clock was set, as leases end by it.
_LOOK_MS = 500
_STEP_MS = 100


class LeaseKeeper:
    """Keeps the leases of running and waiting jobs alive.

    Each job is touched with its own lease; a touch without it would set the lease of the messages
    or their topics, which may end before the next touch. ``on_lost`` is called with a job whose
    lease has ended all the same: another worker may hold its messages by now.
    """

    def __init__(self, queue: Queue, on_lost: Callable[[Job], None]) -> None:
        self._queue = queue
        self._on_lost = on_lost
        self._alarm = Alarm(queue.clock)
        self._jobs: set[Job] = set()
        self._wakes_at_ms: float | None = None
        self._standing = Standing(self._run)

    def start(self) -> None:
        """Begin to keep, unless it does; needs a running event loop."""
        self._standing.start()

    async def stop(self) -> None:
        """Stop keeping leases."""
        await self._standing.stop()

    def add(self, job: Job) -> None:
        """Keep a job's leases from now on."""
        self._jobs.add(job)
        if self._wakes_at_ms is None or job.touch_at_ms < self._wakes_at_ms:
            self._alarm.ring()

    def remove(self, job: Job) -> None:
        """Leave a job's leases alone; it is about to be settled."""
        self._jobs.discard(job)

    async def _run(self) -> None:
        clock = self._queue.clock
        offset_ms = clock.now_ms() - clock.monotonic_ms()
        while True:
            now_ms = clock.now_ms()
            was_set = abs(now_ms - clock.monotonic_ms() - offset_ms) > _STEP_MS
            offset_ms = now_ms - clock.monotonic_ms()
            await self._touch([j for j in self._jobs if was_set or j.touch_at_ms <= now_ms])
            self._wakes_at_ms = min((job.touch_at_ms for job in self._jobs), default=None)
            asleep_ms = None
            if self._wakes_at_ms is not None:
                asleep_ms = min(max(self._wakes_at_ms - clock.now_ms(), 1), _LOOK_MS)
            await self._alarm.sleep(asleep_ms)

    async def _touch(self, jobs: list[Job]) -> None:
        """Extend the leases of jobs, each by as much as was given."""
        now_ms = self._queue.clock.now_ms()
        groups: dict[int, list[tuple[Job, str]]] = {}
        for job in jobs:
            job.touched_at(now_ms)
            for lease_ms, receipts in job.leases.items():
                groups.setdefault(lease_ms, []).extend((job, one) for one in receipts)
        stale: Counter[Job] = Counter()
        failed: set[Job] = set()
        for lease_ms, held in groups.items():
            try:
                stale += await self._stale(held, lease_ms)
            except Exception:
                # After any error the leases of all other jobs must be kept.
                _log.exception("could not touch %d leases", len(held))
                failed.update(job for job, _ in held)
        for job in jobs:
            if job not in failed:
                self._report(job, stale[job], now_ms)

    async def _stale(self, held: Sequence[tuple[Job, str]], lease_ms: int) -> Counter[Job]:
        """Touch receipts, and count for each job the receipts whose lease has ended."""
        receipts = [one for _, one in held]
        results = await each_of_its_own(self._queue.touch, receipts, lease=lease_ms / 1000)
        pairs = zip(held, results, strict=True)
        return Counter(job for (job, _), result in pairs if result is Result.STALE)

    def _report(self, job: Job, stale: int, now_ms: int) -> None:
        # A job that was settled during its touch is stale for that reason.
        if job not in self._jobs:
            return
        if not stale:
            job.leased_from(now_ms)
        elif stale < len(job):
            _log.warning("%r: %d of its leases have ended", job, stale)
        else:
            self._jobs.discard(job)
            self._on_lost(job)
