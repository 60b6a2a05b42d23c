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
        self._late: dict[int, asyncio.Task[None]] = {}

    async def tick(self, topics: Sequence[str]) -> list[int]:
        """Return the shards that have ticked; raises the first error if none could.

        ``topics`` are those with waiting takers.
        """
        loop, ticks = asyncio.get_running_loop(), dict(self._late)
        for shard in range(self._shards.count):
            if shard not in ticks:
                ticks[shard] = loop.create_task(self._tick(shard, topics))
        try:
            patience_s = _PATIENCE * self._shards.engine.timeout_s
            await asyncio.wait(ticks.values(), timeout=patience_s if len(ticks) > 1 else None)
            ticked = _good(ticks)
            if not ticked:
                await asyncio.wait(ticks.values())
                ticked = _good(ticks)
        finally:
            self._leave(ticks)
        if not ticked:
            next(iter(ticks.values())).result()
        return ticked

    async def ready_of(self, topics: Sequence[str]) -> set[str]:
        """Return which topics have messages that could be taken, by a tick of every shard.

        A shard that cannot answer, or not soon, is left out; raises its error if all are.
        """
        found = set[str]()

        async def look(shard: int) -> None:
            for some in slices(topics, self._shards.limits.topics):
                found.update(await self._tick_some(shard, some))

        looks = {shard: asyncio.ensure_future(look(shard)) for shard in range(self._shards.count)}
        try:
            patience_s = _PATIENCE * self._shards.engine.timeout_s
            await asyncio.wait(looks.values(), timeout=patience_s if len(looks) > 1 else None)
            if not _good(looks):
                await asyncio.wait(looks.values())
        finally:
            for one in looks.values():
                one.cancel()
        if not _good(looks):
            looks[0].result()
        return found

    async def close(self) -> None:
        """Cancel ticks that nothing waits for."""
        ticks = list(self._late.values())
        for tick in ticks:
            tick.cancel()
        if ticks:
            await asyncio.wait(ticks)

    def _leave(self, ticks: dict[int, asyncio.Task[None]]) -> None:
        """Leave unfinished ticks running; their errors may never be read."""
        for shard, tick in ticks.items():
            if not tick.done() and shard not in self._late:
                self._late[shard] = tick
                tick.add_done_callback(partial(self._end, shard))

    def _end(self, shard: int, tick: asyncio.Task[None]) -> None:
        del self._late[shard]
        if not tick.cancelled():
            tick.exception()

    async def _tick(self, shard: int, topics: Sequence[str]) -> None:
        for some in slices(topics, self._shards.limits.topics):
            await self._tick_some(shard, some)
        if not topics:
            await self._tick_some(shard, ())

    async def _tick_some(self, shard: int, topics: Sequence[str]) -> set[str]:
        """Tick until nothing is due any more; return the topics that have something ready."""
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


def _good(ticks: dict[int, asyncio.Task[None]]) -> list[int]:
    """Return the shards whose ticks are done, without an error."""
    return [
        shard
        for shard, tick in ticks.items()
        if tick.done() and not tick.cancelled() and tick.exception() is None
    ]
