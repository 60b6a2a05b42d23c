"""A worker that serves for as long as a block of a test runs."""

import asyncio
import contextlib

import dwell
from tests.waiting import until_async


@contextlib.asynccontextmanager
async def serving(worker, **how):
    """Let a worker serve, and stop it at the end."""
    task = asyncio.create_task(worker.serve(**how))
    try:
        yield task
    finally:
        worker.stop()
        await task


async def queue_of(worker):
    """Wait until a worker runs, and return its queue."""
    found = []

    def is_running():
        with contextlib.suppress(dwell.StoreClosed):
            found.append(worker.queue)
        return found

    await until_async(is_running, "the worker does not run")
    return found[0]


def handled(worker, topic, function, how, **options):
    """Let a function handle a topic in the loop (``async``), in a thread or in a process."""

    async def in_loop(message):
        await asyncio.sleep(0)
        return function(message)

    handler = in_loop if how == "async" else function
    worker.on(topic, processes=how == "process", **options)(handler)
