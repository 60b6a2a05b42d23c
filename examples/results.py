"""Keep what a message came to, and wait for it.

Prints::

    done 6
"""

import asyncio

import dwell
from dwell.worker import Worker


async def main() -> None:
    """Have a worker add numbers, and wait for the sum."""
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)

        @worker.on("sums", results=True)
        async def add(message: dwell.Message) -> int:
            return sum(message.json())

        working = asyncio.create_task(worker.serve())
        put = await queue.put("sums", [1, 2, 3])
        outcome = await queue.result("sums", put.id, wait="10s")
        print(outcome.state, outcome.json())
        worker.stop()
        await working


asyncio.run(main())
