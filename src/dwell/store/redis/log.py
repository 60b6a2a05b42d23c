"""The log: all events of a store in one order, whose positions have no gap.

A store of one shard has its events in that shard. Of several, each has its own, and whoever reads
moves what is new there into one log, in the first shard: each step says up to where it was moved
before, so that instances that do it at once move nothing twice. A shard keeps only so many events,
moved or not: those that it dropped too early are a gap in the one log, which its readers are told
of as of events that are no longer kept. So are those that were moved and that the shard has lost
since, as its engine came back with older data.

A position has the name of the life of the shard in which the event before it happened: another name
for the same position says that the events up to it are others.
"""

from itertools import pairwise
from typing import Any, NamedTuple

from dwell.batch.events import EventPage
from dwell.slices import tuples
from dwell.store.redis.events import Columns, Entry, entries_of, whole
from dwell.store.redis.shards import Shards


class Life(NamedTuple):
    """A life of a shard, and the position of its first event."""

    name: str
    start: int


class Events(NamedTuple):
    """Some events of a shard: ``oldest`` is the first that is kept, ``end`` behind the last."""

    entries: list[Entry]
    oldest: int
    end: int
    lives: list[Life]

    def name(self, position: int) -> str:
        """Return the name of the life of the event before a position; nothing where none is.

        Who stands beyond the end read events that are lost: the last life is not theirs.
        """
        return next((life.name for life in reversed(self.lives) if life.start < position), "")


class Log:
    """Reads the events of a store."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def page(self, position: int, limit: int) -> EventPage:
        """Return at most ``limit`` events from ``position`` on."""
        is_one = self._shards.count == 1
        if not is_one:
            await self.gather()
        found = await self._events(0, position, limit, "events" if is_one else "log")
        ends = found.end
        entries, start = whole(found.entries, max(position, found.oldest), ends if limit else 0)
        columns = Columns()
        for entry in entries:
            columns.add(entry)
        events = columns.events(start, limit)
        # To who asks within a gap, what is kept begins behind it.
        first = start if start > position else found.oldest
        following = start + len(events)
        return EventPage(
            events, following, first, ends, found.name(position), found.name(following)
        )

    async def begin(self) -> None:
        """Let the log go on where the events of the one shard that there was are."""
        oldest = (await self._events(0, 0, 0, "events")).oldest
        engine = self._shards.engine
        await engine.ask("HSETNX", engine.keys(0).meta, "logged", oldest)
        await engine.ask("HSETNX", engine.keys(0).gathered, "0", oldest)

    async def gather(self) -> None:
        """Move what happened in each shard until now into the log."""
        for shard in range(self._shards.count):
            while await self._gather_some(shard):
                pass

    async def _events(self, shard: int, position: int, limit: int, stream: str) -> Events:
        answer = await self._shards.run(shard, "events", position, limit, stream)
        found, oldest, end, names = answer.values
        return Events(entries_of(found), oldest, end, _lives(names))

    async def _gather_some(self, shard: int) -> bool:
        """Move some events of a shard; tell whether there may be more."""
        answer = await self._shards.run(0, "gathered", shard)
        moved: bytes = answer.values[0]
        position, _, name = moved.decode().partition(":")
        start, undone = int(position), 0
        most = self._shards.limits.moved
        found = await self._events(shard, start, most, "events")
        lost_at = _end_of(found.lives, name, start)
        if start > lost_at:
            start, undone = lost_at, start - lost_at
            found = await self._events(shard, start, most, "events")
        entries = found.entries
        # What the shard has dropped before anybody read it leaves a gap of as many positions.
        lost = undone + max(found.oldest - start, 0)
        if not entries and not lost:
            return False
        ends = entries[-1].first + entries[-1].count if entries else max(start, found.oldest)
        parts = [part for entry in entries for part in (entry.count, entry.time_ms, entry.text)]
        told = (shard, moved, ends, found.lives[-1].name, lost)
        answer = await self._shards.run(0, "gather", *told, *parts)
        # Where another instance was first it may have moved less than what was read here.
        if answer.values[0] == b"ok":
            await self._shards.run(shard, "trim", ends)
        return True


def _lives(names: list[Any]) -> list[Life]:
    return [Life(name.decode(), int(start or 0)) for name, start in tuples(names, 2)]


def _end_of(lives: list[Life], name: str, position: int) -> int:
    """Return up to which position the events of a life are still there.

    Of a life that is not known any more that is where the last one begins.
    """
    for life, following in pairwise(lives):
        if life.name == name:
            return following.start
    return position if not name or lives[-1].name == name else lives[-1].start
