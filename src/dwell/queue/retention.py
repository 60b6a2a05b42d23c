"""Retention: cancels dead messages that their topic has kept long enough."""

import asyncio
import logging

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.page import Page
from dwell.clock.alarm import Alarm
from dwell.message import Result, State
from dwell.store.base import Store
from dwell.tasks import Standing, log_failure

_log = logging.getLogger(__name__)

#: The time between two looks. A topic is looked through when its next message has been kept long
#: enough, but only once in a hundredth of its ``keep_dead_ms`` or an hour, whichever is less.
_LOOK_MS = 10_000
_PART, _MOST_PAUSE_MS = 100, 3_600_000
#: How many messages, each with its body, are read together.
_LIMIT = 2_000


class Retention:
    """One task that cancels the messages that are dead for longer than ``keep_dead_ms``.

    Instances of a shared store may all do so: a message that changes in between stays.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._alarm = Alarm(store.clock)
        self._standing = Standing(self._run)
        self._is_stopping = False
        self._begun_ms = self._looked_ms = 0
        #: The setting of each topic at its last look, and the time of its next.
        self._nexts: dict[str, tuple[int, int]] = {}

    def start(self) -> None:
        """Begin to look; needs a running event loop."""
        self._is_stopping = False
        self._begun_ms = self._store.clock.now_ms()
        self._standing.start()

    async def stop(self) -> None:
        """Stop looking; a running call of the store ends first."""
        self._is_stopping = True
        self._alarm.ring()
        await self._standing.ended()

    async def _run(self) -> None:
        is_failing = False
        while not self._is_stopping:
            await self._alarm.sleep(_LOOK_MS)
            try:
                await self._look()
                is_failing = False
            except Exception as error:
                if not is_failing:
                    what = "could not cancel dead messages that were kept long enough"
                    log_failure(_log, what, error)
                is_failing = True

    async def _look(self) -> None:
        now_ms = self._store.clock.now_ms()
        if now_ms < self._looked_ms:
            # The clock went back, so the next times may be far away.
            self._nexts.clear()
        self._looked_ms = now_ms
        kept = await self._store.dead_retentions()
        self._nexts = {topic: self._nexts.get(topic, (0, 0)) for topic in kept}
        asked = {
            topic: keep_ms
            for topic, keep_ms in kept.items()
            if self._nexts[topic][0] != keep_ms or self._nexts[topic][1] <= now_ms
        }
        topics = (await self._store.stats()).topics if asked else {}
        for topic, keep_ms in asked.items():
            if self._is_stopping:
                break
            next_ms = now_ms + keep_ms
            if topic in topics and topics[topic].dead:
                next_ms = await self._look_through(topic, keep_ms, now_ms)
            pause_ms = min(keep_ms // _PART, _MOST_PAUSE_MS)
            self._nexts[topic] = keep_ms, max(next_ms, now_ms + pause_ms)

    async def _look_through(self, topic: str, keep_ms: int, now_ms: int) -> int:
        """Cancel what a topic has kept long enough; return when its next message is over."""
        next_ms, count = now_ms + keep_ms, 0
        page = Page(Batch.empty(receipts=False), None)
        while not self._is_stopping:
            page = await self._store.scan(topic, State.DEAD, page.cursor, _LIMIT)
            died_ms = page.messages.died_ms
            # Older formats did not note it.
            ends_ms = np.where(died_ms > 0, died_ms, self._begun_ms) + keep_ms
            is_over = ends_ms <= now_ms
            if is_over.any() and page.versions is not None:
                ids = [page.messages.ids[at].encode() for at in np.flatnonzero(is_over).tolist()]
                done = await self._store.cancel(topic, ids, page.versions[is_over])
                count += int(np.count_nonzero(done == Result.CANCELLED))
            next_ms = min(next_ms, int(ends_ms[~is_over].min(initial=next_ms)))
            if page.cursor is None:
                break
            await asyncio.sleep(0)
        if count:
            _log.info("cancelled %d dead messages of %r, kept for %d ms", count, topic, keep_ms)
        return next_ms
