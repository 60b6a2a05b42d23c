"""Messages of a queue of RabbitMQ, each acked when Dwell holds it.

AMQP gives a message no name of its own: a message delivered again, because its ack was lost with
the connection, is held again, unless it has an id that shows the repetition.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

from aiormq.exceptions import ChannelPreconditionFailed

from dwell.digits import number_of
from dwell.errors import InvalidInput, InvalidUrl
from dwell.given import values
from dwell.message import MAX_DELAY_MS
from dwell.relay.contract import BrokerUnreachable, Lanes
from dwell.relay.rabbitmq import properties
from dwell.relay.rabbitmq.address import Address
from dwell.relay.rabbitmq.connection import FAULTS, Connection, calling
from dwell.relay.rabbitmq.death import expired
from dwell.relay.record import Record
from dwell.relay.rules import is_said

_log = logging.getLogger(__name__)

#: How long a read waits for the first message, and the pause of a message without room, in seconds.
_WAIT_S = 0.1
_REST_S = 1.0
_ASK_S = 10.0
#: After this many held messages of one connection, a narrowed source prefetches more.
_WIDENED_AFTER = 100
#: The argument of consumers of streams; other queues refuse it.
_STREAM = "x-stream-offset"
#: RabbitMQ's reason to close a channel whose messages outlasted its consumer_timeout.
_TOO_LATE = "delivery acknowledgement"


class RabbitMQSource:
    """The queue of an address.

    Any number of relays may read it; the broker distributes the messages. With ``stops`` it ends
    reading when ``is_blocked``: each delivery of a message counts, and a quorum queue drops
    messages that were delivered too often.
    """

    has_lanes = False

    def __init__(self, url: str, *, stops: bool = False) -> None:
        self._address = Address.of(url)
        if not self._address.queue:
            raise InvalidUrl("--from: got no queue, expected ?queue=NAME")
        self._connection = Connection(self._address)
        self._tag = ""
        self._stops = stops
        #: Whether the client cannot read the first message of the queue.
        self.is_blocked = False
        self._prefetch = self._widest = self._address.prefetch
        self._held, self._had_no_room = 0, False
        #: The last connection that was judged by what of its messages was held.
        self._judged = 0
        self._records: deque[Record] = deque()
        self._deferred: deque[Record] = deque()
        self._rested_s = 0.0
        #: The unacked delivery tags of this channel, in ascending order.
        self._unacked: dict[int, None] = {}
        self._is_queue = False
        #: How many messages stay unacked of the consumer that began last.
        self._left = 0
        self._came = asyncio.Event()

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._address.queue

    async def count(self) -> int:
        """Return how many messages wait and are not being delivered; raises BrokerUnreachable.

        It uses a connection of its own, because a failed query closes the channel.
        """
        asking = Connection(self._address)
        try:
            channel = await asking.channel()
            async with calling(_ASK_S):
                told = await channel.queue_declare(self._address.queue, passive=True)
        except FAULTS as error:
            raise asking.unreachable(error) from None
        finally:
            await asking.close()
        return int(told.message_count)

    async def open(self, lanes: Lanes) -> None:
        """Do nothing: the first read connects, and waits for an absent broker."""

    async def read(self, limit: int) -> Sequence[Record]:
        """Return delivered messages; unacked messages of an earlier connection come again.

        Raises InvalidUrl for a stream.
        """
        await self.refuse_stream()
        channel = await self._channel()
        if channel is None:
            return []
        if self._deferred and time.monotonic() >= self._rested_s:
            self._records.extendleft(reversed(self._deferred))
            self._deferred.clear()
        if not self._records:
            self._came.clear()
            try:
                async with asyncio.timeout(_WAIT_S):
                    await self._came.wait()
            except TimeoutError:
                if self._tag not in channel.consumers and not channel.is_closed:
                    # The queue was deleted, or has moved to another node.
                    await self._connection.close()
                return []
        count = min(limit, len(self._records))
        return [self._records.popleft() for _ in range(count)]

    async def refuse_stream(self) -> None:
        """Raise InvalidUrl for a stream: it is read from its end, and keeps no position.

        The type of a queue cannot be queried, but only a stream accepts a consumer with an offset.
        Raises BrokerUnreachable.
        """
        if self._is_queue:
            return
        asking = Connection(self._address)
        try:
            channel = await asking.channel()
            async with calling(_ASK_S):
                await channel.basic_qos(prefetch_count=1)
                await channel.basic_consume(
                    self._address.queue, _passed_over, arguments={_STREAM: "first"}
                )
        except ChannelPreconditionFailed:
            self._is_queue = True
            return
        except FAULTS as error:
            raise asking.unreachable(error) from None
        finally:
            await asking.close()
        raise InvalidUrl(f"--from: got the stream {self._address.queue!r:.80}, expected a queue")

    async def _channel(self) -> Any:
        """Return the channel of the messages, a new one if the last is gone; None if blocked."""
        if self._connection.is_open:
            return await self._connection.channel()
        if _TOO_LATE in self._connection.closed_because:
            _log.warning(
                "%s: %d messages could not be held within the broker's consumer_timeout, so it "
                "delivers them again: make room for them in the queue, or raise consumer_timeout",
                self._address.queue,
                len(self._unacked),
            )
        self._records.clear()
        self._deferred.clear()
        self._unacked.clear()
        self._narrow()
        if self.is_blocked:
            return None
        channel = await self._connection.channel()
        await self._consume(channel)
        return channel

    async def _consume(self, channel: Any) -> None:
        """Begin to consume; closes the connection and raises BrokerUnreachable if it cannot."""
        self._left = 0
        generation = self._connection.generation

        async def came(message: Any) -> None:
            # Messages still in the old channel are delivered again on the new one.
            if generation == self._connection.generation:
                self._unacked[message.delivery.delivery_tag] = None
                self._records.append(self._read_record(message, generation))
                self._came.set()

        try:
            async with calling(_ASK_S):
                await channel.basic_qos(prefetch_count=self._prefetch)
                told = await channel.basic_consume(self._address.queue, came)
        except FAULTS as error:
            unreachable = self._connection.unreachable(error)
            await self._connection.close()
            raise unreachable from None
        self._tag = told.consumer_tag

    def _narrow(self) -> None:
        """Prefetch fewer messages if none of the last connection's were held.

        The client closes a connection for a message that it cannot read, so earlier messages have
        to be held first; then only that message is left. Messages that were read and have no room
        do not count as such.
        """
        if self._judged == self._connection.generation:
            # There was no other connection since: the broker is away.
            return
        self._judged = self._connection.generation
        if self._stops and self._connection.could_not_read:
            # A single message is delivered when all before it are acked.
            self.is_blocked = self._prefetch == 1
            self._prefetch = self._widest = 1
        elif self._held or self._had_no_room:
            self._prefetch = min(self._prefetch * 2, self._widest)
        else:
            self._prefetch = max(self._prefetch // 8, 1)
        if self._prefetch == 1 < self._widest:
            _log.warning("%s: the connection breaks at one message again", self._address.queue)
        self._held, self._had_no_room = 0, False

    def _read_record(self, message: Any, generation: int, name: str = "") -> Record:
        """Return a message as a record, whatever it contains; ``name`` is its earlier id.

        A skipped message would be acked unseen together with later messages.
        """
        name = name or str(uuid.uuid4())
        try:
            return self._record(message, generation, name)
        except Exception as error:
            record = Record(
                self._address.queue,
                name,
                message.body,
                place=(generation, message.delivery.delivery_tag, message, name),
                origin=f"{self._address.queue} {name}",
                broken=f"message: cannot be read: {type(error).__name__}: {error}",
            )
        with contextlib.suppress(Exception):
            # The letter is to have what can be read.
            found = message.header.properties
            headers = found.headers or {}
            record.key = (message.delivery.routing_key or "").encode() or None
            record.headers = properties.texts(headers, is_any=True)
            record.properties = properties.kept(
                found, found.message_id or name, headers, expires=True
            )
        return record

    def _record(self, message: Any, generation: int, name: str) -> Record:
        delivery, found = message.delivery, message.header.properties
        headers = found.headers or {}
        said = properties.texts(headers)
        after_ms = None if is_said(said) else _after_ms(found.expiration)
        if after_ms is not None:
            headers = expired(
                headers,
                queue=self._address.queue,
                exchange=delivery.exchange or "",
                routing_key=delivery.routing_key or "",
                after_ms=after_ms,
            )
            said = [*properties.texts(headers), ("dwell-delay", f"{after_ms}ms".encode())]
        is_expiring = found.expiration is not None and after_ms is None
        return Record(
            self._address.queue,
            self._id(found.message_id, name),
            message.body,
            (delivery.routing_key or "").encode() or None,
            said,
            place=(generation, delivery.delivery_tag, message, name),
            origin=f"{self._address.queue} {found.message_id or name}",
            properties=properties.kept(
                found, found.message_id or name, headers, expires=is_expiring
            ),
        )

    def _id(self, message_id: str | None, name: str) -> str:
        """Return the id to hold a message by: its own if the user declares it unique."""
        if not self._address.is_by_message_id or not message_id:
            return name
        try:
            return values.own_id(message_id, "message_id").decode()
        except InvalidInput:
            return str(uuid.uuid5(uuid.NAMESPACE_OID, message_id))

    async def done(self, records: Sequence[Record]) -> None:
        """Ack messages: with one ack up to the first that is not held, the others one by one."""
        await self._ack(records)

    async def surely_done(self, records: Sequence[Record]) -> int:
        """Ack messages, and return how many acks the broker has got for sure."""
        return await self._ack(records, is_asked=True)

    async def _ack(self, records: Sequence[Record], *, is_asked: bool = False) -> int:
        mine = [one for one in records if one.place[0] == self._connection.generation]
        if not mine or not self._connection.is_open:
            return 0
        tags = [one.place[1] for one in mine]
        for tag in tags:
            self._unacked.pop(tag, None)
        first = next(iter(self._unacked), max(tags) + 1)
        before = [tag for tag in tags if tag < first]
        try:
            channel = await self._connection.channel()
            async with calling():
                if before:
                    await channel.basic_ack(max(before), multiple=True)
                for tag in tags:
                    if tag > first:
                        await channel.basic_ack(tag)
            if is_asked:
                # An ack has no answer, and the next call has one once the acks before it are read.
                async with calling(_ASK_S):
                    await channel.basic_qos(prefetch_count=self._prefetch)
            self._held += len(mine)
            is_narrowed = self._prefetch < self._widest
            if is_narrowed and self._held >= _WIDENED_AFTER and not self._unacked:
                # A consumer keeps the prefetch that it began with: the next read makes another.
                await self._connection.close()
        except FAULTS as error:
            if self._prefetch == 1 and self._connection.could_not_read:
                # It came because the broker had got the ack of the message before it.
                return len(mine)
            _log.warning("%s", self._connection.unreachable(error))
            return 0
        return len(mine)

    async def defer(self, records: Sequence[Record]) -> None:
        """Return messages again after a while; the broker counts them as delivered until then.

        Each keeps its id, because a put refused in part may have put it.
        """
        for one in records:
            generation, _, message, name = one.place
            if generation == self._connection.generation:
                self._deferred.append(self._read_record(message, generation, name))
                self._had_no_room = True
        self._rested_s = time.monotonic() + _REST_S

    def is_whole(self, record: Record) -> bool:
        """Tell whether a record has more of its message than the body."""
        return bool(record.properties)

    def restore(self, record: Record) -> None:
        """Give a record back the id and the headers that the message came with."""
        generation, _, message, name = record.place
        came = self._read_record(message, generation, name)
        record.id, record.headers = came.id, came.headers

    async def leave(self, records: Sequence[Record]) -> None:
        """Keep messages unacked and do not return them again, until the connection ends.

        They use up the prefetch of their consumer, so another one takes its place before it is
        full. Its end does not return what it has delivered.
        """
        self._had_no_room |= bool(records)
        self._left += sum(map(self.has, records))
        if not self._connection.is_open or 2 * self._left < self._prefetch:
            return
        before = self._tag
        try:
            channel = await self._connection.channel()
            await self._consume(channel)
            async with calling(_ASK_S):
                await channel.basic_cancel(before)
        except BrokerUnreachable as error:
            _log.warning("%s", error)
        except FAULTS as error:
            _log.warning("%s", self._connection.unreachable(error))
            await self._connection.close()

    def has(self, record: Record) -> bool:
        """Tell whether the connection is still the one that delivered a message."""
        return self._connection.is_open and bool(record.place[0] == self._connection.generation)

    def may_be_twice(self, record: Record) -> bool:
        """Tell whether a message was delivered before, and no id shows the repetition."""
        message = record.place[2]
        return bool(message.delivery.redelivered) and not self._address.is_by_message_id

    @property
    def unacked(self) -> int:
        """How many messages the last connection got and did not ack."""
        return len(self._unacked)

    def comes_again(self, record: Record) -> bool:
        """Return False: without lanes it is never called."""
        return False

    def is_committed(self, lane: str, origin: str) -> bool:
        """Return a fixed answer: there are no lanes."""
        return True

    async def close(self) -> None:
        """Release unacked messages, which the broker gives to others."""
        await self._connection.close()


async def _passed_over(_message: Any) -> None:
    """Ignore a message without an ack, which leaves it to the next reader."""


def _after_ms(expiration: str | None) -> int | None:
    """Return the milliseconds after which a message expires."""
    after_ms = number_of(expiration or "")
    return None if after_ms is None else min(after_ms, MAX_DELAY_MS)
