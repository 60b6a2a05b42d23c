"""Handle the messages of one key one after another, and those of different keys side by side.

Prints::

    ann: ['cart', 'pay', 'ship']
    bob: ['cart', 'pay', 'ship']
    most at once: 2
"""

import asyncio
from collections import defaultdict

import dwell
from dwell.worker import Worker

STEPS = ["cart", "pay", "ship"]


async def main() -> None:
    """Put the steps of two customers, and let eight handlers loose on them."""
    done: defaultdict[str, list[str]] = defaultdict(list)
    running: set[str] = set()
    most = 0
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)

        @worker.on("steps", concurrency=8, by_key=True)
        async def handle(message: dwell.Message) -> None:
            nonlocal most
            assert message.key is not None
            running.add(message.key)
            most = max(most, len(running))
            await asyncio.sleep(0.02)
            running.remove(message.key)
            done[message.key].append(message.body.decode())
            if sum(map(len, done.values())) == 2 * len(STEPS):
                worker.stop()

        for step in STEPS:
            await queue.put_many("steps", [step, step], key=["ann", "bob"])
        await worker.serve()
    for name in ("ann", "bob"):
        print(f"{name}: {done[name]}")
    print("most at once:", most)


asyncio.run(main())
