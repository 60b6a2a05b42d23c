"""Two handlers in a chain: what comes next is put in the same step as the ack.

Prints::

    charged 40
    done: shipped for 40
"""

import asyncio

import dwell
from dwell import Then
from dwell.worker import Worker


async def main() -> None:
    """Charge an order, then ship it."""
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)

        @worker.on("charge")
        async def charge(message: dwell.Message) -> Then:
            print("charged", message.json())
            return Then("ship", message.json(), id=message.id, delay="10ms")

        @worker.on("ship", results=True)
        async def ship(message: dwell.Message) -> str:
            return f"shipped for {message.json()}"

        working = asyncio.create_task(worker.serve())
        await queue.put("charge", 40, id="order-1")
        await queue.result("charge", "order-1", wait="10s")
        outcome = await queue.result("ship", "order-1", wait="10s")
        print(f"{outcome.state}: {outcome.json()}")
        worker.stop()
        await working


asyncio.run(main())
