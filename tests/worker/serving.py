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
