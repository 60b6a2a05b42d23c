"""Takers of a store that another process keeps: they wait there, not here.

Takers that ask in one turn of the event loop for the same topics, lease and owner are one request,
which waits at the server for the first message. Those that got nothing ask again, with the next.
"""

import asyncio

from dwell.batch.batch import Batch
from dwell.queue.takers import Take, Taker, Takers, Wish
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
        self._polls: dict[Take, asyncio.Task[None]] = {}

    async def take(self, wish: Wish, limit: int, wait_ms: int) -> Batch:
        """Return at most ``limit`` messages, empty when ``wait_ms`` went by without any."""
        taker = self._new_taker(wish, limit, wait_ms)
        self._ends[taker] = asyncio.get_running_loop().time() + wait_ms / 1000
        try:
            self._ask(taker)
            return await self._answer_of(taker)
        finally:
            del self._ends[taker]
            self._end_unwanted()

    def _start(self, take: Take) -> "asyncio.Task[None]":
        task = self._polls[take] = super()._start(take)
        task.add_done_callback(lambda _: self._polls.pop(take, None))
        return task

    async def _ask_store(self, take: Take) -> Batch:
        now = asyncio.get_running_loop().time()
        ends = [self._ends.get(taker, now) for taker in take.takers]
        wait_ms = min(max(round((min(ends) - now) * 1000), 0), LONGEST_POLL_MS)
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
        """End the requests that nobody waits for any more."""
        for take, task in list(self._polls.items()):
            if all(taker.future.done() for taker in take.takers):
                # Only once: to cancel it again would break off how it gives back what it took.
                del self._polls[take]
                end(task)

    async def close(self) -> None:
        """End every wait with StoreClosed, and the requests with them."""
        for take in self._polls:
            self._fail_closed(take.takers)
        self._end_unwanted()
        await super().close()
