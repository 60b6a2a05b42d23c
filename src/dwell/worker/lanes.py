"""Lanes: which job may run next, so that messages of one key run one after another."""

from collections import deque

from dwell.worker.job import Job


class Lanes:
    """Jobs that wait to run, in the order they were taken.

    By key, a job waits until the previous job of its lane is done. Different keys, and messages
    without a key, do not wait for each other.
    """

    def __init__(self, *, by_key: bool) -> None:
        self._by_key = by_key
        self._ready: deque[Job] = deque()
        # A lane is in here while one of its jobs is ready or runs; the next jobs wait in it.
        self._lanes: dict[tuple[str, str], deque[Job]] = {}

    def add(self, job: Job) -> None:
        """Add a job, which waits for its turn."""
        if not self._by_key or job.lane is None:
            self._ready.append(job)
        elif job.lane in self._lanes:
            self._lanes[job.lane].append(job)
        else:
            self._lanes[job.lane] = deque()
            self._ready.append(job)

    def next(self) -> Job | None:
        """Return the next job that may run, or None."""
        return self._ready.popleft() if self._ready else None

    def drain(self) -> list[Job]:
        """Return every job that does not run yet, and forget it."""
        jobs = [*self._ready, *(job for lane in self._lanes.values() for job in lane)]
        self._ready.clear()
        for lane in self._lanes.values():
            lane.clear()
        return jobs

    def done(self, job: Job) -> None:
        """Make the next job of the lane ready."""
        if not self._by_key or job.lane is None:
            return
        waiting = self._lanes[job.lane]
        if waiting:
            self._ready.append(waiting.popleft())
        else:
            del self._lanes[job.lane]
