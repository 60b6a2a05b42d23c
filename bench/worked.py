"""A worker of Dwell in a process of its own: ``python -m bench.worked URL MESSAGES``.

It prints an object of JSON: how many messages a second a worker handles, a message a handler, and
how many microseconds of a message are the worker's own: processor time
beyond that of a loop that takes and acks as many at once.
"""

import asyncio
import json
import sys
import time
from typing import NamedTuple

import dwell
from dwell.worker import Worker

_BODY = b"x" * 100
_PART = 1000
#: As many handlers at once as the peers may have.
_AT_ONCE = 64


async def fill(url: str, topic: str, messages: int) -> None:
    """Put what is to be handled, due at once."""
    async with dwell.open(url) as queue:
        for at in range(0, messages, _PART):
            await queue.put_many(topic, [_BODY] * min(_PART, messages - at))


class Took(NamedTuple):
    """How long something took, in seconds: by the clock, and of the processor."""

    seconds: float
    own_s: float

    @classmethod
    def since(cls, before: "Took") -> "Took":
        """Return what has passed."""
        now = cls.now()
        return cls(now.seconds - before.seconds, now.own_s - before.own_s)

    @classmethod
    def now(cls) -> "Took":
        """Return what the clocks say."""
        return cls(time.perf_counter(), time.process_time())


async def bare(url: str, messages: int) -> Took:
    """Take as many at once, and ack them one by one, as a worker does."""
    await fill(url, "bare", messages)
    async with dwell.open(url) as queue:
        start, left = Took.now(), messages
        while left:
            batch = await queue.take("bare", _AT_ONCE)
            left -= len(batch)
            await asyncio.gather(*[queue.ack(message) for message in batch])
        return Took.since(start)


async def worked(url: str, messages: int) -> Took:
    """Have a worker handle so many messages."""
    await fill(url, "worked", messages)
    worker, left = Worker(url), messages
    start = Took.now()

    @worker.on("worked", concurrency=_AT_ONCE)
    async def handle(message: dwell.Message) -> None:
        nonlocal left, start
        if left == messages:
            start = Took.now()
        left -= 1
        if not left:
            worker.stop()

    await worker.serve()
    return Took.since(start)


def main(url: str, count: str) -> None:
    """Measure both, and print what came of it."""
    messages = int(count)
    worker, loop = asyncio.run(worked(url, messages)), asyncio.run(bare(url, messages))
    own_us = (worker.own_s - loop.own_s) / messages * 1e6
    print(json.dumps({"rate": messages / worker.seconds, "own_us": own_us}))


if __name__ == "__main__":
    main(*sys.argv[1:])
