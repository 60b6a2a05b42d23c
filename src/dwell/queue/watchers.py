"""Watchers: callers that wait for what comes of a message.

A store tells the topics whose messages have ended, and not which messages: each watcher of the
topic then looks at its own, all of them in one call of the store.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from dwell.batch.outcome import GONE, Outcome
from dwell.errors import DwellError, StoreClosed
from dwell.queue.gather import Gatherer
from dwell.queue.home import Home
from dwell.queue.spacing import Spacing
from dwell.queue.turns import Turns
from dwell.store.base import RemoteStore, Store

#: The least time between two looks of a topic's watchers, in seconds, after a few that follow each
#: other; and how much longer it is for each watcher, because all of them look.
_SPACING_S, _EACH_S = 0.005, 0.0005
#: How many are told before other tasks run.
_TOLD_AT_ONCE = 100
#: At how many messages one look looks: each may have a result of a megabyte.
_MOST_LOOKS = 100


class Watchers:
    """All watchers of one queue; ``topics`` are the topics that they watch."""

    def __init__(self, store: Store, turns: Turns) -> None:
        self._store = store
        self.looks: Gatherer[str, bytes, Outcome] = Gatherer(self._look, turns)
        self.topics: dict[str, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spacing = Spacing()
        self._due: set[str] = set()

    def open(self, home: Home, most: int) -> None:
        """Take calls, in this event loop; one look asks for ``most`` messages."""
        self._loop = home.loop
        self.looks.open(home, min(most, _MOST_LOOKS))

    async def close(self) -> None:
        """End every wait with StoreClosed."""
        self._loop = None
        for bells in self.topics.values():
            for bell in bells:
                bell.set()
        await self.looks.close()

    async def result(self, topic: str, id_: bytes, wait_ms: int) -> Outcome:
        """Return what came of a message, once it is over or ``wait_ms`` have gone by."""
        if not wait_ms:
            return await self.looks.call(topic, id_)
        if isinstance(self._store, RemoteStore):
            return await self._store.result_waiting(topic, id_, wait_ms)
        over = asyncio.ensure_future(self._store.clock.sleep(wait_ms))
        try:
            with self._watching(topic) as bell:
                return await self._result(topic, id_, over, bell)
        finally:
            over.cancel()

    async def _result(
        self, topic: str, id_: bytes, over: "asyncio.Future[None]", bell: asyncio.Event
    ) -> Outcome:
        was_there = False
        while True:
            bell.clear()
            is_last = over.done()
            outcome = await self.looks.call(topic, id_)
            if outcome.state == "unknown":
                return GONE if was_there else outcome
            if outcome.is_over or is_last:
                return outcome
            was_there = True
            await self._rung(bell, over)
            if self._loop is None:
                raise StoreClosed("the queue was closed while a result was waited for")

    async def _rung(self, bell: asyncio.Event, over: "asyncio.Future[None]") -> None:
        """Return when something has ended, the wait is over, or an end may have gone untold."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(bell.wait()), over]
        if self._store.untold_ms:
            waits.append(asyncio.ensure_future(self._store.clock.sleep(self._store.untold_ms)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                if wait is not over:
                    wait.cancel()

    @contextlib.contextmanager
    def _watching(self, topic: str) -> Iterator[asyncio.Event]:
        bell = asyncio.Event()
        bells = self.topics.setdefault(topic, set())
        bells.add(bell)
        try:
            yield bell
        finally:
            bells.discard(bell)
            if not bells and self.topics.get(topic) is bells:
                del self.topics[topic]

    def ring(self, topic: str) -> None:
        """Have the watchers of a topic look again, now or when the spacing says so."""
        if topic not in self.topics or topic in self._due or self._loop is None:
            return
        now = self._loop.time()
        self._spacing.seconds = max(_SPACING_S, len(self.topics[topic]) * _EACH_S)
        at = self._spacing.spend(topic, now)
        if at <= now:
            self._ring(topic)
        else:
            self._due.add(topic)
            self._loop.call_at(at, self._ring, topic)

    def _ring(self, topic: str) -> None:
        self._due.discard(topic)
        self._tell([*self.topics.get(topic, ())])

    def _tell(self, bells: Sequence[asyncio.Event]) -> None:
        for bell in bells[:_TOLD_AT_ONCE]:
            bell.set()
        if self._loop is not None and (rest := bells[_TOLD_AT_ONCE:]):
            self._loop.call_soon(self._tell, rest)

    async def _look(self, topic: str, ids: Sequence[bytes]) -> Sequence[Outcome | DwellError]:
        return await self._store.results(topic, ids)
