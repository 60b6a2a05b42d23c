"""A worker that serves for as long as a block of a test runs."""

import asyncio
import contextlib


@contextlib.asynccontextmanager
async def serving(worker):
    """Let a worker serve, and stop it at the end."""
    task = asyncio.create_task(worker.serve())
    try:
        yield task
    finally:
        worker.stop()
        await task
