"""Close orders that are not paid within 30 minutes; a simulated clock lets the time pass at once.

Prints::

    A-2 paid in time: True
    closed A-1
    closed A-3
    A-1 paid in time: False
"""

import asyncio

import dwell


async def place(queue: dwell.Queue, order: str) -> None:
    """Take an order: it will be looked at in 30 minutes, unless it is paid before."""
    await queue.put("unpaid", {"order": order}, id=order, delay="30m")


async def pay(queue: dwell.Queue, order: str) -> bool:
    """Tell whether the payment came in time: only then there was something to cancel."""
    return await queue.cancel("unpaid", order) is dwell.Result.CANCELLED


async def close_unpaid(queue: dwell.Queue) -> None:
    """Close what is due, and only then forget it."""
    batch = await queue.take("unpaid", 100)
    for message in batch:
        print("closed", message.json()["order"])
    await queue.ack(batch)


async def main() -> None:
    """Take three orders, of which one is paid."""
    clock = dwell.SimulatedClock()
    async with dwell.open("memory:", clock=clock) as queue:
        for order in ("A-1", "A-2", "A-3"):
            await place(queue, order)
        clock.advance(10 * 60_000)
        print("A-2 paid in time:", await pay(queue, "A-2"))
        clock.advance(20 * 60_000)
        await close_unpaid(queue)
        print("A-1 paid in time:", await pay(queue, "A-1"))


asyncio.run(main())
