"""The ticker under a stream of deadlines."""

import asyncio
import time

import dwell
from dwell.store.memory import MemoryStore

SPACING_S = 0.05


class Counting(MemoryStore):
    """Counts how often it is told to look at the time."""

    ticks = 0

    async def tick(self, now_ms: int) -> int | None:
        self.ticks += 1
        return await super().tick(now_ms)


async def _deliver_spaced() -> None:
    store = Counting(dwell.RealClock())
    async with dwell.Queue(store) as queue:
        queue.space_takes(SPACING_S * 1000)
        now_ms = store.clock.now_ms()
        await queue.put_many("t", ["x"] * 100, due=[now_ms + 4 * place for place in range(100)])
        start, before, taken = time.monotonic(), store.ticks, 0
        while taken < 100:
            batch = await queue.take("t", 100, wait=5)
            assert (batch.due_ms <= store.clock.now_ms()).all()
            taken += len(batch)
        elapsed_s = time.monotonic() - start
    # Four may follow each other at once, and each of the last may be on its way.
    assert store.ticks - before <= elapsed_s / SPACING_S + 6


def test_spaced_ticks_deliver_everything_and_are_few() -> None:
    asyncio.run(_deliver_spaced())
