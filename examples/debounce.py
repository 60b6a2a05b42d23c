"""Act once when a burst of changes is over, and again for those that came meanwhile.

Prints::

    0 s: created as page-7.0
    2 s: replaced as page-7.0
    4 s: replaced as page-7.0
    8 s: 0 due
    9 s: page-7 is being indexed
    edited meanwhile: created as page-7.1
    14 s: page-7 is being indexed
"""

import asyncio
from itertools import count

import dwell


async def edited(queue: dwell.Queue, page: str) -> str:
    """Say that a page was edited; the edit itself is stored before."""
    for number in count():
        name = f"{page}.{number}"
        put = await queue.put("index", page, id=name, delay="5s", key=page, on_conflict="replace")
        # Of a message that somebody has taken nobody knows whether this edit was seen.
        if put.result is not dwell.Result.LEASED:
            break
    return f"{put.result} as {put.id}"


async def main() -> None:
    """Edit a page three times, two seconds apart, and once while it is being indexed."""
    clock = dwell.SimulatedClock()
    async with dwell.open("memory:", clock=clock) as queue:
        for seconds in (0, 2, 4):
            print(f"{seconds} s: {await edited(queue, 'page-7')}")
            clock.advance(2_000)
        clock.advance(2_000)
        print(f"8 s: {len(await queue.take('index'))} due")
        clock.advance(1_000)
        (message,) = await queue.take("index")
        print(f"9 s: {message.body.decode()} is being indexed")
        print("edited meanwhile:", await edited(queue, "page-7"))
        await queue.ack(message)
        clock.advance(5_000)
        (message,) = await queue.take("index")
        print(f"14 s: {message.body.decode()} is being indexed")


asyncio.run(main())
