"""Act once when a burst of changes is over: each change pushes the message back.

Prints::

    0 s: created
    2 s: replaced
    4 s: replaced
    8 s: 0 due
    9 s: index edit 3
"""

import asyncio

import dwell


async def main() -> None:
    """Edit a page three times, two seconds apart; five quiet seconds later it is indexed."""
    clock = dwell.SimulatedClock()
    async with dwell.open("memory:", clock=clock) as queue:
        for number in (1, 2, 3):
            put = await queue.put(
                "index", f"edit {number}", id="page-7", delay="5s", on_conflict="replace"
            )
            print(f"{2 * number - 2} s: {put.result}")
            clock.advance(2_000)
        clock.advance(2_000)
        print(f"8 s: {len(await queue.take('index'))} due")
        clock.advance(1_000)
        for message in await queue.take("index"):
            print("9 s: index", message.body.decode())
            await queue.ack(message)


asyncio.run(main())
