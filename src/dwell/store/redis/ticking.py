"""Ticking: every shard does what time asks for, and none of them keeps the others waiting."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from dwell.slices import slices, tuples
from dwell.store.redis.shards import Shards

#: How much of the store's time limit a shard may keep those waiting that have done theirs.
_PATIENCE = 0.05


class Ticks:
    """The ticks of all shards; one that was left behind is not begun again until it ends.

    ``unsettled`` is called when the settings of a shard may differ from those of others.
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
        """Return the shards that have ticked; raises the first error when none could.

        ``topics`` are those that somebody waits for.
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

    async def close(self) -> None:
        """Let go of ticks that nobody waits for any more."""
        ticks = list(self._late.values())
        for tick in ticks:
            tick.cancel()
        if ticks:
            await asyncio.wait(ticks)

    def _leave(self, ticks: dict[int, asyncio.Task[None]]) -> None:
        """Leave behind those that are not done; nobody may ever ask them for their error."""
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

    async def _tick_some(self, shard: int, topics: Sequence[str]) -> None:
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
                return


def _good(ticks: dict[int, asyncio.Task[None]]) -> list[int]:
    """Return the shards whose ticks are done, without an error."""
    return [
        shard
        for shard, tick in ticks.items()
        if tick.done() and not tick.cancelled() and tick.exception() is None
    ]
