"""Dwell, by its own client: a folder in this process, or a server over HTTP."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import ClassVar

import dwell
from bench.peers.drivers.program import Client, Log, body_of, main, number_of
from dwell.version import VERSION

_TOPIC = "bench"


class Dwell(Client):
    """One queue for all callers."""

    can: ClassVar = {"put": 1000, "cancel": 1000, "move": 1000}

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def open(self, address: str) -> dict[str, str]:
        self._queue = await self._stack.enter_async_context(dwell.open(address))
        return {"dwell": VERSION}

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        bodies = list(map(body_of, numbers))
        ids = [*map(str, numbers)] if keep else None
        if len(numbers) == 1:
            due, own = due_ms[0] if due_ms else None, ids[0] if ids else None
            await self._queue.put(_TOPIC, bodies[0], due=due, id=own)
        else:
            await self._queue.put_many(_TOPIC, bodies, due=due_ms, ids=ids)

    async def taker(self, limit: int, taken: Log) -> None:
        while True:
            batch = await self._queue.take(_TOPIC, limit, wait=1)
            if len(batch):
                taken([number_of(body) for body in batch.bodies])
                await self._queue.ack(batch)

    async def cancel(self, numbers: range) -> int:
        results = await self._queue.cancel(_TOPIC, [*map(str, numbers)])
        return results.count(dwell.Result.CANCELLED)

    async def move(self, numbers: range, due_ms: Sequence[int]) -> int:
        ids = [*map(str, numbers)]
        results = await self._queue.reschedule(_TOPIC, ids, due=due_ms)
        return results.count(dwell.Result.MOVED)


if __name__ == "__main__":
    main(Dwell())
