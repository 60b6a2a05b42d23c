"""The takers: the callers that ask and wait for messages, and how they are woken.

A taker asks at once. Takers that ask in one turn of the event loop for the same topics, lease and
owner share one take of the store. A taker that gets nothing and may wait is parked on its topics
until the store reports messages. No wake is lost: a wake that comes during a take makes the takers
of that take ask again, and a wake for a taker that has left is passed on.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Container, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.blobs import total_bytes
from dwell.errors import DwellError, StoreClosed
from dwell.message import MAX_BATCH_BYTES, MAX_BODY_BYTES, U64
from dwell.queue.calling import calling_now
from dwell.queue.gather import Rounds, fail
from dwell.queue.home import Home
from dwell.queue.spacing import Spacing
from dwell.queue.turns import Turns
from dwell.store.base import Store
from dwell.tasks import whole

_log = logging.getLogger(__name__)


class Wish(NamedTuple):
    """The terms of a take, without its limit; takers with equal wishes share a take."""

    topics: tuple[str, ...]
    lease_ms: int
    owner: str


class Taker:
    """One call of take."""

    __slots__ = (
        "future",
        "is_over",
        "is_parked",
        "is_waiting",
        "limit",
        "number",
        "sleeper",
        "wait_ms",
        "was_woken",
        "wish",
    )

    def __init__(
        self, future: "asyncio.Future[Batch]", wish: Wish, limit: int, wait_ms: int | None
    ) -> None:
        self.future = future
        self.wish = wish
        self.limit = limit
        calling = calling_now()
        #: The call number of its request, 0 without one.
        self.number = 0 if calling is None else calling.following
        self.wait_ms = wait_ms
        self.is_over = wait_ms == 0
        self.is_waiting = False
        self.is_parked = False
        self.was_woken = False
        self.sleeper: asyncio.Future[None] | None = None


#: How many topics are soon looked through, one after the other.
_FEW_TOPICS = 8


class Take:
    """Takers with equal wishes, served by one call of the store; ``topics`` are their topics."""

    __slots__ = ("calls", "limit", "takers", "topics", "was_woken", "wish")

    def __init__(self, wish: Wish, takers: Sequence[Taker]) -> None:
        self.wish = wish
        # Each wake looks into them.
        is_wide = len(wish.topics) > _FEW_TOPICS
        self.topics: Container[str] = frozenset(wish.topics) if is_wide else wish.topics
        self.takers = takers
        self.limit = sum(taker.limit for taker in takers)
        #: The call number of each message that may come, if any taker has one.
        self.calls: U64 | None = None
        if any(taker.number for taker in takers):
            numbers = np.array([taker.number for taker in takers], np.uint64)
            self.calls = np.repeat(numbers, [taker.limit for taker in takers])
        self.was_woken = False


class Waiting(Mapping[str, int]):
    """How many takers wait on each topic, as it is whenever it is looked at."""

    def __init__(self, parked: Mapping[str, OrderedDict[Taker, None]]) -> None:
        self._parked = parked

    def __getitem__(self, topic: str) -> int:
        return len(self._parked[topic])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parked)

    def __len__(self) -> int:
        return len(self._parked)

    def __repr__(self) -> str:
        return repr(dict(self))


class Takers:
    """All takers of one queue; ``spacing`` may hold back wakes under a stream of messages."""

    def __init__(self, store: Store, turns: Turns) -> None:
        self.spacing = Spacing()
        self._rounds: Rounds[Wish, Taker] = Rounds(self._take, _lose, turns)
        self._home: Home | None = None
        self._spaced: dict[str, int] = {}
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[Take] = set()
        self._parked: dict[str, OrderedDict[Taker, None]] = {}
        self.waiting = Waiting(self._parked)
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, home: Home, most: int) -> None:
        """Take calls, in this event loop; one call of the store asks for ``most`` messages."""
        self._home, self._loop = home, home.loop
        self._rounds.most = most

    async def close(self) -> None:
        """End every wait with StoreClosed, and return when no take is under way."""
        self._loop = None
        self.fail(closed())
        await self._rounds.settled()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def fail(self, error: Exception) -> None:
        """Fail every parked taker with an error."""
        parked = {taker: None for takers in self._parked.values() for taker in takers}
        self._parked.clear()
        for taker in parked:
            taker.is_parked = False
        fail([taker.future for taker in parked], error)

    async def take(self, wish: Wish, limit: int, wait_ms: int) -> Batch:
        """Return at most ``limit`` messages, empty when ``wait_ms`` went by without any."""
        future = self.ask(wish, limit, wait_ms)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # It was just given something.
                self._give_back(future.result())
            raise

    def ask(self, wish: Wish, limit: int, wait_ms: int | None) -> "asyncio.Future[Batch]":
        """Return the future of a take that waits, for ever if ``wait_ms`` is None.

        Cancel it to leave; if it already has its answer, release the messages in it.
        """
        taker = self._new_taker(wish, limit, wait_ms)
        if wait_ms != 0 and self.would_wait(wish.topics, limit):
            self._let_sleep(taker)
            self._park([taker])
            self.wake(wish.topics[0], min(self._store.ready(wish.topics[0]), limit))
        else:
            self._ask(taker)
        return taker.future

    def would_wait(self, topics: Sequence[str], limit: int) -> bool:
        """Tell whether a taker that may wait would first be parked, to find more when it asks."""
        if not self.spacing.seconds or self._loop is None or len(topics) != 1:
            return False
        ready = self._store.ready(topics[0])
        if not ready or ready >= limit:
            return not ready
        return self.spacing.is_early(topics[0], self._loop.time())

    def _new_taker(self, wish: Wish, limit: int, wait_ms: int | None) -> Taker:
        if self._loop is None or self._home is None:
            raise StoreClosed("the queue is not open")
        self._home.check()
        return Taker(self._loop.create_future(), wish, limit, wait_ms)

    def wake(self, topic: str, count: int) -> None:
        """Wake the takers that have waited longest on a topic, as many as ``count`` needs."""
        for take in self._under_way:
            if topic in take.topics:
                take.was_woken = True
        if topic in self._parked and count:
            self._wake_in_time(topic, count)

    def _wake_in_time(self, topic: str, count: int) -> None:
        """Wake takers now, or when the spacing says so, with all that comes until then."""
        if not self.spacing.seconds or self._loop is None:
            return self._wake_parked(topic, count)
        if topic in self._spaced:
            self._spaced[topic] += count
            return None
        now = self._loop.time()
        at = self.spacing.spend(topic, now)
        if at <= now:
            return self._wake_parked(topic, count)
        self._spaced[topic] = count
        self._loop.call_at(at, self._wake_spaced, topic)
        return None

    def _wake_spaced(self, topic: str) -> None:
        self._wake_parked(topic, self._spaced.pop(topic))

    def _wake_parked(self, topic: str, count: int) -> None:
        while count > 0 and (parked := self._parked.get(topic)):
            taker = next(iter(parked))
            self._unpark(taker)
            taker.was_woken = True
            self._ask(taker)
            count -= taker.limit

    # --- asking -------------------------------------------------------------------------------

    def _ask(self, taker: Taker) -> None:
        self._rounds.add(taker.wish, taker, taker.limit)

    async def _take(self, wish: Wish, takers: Sequence[Taker]) -> None:
        """Ask the store for all takers of a round that have not left."""
        for taker in takers:
            if taker.future.done():
                self._pass_on(taker)
        take = Take(wish, [taker for taker in takers if not taker.future.done()])
        if self._loop is None:
            fail([taker.future for taker in take.takers], closed())
        elif take.takers:
            self._under_way.add(take)
            await self._run(take)

    def _pass_on(self, taker: Taker) -> None:
        """Wake another taker in place of a woken taker that has gone."""
        if taker.was_woken:
            for topic in taker.wish.topics:
                self.wake(topic, taker.limit)

    async def _run(self, take: Take) -> None:
        try:
            batch = await self._ask_store(take)
        except Exception as error:
            fail([taker.future for taker in take.takers], error)
            return self._wake_all(take)
        finally:
            self._under_way.discard(take)
        try:
            return self._hand_out(take, batch)
        except MemoryError as error:
            # No taker may wait for ever; undelivered messages return when their lease ends.
            return fail([taker.future for taker in take.takers], error)

    def _ask_store(self, take: Take) -> Awaitable[Batch]:
        topics, lease_ms, owner = take.wish
        # Only a store that keeps call numbers takes them.
        calls: dict[str, Any] = {} if take.calls is None else {"calls": take.calls}
        return self._store.take(topics, take.limit, lease_ms, owner, **calls)

    def _hand_out(self, take: Take, batch: Batch) -> None:
        at, size = 0, len(batch)
        is_whole = len(take.takers) == 1
        unserved = []
        for taker in take.takers:
            if taker.future.done():
                if take.calls is not None:
                    # Its messages have its number, so no other taker gets them.
                    self._give_back(batch[at : at + taker.limit])
                    at += taker.limit
                continue
            if at < size:
                taker.future.set_result(batch if is_whole else batch[at : at + taker.limit])
                at += taker.limit
            else:
                unserved.append(taker)
        is_cut = size < take.limit and self._is_cut(take, batch, bool(unserved))
        if is_cut:
            for taker in unserved:
                self._ask(taker)
        else:
            self._leave_empty(unserved, take)
        if at < size:
            self._give_back(batch[at:])
        if is_cut or (size == take.limit and len(take.wish.topics) > 1):
            # A full answer may have left messages on a topic whose wake these takers used.
            self._wake_all(take)

    def _is_cut(self, take: Take, batch: Batch, matters: bool) -> bool:
        """Tell whether an answer may be short for its size or topics, and a taker needs more."""
        topics = take.wish.topics
        if not matters and self._parked.keys().isdisjoint(topics):
            return False
        if not any(map(self._store.ready, topics)):
            return False
        if len(batch) and len(topics) > self._store.most_topics:
            return True
        size_bytes = total_bytes(batch.bodies) + total_bytes(batch.extras)
        return size_bytes > MAX_BATCH_BYTES - 2 * MAX_BODY_BYTES

    def _leave_empty(self, takers: list[Taker], take: Take) -> None:
        parking = []
        for taker in takers:
            if taker.is_over:
                taker.future.set_result(Batch.empty())
                continue
            self._let_sleep(taker)
            if take.was_woken or self._loop is None:
                taker.was_woken = True
                self._ask(taker)
            else:
                parking.append(taker)
        self._park(parking)

    def _wake_all(self, take: Take) -> None:
        for topic in take.wish.topics:
            self.wake(topic, take.limit)

    # --- waiting ------------------------------------------------------------------------------

    def _park(self, takers: list[Taker]) -> None:
        """Park takers; takers that were woken for nothing return to the front."""
        back = [taker for taker in takers if taker.was_woken]
        for taker in (*(taker for taker in takers if not taker.was_woken), *reversed(back)):
            taker.is_parked = True
            for topic in taker.wish.topics:
                parked = self._parked.setdefault(topic, OrderedDict())
                parked[taker] = None
                if taker.was_woken:
                    parked.move_to_end(taker, last=False)
            taker.was_woken = False

    def _unpark(self, taker: Taker) -> None:
        taker.is_parked = False
        for topic in taker.wish.topics:
            parked = self._parked[topic]
            del parked[taker]
            if not parked:
                del self._parked[topic]

    def _let_sleep(self, taker: Taker) -> None:
        """Start the timer that ends a taker's wait, unless the wait has ended already."""
        if not taker.is_waiting:
            taker.is_waiting = True
            taker.future.add_done_callback(lambda _: self._forget(taker))
            if taker.wait_ms is not None:
                taker.sleeper = asyncio.ensure_future(self._store.clock.sleep(taker.wait_ms))
                taker.sleeper.add_done_callback(lambda _: self._end_wait(taker))

    def _end_wait(self, taker: Taker) -> None:
        """Make a taker ask for the last time; a taker whose take is under way gets its answer.

        The last take is needed for messages that fall due as the wait ends: no wake may have come
        for them yet.
        """
        taker.is_over = True
        if taker.is_parked:
            self._unpark(taker)
            if not taker.future.done():
                self._ask(taker)

    def _forget(self, taker: Taker) -> None:
        """Cancel the timer of a taker and unpark it: it has its answer, or has left."""
        if taker.sleeper is not None:
            taker.sleeper.cancel()
        if taker.is_parked:
            self._unpark(taker)

    def _give_back(self, batch: Batch) -> None:
        if len(batch):
            self._spawn(self._release(batch))

    async def _release(self, batch: Batch) -> None:
        assert batch.receipts is not None
        try:
            await self._store.release(batch.receipts, 0, None, counted=False)
        except DwellError:
            _log.exception("could not give back %d messages; their leases will end", len(batch))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = whole(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _lose(takers: Sequence[Taker]) -> None:
    for taker in takers:
        taker.future.cancel()


def closed() -> StoreClosed:
    """Return the error of waiting takers when the queue is closed."""
    return StoreClosed("the queue was closed while a taker waited")
