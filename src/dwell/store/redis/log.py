"""The log: all events of a store in one order, whose positions have no gap.

A store of one shard has its events in that shard. In a store of several shards, each has its own,
and a reader moves the new events of all shards into one log, in the first shard: each step names
the position that the last step reached, so that concurrent instances move nothing twice. A shard
keeps a limited number of events, moved or not: events that it dropped too early leave a gap in the
log, which readers see as events that are no longer kept. The same holds for moved events that the
shard has lost since, because its engine restarted with older data.

A position has the name of the life of the shard in which the event before it happened: another name
at the same position means that the earlier events differ.
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
    """Some events of a shard: ``oldest`` is the first kept position, ``end`` is behind the last."""

    entries: list[Entry]
    oldest: int
    end: int
    lives: list[Life]

    def name(self, position: int) -> str:
        """Return the name of the life of the event before a position; empty without such an event.

        A position beyond the end means that the reader saw events that are lost: they are not of
        the last life.
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
        # For a position within a gap, the events begin behind the gap.
        first = start if start > position else found.oldest
        following = start + len(events)
        return EventPage(
            events, following, first, ends, found.name(position), found.name(following)
        )

    async def begin(self) -> None:
        """Start the log with the events of the only shard so far."""
        oldest = (await self._events(0, 0, 0, "events")).oldest
        engine = self._shards.engine
        await engine.ask("HSETNX", engine.keys(0).meta, "logged", oldest)
        await engine.ask("HSETNX", engine.keys(0).gathered, "0", oldest)

    async def gather(self) -> None:
        """Move the events of all shards until now into the log."""
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
        # Events that the shard dropped before they were read leave a gap of as many positions.
        lost = undone + max(found.oldest - start, 0)
        if not entries and not lost:
            return False
        ends = entries[-1].first + entries[-1].count if entries else max(start, found.oldest)
        parts = [part for entry in entries for part in (entry.count, entry.time_ms, entry.text)]
        told = (shard, moved, ends, found.lives[-1].name, lost)
        answer = await self._shards.run(0, "gather", *told, *parts)
        # Another instance that was first may have moved less than this one has read.
        if answer.values[0] == b"ok":
            await self._shards.run(shard, "trim", ends)
        return True


def _lives(names: list[Any]) -> list[Life]:
    return [Life(name.decode(), int(start or 0)) for name, start in tuples(names, 2)]


def _end_of(lives: list[Life], name: str, position: int) -> int:
    """Return the end of the events of a life that still exist.

    For an unknown life that is the start of the last life.
    """
    for life, following in pairwise(lives):
        if life.name == name:
            return following.start
    return position if not name or lives[-1].name == name else lives[-1].start
