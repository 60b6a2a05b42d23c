"""A worker whose handler fails: it is tried again after growing delays, and then set aside.

Prints::

    sent to ann
    bob: attempt 1 failed
    bob: attempt 2 failed
    bob: attempt 3 failed
    dead: bob TimeoutError: no answer
    kicked: 1
"""

import asyncio
import logging

import dwell
from dwell.worker import Worker

# A worker logs what a handler raises; here that is part of the plan.
logging.getLogger("dwell").setLevel(logging.ERROR)


async def main() -> None:
    """Run a worker until one message has used up its attempts."""
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)

        @worker.on("letters", concurrency=1, retry=["20ms", "40ms"])
        async def send(message: dwell.Message) -> None:
            if message.id == "ann":
                print("sent to ann")
                return
            print(f"{message.id}: attempt {message.attempt} failed")
            if message.attempt == 3:
                worker.stop()
            raise TimeoutError("no answer")

        await queue.put_many("letters", ["hello"] * 2, ids=["ann", "bob"], max_attempts=3)
        await worker.serve()
        async for dead in queue.pages("letters", "dead"):
            for message in dead:
                print("dead:", message.id, message.last_error)
        print("kicked:", len(await queue.kick("letters")))


asyncio.run(main())
