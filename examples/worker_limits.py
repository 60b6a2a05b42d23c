"""A worker with a limit of time, and a middleware that says what becomes of each message.

Prints::

    fine: done
    hangs: timeout: the handler ran longer than 0.2 s
"""

import asyncio
import logging

import dwell
from dwell.worker import Middleware, Worker

# A worker logs what a handler raises; here that is part of the plan.
logging.getLogger("dwell").setLevel(logging.CRITICAL)


class Log(Middleware):
    """Says which handlers returned."""

    def after(self, message: dwell.Message) -> None:
        """Say it of one."""
        print(f"{message.id}: done")


async def main() -> None:
    """Run a worker until nothing is left that can be taken."""
    async with dwell.open("memory:") as queue:
        worker = Worker(queue, middleware=[Log()])

        @worker.on("calls", concurrency=1, timeout="200ms", retry="1h")
        async def call(message: dwell.Message) -> None:
            if message.id == "hangs":
                await asyncio.sleep(3600)

        await queue.put_many("calls", ["hello"] * 2, ids=["fine", "hangs"])
        await worker.serve(burst=True)
        left = await queue.get("calls", "hangs")
        assert left is not None
        print("hangs:", left.last_error)


asyncio.run(main())
