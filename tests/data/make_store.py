"""Make a store of the format that this version writes, with every kind of record in it.

``python -m tests.data.make_store FOLDER``. Run once for each format, when it is new; what it made
then is kept as ``store-format-N.tar.gz`` and must be readable for ever.
"""

import asyncio
import sys
from pathlib import Path

from dwell.clock import SimulatedClock
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore

START_MS = 1_700_000_000_000


async def make(folder: Path) -> None:
    """Bring messages into every state, by every verb; a snapshot comes before the last ones."""
    clock = SimulatedClock(START_MS)
    async with Queue(EmbeddedStore(folder, clock=clock, segment_bytes=256 * 1024)) as queue:
        await queue.configure("orders", max_attempts=2, lease_ms=5_000, retry_delays_ms=(1_000,))
        await queue.put_many("orders", ["a", "b", "c", "d"], ids=["1", "2", "3", "4"])
        await queue.put("orders", "later", id="5", delay="1d", key="k", headers={"h": "v"})
        await queue.put("plain", b"made", delay="365d", priority=7)
        await queue.put("plain", b"soon", id="expiring", ttl="2s", delay="1s")
        await queue.put("orders", "new body", id="4", on_conflict="replace", delay="30s")
        taken = await queue.take("orders", 3, owner="worker")
        await queue.ack(taken[0])
        await queue.bury(taken[1], "because")
        await queue.release(taken[2], retry=True, error="oops")
        await queue.put("orders", "cancelled", id="6", delay="1h")
        await queue.cancel("orders", "6")
        await queue.reschedule("orders", "5", delay="2d")
        await queue.put_many("results", ["x", "y", "z", "later"], ids=["8", "9", "10", "11"])
        done = await queue.take("results", 3)
        await queue.ack(done, results=[b"result", None, b"replaced"])
        clock.advance(3_000)
        await queue.stats()
    async with Queue(EmbeddedStore(folder, clock=clock)) as queue:
        await queue.kick("orders", "2", delay="1m")
        held = await queue.take("orders", 10, lease="1h", owner="worker")
        await queue.touch(held, lease="2h")
        await queue.put("orders", "after the snapshot", id="7", delay="1s")
        await queue.ack(await queue.take("results", 1), results=[b"after the snapshot"])
        await queue.put("results", "new", id="10", on_conflict="error", delay="1h")


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
