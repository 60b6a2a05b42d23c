"""A queue of RabbitMQ as a source: read as a relay reads it, each message acked when it is put.

A message that stays is not acked, so RabbitMQ puts it back at its place when the takeover ends.
RabbitMQ does not count arrivals and departures; they are derived from its counts.
"""

import asyncio
import logging
import time
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from dwell.errors import InvalidInput
from dwell.message import MAX_BODY_BYTES, REASON_HEADER, Result, TopicSettings
from dwell.queue import Queue
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.dead import letter_of
from dwell.relay.envelope import FROM, PROPERTIES, extra_of
from dwell.relay.intake import chunks_of, puts_of
from dwell.relay.rabbitmq import properties
from dwell.relay.rabbitmq.source import RabbitMQSource
from dwell.relay.record import Record
from dwell.relay.rules import DUE, Cancelled, Held, Rules
from dwell.takeover.contract import Counts, Load, Stayed, Totals, topic_for

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Where the messages go that no rule can read.
_DEAD = "takeover-dead"
#: How long nothing may come of what waits, and the broker be away.
_PATIENCE_S, _AWAY_S = 10.0, 60.0
#: After how long that is told.
_TOLD_S = 1.0
#: How often an address is tried at first: it may be a wrong one.
_ATTEMPTS = 3
#: How often the queue is found empty before the end: a delivery may be on its way.
_LOOKS = 2
#: How long RabbitMQ may take to put back what was not acked.
_BACK_S, _AGAIN_S = 3.0, 0.1
_STUCK = "RabbitMQ does not deliver them here"
_UNREADABLE = (
    "the client cannot read the first of them, which keeps it from those behind: remove it"
)


class _Read(NamedTuple):
    """A message that was read; ``is_exact`` tells that its due is the same each time."""

    one: Held | Cancelled
    is_exact: bool = False
    is_dead: bool = False


class RabbitMQPlace:
    """The waiting messages of a queue; they go to the topic of its name, or ``into`` another.

    A message without a delay is due at once. One that no rule can read becomes a dead letter, and
    stays if the letter cannot have all of it.
    """

    def __init__(self, url: str, queue: Queue, into: str | None = None) -> None:
        self._source = RabbitMQSource(url, stops=True)
        to = topic_for("queue", self._source.queue, into)
        self._rules = Rules(to=to, default_delay_ms=0, is_named=False)
        self._queue = queue
        self._read = deque[_Read]()
        self._stay = Counter[str]()
        self._examples: dict[str, str] = {}
        self._totals = Totals()
        self._came_s = time.monotonic()
        #: Since when the broker is away, and whether that was told.
        self._away_s: float | None = None
        self._is_told = False
        #: The connection that delivered what was read last.
        self._generation = 0
        self._looks = 0

    async def open(self) -> None:
        """Refuse a stream, for a dry run as well; raises InvalidUrl or BrokerUnreachable."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                await self._source.refuse_stream()
            except BrokerUnreachable:
                if not left:
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def counts(self) -> Counts:
        """Return the counts, after it has put back what was not acked: RabbitMQ counts only that.

        Raises BrokerUnreachable.
        """
        return self._totals.counts(0, await self._waiting(self._source.unacked), 0, 0)

    async def _waiting(self, back: int) -> int:
        """Return how many messages wait, when ``back`` of them are put back."""
        until_s = time.monotonic() + _BACK_S
        await self._source.close()
        while (ready := await self._counted()) < back and time.monotonic() < until_s:
            await asyncio.sleep(_AGAIN_S)
        return ready

    async def _counted(self) -> int:
        while (count := await self._patiently(self._source.count)) is None:
            await asyncio.sleep(_AGAIN_S)
        return count

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return an answer, None while the broker is away; raises BrokerUnreachable after a while.

        A broker that starts again may have no queues for a moment, so each of its errors counts.
        """
        try:
            answer = await ask()
        except BrokerUnreachable as error:
            now_s = time.monotonic()
            self._away_s = now_s if self._away_s is None else self._away_s
            if now_s - self._away_s >= _AWAY_S:
                raise
            if now_s - self._away_s >= _TOLD_S and not self._is_told:
                self._is_told = True
                _log.warning("%s: trying again for %.0f s", error, _AWAY_S)
            return None
        if self._away_s is not None:
            # No message was delivered while the broker was away.
            self._away_s, self._is_told, self._came_s = None, False, time.monotonic()
        return answer

    async def settings(self) -> dict[str, TopicSettings]:
        """Return nothing: such a queue has other settings than a topic."""
        return {}

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Read the next messages, and do the cancels among them, each after what came before it.

        Raises BrokerUnreachable if the broker is away for long.
        """
        self._drop_lost()
        if not self._read:
            found = await self._patiently(lambda: self._source.read(limit))
            if found is None:
                return ()
            await self._take_in(found)
            self._drop_lost()
            if not self._read:
                return () if found else await self._end()
        self._came_s, self._looks = time.monotonic(), 0
        while self._read and isinstance(self._read[0].one, Cancelled):
            await self._cancel(self._step())
        return self._loads(self._step())

    def _drop_lost(self) -> None:
        """Drop messages whose connection is lost: they come again, and would be put twice."""
        self._read = deque(read for read in self._read if self._source.has(read.one.record))

    async def _end(self) -> Sequence[Load] | None:
        """Return None if no message waits, or those that wait no longer come."""
        if self._source.is_blocked:
            known = self._stay.total()
            self._stay[_UNREADABLE] += max(await self._waiting(known + 1) - known, 1)
            return None
        waiting = await self._counted()
        if waiting and time.monotonic() - self._came_s > _PATIENCE_S:
            self._stay[_STUCK] += waiting
            return None
        self._looks = 0 if waiting else self._looks + 1
        return None if self._looks >= _LOOKS else ()

    async def _take_in(self, records: Sequence[Record]) -> None:
        now_ms, stay = self._queue.clock.now_ms(), []
        for record in records:
            self._came_s, self._looks = time.monotonic(), 0
            if record.place[0] != self._generation:
                # All that stayed unacked comes again.
                self._generation = record.place[0]
                self._stay.clear()
            try:
                self._read.append(self._read_one(record, now_ms))
            except InvalidInput as error:
                # One text for each field, as the texts of errors have values.
                reason = str(error)
                self._stay[self._examples.setdefault(reason.partition(":")[0], reason)] += 1
                stay.append(record)
        await self._source.leave(stay)

    def _read_one(self, record: Record, now_ms: int) -> _Read:
        """Return what to do with a message; raises InvalidInput if it stays."""
        if record.broken:
            # Only its body could be read.
            raise InvalidInput(record.broken)
        if len(record.body or b"") > MAX_BODY_BYTES:
            size = len(record.body or b"")
            raise InvalidInput(f"body: got {size} bytes, expected at most {MAX_BODY_BYTES}")
        is_exact = any(name == DUE for name, _ in record.headers)
        try:
            return _Read(self._rules.read(record, now_ms), is_exact)
        except InvalidInput as error:
            reason = str(error)
        except Exception as error:
            # No message, whatever its content, may block the others.
            reason = f"message: cannot be read: {type(error).__name__}: {error}"
        letter = letter_of(record, _DEAD, reason)
        letter.place = record.place
        return _Read(Held(letter, _DEAD, now_ms, extra_of(letter, None)), is_dead=True)

    def _step(self) -> list[_Read]:
        """Return the next messages that are all put, or all cancel others."""
        step = list[_Read]()
        while self._read and (not step or type(self._read[0].one) is type(step[0].one)):
            step.append(self._read.popleft())
        return step

    async def _cancel(self, step: Sequence[_Read]) -> None:
        topics = dict[str, dict[str, str]]()
        for one in (read.one for read in step if isinstance(read.one, Cancelled)):
            topics.setdefault(one.target, {})[one.id] = one.or_id
        for topic, ids in topics.items():
            told = await self._queue.cancel(topic, list(ids))
            unknown = [
                other
                for other, result in zip(ids.values(), told, strict=True)
                if other and result is Result.UNKNOWN
            ]
            if unknown:
                await self._queue.cancel(topic, unknown)
        await self._ack([read.one.record for read in step])

    def _loads(self, step: Sequence[_Read]) -> list[Load]:
        groups = dict[tuple[str, bool, bool], list[Held]]()
        for one, is_exact, is_dead in step:
            assert isinstance(one, Held)
            groups.setdefault((one.target, is_exact, is_dead), []).append(one)
        return [
            self._load(topic, part, is_exact=is_exact, is_dead=is_dead)
            for (topic, is_exact, is_dead), held in groups.items()
            for part in chunks_of(held)
        ]

    def _load(self, topic: str, held: Sequence[Held], *, is_exact: bool, is_dead: bool) -> Load:
        records = [one.record for one in held]
        again = [at for at, record in enumerate(records) if self._source.may_be_twice(record)]
        puts = puts_of(topic, held)
        return Load(puts, records, is_exact, _lasting, is_dead=is_dead, again=again)

    async def _ack(self, records: Sequence[Record]) -> int:
        """Ack messages; return how many acks the broker has: the others are delivered again."""
        count = await self._source.surely_done(records)
        self._totals.let_go(count)
        return count

    async def let_go(self, load: Load, places: Sequence[int]) -> Stayed:
        """Ack messages; the broker delivers messages of an earlier connection again, to anybody."""
        return Stayed(len(places) - await self._ack([load.place[at] for at in places]))

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Leave messages unacked."""
        await self._source.leave([load.place[at] for at in places])

    async def take_back(self, load: Load, places: Sequence[int]) -> None:
        """Do nothing: what is not acked goes back when the connection ends."""

    async def held_back(self) -> Mapping[str, int]:
        """Return how many messages stay, by reason."""
        return self._stay

    async def close(self) -> None:
        """Disconnect, which returns what is not acked."""
        await self._source.close()


def _lasting(headers: Mapping[str, str]) -> object:
    """Return what of the headers of a message is the same each time it is read."""
    rest = {name: value for name, value in headers.items() if name != REASON_HEADER}
    try:
        found = properties.read(b64decode(rest.get(PROPERTIES, ""), validate=True))
    except (msgspec.MsgspecError, ValueError):
        return rest
    if found is None:
        return rest
    # The place of a message is its queue and its id.
    queue = rest.pop(FROM, "").removesuffix(found.message_id)
    del rest[PROPERTIES]
    return rest, queue, properties.lasting(found)
