"""The store on Redis: every verb is one function on each shard that it touches."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import msgspec
import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.events import EventPage
from dwell.batch.outcome import Outcome
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import PutAnswer, Puts
from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder, Stale, Stats, TopicStats
from dwell.batch.sweep import Sweep, Wanted
from dwell.clock import Clock
from dwell.errors import StoreDamaged
from dwell.message import (
    I64,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    U8,
    U64,
    Kind,
    Message,
    State,
    TopicSettings,
)
from dwell.slices import places as places_of_size
from dwell.slices import slices, tuples
from dwell.store.base import AckResults, Delays, Errors, Store
from dwell.store.holding import most_held
from dwell.store.redis.counting import condition_of, counts_of, due_of, leases_of, oldest_of
from dwell.store.redis.log import Log
from dwell.store.redis.numbers import MOST_SHARDS, Group, shard_of, shares, split
from dwell.store.redis.options import options_of
from dwell.store.redis.putting import Putter
from dwell.store.redis.records import (
    Leased,
    Row,
    batch_of,
    is_of_block,
    place_of,
    versions_of,
)
from dwell.store.redis.results import ENDED_MARK, ack_with, outcomes
from dwell.store.redis.scanning import Scanner
from dwell.store.redis.settling import Settling
from dwell.store.redis.shards import Shards, all_of, parts_of
from dwell.store.redis.stale import StaleFinder
from dwell.store.redis.taking import Taking, blocks_of
from dwell.store.redis.ticking import Ticks

#: A message whose wake was lost is found by a tick, this long after it at the latest.
_FALLBACK_MS = 1_000
#: For how long a topic counts as watched after somebody has looked.
_WATCH_MS = 5 * _FALLBACK_MS
#: How many topics are counted by due at a time, with one call each in flight.
_TOPICS_AT_ONCE = 32
#: An upper bound of n in a shard.
_MOST_N = 2**45


#: How many places of held messages are read at once: a page may have this many more.
_PLACES_AT_ONCE = 16
#: About how many bytes one command reads past the functions.
_READ_BYTES = 4 << 20


class RedisStore(Store):
    """A store on Redis 7 or Valkey, for any number of instances.

    ``url`` is ``redis://host:6379/0``, ``rediss://`` (TLS), ``redis+sentinel://host:26379/service``
    or ``redis+cluster://host:6379``; ``valkey`` may stand for ``redis``. Its query may give the
    options: ``shards`` is the number of parts (1 when the store is made, later the number it was
    made with), ``home`` the shard that this instance takes from first, ``prefix`` the start of
    every key. ``min_replicas`` is how many replicas must have a change before it is answered.
    ``timeout`` is how many seconds a verb tries to reach the engine. Each shard keeps about
    ``max_events`` events. ``ca`` is a file of certificates to trust. Messages of one put that are
    alike are kept in blocks, from ``packed`` of them on.

    With a real clock, the engine's time is used. ``shards`` are its connections, shard by shard.
    """

    is_shared = True
    most_joined = 4000
    untold_ms = _FALLBACK_MS

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        self.shards = Shards(
            options_of(url, options),
            clock,
            self._heard,
            lambda: self.plan(),
            self._agree,
        )
        self.clock = self.shards.clock
        self._putter = Putter(self.shards)
        self._scanner = Scanner(self.shards)
        self._log = Log(self.shards)
        self._taking = Taking(self.shards)
        self._settling = Settling(self.shards)
        self._ticks = Ticks(
            self.shards, lambda topic, count: self.wake(topic, count), self._settling.begin
        )
        self._limits = self.shards.limits

    @property
    def commands(self) -> int:
        """How many commands were sent to the engine."""
        return self.shards.engine.commands

    async def is_made(self) -> bool:
        """Connect, and tell whether instances have agreed on a store there."""
        return await self.shards.is_made()

    async def open(self) -> None:
        """Connect, and read or make the agreement of all instances; raises StoreError."""
        await self.shards.open()

    def _agree(self) -> None:
        self.number, self.secret = self.shards.number, self.shards.secret
        self.parts_ids = self.shards.count > 1

    async def close(self) -> None:
        """Settle the debts that can be settled at once; disconnect from the engine."""
        await self._ticks.close()
        await self._settling.close()
        await self._taking.close()
        await self.shards.close()

    def _heard(self, topic: str, count: int) -> None:
        """Wake takers of a topic, or those who wait for ends in it."""
        if not topic.startswith(ENDED_MARK):
            self.wake(topic, count)
        elif topic[1:] in self.watched():
            self.ended(topic[1:])

    def check(self) -> None:
        """Raise StoreClosed unless the store is open."""
        self.shards.engine.check()

    # --- put and take -------------------------------------------------------------------------

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages; each of several shards puts its own part."""
        self.check()
        return await self._putter.put(puts, on_conflict)

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease ready messages, from the home shard first, then from the others."""
        self.check()
        return await self._taking.take(topics, limit, lease_ms, owner)

    def ready(self, topic: str) -> int:
        """Return the largest count that can be asked for: only the engine knows the real one."""
        return MAX_BATCH_MESSAGES

    async def with_ready(self, topics: Sequence[str]) -> list[str]:
        """Return the topics with messages that could be taken now."""
        self.check()
        found = await self._ticks.ready_of(topics)
        return [topic for topic in topics if topic in found]

    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None = None,
    ) -> Batch:
        """Lease some messages by id, if they are ready."""
        self.check()
        return await self._taking.take_ids(topic, ids, lease_ms, owner, versions)

    async def peek(self, topic: str, limit: int) -> Batch:
        """Return the ready messages that a take would give first."""
        return await self._scanner.first(topic, limit)

    async def held(self, owner: str) -> Batch:
        """Return again the messages that an owner holds."""
        self.check()
        leased, loop = Leased(self.number), asyncio.get_running_loop()
        for shard in range(self.shards.count):
            entries, now_ms = await self._entries_held(shard, owner)
            found = await self._held(shard, entries)
            leased.add(shard, found.items(), now_ms, loop.time())
        return leased.held(self.shards.clock_of)

    async def held_page(self, owner: str, cursor: Cursor | None, limit: int) -> Page:
        """Return a page of held messages, by shard and place; a cursor names both."""
        self.check()
        leased, loop = Leased(self.number), asyncio.get_running_loop()
        first, after = (0, -1) if cursor is None else (cursor.due_ms, cursor.arrival)
        for shard in range(first, self.shards.count):
            entries, now_ms = await self._entries_held(shard, owner)
            left = [entry for entry in entries if place_of(entry) > after or shard > first]
            # A former block may be loose at the next page, and is recognised by its place.
            left.sort(key=lambda entry: (place_of(entry), not is_of_block(entry)))
            places = [list(group) for _, group in groupby(left, key=place_of)]
            for some in slices(places, _PLACES_AT_ONCE):
                found = await self._held(shard, {of: entries[of] for of in chain(*some)})
                leased.add(shard, found.items(), now_ms, loop.time())
                if len(leased) >= limit or leased.size_bytes >= MAX_BATCH_BYTES:
                    following = Cursor(shard, place_of(some[-1][0]))
                    return Page(leased.held(self.shards.clock_of), following)
        return Page(leased.held(self.shards.clock_of), None)

    async def _entries_held(self, shard: int, owner: str) -> tuple[dict[bytes, int], int]:
        """Return the entries of an owner's messages in a shard with their sizes, and its time."""
        where, entries = 0, dict[bytes, int]()
        later: Sequence[bytes] = ()
        while True:
            # Names that were left for later do not move the cursor.
            answer = await self.shards.run(shard, "held", owner, where, *later)
            some, sizes, later, where = answer.values
            entries.update(zip(some, sizes, strict=True))
            if not where and not later:
                return entries, answer.now_ms

    async def _held(self, shard: int, entries: Mapping[bytes, int]) -> dict[bytes, bytes | None]:
        """Return the texts of leased messages."""
        found = await blocks_of(self.shards, shard, [*entries])
        others = [entry for entry in entries if not is_of_block(entry)]
        name = self.shards.engine.keys(shard).messages
        for some in self._parts(others, entries):
            texts = await self.shards.engine.ask("HMGET", name, *[e[:7] for e in some])
            found |= dict(zip(some, texts, strict=True))
        return found

    def _parts(self, entries: list[bytes], sizes: Mapping[bytes, int]) -> Iterator[list[bytes]]:
        """Yield entries in parts that one command reads soon."""
        least = _READ_BYTES // self._limits.read
        costs = (sizes[entry] + least for entry in entries)
        return (
            (entries[part] for part in places_of_size(costs, _READ_BYTES)) if entries else iter(())
        )

    # --- by receipt ---------------------------------------------------------------------------

    def away_of_receipt(self, receipt: bytes) -> int:
        """Return 1 more than the shard of a receipt, if it does not answer; else 0."""
        # The last byte of the message's number.
        return receipt[-1] + 1 if receipt[-1] in self.shards.away else 0

    async def ack(self, receipts: U64, results: AckResults = None, then: Puts | None = None) -> U8:
        """Delete messages that are done."""
        if then is not None:
            self.check()
            (result,) = [None] if results is None else results
            return await self._putter.ack_then(receipts, result, then)
        if results is None:
            return await self._by_receipt("ack", receipts, self._limits.acks)
        self.check()
        return await ack_with(self.shards, receipts, results)

    async def release(
        self,
        receipts: U64,
        delay_ms: Delays,
        error: Errors,
        *,
        counted: bool,
        priority: int | None = None,
    ) -> U8:
        """Give messages back."""
        self.check()
        how = (int(counted), b"" if priority is None else priority)

        def own(part: Sequence[Group]) -> tuple[object, ...]:
            return (_delays(delay_ms, part), _errors(error, part), *how)

        return await self.shards.by_receipt("release", receipts, self._limits.receipts, own)

    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Move the ends of leases."""
        return await self._by_receipt("touch", receipts, self._limits.receipts, lease_ms)

    async def bury(self, receipts: U64, reason: str | None, *, priority: int | None = None) -> U8:
        """Set messages aside as dead."""
        own = (b"" if priority is None else priority, *_text(reason))
        return await self._by_receipt("bury", receipts, self._limits.receipts, *own)

    async def _by_receipt(self, verb: str, receipts: U64, most: int, *own: object) -> U8:
        self.check()
        return await self.shards.by_receipt(verb, receipts, most, lambda _: own)

    async def taken_from(self, receipts: U64) -> list[str | None]:
        """Return the topic of the message of each receipt, or None where that is no longer good."""
        self.check()
        topics: list[str | None] = [None] * len(receipts)
        for shard, groups in self.shards.groups(receipts).items():
            for part in parts_of(groups, self._limits.read):
                texts = [group.text for group in part]
                answer = await self.shards.run(shard, "taken_from", *texts)
                found = iter(answer.values[0])
                for group in part:
                    names = [next(found).decode() or None for _ in range(group.start, group.stop)]
                    topics[group.start : group.stop] = names
        return topics

    # --- by id --------------------------------------------------------------------------------

    def away_of_id(self, id_: bytes) -> int:
        """Return 1 more than the shard of an id, if it does not answer; else 0."""
        shard = shard_of(id_, self.shards.count) if self.shards.away else -1
        return shard + 1 if shard in self.shards.away else 0

    async def kick(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Bring dead messages back."""
        return await self._by_due("kick", topic, ids, due_ms, versions)

    async def cancel(self, topic: str, ids: Sequence[bytes], versions: U64 | None = None) -> U8:
        """Delete messages that are not leased."""
        self.check()
        return await self.shards.by_id("cancel", topic, ids, versions, lambda _: ())

    async def reschedule(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Change when messages fall due."""
        return await self._by_due("reschedule", topic, ids, due_ms, versions)

    async def _by_due(
        self, verb: str, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None
    ) -> U8:
        self.check()
        dues = _times(due_ms)
        return await self.shards.by_id(
            verb, topic, ids, versions, lambda places: (dues[places].tobytes(),)
        )

    async def get(self, topic: str, ids: Sequence[bytes]) -> list[Message | None]:
        """Return messages by id."""
        found: dict[str, Row] = {}

        async def ask(shard: int, some: Sequence[bytes]) -> None:
            while some:
                answer = await self.shards.run(shard, "get", topic, *some)
                found.update((row.id, row) for row in self.shards.rows(shard, answer))
                some = some[len(answer.values[0]) // 2 :]

        await self.shards.everywhere(ids, ask)
        messages = {message.id: message for message in batch_of(list(found.values()))}
        return [messages.get(id_.decode()) for id_ in ids]

    async def results(self, topic: str, ids: Sequence[bytes]) -> list[Outcome | StoreDamaged]:
        """Return what came of messages."""
        self.check()
        watch_ms = _WATCH_MS if topic in self.watched() else 0
        return list(await outcomes(self.shards, topic, ids, watch_ms))

    async def named(self, numbers: U64) -> list[tuple[str, str] | None]:
        """Return topic and id of the message of each number."""
        self.check()
        names: list[tuple[str, str] | None] = [None] * len(numbers)
        pairs = [split(value) for value in numbers.tolist()]
        for shard, places in shares([shard for _, shard in pairs]).items():
            there = [at for at in places if pairs[at][0] < _MOST_N and shard < self.shards.count]
            for some in slices(there, self._limits.read):
                answer = await self.shards.run(shard, "named", *[pairs[at][0] for at in some])
                for place, (topic, id_) in zip(some, tuples(answer.values[0], 2), strict=True):
                    names[place] = (topic.decode(), id_.decode()) if topic is not None else None
        return names

    # --- looking ------------------------------------------------------------------------------

    async def scan(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return a page of messages of one state, by due."""
        self.check()
        if state is State.GONE:
            return Page(Batch.empty(receipts=False), None)
        return await self._scanner.page(topic, state, cursor, limit)

    async def sweep(self, wanted: Wanted, start: int, stop: int, limit: int) -> Sweep:
        """Return messages by place: the shards take turns in numbering the places."""
        self.check()
        count, found, cut, places = self.shards.count, [], stop, 0
        for shard in range(count):
            # A shard's own places: all shards take turns.
            span = [max(-((shard - place) // count), 0) for place in (start, stop)]
            answer = await self.shards.run(shard, "sweep", *span, min(limit, self._limits.swept))
            _, own, more, end = answer.values
            found += [
                (place * count + shard, row)
                for place, row in zip(own, self.shards.rows(shard, answer), strict=True)
                if wanted.has(row.topic, State(row.state), row.due_ms, row.extra)
            ]
            cut = min(cut, more * count + shard) if more else cut
            places = max(places, end * count)
        found = sorted(pair for pair in found if pair[0] < cut)
        if len(found) > limit:
            cut = found[limit][0]
        more = cut if start < cut < stop else None
        rows = [row for _, row in found[:limit]]
        return Sweep(batch_of(rows), more, places, versions_of(rows))

    async def clear_part(self, topic: str, place: int) -> tuple[int, int | None]:
        """Cancel messages of a topic, shard after shard (see the contract).

        A place is the number behind all messages present at the start, and the shard.
        """
        self.check()
        bound, shard = divmod(place, MOST_SHARDS)
        cancelled, has_more, bound = (await self.shards.run(shard, "clear", topic, bound)).values
        if has_more:
            return int(cancelled), int(bound) * MOST_SHARDS + shard
        return int(cancelled), shard + 1 if shard + 1 < self.shards.count else None

    async def events(self, position: int, limit: int) -> EventPage:
        """Return events from a position on."""
        self.check()
        return await self._log.page(position, limit)

    async def stats(self) -> Stats:
        """Return the counts."""
        self.check()
        stats = Stats()
        for shard in range(self.shards.count):
            counts, totals, _ = await counts_of(self.shards, shard)
            for name, of in counts.items():
                _add(stats.topics.setdefault(name, TopicStats()), TopicStats(*of))
            for kind, count in zip(totals[::2], totals[1::2], strict=True):
                word = str(Kind(int(kind)))
                stats.totals[word] = stats.totals.get(word, 0) + int(count)
        return stats

    async def sizes(self, topic: str) -> list[TopicStats]:
        """Return the counts of one topic, shard by shard."""
        self.check()
        shards = range(self.shards.count)
        found = await all_of([counts_of(self.shards, shard, topic) for shard in shards])
        return [TopicStats(*counts[topic]) for counts, *_ in found]

    async def count_due(self, topics: Sequence[str], spans: Spans) -> I64:
        """Return how many delayed messages fall due in each span."""
        self.check()
        counts = spans.none()
        for some in slices(topics or await self._topics_with("delayed"), _TOPICS_AT_ONCE):
            for found in await all_of([due_of(self.shards, topic, spans) for topic in some]):
                counts += found
        return counts

    async def oldest_ready(self) -> dict[str, int]:
        """Return the due of the message that has waited longest, by topic."""
        self.check()
        topics = await self._topics_with("ready")
        found, others = await oldest_of(self.shards, topics)
        for some in slices(others, _TOPICS_AT_ONCE):
            pages = await all_of([self._scanner.page(of, State.READY, None, 1) for of in some])
            for topic, page in zip(some, pages, strict=True):
                if len(page.messages):
                    found[topic] = int(page.messages.due_ms[0])
        return found

    async def holders(self, limit: int, prefixes: tuple[str, ...] = ALL_TOPICS) -> list[Holder]:
        """Return the owners with messages under lease."""
        self.check()
        return most_held([lease async for lease in leases_of(self.shards)], limit, prefixes)

    async def condition(self) -> dict[str, int | str]:
        """Return the condition of the first shard's engine."""
        self.check()
        return await condition_of(self.shards)

    async def _topics_with(self, state: str) -> list[str]:
        topics = (await self.stats()).topics
        return [name for name, of in topics.items() if getattr(of, state)]

    async def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]:
        """Compare the parts of each shard during use; the counts only if nothing happens."""
        self.check()
        found: list[Stale] = []
        for shard in range(self.shards.count):
            left = limit - len(found)
            found += await StaleFinder(self.shards, shard, repair=repair, limit=left).find()
        return found

    # --- settings and time --------------------------------------------------------------------

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Change the settings of a topic: the first shard decides, and the others follow it."""
        self.check()
        return await self._settling.configure(topic, changes)

    async def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic."""
        self.check()
        return await self._settling.settings(topic)

    async def dead_retentions(self) -> dict[str, int]:
        """Return the ``keep_dead_ms`` of each topic that sets it."""
        self.check()
        return await self._settling.dead_retentions()

    async def tick(self, now_ms: int) -> int | None:
        """Do everything that is due on every shard, and return the next deadline."""
        self.check()
        ticked = await self._ticks.tick(list(self.waiting()))
        nexts = [self.shards.deadlines_ms.get(shard, 0) for shard in ticked]
        deadline_ms = min([next_ms for next_ms in nexts if next_ms], default=None)
        self.shards.planned_ms = deadline_ms or 0
        if self.shards.server_clock is None and len(ticked) == self.shards.count:
            return deadline_ms
        # A wake may be lost, a shard may come back, and the engine's clock may be set.
        latest_ms = self.clock.now_ms() + _FALLBACK_MS
        return latest_ms if deadline_ms is None else min(deadline_ms, latest_ms)


def _times(times_ms: I64) -> U8:
    """Return times in milliseconds in the form that functions take, 6 bytes each."""
    return times_ms.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]


def _delays(delay_ms: Delays, part: Sequence[Group]) -> bytes:
    """Return the delays of some groups of receipts in the form that functions take."""
    if delay_ms is None:
        return b""
    if not isinstance(delay_ms, np.ndarray):
        return int(delay_ms).to_bytes(6, "big")
    return _times(np.concatenate([delay_ms[group.start : group.stop] for group in part])).tobytes()


def _errors(error: Errors, part: Sequence[Group]) -> bytes:
    """Return the errors of some groups of receipts for the functions; false means no error."""
    if error is None or isinstance(error, str):
        return msgspec.msgpack.encode(error)
    each = [own for group in part for own in error[group.start : group.stop]]
    return msgspec.msgpack.encode([False if own is None else own for own in each])


def _text(text: str | None) -> tuple[int, bytes]:
    return (0, b"") if text is None else (1, text.encode())


def _add(of: TopicStats, more: TopicStats) -> None:
    of.delayed += more.delayed
    of.ready += more.ready
    of.leased += more.leased
    of.dead += more.dead
