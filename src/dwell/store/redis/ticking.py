"""Ticking: every shard does its due work, and no shard delays the others."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from dwell.slices import slices, tuples
from dwell.store.redis.shards import Shards

#: The part of the store's time limit that a slow shard may delay the others.
_PATIENCE = 0.05


class Ticks:
    """The ticks of all shards; a tick left running is not started again until it ends.

    ``unsettled`` is called when the settings of a shard may differ from the others.
    """

    def __init__(
        self,
        shards: Shards,
        wake: Callable[[str, int], None],
        unsettled: Callable[[], None],
    ) -> None:
        self._shards = shards
        self._unsettled = unsettled
        self._wake = wake
        self._late: dict[int, asyncio.Task[set[str]]] = {}

    async def tick(self, topics: Sequence[str]) -> list[int]:
        """Return the shards that have ticked; raises the first error if none could.

        ``topics`` are those with waiting takers.
        """
        loop, ticks = asyncio.get_running_loop(), dict(self._late)
        for shard in range(self._shards.count):
            if shard not in ticks:
                ticks[shard] = loop.create_task(self._tick(shard, topics))
        try:
            return await self._first(ticks)
        finally:
            self._leave(ticks)

    async def ready_of(self, topics: Sequence[str]) -> set[str]:
        """Return which topics have messages that could be taken, by a tick of every shard.

        A shard that cannot answer, or not soon, is left out; raises the first error if none can.
        """
        loop, count = asyncio.get_running_loop(), self._shards.count
        ticks = {shard: loop.create_task(self._tick(shard, topics)) for shard in range(count)}
        try:
            good = await self._first(ticks)
        finally:
            for tick in ticks.values():
                tick.cancel()
        return set[str]().union(*(ticks[shard].result() for shard in good))

    async def _first(self, ticks: dict[int, asyncio.Task[set[str]]]) -> list[int]:
        """Return the shards that have ticked soon; raises the first error if none could."""
        patience_s = _PATIENCE * self._shards.engine.timeout_s
        await asyncio.wait(ticks.values(), timeout=patience_s if len(ticks) > 1 else None)
        if not _good(ticks):
            await asyncio.wait(ticks.values())
        if not (ticked := _good(ticks)):
            next(iter(ticks.values())).result()
        return ticked

    async def close(self) -> None:
        """Cancel ticks that nothing waits for."""
        ticks = list(self._late.values())
        for tick in ticks:
            tick.cancel()
        if ticks:
            await asyncio.wait(ticks)

    def _leave(self, ticks: dict[int, asyncio.Task[set[str]]]) -> None:
        """Leave unfinished ticks running; their errors may never be read."""
        for shard, tick in ticks.items():
            if not tick.done() and shard not in self._late:
                self._late[shard] = tick
                tick.add_done_callback(partial(self._end, shard))

    def _end(self, shard: int, tick: asyncio.Task[set[str]]) -> None:
        del self._late[shard]
        if not tick.cancelled():
            tick.exception()

    async def _tick(self, shard: int, topics: Sequence[str]) -> set[str]:
        found = set[str]()
        for some in slices(topics, self._shards.limits.topics):
            found |= await self._tick_some(shard, some)
        return found if topics else await self._tick_some(shard, ())

    async def _tick_some(self, shard: int, topics: Sequence[str]) -> set[str]:
        """Tick until nothing is due; return the topics that have something ready."""
        while True:
            answer = await self._shards.run(shard, "tick", *topics)
            is_settled, ready, is_unsettled = answer.values
            if is_unsettled:
                self._unsettled()
            woken = {topic for topic, _ in tuples(answer.new, 2)}
            for topic, count in tuples(ready, 2):
                if topic not in woken:
                    self._wake(topic.decode(), count)
            if is_settled:
                return {topic.decode() for topic in ready[::2]}


def _good(ticks: dict[int, asyncio.Task[set[str]]]) -> list[int]:
    """Return the shards whose ticks are done, without an error."""
    return [
        shard
        for shard, tick in ticks.items()
        if tick.done() and not tick.cancelled() and tick.exception() is None
    ]
