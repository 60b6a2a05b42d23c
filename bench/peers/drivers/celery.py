"""Celery on Redis: tasks with an ETA, one worker with a process for each taker."""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import ClassVar

import celery

from bench.peers.drivers.program import Framework, address, body_of, handle, main, moments

_CONNECTIONS = 64

APP = celery.Celery("bench", broker=address())
APP.conf.update(task_ignore_result=True)
TASK = APP.task(handle, name="bench")


class Celery(Framework):
    """One application; each thread has a connection of its pool."""

    can: ClassVar = {"put": 1, "cancel": 1000}
    blocks = True

    async def begin(self, address: str) -> dict[str, str]:
        APP.conf.update(broker_url=address, broker_pool_limit=_CONNECTIONS)
        return {"celery": version("celery"), "kombu": version("kombu")}

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        for group, due in moments(numbers, due_ms):
            for number in group:
                TASK.apply_async((body_of(number).decode(),), eta=due, task_id=str(number))

    def workers(self, takers: int) -> Iterator[Sequence[str]]:
        app = (sys.executable, "-m", "celery", f"--app={__spec__.name}:APP", "worker")
        yield *app, f"--concurrency={takers}", "--loglevel=ERROR"

    async def cancel(self, numbers: range) -> int:
        APP.control.revoke([*map(str, numbers)])
        return len(numbers)


if __name__ == "__main__":
    main(Celery())
