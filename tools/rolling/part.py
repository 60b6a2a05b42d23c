"""A process of a rolling upgrade, of any revision: ``python part.py ROLE URL NAME``.

``put`` puts messages with ids, and prints each id that was accepted; ``work`` handles them, and
prints each id; ``settings`` changes the settings of the topic all the time. All end at SIGTERM, or
with an error. Only what every revision has is used here.
"""

import asyncio
import signal
import sys

import dwell
from dwell.worker import Worker

TOPIC = "rolling"


async def put(url: str, name: str) -> None:
    """Put messages due now, soon, and after the upgrade, some singly and some together."""
    stop = stopping()
    async with dwell.open(url) as queue:
        number = 0
        while not stop.is_set():
            ids = [f"{name}-{number + at}" for at in range(5)]
            number += len(ids)
            await queue.put(TOPIC, ids[0], id=ids[0])
            await queue.put_many(TOPIC, ids[1:], ids=ids[1:], delay=["0s", "1s", "3s", "6s"])
            print("\n".join(ids), flush=True)
            await asyncio.sleep(0.01)


def work(url: str, name: str) -> None:
    """Handle messages until SIGTERM."""
    worker = Worker(url, owner=name)

    @worker.on(TOPIC, concurrency=4)
    async def handle(message: dwell.Message) -> None:
        await asyncio.sleep(0.005)
        print(message.id, flush=True)

    worker.run()


async def settings(url: str, name: str) -> None:
    """Change a setting, and read all of them."""
    stop, number = stopping(), 0
    async with dwell.open(url) as queue:
        while not stop.is_set():
            number += 1
            found = await queue.configure(TOPIC, remember_ms=600_000 + number)
            assert found.remember_ms >= 600_000
            await queue.settings(TOPIC)
            print(f"{name}-{number}", flush=True)
            await asyncio.sleep(0.05)


def stopping() -> asyncio.Event:
    """Return an event that SIGTERM sets."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "work":
        work(*given)
    else:
        asyncio.run({"put": put, "settings": settings}[role](*given))
