"""The longest stop of the event loop by verbs, and by time, that touch all of a large topic."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import dwell
from bench.lifecycle import BODY, own_ids
from bench.stops import Stops

_BATCH = 10_000
_KEYS = [f"key-{number}" for number in range(1_000)] * (_BATCH // 1_000)
_EVERY = dwell.select()


async def stops_of(url: str, stops: Stops, messages: int, span_s: float) -> float:
    """Note the longest stop by each verb; return how long a clear took, in seconds.

    A topic has ``messages``; those that fall due, are leased or expire together do so ``span_s``
    after the first of them was put, or taken.
    """
    how: dict[str, Any] = {} if "://" in url else {"sync": "never"}
    async with dwell.open(url, **how) as queue:
        large = _Large(queue, messages)
        await large.fill()
        for name, settings in (
            ("ordered", {"ordered": True}),
            ("ordered_and_fair", {"fair": True}),
            ("neither", {"ordered": False, "fair": False}),
        ):
            async with stops.watched(name):
                await queue.configure("large", **settings)
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "count_urgent": lambda: queue.count_urgent("large", 1 << 31),
            "reschedule_where": lambda: queue.reschedule_where("large", _EVERY, delay="1h"),
            "cancel_where": lambda: queue.cancel_where("large", _EVERY),
        }
        for name, verb in verbs.items():
            async with stops.watched(name):
                await verb()
        await large.fill(delay=f"{span_s}s")
        async with stops.watched("due"):
            await large.until("ready")
        await large.take(f"{span_s}s")
        async with stops.watched("holders"):
            await queue.holders()
        async with stops.watched("lapsed"):
            await large.until("ready")
        start = time.perf_counter()
        async with stops.watched("clear"):
            await queue.clear("large")
        clear_s = time.perf_counter() - start
        await large.fill(ttl=f"{span_s}s")
        async with stops.watched("expired"):
            await large.until("dead")
        async with stops.watched("kick_where"):
            await queue.kick_where("large", _EVERY, delay="1h")
    return clear_s


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
