"""Another store of Dwell's as a source, of any kind.

Its ready messages are taken, put and acked. Delayed messages cannot be taken, so they are put, and
cancelled in the version that was put; a message that falls due within seconds is left until it is
ready. A message keeps its id; a queue-made id becomes a caller's id, made of the store's number and
the old id. A store over HTTP tells no versions: there a message is cancelled by its id, even if
it changed in between.
"""

import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.blobs import moved_mark
from dwell.batch.page import Page
from dwell.batch.puts import PUT_ARRAYS, Puts
from dwell.given import values
from dwell.given.scopedid import scoped_id
from dwell.message import QUEUE_ID_MARK, U64, Result, State, TopicSettings
from dwell.queue import Queue
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.queue.schedules.schedule import put_again
from dwell.takeover.contract import MOST_LOOKS, UNSTEADY, Counts, Load, Stayed

_LEASE = "60s"
#: For messages on their last attempt, which are dead when it ends: until then the next takeover
#: goes on with them.
_LAST_LEASE = "24h"
#: For messages that stay: a killed takeover must not keep them from workers for long.
_LEFT_LEASE = "1h"
_STEP = 1_000
#: The takeover waits for a delayed message that falls due sooner: a worker may be about to get it.
_SOON_MS = 5_000
_PROBE = "takeover-probe"
#: How long to wait for ready messages that no take gives because of their topic's settings.
_PATIENCE_S = 5.0
_HELD = "the settings of their topic (rate, most_leased, ordered) hold them back"


async def is_same_store(there: Queue, here: Queue) -> bool:
    """Tell whether two open queues have the same store, under any names.

    A store has a number, and so has a backup of it; a message that is put here and looked up there
    tells those apart.
    """
    if there.store.number != here.store.number:
        return False
    probe = f"probe-{uuid.uuid4()}"
    await here.put(_PROBE, b"", id=probe, delay="1h")
    try:
        return await there.get(_PROBE, probe) is not None
    finally:
        await here.cancel(_PROBE, probe)


class _Lent(NamedTuple):
    """The lent messages: taken, or only read, and then with versions if the store tells them."""

    batch: Batch
    is_taken: bool
    versions: U64 | None = None


def owner_into(target: int) -> str:
    """Return the owner of what takeovers hold for a store of a number."""
    return f"dwell-takeover-{target:08x}"


class HousePlace:
    """All topics of an open queue, or some.

    Each goes to the topic of its name, or all ``into`` one; schedules and records of schedules keep
    their topics.

    Leased messages stay with their takers, and dead messages stay in place. ``target`` is the
    number of the store that they go to: takeovers into another, and workers, have other owners.
    """

    def __init__(
        self,
        queue: Queue,
        topics: Collection[str] = (),
        into: str | None = None,
        target: int = 0,
    ) -> None:
        self._queue = queue
        self._owner = owner_into(target)
        # Ids that a killed takeover has put are known again, however the store is addressed now.
        self._mark = moved_mark(queue.store.number)
        self._wanted = frozenset(map(values.topic, topics))
        self._into = None if into is None else values.topic(into)
        self._round: list[str] = []
        self._is_again = False
        self._held: list[Batch] = []
        self._left: list[Batch] = []
        self._left_ids: set[tuple[str, str]] = set()
        self._changes: Counter[tuple[str, str]] = Counter()
        #: How many ready messages no take gives, and when a take last gave any.
        self._ready, self._lent_s = 0, time.monotonic()

    async def open(self) -> None:
        """Find the topics, and messages that an interrupted takeover still holds."""
        self._round = await self._all_topics()
        held = await self._queue.held(self._owner)
        for topic in self._round:
            mine = [at for at, name in enumerate(held.topics) if name == topic]
            self._held += [held.picked(mine[at : at + _STEP]) for at in range(0, len(mine), _STEP)]

    async def _all_topics(self) -> list[str]:
        return sorted(self._wanted or (await self._queue.stats()).topics)

    async def counts(self) -> Counts:
        """Return the counts of the whole store."""
        stats = await self._queue.stats()
        found, totals = stats.topics.values(), stats.totals
        return Counts(
            delayed=sum(topic.delayed for topic in found),
            ready=sum(topic.ready for topic in found),
            leased=sum(topic.leased for topic in found),
            dead=sum(topic.dead for topic in found),
            came=totals.get("put", 0),
            gone=totals.get("ack", 0) + totals.get("cancel", 0),
        )

    async def settings(self) -> dict[str, TopicSettings]:
        """Return the settings of topics that go to topics of the same names."""
        if self._into is not None:
            return {}
        return {topic: await self._queue.settings(topic) for topic in self._round}

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Take ready messages of a topic, or read its delayed messages; topic after topic."""
        if self._held:
            return [self._load(self._held.pop(), is_taken=True)]
        while self._round:
            load = await self._lend_of(self._round[-1], limit)
            if load is not None:
                self._is_again = True
                self._lent_s = time.monotonic()
                return [load]
            self._round.pop()
        if not self._is_again and await self._is_done():
            await self._release_left()
            return None
        # The next round covers messages that came, or became ready, during this one.
        self._is_again = False
        self._round = await self._all_topics()
        return ()

    async def _is_done(self) -> bool:
        """Tell whether no ready message may be taken soon: a rate gives some each second.

        Ready messages of a paused topic stay.
        """
        stats = (await self._queue.stats()).topics
        ready = {topic: stats[topic].ready for topic in await self._all_topics() if topic in stats}
        self._ready = sum(
            [
                count
                for topic, count in ready.items()
                if count and not (await self._queue.settings(topic)).paused
            ]
        )
        return not self._ready or time.monotonic() - self._lent_s >= _PATIENCE_S

    async def _lend_of(self, topic: str, limit: int) -> Load | None:
        taken = await self._take(topic, limit)
        if len(taken):
            return self._load(taken, is_taken=True)
        page = await self._delayed(topic, limit)
        found = page.messages
        if not len(found) and len(taken := await self._take(topic, limit)):
            # It fell due between the take and the scan.
            return self._load(taken, is_taken=True)
        late = np.flatnonzero(found.due_ms > self._queue.clock.now_ms() + _SOON_MS).tolist()
        if late:
            page = _picked(page, late)
            versions = page.versions if len(page.versions) else None
            return self._load(page.messages, is_taken=False, versions=versions)
        self._is_again = self._is_again or len(found) > 0
        return None

    async def _delayed(self, topic: str, limit: int) -> Page:
        """Return the first delayed messages that may be moved."""
        cursor = None
        while True:
            found = await self._queue.scan(topic, State.DELAYED, limit=limit, cursor=cursor)
            ids, cursor = list(found.messages.ids), found.cursor
            mine = [at for at, id_ in enumerate(ids) if (topic, id_) not in self._left_ids]
            if mine or cursor is None:
                return _picked(found, mine)

    async def _take(self, topic: str, limit: int) -> Batch:
        taken = await self._queue.take(topic, limit, lease=_LEASE, owner=self._owner)
        if len(taken):
            await self._hold_last(taken)
        return taken

    async def _hold_last(self, batch: Batch) -> None:
        """Hold those messages of a topic longer that are on their last attempt."""
        most = (await self._queue.settings(batch.topics[0])).max_attempts
        allowed = np.where(batch.max_attempts, batch.max_attempts, most)
        if last := np.flatnonzero(batch.attempt >= allowed).tolist():
            await self._queue.touch(batch.picked(last), _LAST_LEASE)

    def _load(self, batch: Batch, *, is_taken: bool, versions: U64 | None = None) -> Load:
        bodies, arrays = batch.bodies, {name: getattr(batch, name) for name in PUT_ARRAYS}
        if batch.topics[0] == SCHEDULES:
            bodies, due_ms = zip(*map(put_again, batch), strict=True)
            arrays["due_ms"] = np.array(due_ms, np.int64)
        puts = Puts(
            topic=self._target(batch.topics[0]),
            bodies=bodies,
            ids=[self._id(batch.topics[0], id_).encode() for id_ in batch.ids],
            extras=batch.extras,
            **arrays,
        )
        return Load(puts, _Lent(batch, is_taken, versions))

    def _target(self, topic: str) -> str:
        return topic if self._into is None or _is_of_schedules(topic) else self._into

    def _id(self, topic: str, id_: str) -> str:
        """Return the id of a message here."""
        if id_.startswith(QUEUE_ID_MARK):
            return self._mark + id_[1:]
        return id_ if self._target(topic) == topic else scoped_id(topic, id_)

    async def let_go(self, load: Load, places: Sequence[int]) -> Stayed:
        """Ack taken messages, and cancel the others in the version that was put."""
        batch, is_taken, versions = load.place
        batch = batch.picked(places)
        if is_taken:
            return Stayed(len(batch) - (await self._queue.ack(batch)).count(Result.ACKED))
        topic, ids = batch.topics[0], list(batch.ids)
        seen = None if versions is None else versions[list(places)]
        results = (await self._queue.cancel(topic, ids, versions=seen)).codes
        left = np.flatnonzero(results != Result.CANCELLED).tolist()
        if not left:
            return Stayed()
        found = await self._queue.get(topic, [batch.ids[at] for at in left])
        pairs = zip(left, found, strict=True)
        # Another message of the same id is not another version of it.
        numbers = batch.numbers.tolist()
        changed = [at for at, one in pairs if one is not None and one.number == numbers[at]]
        self._changes.update((topic, batch.ids[at]) for at in changed)
        self._left_ids |= self._unsteady()
        return Stayed(len(left) - len(changed), [places[at] for at in changed])

    async def take_back(self, load: Load, places: Sequence[int]) -> None:
        """Release taken messages, unchanged."""
        batch, is_taken, _ = load.place
        if is_taken:
            await self._queue.release(batch.picked(places), 0, counted=False)

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Hold taken messages until the end, because a take would give them again; skip others."""
        batch, is_taken, _ = load.place
        batch = batch.picked(places)
        if is_taken:
            await self._queue.touch(batch, _LEFT_LEASE)
            await self._hold_last(batch)
            self._left.append(batch)
        else:
            self._left_ids |= {(batch.topics[0], id_) for id_ in batch.ids}

    def _unsteady(self) -> set[tuple[str, str]]:
        return {which for which, count in self._changes.items() if count >= MOST_LOOKS}

    async def held_back(self) -> Mapping[str, int]:
        """Return how many ready messages were not given, or changed each time they were lent."""
        return {_HELD: self._ready, UNSTEADY: len(self._unsteady())}

    async def _release_left(self) -> None:
        left, self._left = self._left, []
        for batch in left:
            await self._queue.release(batch, 0, counted=False)

    async def close(self) -> None:
        """Give held messages back; the caller closes the queue."""
        await self._release_left()


def _is_of_schedules(topic: str) -> bool:
    return topic == SCHEDULES or topic.startswith(f"{SCHEDULES}:")


def _picked(page: Page, places: Sequence[int]) -> Page:
    """Return some messages of a page, with their versions if the store tells them."""
    versions = page.versions[list(places)] if len(page.versions) else page.versions
    return Page(page.messages.picked(places), page.cursor, versions)
