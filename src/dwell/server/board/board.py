"""The board: topics with their counts, rates and lateness, the coming load, and the lease owners.

Its cost does not depend on the number of viewers, and is at most a few hundredths of a core.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec

from dwell.batch.spans import Spans
from dwell.batch.stats import Holder, Stats, TopicStats
from dwell.message import I64, Kind, TopicSettings
from dwell.queue import Queue
from dwell.server.board.recent import NOTHING, Lately, lately
from dwell.server.board.shared import Shared, SharedBy
from dwell.server.largest import largest
from dwell.server.sorting import in_order

#: How many holders are known at most.
MOST_HOLDERS = 1000
#: The topics with most waiting takers that are named.
MOST_WAITING = 1000
#: How long results are kept at least.
_COUNTS_S, _RECENT_S, _PASS_S, _SETTINGS_S, _WAITING_S = 0.4, 1.0, 1.0, 2.0, 0.3
#: The part of the time that it may take to count the coming load, and to make rows of all topics.
_LOAD_PART, _ROWS_PART = 0.02, 0.02
#: How long a view is kept at least, and the part of the time that all views may take.
_SHOWN_S, _SHOWN_PART = 0.1, 0.1
#: How many rows are made before other tasks run, and how many overviews are kept.
_AT_ONCE, _MOST_SHOWN = 1000, 64
#: Of how many topics the settings are kept: of many more than one overview has.
_MOST_SETTINGS = 2000


class TopicRow(msgspec.Struct):
    """A topic: counts, events a second, lateness of first takes, and its oldest ready message.

    Rates and lateness cover the last half minute, or the last 10,000 events if these are fewer.
    ``oldest_ms`` is when the longest waiting message fell due; ``waiting`` counts takers.
    """

    name: str
    delayed: int
    ready: int
    leased: int
    dead: int
    put_rate: float
    take_rate: float
    ack_rate: float
    late_p50_ms: int | None
    late_p99_ms: int | None
    oldest_ms: int | None
    waiting: int
    paused: bool = False


class Sums(msgspec.Struct):
    """Counts and rates of all topics that one may see and that match."""

    topics: int = 0
    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0
    waiting: int = 0
    put_rate: float = 0.0
    take_rate: float = 0.0
    ack_rate: float = 0.0


class Overview(msgspec.Struct):
    """Some topics in an order, and the sums of all; ``next`` is the offset of the rest, or null."""

    sums: Sums
    topics: list[TopicRow]
    next: int | None


class HoldersAnswer(msgspec.Struct):
    """Who has how many messages under lease, most first, and how many takers wait, by topic.

    ``waiting`` has the 1,000 topics with most takers, and ``waiting_others`` is the sum of the
    others; a taker counts on each topic on which it waits.
    """

    holders: list[Holder]
    waiting: dict[str, int]
    waiting_others: int = 0


#: How many takers wait on which topics, and on all others together.
Waiting: TypeAlias = tuple[dict[str, int], int]


class Look(msgspec.Struct, frozen=True):
    """The view of a caller: prefixes and a part of the names, the order, and the page."""

    prefixes: tuple[str, ...]
    match: str = ""
    sort: str = "name"
    offset: int = 0
    limit: int = 50


#: The topics to count, or all topics with the prefixes if no topic is given; and the spans.
Counted: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], Spans]

_SUMMED = [name for name in Sums.__struct_fields__ if name != "topics"]


class Board:
    """The data that all viewers of a queue share; ``whose`` is the name of a viewer's token."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._stats: Shared[Stats] = Shared(queue.stats, _COUNTS_S)
        self._lately: Shared[dict[str, Lately]] = Shared(partial(lately, queue), _RECENT_S)
        self._oldest: Shared[dict[str, int]] = Shared(queue.oldest_ready, _PASS_S)
        self._holders: SharedBy[tuple[str, ...], list[Holder]] = SharedBy(self._held, _PASS_S)
        self._waiting: SharedBy[tuple[str, ...], Waiting] = SharedBy(self._parked, _WAITING_S)
        self._settings: SharedBy[str, TopicSettings] = SharedBy(
            queue.settings, _SETTINGS_S, most_kept=_MOST_SETTINGS
        )
        self._load: SharedBy[Counted, I64] = SharedBy(self.count, _PASS_S, _LOAD_PART)
        self._rows: Shared[list[TopicRow]] = Shared(self._made, _COUNTS_S, _ROWS_PART)
        self._shown: SharedBy[Look, Overview] = SharedBy(self._part, _SHOWN_S, _SHOWN_PART)
        self._told: dict[Look, tuple[Overview, msgspec.Raw]] = {}
        self._held_told: dict[tuple[str, ...], tuple[list[Holder], Waiting, msgspec.Raw]] = {}
        #: How many streams show it.
        self.watchers = 0

    async def overview(self, look: Look, whose: str = "") -> Overview:
        """Return some topics, and the sums of all that one may see."""
        # Waiting for these must not count as time of making and selecting rows.
        await self._stats.get()
        await self._lately.get()
        await self._oldest.get()
        await self._rows.get()
        return await self._shown.get(look, whose)

    async def told(self, look: Look, whose: str = "") -> msgspec.Raw:
        """Return the overview in JSON, which is encoded once for all viewers."""
        overview = await self.overview(look, whose)
        told = self._told.get(look)
        if told is None or told[0] is not overview:
            if len(self._told) >= _MOST_SHOWN:
                self._told.clear()
            told = self._told[look] = overview, msgspec.Raw(msgspec.json.encode(overview))
        return told[1]

    async def holders(self, prefixes: tuple[str, ...], whose: str = "") -> msgspec.Raw:
        """Return who has messages of such topics under lease, and how many takers wait, in JSON.

        It is written once for all who look at it.
        """
        held = await self._holders.get(prefixes, whose)
        waiting = await self.waiting(prefixes, whose)
        told = self._held_told.get(prefixes)
        if told is None or told[0] is not held or told[1] is not waiting:
            data = msgspec.Raw(msgspec.json.encode(HoldersAnswer(held, *waiting)))
            if told is not None and told[2] == data:
                data = told[2]
            if len(self._held_told) >= _MOST_SHOWN:
                self._held_told.clear()
            told = self._held_told[prefixes] = held, waiting, data
        return told[2]

    async def waiting(self, prefixes: tuple[str, ...], whose: str = "") -> Waiting:
        """Return how many takers wait on which topics, those with most, and on all others."""
        return await self._waiting.get(prefixes, whose)

    def _parked(self, prefixes: tuple[str, ...]) -> Coroutine[Any, Any, Waiting]:
        return largest(self._queue.waiting, MOST_WAITING, prefixes)

    def _held(self, prefixes: tuple[str, ...]) -> Any:
        return self._queue.holders(MOST_HOLDERS, prefixes=prefixes)

    async def load(self, what: Counted, whose: str = "") -> I64:
        """Return how many delayed messages fall due in each span, as they were a little ago."""
        return await self._load.get(what, whose)

    async def count(self, what: Counted) -> I64:
        """Return how many delayed messages fall due in each span, now."""
        topics, prefixes, spans = what
        if not topics and "" not in prefixes:
            there = (await self._queue.stats()).topics
            topics = tuple(name for name in there if name.startswith(prefixes))
            if not topics:
                return spans.none()
        return await self._queue.store.count_due(topics, spans)

    async def _made(self) -> list[TopicRow]:
        """Return a row for each topic; yields to other tasks if there are very many."""
        stats = await self._stats.get()
        recent, oldest = await self._lately.get(), await self._oldest.get()
        waiting, rows = self._queue.waiting, list[TopicRow]()
        for name, counts in stats.topics.items():
            rows.append(_row(name, counts, recent.get(name, NOTHING), oldest.get(name), waiting))
            if len(rows) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return rows

    async def _part(self, look: Look) -> Overview:
        rows = await _seen(await self._rows.get(), look)
        rows = await in_order(rows, _ORDERS.get(look.sort, partial(_less_of, look.sort)))
        end = look.offset + look.limit
        part = [
            msgspec.structs.replace(row, paused=(await self._settings.get(row.name)).paused)
            for row in rows[look.offset : end]
        ]
        return Overview(await _sums(rows), part, end if end < len(rows) else None)


async def _seen(rows: list[TopicRow], look: Look) -> list[TopicRow]:
    """Return the rows that a view shows; yields to other tasks."""
    seen: list[TopicRow] = []
    for at in range(0, len(rows), _AT_ONCE):
        seen += (
            row
            for row in rows[at : at + _AT_ONCE]
            if row.name.startswith(look.prefixes) and look.match in row.name
        )
        await asyncio.sleep(0)
    return seen


#: The orders of topics other than by one of their numbers.
_ORDERS: dict[str, Callable[[TopicRow], tuple[float, str]]] = {
    "name": lambda row: (0, row.name),
    "oldest": lambda row: (row.oldest_ms or 2**62, row.name),
}


def _less_of(sort: str, row: TopicRow) -> tuple[float, str]:
    """Return a sort key that puts the largest values first."""
    return -(getattr(row, sort) or 0), row.name


def _row(
    name: str, counts: TopicStats, recent: Lately, oldest_ms: int | None, waiting: Mapping[str, int]
) -> TopicRow:
    return TopicRow(
        name,
        counts.delayed,
        counts.ready,
        counts.leased,
        counts.dead,
        round(recent.rates[Kind.PUT] + recent.rates[Kind.REPLACE], 1),
        round(recent.rates[Kind.TAKE], 1),
        round(recent.rates[Kind.ACK], 1),
        recent.late_p50_ms,
        recent.late_p99_ms,
        oldest_ms if counts.ready else None,
        waiting.get(name, 0),
    )


async def _sums(rows: list[TopicRow]) -> Sums:
    totals = dict.fromkeys(_SUMMED, 0.0)
    for at in range(0, len(rows), _AT_ONCE):
        for name in _SUMMED:
            totals[name] += sum(getattr(row, name) for row in rows[at : at + _AT_ONCE])
        await asyncio.sleep(0)
    sums = Sums(len(rows))
    for name, total in totals.items():
        setattr(sums, name, round(total, 1))
    return sums
