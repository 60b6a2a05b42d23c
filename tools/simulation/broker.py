"""A broker in a simulated world: a log in lanes, a group that reads it, and topics that take.

It keeps the promises that :mod:`dwell.relay.contract` asks of a source and of sinks, with the
faults that real brokers show: it is away, its answers are lost, a batch is stored in part, a group
takes lanes from a member that is alive, and a transaction is committed though nobody hears of it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from dwell.relay.contract import BrokerUnreachable, LaneLost, Lanes
from dwell.relay.record import Headers, Record, Refusal
from dwell.relay.sent import decoded, encoded

#: Bodies that begin so are refused for good by every topic but that of dead letters.
POISON = b"poison"
#: How long a group waits for a member that has gone without a word.
_SESSION_S = 3.0
#: How long a lane rests whose records were deferred.
_REST_S = 0.5


class Came(NamedTuple):
    """A record of the log."""

    body: bytes
    key: bytes | None
    headers: Headers
    at_ms: int


class Sent(NamedTuple):
    """A record that a topic has taken, and when by the clock of the machine."""

    topic: str
    body: bytes | None
    key: bytes | None
    headers: Headers
    at_ms: int


class Broker:
    """What is in the broker; ``lanes`` are the partitions of its one topic that is read."""

    def __init__(self, clock: Any, chance: random.Random, lanes: Sequence[str], dead: str) -> None:
        self.clock = clock
        self.chance = chance
        self.dead = dead
        self.log: dict[str, list[Came]] = {lane: [] for lane in lanes}
        #: Of each lane the offset of the next record that its group reads.
        self.committed = dict.fromkeys(lanes, 0)
        #: When the offset after each record was committed first.
        self.committed_ms: dict[tuple[str, int], int] = {}
        self.sent: list[Sent] = []
        self.states: dict[str, bytes] = {}
        self.epochs: Counter[str] = Counter()
        self.is_away = self.is_calm = False
        #: Topics that take nothing now.
        self.refusing: set[str] = set()
        self.members: list[SimulatedSource] = []
        self.owners: dict[str, SimulatedSource] = {}

    async def answer(self) -> None:
        """Take as long as a broker does; raises BrokerUnreachable while it is away."""
        await asyncio.sleep(self.chance.choice((1e-4, 1e-3, 0.02)))
        if self.is_away:
            raise BrokerUnreachable("broker: is away")

    def fails(self, percent: int) -> bool:
        """Tell whether something goes wrong that does so in so many of a hundred tries."""
        return not self.is_calm and self.chance.random() * 100 < percent

    def remove(self, member: "SimulatedSource") -> None:
        """Take all lanes from a member of the group, which hears of it with its next read."""
        if member in self.members:
            self.members.remove(member)
        self.owners = {lane: owner for lane, owner in self.owners.items() if owner is not member}

    def wanted(self, member: "SimulatedSource") -> set[str]:
        """Return the lanes that a member should have."""
        place, count = self.members.index(member), len(self.members)
        return {lane for at, lane in enumerate(self.log) if at % count == place}

    def commit(self, lane: str, offset: int) -> None:
        """Note that a lane is done up to a record."""
        for one in range(self.committed[lane], offset + 1):
            self.committed_ms.setdefault((lane, one), self.clock.now_ms())
        self.committed[lane] = offset + 1

    def refusal(self, record: Record) -> Refusal | None:
        """Return why a topic does not take a record."""
        if record.topic == self.dead:
            return None
        if (record.body or b"").startswith(POISON):
            return Refusal("body: is refused", is_final=True)
        if record.topic in self.refusing:
            return Refusal(f"{record.topic}: takes nothing", is_final=False, is_of_target=True)
        return None

    def take(self, records: Sequence[Record]) -> None:
        """Store records."""
        now_ms = self.clock.now_ms()
        self.sent += [Sent(r.topic, r.body, r.key, r.headers, now_ms) for r in records]


class SimulatedSource:
    """A member of the group that reads the log, with the habits of the one for Kafka."""

    has_lanes = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lanes: Lanes
        self._next: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._deferred: dict[str, int] = {}
        self._rests_until_s: dict[str, float] = {}
        #: How often each lane was assigned to this member.
        self._turns: Counter[str] = Counter()

    async def open(self, lanes: Lanes) -> None:
        """Join the group."""
        self._lanes = lanes
        self._broker.members.append(self)

    async def read(self, limit: int) -> Sequence[Record]:
        """Return the next records of the lanes of this member."""
        await self._broker.answer()
        await self._rebalance()
        self._commit()
        now_s = asyncio.get_running_loop().time()
        for lane, offset in self._deferred.items():
            if lane in self._next:
                self._next[lane], self._rests_until_s[lane] = offset, now_s + _REST_S
        self._deferred = {}
        found: list[Record] = []
        for lane, first in self._next.items():
            if self._rests_until_s.get(lane, 0.0) <= now_s:
                came = self._broker.log[lane][first : first + limit - len(found)]
                found += [self._record(lane, first + at, one) for at, one in enumerate(came)]
                self._next[lane] = first + len(came)
        if not found:
            await asyncio.sleep(0.1)
        return found

    async def _rebalance(self) -> None:
        broker = self._broker
        if self not in broker.members:
            lost = list(self._next)
            self._forget(lost)
            await self._lanes.close(lost, is_lost=True)
            broker.members.append(self)
        wanted = broker.wanted(self)
        if revoked := [lane for lane in self._next if lane not in wanted]:
            await self._lanes.close(revoked)
            self._commit(is_last=True)
            self._forget(revoked)
            for lane in revoked:
                if broker.owners.get(lane) is self:
                    del broker.owners[lane]
        # Who waited may have been taken from the group.
        if self in broker.members and (
            free := [lane for lane in sorted(wanted) if lane not in broker.owners]
        ):
            broker.owners |= dict.fromkeys(free, self)
            self._next |= {lane: broker.committed[lane] for lane in free}
            self._committed |= {lane: broker.committed[lane] - 1 for lane in free}
            self._turns.update(free)
            await self._lanes.open(free)

    def _forget(self, lanes: Collection[str]) -> None:
        for known in (self._next, self._committed, self._done, self._deferred, self._rests_until_s):
            for lane in lanes:
                known.pop(lane, None)

    def _commit(self, *, is_last: bool = False) -> None:
        """Commit what is done; now and then that fails, or nobody hears that it did not."""
        broker = self._broker
        if broker.fails(10) and not is_last:
            return
        done, self._done = self._done, {}
        is_heard = not broker.fails(5)
        for lane, offset in done.items():
            if broker.owners.get(lane) is self:
                broker.commit(lane, offset)
                if is_heard:
                    self._committed[lane] = offset
                elif not is_last:
                    self._done[lane] = offset

    async def done(self, records: Sequence[Record]) -> None:
        """Have offsets committed with the next read."""
        mine = [record for record in records if self._is_current(record)]
        self._done |= {record.lane: record.place[0] for record in mine}

    async def defer(self, records: Sequence[Record]) -> None:
        """Go back to the first of some records with the next read, and rest before."""
        for record in reversed(records):
            if self._is_current(record):
                self._deferred[record.lane] = record.place[0]

    def _is_current(self, record: Record) -> bool:
        return record.lane in self._next and record.place[1] == self._turns[record.lane]

    def comes_again(self, record: Record) -> bool:
        """Tell whether a lane is still to go back."""
        return record.lane in self._deferred

    def is_committed(self, lane: str, origin: str) -> bool:
        """Tell whether a record of a lane of this member does not come again."""
        return int(origin.rpartition("-")[2]) <= self._committed.get(lane, -1)

    async def close(self) -> None:
        """Leave the group."""
        self._commit(is_last=True)
        self._broker.remove(self)

    def _record(self, lane: str, offset: int, came: Came) -> Record:
        name, place = f"{lane}-{offset}", (offset, self._turns[lane])
        headers = list(came.headers)
        return Record(
            "in", name, came.body, came.key, headers, came.at_ms, lane, place, origin=name
        )

    def crash(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go without a word: the group waits for it a while."""
        loop.call_later(_SESSION_S, self._broker.remove, self)


class PlainSink:
    """The topics of the broker; a batch whose answer is lost is stored, in part or not at all."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def open(self) -> None:
        """Begin."""
        await self._broker.answer()

    async def send(self, records: Sequence[Record]) -> Sequence[Refusal | None]:
        """Store records, each or some."""
        broker = self._broker
        await broker.answer()
        refused = [broker.refusal(record) for record in records]
        good = [record for record, why in zip(records, refused, strict=True) if why is None]
        if broker.fails(8):
            broker.take(good[: broker.chance.randint(0, len(good))])
            raise BrokerUnreachable("broker: no answer")
        broker.take(good)
        await broker.answer()
        return refused

    async def close(self) -> None:
        """End."""


class TransactionalSink(PlainSink):
    """The same in transactions, of which a lane has one at a time."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._epochs: dict[str, int] = {}

    async def enter(self, lane: str, store: int) -> Collection[bytes]:
        """Shut out who had the lane before."""
        broker = self._broker
        await broker.answer()
        broker.epochs[lane] += 1
        self._epochs[lane] = broker.epochs[lane]
        names = decoded(broker.states.get(lane, b""))
        await broker.answer()
        return names

    async def send_once(
        self, lane: str, records: Sequence[Record], names: Collection[bytes]
    ) -> Sequence[Refusal | None]:
        """Store all records and the names, or nothing."""
        broker = self._broker
        await broker.answer()
        self._check(lane)
        refused = [broker.refusal(record) for record in records]
        if any(refused):
            return refused
        if broker.fails(5):
            raise BrokerUnreachable("broker: aborted")
        await broker.answer()
        self._check(lane)
        broker.take(records)
        broker.states[lane] = encoded(names)
        if broker.fails(5):
            raise BrokerUnreachable("broker: no answer to a commit")
        await broker.answer()
        return refused

    def _check(self, lane: str) -> None:
        if self._broker.epochs[lane] != self._epochs[lane]:
            raise LaneLost(f"{lane}: another has it")

    async def leave(self, lane: str) -> None:
        """End with a lane."""
        self._epochs.pop(lane, None)
