"""The longest stop of the event loop where there are very many schedules and very many topics."""

import asyncio
from typing import Any

import dwell
from bench.lifecycle import BODY
from bench.stops import Stops
from dwell.server.http.metrics import exposition
from dwell.server.inflight import InFlight
from dwell.server.service import Service
from dwell.server.tokens import Tokens

_AT_ONCE = 200


async def look_at_many(url: str, stops: Stops, schedules: int, topics: int) -> None:
    """Note the longest stop as schedules are listed, and as figures of topics are asked for."""
    how: dict[str, Any] = {} if "://" in url else {"sync": "never"}
    async with dwell.open(url, **how) as queue:
        for start in range(0, schedules, _AT_ONCE):
            names = [f"schedule-{start + at}" for at in range(_AT_ONCE)]
            await asyncio.gather(
                *(queue.schedules.put(name, "t", BODY, cron="0 9 * * *") for name in names)
            )
        async with stops.watched("schedules_listed"):
            found = [planned async for planned in queue.schedules.each()]
        assert len(found) == schedules, len(found)
        for start in range(0, topics, _AT_ONCE):
            names = [f"topic-{start + at}" for at in range(_AT_ONCE)]
            await asyncio.gather(*(queue.put(name, BODY) for name in names))
        async with stops.watched("stats"):
            assert len((await queue.stats()).topics) >= topics
        service = Service(queue, Tokens(), InFlight(100, 1 << 28), queue.clock.now_ms())
        async with stops.watched("metrics"):
            await exposition(service, 0)
