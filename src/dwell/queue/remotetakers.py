"""Takers of a store that another process keeps: they wait there, not here.

Takers that ask in one turn of the event loop for the same topics, lease and owner are one request,
which waits at the server for the first message. Those that got nothing ask again, with the next.
"""

import asyncio
import math
from typing import Any

from dwell.batch.batch import Batch
from dwell.queue.gather import fail
from dwell.queue.takers import Take, Taker, Takers, Wish, closed
from dwell.queue.turns import Turns
from dwell.store.base import RemoteStore
from dwell.tasks import end

#: How long one request waits at most. A server that has gone without a word is found out then.
LONGEST_POLL_MS = 120_000


class RemoteTakers(Takers):
    """All takers of one queue over a remote store."""

    def __init__(self, store: RemoteStore, turns: Turns) -> None:
        super().__init__(store, turns)
        self._remote = store
        self._ends: dict[Taker, float] = {}
        self._polls: dict[Take, asyncio.Task[Any]] = {}

    def ask(self, wish: Wish, limit: int, wait_ms: int | None) -> "asyncio.Future[Batch]":
        """Return the future of a take that waits, for ever if ``wait_ms`` is None."""
        taker = self._new_taker(wish, limit, wait_ms)
        now = asyncio.get_running_loop().time()
        self._ends[taker] = math.inf if wait_ms is None else now + wait_ms / 1000
        taker.future.add_done_callback(lambda _: self._forget(taker))
        self._ask(taker)
        return taker.future

    def _forget(self, taker: Taker) -> None:
        del self._ends[taker]
        self._end_unwanted()

    async def _run(self, take: Take) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._polls[take] = task
        try:
            await super()._run(take)
        finally:
            self._polls.pop(take, None)

    async def _ask_store(self, take: Take) -> Batch:
        now = asyncio.get_running_loop().time()
        ends = [self._ends.get(taker, now) for taker in take.takers]
        wait_ms = round(min(max((min(ends) - now) * 1000, 0), LONGEST_POLL_MS))
        return await self._remote.take_waiting(
            take.wish.topics, take.limit, *take.wish[1:], wait_ms
        )

    def _leave_empty(self, takers: list[Taker], take: Take) -> None:
        now = asyncio.get_running_loop().time()
        for taker in takers:
            if self._loop is None or self._ends.get(taker, now) <= now:
                taker.future.set_result(Batch.empty())
            else:
                self._ask(taker)

    def _end_unwanted(self) -> None:
        """End the requests whose takers have all left."""
        for take, task in list(self._polls.items()):
            if all(taker.future.done() for taker in take.takers):
                # Only once: a second cancel would interrupt the release of taken messages.
                del self._polls[take]
                end(task)

    async def close(self) -> None:
        """End every wait with StoreClosed, and the requests with them."""
        for take in self._polls:
            fail([taker.future for taker in take.takers], closed())
        self._end_unwanted()
        await super().close()
