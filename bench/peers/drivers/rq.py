"""RQ: its queue, and workers that run jobs in their own process, each with the scheduler."""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import redis
import rq
from rq.job import Job
from rq.registry import ScheduledJobRegistry

from bench.peers.drivers.program import Framework, body_of, handle, main, moments

_NAME = "bench"


class Rq(Framework):
    """One client of Redis, which threads share."""

    can: ClassVar = {"put": 1000, "cancel": 1, "move": 1}
    blocks = True

    async def begin(self, address: str) -> dict[str, str]:
        self._redis = redis.Redis.from_url(address)
        self._queue = rq.Queue(_NAME, connection=self._redis)
        self._scheduled = ScheduledJobRegistry(queue=self._queue)
        return {"rq": version("rq"), "redis": str(self._redis.info()["redis_version"])}

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        pipeline = self._redis.pipeline()
        for group, due in moments(numbers, due_ms):
            for number in group:
                job = self._queue.create_job(
                    handle, (body_of(number).decode(),), result_ttl=0, job_id=str(number)
                )
                if due is None:
                    self._queue.enqueue_job(job, pipeline=pipeline)
                else:
                    self._queue.schedule_job(job, due, pipeline=pipeline)
        pipeline.execute()

    def workers(self, takers: int) -> Iterator[Sequence[str]]:
        program = str(Path(sys.executable).with_name("rq"))
        options = ("--with-scheduler", "--worker-class=rq.SimpleWorker", "--quiet")
        for _ in range(takers):
            yield program, "worker", _NAME, f"--url={self.address}", *options

    async def cancel(self, numbers: range) -> int:
        for number in numbers:
            Job.fetch(str(number), self._redis).cancel()
        return len(numbers)

    async def move(self, numbers: range, due_ms: Sequence[int]) -> int:
        for group, due in moments(numbers, due_ms):
            for number in group:
                self._scheduled.schedule(Job.fetch(str(number), self._redis), due)
        return len(numbers)


if __name__ == "__main__":
    main(Rq())
