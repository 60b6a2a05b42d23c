"""The log: all events of a store in one order, whose positions have no gap.

A store of one shard has its events in that shard. Of several, each has its own, and whoever reads
moves what is new there into one log, in the first shard: each step says up to where it was moved
before, so that instances that do it at once move nothing twice. A shard keeps only so many events,
moved or not: those that it dropped too early are a gap in the one log, which its readers are told
of as of events that are no longer kept.
"""

from dwell.batch.events import EventPage
from dwell.store.redis.events import Columns, entries_of, whole
from dwell.store.redis.shards import Shards


class Log:
    """Reads the events of a store."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def page(self, position: int, limit: int) -> EventPage:
        """Return at most ``limit`` events from ``position`` on."""
        is_one = self._shards.count == 1
        if not is_one:
            await self.gather()
        answer = await self._shards.run(0, "events", position, limit, "events" if is_one else "log")
        found, oldest, ends = answer.values
        entries, start = whole(entries_of(found), max(position, oldest), ends if limit else 0)
        columns = Columns()
        for entry in entries:
            columns.add(entry)
        events = columns.events(start, limit)
        # To who asks within a gap, what is kept begins behind it.
        first = start if start > position else oldest
        following, name = start + len(events), f"{self._shards.history:08x}"
        since, history = (name if 0 < at <= ends else "" for at in (position, following))
        return EventPage(events, following, first, ends, since, history)

    async def begin(self) -> None:
        """Let the log go on where the events of the one shard that there was are."""
        answer = await self._shards.run(0, "events", 0, 0, "events")
        _, oldest, _ = answer.values
        engine = self._shards.engine
        await engine.ask("HSETNX", engine.keys(0).meta, "logged", oldest)
        await engine.ask("HSETNX", engine.keys(0).gathered, "0", oldest)

    async def gather(self) -> None:
        """Move what happened in each shard until now into the log."""
        for shard in range(self._shards.count):
            while await self._gather_some(shard):
                pass

    async def _gather_some(self, shard: int) -> bool:
        """Move some events of a shard; tell whether there may be more."""
        answer = await self._shards.run(0, "gathered", shard)
        moved = int(answer.values[0])
        most = self._shards.limits.moved
        answer = await self._shards.run(shard, "events", moved, most, "events")
        found, oldest, _ = answer.values
        entries = entries_of(found)
        # What the shard has dropped before anybody read it leaves a gap of as many positions.
        lost = max(oldest - moved, 0)
        if not entries and not lost:
            return False
        ends = entries[-1].first + entries[-1].count if entries else moved + lost
        parts = [part for entry in entries for part in (entry.count, entry.time_ms, entry.text)]
        await self._shards.run(0, "gather", shard, moved, ends, lost, *parts)
        await self._shards.run(shard, "trim", ends)
        return True
