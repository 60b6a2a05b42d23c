"""The longest stop of the event loop by verbs, and by time, that touch all of a large topic."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import dwell
from bench.lifecycle import BODY, own_ids
from bench.watch import Watch

_BATCH = 10_000
_KEYS = [f"key-{number}" for number in range(1_000)] * (_BATCH // 1_000)
_EVERY = dwell.select()


async def stops_of(messages: int, span_s: float) -> tuple[dict[str, float], float]:
    """Return the longest stop by each verb, in milliseconds, and how long a clear took, in seconds.

    A topic has ``messages``; those that fall due, are leased or expire together do so ``span_s``
    after the first of them was put, or taken.
    """
    stops_ms: dict[str, float] = {}

    @asynccontextmanager
    async def watched(name: str) -> AsyncIterator[None]:
        watch = Watch()
        try:
            yield
            await asyncio.sleep(0.1)
        finally:
            stops_ms[name] = round((await watch.stop())[-1], 1)

    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with dwell.open(f"{folder}/store", sync="never") as queue:
            large = _Large(queue, messages)
            await large.fill()
            for name, settings in (
                ("ordered", {"ordered": True}),
                ("ordered_and_fair", {"fair": True}),
                ("neither", {"ordered": False, "fair": False}),
            ):
                async with watched(name):
                    await queue.configure("large", **settings)
            verbs: dict[str, Callable[[], Awaitable[object]]] = {
                "reschedule_where": lambda: queue.reschedule_where("large", _EVERY, delay="1h"),
                "cancel_where": lambda: queue.cancel_where("large", _EVERY),
            }
            for name, verb in verbs.items():
                async with watched(name):
                    await verb()
            await large.fill(delay=f"{span_s}s")
            async with watched("due"):
                await large.until("ready")
            await large.take(f"{span_s}s")
            async with watched("lapsed"):
                await large.until("ready")
            start = time.perf_counter()
            async with watched("clear"):
                await queue.clear("large")
            clear_s = time.perf_counter() - start
            await large.fill(ttl=f"{span_s}s")
            async with watched("expired"):
                await large.until("dead")
            async with watched("kick_where"):
                await queue.kick_where("large", _EVERY, delay="1h")
    return stops_ms, clear_s


class _Large:
    """A topic of very many messages."""

    def __init__(self, queue: dwell.Queue, messages: int) -> None:
        self._queue = queue
        self._messages = messages

    async def fill(self, **times: str) -> None:
        """Put the messages, all with the same times."""
        now_ms = self._queue.clock.now_ms()
        span_ms = [int(float(text.rstrip("s")) * 1_000) for text in times.values()]
        how: dict[str, Any] = {
            {"delay": "due", "ttl": "expires"}[name]: now_ms + ms
            for name, ms in zip(times, span_ms, strict=True)
        }
        for start in range(0, self._messages, _BATCH):
            ids = own_ids(start, _BATCH)
            await self._queue.put_many("large", [BODY] * _BATCH, ids=ids, key=_KEYS, **how)

    async def take(self, lease: str) -> None:
        """Take all."""
        left = self._messages
        while left:
            left -= len(await self._queue.take("large", _BATCH, lease=lease))

    async def until(self, state: str) -> None:
        """Return when all are in a state."""
        while getattr((await self._queue.stats()).topics["large"], state) < self._messages:
            await asyncio.sleep(0.02)
