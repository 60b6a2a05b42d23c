"""Quotas: how much one token may have in the store, and how often it may ask.

The stored amount is looked up about once a second; puts accepted since then, or under way, are
added. So simultaneous requests cannot exceed a quota together, and acked messages count until the
next look.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import numpy as np

from dwell.batch.stats import Stats, TopicStats
from dwell.clock.clock import monotonic_ms
from dwell.errors import (
    AccessDenied,
    IdExists,
    InvalidInput,
    InvalidSettings,
    ServerBusy,
    StoreError,
    StoreFull,
    TopicFull,
)
from dwell.message import U8, Result
from dwell.queue import Queue
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.server.board.shared import Shared
from dwell.server.ledger import Ledger
from dwell.server.sorting import in_order
from dwell.server.tokens import Grant, Right, TokenFile, Tokens

#: How long a look holds at least.
_LOOK_S = 1.0
#: How many topics are read before other tasks run.
_AT_ONCE = 2000
#: A suffix that sorts after every topic with a given prefix.
_BEHIND = "\x7f"
#: Errors that mean that nothing was put.
_REFUSED = (InvalidInput, IdExists, TopicFull, AccessDenied)


class Seen:
    """The result of a look, with sums, so that a prefix needs no pass over the topics."""

    def __init__(
        self, topics: Mapping[str, TopicStats], names: list[str], sized: list[str]
    ) -> None:
        self.topics = topics
        # Results of acks are stored in topics without a message, too.
        self._names, self._sized = names, sized
        self._there = set(names)
        self._messages, self._bytes = [0], [0]

    @classmethod
    async def of(cls, stats: Stats, sizes: Mapping[str, int]) -> "Seen":
        """Return the sums of counts and sizes; yields to other tasks if topics are very many."""
        there = list[str]()
        for at, (name, of) in enumerate(stats.topics.items(), 1):
            if _messages_of(of):
                there.append(name)
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
        sized = [name for name, size_bytes in sizes.items() if size_bytes]
        seen = cls(stats.topics, await in_order(there, str), await in_order(sized, str))
        for at, name in enumerate(seen._names, 1):
            seen._messages.append(seen._messages[-1] + _messages_of(stats.topics[name]))
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
        for at, name in enumerate(seen._sized, 1):
            seen._bytes.append(seen._bytes[-1] + sizes[name])
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return seen

    def __contains__(self, topic: object) -> bool:
        return topic in self._there

    def under(self, prefixes: tuple[str, ...]) -> tuple[int, int, int]:
        """Return how many topics, messages and bytes there are under prefixes."""
        topics = messages = size_bytes = 0
        for prefix in _apart(prefixes):
            first, end = _range(self._names, prefix)
            topics += end - first
            messages += self._messages[end] - self._messages[first]
            first, end = _range(self._sized, prefix)
            size_bytes += self._bytes[end] - self._bytes[first]
        return topics, messages, size_bytes


def _range(names: list[str], prefix: str) -> tuple[int, int]:
    return bisect_left(names, prefix), bisect_left(names, prefix + _BEHIND)


def _messages_of(counts: TopicStats) -> int:
    return counts.delayed + counts.ready + counts.leased + counts.dead


def _apart(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return prefixes without any that another of them covers."""
    found: list[str] = []
    for prefix in sorted(prefixes):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return tuple(found)


def _prefixes_of(grant: Grant) -> tuple[str, ...]:
    """Return the prefixes whose ledgers a token counts in, one at least."""
    return _apart(grant.stored or (SCHEDULES,))


class Room:
    """The amount that one put may add: it counts as under way until the put is over.

    ``created`` is how many messages it has added; until that is known all count. ``is_larger``
    tells whether the stored amount has grown. Without a topic it is only bytes.
    """

    __slots__ = ("_ledger", "_messages", "_size_bytes", "_topic", "created", "is_larger")

    def __init__(self, ledger: Ledger, topic: str | None, messages: int, size_bytes: int) -> None:
        self._ledger, self._topic = ledger, topic
        self._messages, self._size_bytes = messages, size_bytes
        self.created, self.is_larger = messages, True
        ledger.under_way.add(topic, messages, size_bytes)

    def done(self, results: U8) -> None:
        """Note the result of each message."""
        self.created = int(np.count_nonzero(results == Result.CREATED))
        self.is_larger = bool(self.created or (results == Result.REPLACED).any())

    def refused(self) -> None:
        """Note that nothing was put."""
        self.created, self.is_larger = 0, False

    def leave(self) -> None:
        """Count it as brought, as far as it was."""
        ledger = self._ledger
        ledger.under_way.take(self._topic, self._messages, self._size_bytes)
        if self.is_larger:
            ledger.brought.add(self._topic, self.created, self._size_bytes)


class Account:
    """The request rate and the open streams of one token."""

    __slots__ = ("_asked_ms", "_level", "streams")

    def __init__(self) -> None:
        self._level, self._asked_ms = 0.0, 0
        self.streams = 0

    def may_ask(self, rate: int, count: int) -> bool:
        """Tell whether requests may come, of ``rate`` a second; only the last may go over it."""
        now_ms = monotonic_ms()
        gained = (now_ms - self._asked_ms) * rate / 1000
        self._level, self._asked_ms = min(self._level + gained, float(rate)), now_ms
        if self._level < 1:
            return False
        self._level -= count
        return True


class Quotas:
    """The quotas of all tokens of a server; callers without a token are one, with an empty name."""

    def __init__(self, queue: Queue, tokens: Tokens) -> None:
        self._queue = queue
        self._tokens = tokens
        self._accounts: dict[str, Account] = {}
        self._looks: Shared[Seen] = Shared(self._look, _LOOK_S)
        self._last: Seen | None = None
        self._ledgers: dict[str, Ledger] = {}
        # The ledgers of the prefixes of a token, and others that count in its topics.
        self._meeting: dict[tuple[str, ...], list[Ledger]] = {}
        self.check(tokens.found)
        tokens.on_change.append(self._forget)

    def _forget(self) -> None:
        """Forget the last look, which may have left out what a new quota bounds."""
        self._looks = Shared(self._look, _LOOK_S)
        self._meeting = {}

    def _ledgers_of(self, grant: Grant) -> list[Ledger]:
        """Return the ledgers of a token's prefixes, and others that count in its topics."""
        prefixes = _prefixes_of(grant)
        if prefixes not in self._meeting:
            # Its own grant may have ended with a reload.
            for one in (grant, *self._tokens.limited.values()):
                for prefix in _prefixes_of(one):
                    self._ledgers.setdefault(prefix, Ledger(prefix))
            own = [self._ledgers[prefix] for prefix in prefixes]
            others = (one for one in self._ledgers.values() if one.meets(prefixes))
            self._meeting[prefixes] = [*own, *(one for one in others if one not in own)]
        return self._meeting[prefixes]

    def check(self, found: TokenFile) -> None:
        """Refuse quotas that the store cannot count; raises InvalidSettings."""
        for name, grant in found.grants.items():
            if grant.quota.stored_bytes is not None and not self._queue.store.counts_bytes:
                raise InvalidSettings(
                    f"quota stored_bytes of {_whose(name)}: this kind of store does not count "
                    "bytes by topic, expected none"
                )

    def _of(self, name: str) -> tuple[Grant, Account] | None:
        """Return the quota of a token and its account; None without a quota."""
        grant = self._tokens.limited.get(name)
        if grant is None:
            return None
        return grant, self._accounts.setdefault(name, Account())

    def has(self, name: str) -> bool:
        """Tell whether a token has any quota."""
        return name in self._tokens.limited

    # --- how often ------------------------------------------------------------------------------

    def count_request(self, name: str, count: int = 1) -> None:
        """Count requests of a token; raises ServerBusy when they are too many a second."""
        of = self._of(name)
        if of is None or (rate := of[0].quota.requests_per_s) is None:
            return
        if not of[1].may_ask(rate, count):
            raise ServerBusy(_words("requests_per_s", name, "more requests", rate))

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Count a stream of a token for the length of a block; raises ServerBusy."""
        of = self._of(name)
        if of is None:
            yield
            return
        grant, account = of
        most = grant.quota.streams
        if most is not None and account.streams >= most:
            raise ServerBusy(_words("streams", name, account.streams + 1, most))
        account.streams += 1
        try:
            yield
        finally:
            account.streams -= 1

    # --- how much -------------------------------------------------------------------------------

    async def gate(self, name: str) -> "Gate | None":
        """Return the gate of a token's puts, None without a quota."""
        of = self._of(name)
        if of is None:
            return None
        seen = await self._seen()
        return Gate(name, of[0], self._ledgers_of(of[0]), seen)

    @asynccontextmanager
    async def room(
        self, name: str, topic: str, messages: int, size_bytes: int
    ) -> AsyncIterator[Room | None]:
        """Count a put of a token for the length of a block; raises StoreFull.

        Yields None for a token without a quota.
        """
        gate = await self.gate(name)
        if gate is None:
            yield None
            return
        with _entered(gate.enter(topic, messages, size_bytes)) as room:
            yield room

    @asynccontextmanager
    async def growth_room(self, name: str, size_bytes: int) -> AsyncIterator[Room | None]:
        """Count a growth without a message for the length of a block; raises StoreFull."""
        gate = await self.gate(name)
        if gate is None:
            yield None
            return
        with _entered(gate.enter_bytes(size_bytes)) as room:
            yield room

    async def configure(self, name: str, topic: str) -> None:
        """Count a topic that is to have settings; raises StoreFull.

        One without messages is there, too, as it keeps its settings.
        """
        of = self._of(name)
        if of is None or (most := of[0].quota.topics) is None:
            return
        grant, seen = of[0], await self._seen()
        if topic in seen.topics:
            return
        prefixes = grant.prefixes((Right.PUT, Right.ADMIN))
        ledgers = self._ledgers_of(grant)
        new = {topic}.union(*(one.topics(prefixes, seen.topics) for one in ledgers))
        there = sum(one.startswith(prefixes) for one in seen.topics)
        _refuse_over("topics", name, there + len(new), most)
        _ledger_for(topic, ledgers).brought.add(topic, 0, 0)

    async def _seen(self) -> Seen:
        """Return the result of the last look; accounts count from it."""
        return await self._looks.get()

    async def _look(self) -> Seen:
        """Look up the stored amounts; while the store fails, the last result is used."""
        looked = list(self._ledgers.values())
        for ledger in looked:
            ledger.begin_look()
        try:
            stats = await self._queue.stats()
            sizes = await self._sizes()
        except StoreError:
            if self._last is None:
                raise
            return self._last
        self._last = await Seen.of(stats, sizes)
        for ledger in looked:
            ledger.end_look()
        return self._last

    async def _sizes(self) -> dict[str, int]:
        """Return how many bytes each topic has, if a quota asks for them."""
        is_asked = any(g.quota.stored_bytes is not None for g in self._tokens.limited.values())
        return await self._queue.store.stored_bytes() if is_asked else {}


@contextmanager
def _entered(room: Room) -> Iterator[Room]:
    """Leave a room at the end of a block; a refusal in it means that nothing was put."""
    try:
        yield room
    except _REFUSED:
        room.refused()
        raise
    finally:
        room.leave()


class Gate:
    """Admits puts of one token, by the result of a look."""

    def __init__(self, name: str, grant: Grant, ledgers: list[Ledger], seen: Seen) -> None:
        self._name, self._quota, self._put = name, grant.quota, grant.put
        self._ledgers, self._seen = ledgers, seen
        # The schedules count for a token that may change them.
        is_scheduler = grant.allows((Right.ADMIN,), (SCHEDULES,))
        self._stored = (*grant.stored, SCHEDULES) if is_scheduler else grant.stored

    def enter(self, topic: str, messages: int, size_bytes: int) -> Room:
        """Admit a put; raises StoreFull if it would exceed the quota of the token."""
        name, quota, seen, ledgers = self._name, self._quota, self._seen, self._ledgers
        if quota.topics is not None and topic not in seen and not any(topic in o for o in ledgers):
            new = {topic}.union(*(one.topics(self._put, seen) for one in ledgers))
            _refuse_over("topics", name, seen.under(self._put)[0] + len(new), quota.topics)
        if quota.pending is not None and messages:
            there = seen.under(self._put)[1] + self._amount(self._put)[0]
            _refuse_over("pending", name, there + messages, quota.pending)
        self._check_bytes(size_bytes)
        return Room(_ledger_for(topic, ledgers), topic, messages, size_bytes)

    def enter_bytes(self, size_bytes: int) -> Room:
        """Admit bytes that belong to no topic; raises StoreFull."""
        self._check_bytes(size_bytes)
        return Room(self._ledgers[0], None, 0, size_bytes)

    def _check_bytes(self, size_bytes: int) -> None:
        if self._quota.stored_bytes is None:
            return
        size_bytes += self._seen.under(self._stored)[2] + self._amount(self._stored)[1]
        _refuse_over("stored_bytes", self._name, size_bytes, self._quota.stored_bytes)

    def _amount(self, prefixes: tuple[str, ...]) -> tuple[int, int]:
        """Return the messages and bytes that no look has found yet."""
        amounts = [one.amount(prefixes) for one in self._ledgers]
        return sum(count for count, _ in amounts), sum(size for _, size in amounts)


def _ledger_for(topic: str, ledgers: list[Ledger]) -> Ledger:
    """Return the ledger in which a token's put counts: the first, where none has the prefix."""
    return next((one for one in ledgers if topic.startswith(one.prefix)), ledgers[0])


def _refuse_over(quota: str, name: str, count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise StoreFull(_words(quota, name, count, most))


def _words(quota: str, name: str, got: object, most: int) -> str:
    return f"quota {quota} of {_whose(name)}: got {got}, expected at most {most}"


def _whose(name: str) -> str:
    return f"token {name}" if name else "callers without a token"
