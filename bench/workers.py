"""Other people's workers, each in a process of its own, over one Redis.

``.brokers/tasks/bin/python -m bench.workers NAME PORT MESSAGES`` puts so many messages, handles
them with a function that does nothing, and prints how many that were a second, from the first to
the last. Each has one process, and stores no results. It runs with packages of its own, as some of
them want another client of Redis than Dwell does.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable

_AT_ONCE = 64


class _Count:
    """Counts what is handled; ends the process with the rate when all was."""

    wanted = handled = 0
    start = 0.0


def done() -> None:
    """Count one message."""
    if not _Count.handled:
        _Count.start = time.perf_counter()
    _Count.handled += 1
    if _Count.handled == _Count.wanted:
        print((_Count.wanted - 1) / (time.perf_counter() - _Count.start), flush=True)
        os._exit(0)


async def done_in_loop(*_: object) -> None:
    """Count one message, where handlers are coroutines."""
    done()


def _dramatiq(url: str, messages: int) -> None:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(done, queue_name="bench")
    for _ in range(messages):
        actor.send()
    dramatiq.Worker(broker, worker_threads=8).start()
    time.sleep(3600)


def _rq(url: str, messages: int) -> None:
    import redis
    import rq

    client = redis.Redis.from_url(url)
    queue = rq.Queue("bench", connection=client)
    queue.enqueue_many([queue.prepare_data(done, result_ttl=0) for _ in range(messages)])
    # The usual worker forks for each job, and would be slower by far.
    rq.SimpleWorker([queue], connection=client).work(logging_level="WARNING")


def _arq(url: str, messages: int) -> None:
    import arq
    from arq.connections import RedisSettings
    from arq.worker import Worker, func

    settings = RedisSettings.from_dsn(url)

    async def fill() -> None:
        pool = await arq.create_pool(settings)
        for _ in range(messages):
            await pool.enqueue_job("noop")
        await pool.aclose()

    asyncio.run(fill())
    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker(
        [func(done_in_loop, name="noop", keep_result=0)],
        redis_settings=settings,
        max_jobs=_AT_ONCE,
        poll_delay=0.01,
    ).run()


def _taskiq(url: str, messages: int) -> None:
    from taskiq.api import run_receiver_task
    from taskiq_redis import ListQueueBroker

    broker = ListQueueBroker(url)
    task = broker.register_task(done_in_loop, task_name="noop")

    async def work() -> None:
        await broker.startup()
        for _ in range(messages):
            await task.kiq()
        await run_receiver_task(broker, max_async_tasks=_AT_ONCE)

    asyncio.run(work())


def _celery(url: str, messages: int) -> None:
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False)
    task = app.task(done, name="noop")
    for _ in range(messages):
        task.apply_async()
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR")
    app.worker_main(["worker", "--pool=solo", *quiet])


PEERS: dict[str, Callable[[str, int], None]] = {
    "dramatiq": _dramatiq,
    "rq": _rq,
    "arq": _arq,
    "taskiq": _taskiq,
    "celery": _celery,
}


if __name__ == "__main__":
    # What they import by its name has to be this module, and not the program.
    from bench import workers

    workers._Count.wanted = int(sys.argv[3])
    workers.PEERS[sys.argv[1]](f"redis://127.0.0.1:{sys.argv[2]}/0", int(sys.argv[3]))
