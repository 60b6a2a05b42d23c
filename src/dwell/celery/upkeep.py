"""The upkeep of the queues of a process: it keeps some alive, and deletes others.

What this process consumes from is also declared again if it is gone: a Redis may have come back
empty, and no message of an exchange would reach the queue from then on.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dwell.celery.directory import Directory, Row
from dwell.given.selecting import select
from dwell.queue import Queue
from dwell.tasks import Standing

_log = logging.getLogger(__name__)

#: How often a queue that expires is kept, as a part of its life, and how often at most, seconds.
_OFTEN, _MOST_OFTEN_S = 3, 0.2
#: How often queues that have expired are looked for, and own queues that are gone, seconds.
_SWEEP_S = 15.0
#: How often it is seen that another store is in the place of the store, seconds.
_LIFE_S = 1.0
#: Messages that nobody took in time are of no use in a queue that expires itself.
_EXPIRED = select(state="dead", error="expired")


@dataclass(slots=True)
class _Kept:
    rows: Sequence[Row]
    lives_ms: int | None
    at_s: float


class Upkeep:
    """Keeps the queues that this process consumes from, and deletes queues that have expired."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.directory = Directory(queue)
        #: The queues that are kept, by topic and by consumer.
        self._kept: dict[tuple[str, object], _Kept] = {}
        #: The exchanges whose bindings are looked at.
        self.exchanges: set[str] = set()
        self._sweep_at_s = 0.0
        #: The number of the store when own queues were looked for.
        self._number = queue.store.number
        self._changed = asyncio.Event()
        self._standing: Standing | None = None

    async def keep(
        self, topic: str, consumer: object, rows: Sequence[Row], lives_ms: int | None
    ) -> None:
        """Keep a queue with its rows from now on; it expires never if ``lives_ms`` is None."""
        at_s = math.inf
        if lives_ms is not None:
            await self.directory.refresh(rows, lives_ms)
            at_s = asyncio.get_running_loop().time() + _period_s(lives_ms)
        self._kept[topic, consumer] = _Kept(rows, lives_ms, at_s)
        if self._standing is None:
            self._standing = Standing(self._run)
            self._standing.start()
        self._changed.set()

    async def drop(self, topic: str, consumer: object) -> None:
        """Stop keeping a queue, which expires unless others consume from it."""
        self._kept.pop((topic, consumer), None)

    async def stop(self) -> None:
        """Stop keeping."""
        if self._standing is not None:
            await self._standing.stop()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._look(loop.time())
            except Exception as error:
                _log.warning("could not keep queues: %s", error)
            next_s = min([self._sweep_at_s, *(kept.at_s for kept in self._kept.values())])
            self._changed.clear()
            try:
                left_s = min(next_s - loop.time(), _LIFE_S)
                async with asyncio.timeout(max(left_s, _MOST_OFTEN_S)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _look(self, now_s: float) -> None:
        for (topic, _), kept in list(self._kept.items()):
            if kept.lives_ms is not None and kept.at_s <= now_s:
                kept.at_s = now_s + _period_s(kept.lives_ms)
                await self.directory.refresh(kept.rows, kept.lives_ms)
                await self._queue.cancel_where(topic, _EXPIRED)
        number, is_time = self._queue.store.number, self._sweep_at_s <= now_s
        if is_time:
            self._sweep_at_s = now_s + _SWEEP_S
        if is_time or self._number != number:
            await self._restore()
            self._number = number
        if is_time:
            while await self.directory.sweep(sorted(self.exchanges)):
                pass

    async def _restore(self) -> None:
        """Declare the queues again that this process consumes from, and that are gone."""
        for key, kept in list(self._kept.items()):
            gone = await self.directory.gone(kept.rows)
            # Meanwhile it may have been unbound or deleted here.
            if not gone or self._kept.get(key) is not kept:
                continue
            _log.warning("%.200s: the queue or a binding was gone, and is declared again", key[0])
            for row in gone:
                await self.directory.put(row, kept.lives_ms)


def _period_s(lives_ms: int) -> float:
    return max(lives_ms / 1000 / _OFTEN, _MOST_OFTEN_S)
