"""Exchanges and queues of RabbitMQ: mandatory, with publisher confirms.

Messages are published one after another and their confirms gathered, so that a batch costs about as
much as its slowest message. Messages that the broker returns, because no queue takes them, are
refused for good.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)

from dwell.message import REASON_HEADER
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.rabbitmq import properties
from dwell.relay.rabbitmq.address import Address
from dwell.relay.rabbitmq.connection import FAULTS, Connection, fault_of, words
from dwell.relay.rabbitmq.properties import Properties
from dwell.relay.rabbitmq.target import parts_of
from dwell.relay.record import Record, Refusal

_log = logging.getLogger(__name__)

#: The errors of RabbitMQ for an unacceptable message: it closes the channel, with everything in
#: flight.
_FINAL = (ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed)
_MOST_KEY_BYTES = 255
_NO_ANSWER = Refusal("the broker did not confirm it in time", is_final=False)


class _Ready:
    """Properties already encoded for the wire, with the interface that the client expects."""

    __slots__ = ("_data", "message_id")

    def __init__(self, message_id: str, data: bytes) -> None:
        self.message_id = message_id
        self._data = data

    def marshal(self) -> bytes:
        return self._data


class _Outgoing(NamedTuple):
    """A message to publish; ``at`` is its place among the given records."""

    at: int
    exchange: str
    routing_key: str
    ready: _Ready
    body: bytes


class RabbitMQSink:
    """The exchanges of a broker; ``most_ms`` is its time limit for a batch."""

    def __init__(self, url: str, most_ms: int) -> None:
        self._connection = Connection(Address.of(url))
        self._most_s = most_ms / 1000
        self._sending = asyncio.Lock()

    async def open(self) -> None:
        """Connect; raises BrokerUnreachable."""
        await self._connection.channel()

    async def send(self, records: Sequence[Record]) -> Sequence[Refusal | None]:
        """Send records; records that exceed the time limit are refused for now."""
        refused: list[Refusal | None] = [None] * len(records)
        async with self._sending:
            ready = list(_all_ready(records, refused))
            until_s = asyncio.get_running_loop().time() + self._most_s
            for flight in _flights(ready):
                await self._settle(flight, refused, until_s)
        return refused

    async def _settle(
        self, flight: list[_Outgoing], refused: list[Refusal | None], until_s: float
    ) -> None:
        """Publish messages; if a channel is closed, find out which message caused it."""
        groups = [flight]
        while groups:
            group = groups.pop()
            errors = await self._fly(group, until_s)
            for one, error in zip(group, errors, strict=True):
                refused[one.at] = None if error is None else _refusal(error)
            hit = [one for one, error in zip(group, errors, strict=True) if _is_shared(error)]
            if len(hit) > 1:
                half = len(hit) // 2
                groups += [hit[half:], hit[:half]]

    async def _fly(self, group: list[_Outgoing], until_s: float) -> list[BaseException | None]:
        """Publish messages and wait for their confirms; return the error of each."""
        left_s = until_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            return [TimeoutError()] * len(group)
        try:
            channel = await self._connection.channel()
        except BrokerUnreachable as error:
            return [error] * len(group)
        tasks = [asyncio.ensure_future(_publish(channel, one)) for one in group]
        _, waiting = await asyncio.wait(tasks, timeout=left_s)
        for task in waiting:
            task.cancel()
        if waiting:
            await self._connection.close()
            await asyncio.wait(waiting)
        return [_error_of(task) for task in tasks]

    async def close(self) -> None:
        """Close; nothing is in flight after a send."""
        await self._connection.close()


async def _publish(channel: Any, one: _Outgoing) -> None:
    await channel.basic_publish(
        one.body,
        exchange=one.exchange,
        routing_key=one.routing_key,
        properties=one.ready,
        mandatory=True,
        wait=False,
    )


def _error_of(task: "asyncio.Future[None]") -> BaseException | None:
    if task.cancelled():
        return TimeoutError()
    error = task.exception()
    return None if error is None else fault_of(error)


def _is_shared(error: BaseException | None) -> bool:
    """Tell whether another message may have caused an error; a missing exchange concerns all."""
    return isinstance(error, (ChannelAccessRefused, ChannelPreconditionFailed))


def _refusal(error: BaseException) -> Refusal:
    if isinstance(error, PublishError):
        returned: Any = error.frame
        where = f"exchange {returned.exchange!r}, routing key {returned.routing_key!r}"
        return Refusal(f"{returned.reply_text}: no queue takes it ({where})", is_final=True)
    if isinstance(error, DeliveryError):
        why = "the broker refused it, as a full queue does"
        return Refusal(why, is_final=False, is_of_target=True)
    if isinstance(error, TimeoutError):
        return _NO_ANSWER
    if isinstance(error, (*_FINAL, ValueError)):
        return Refusal(words(error), is_final=True)
    if isinstance(error, (*FAULTS, BrokerUnreachable)):
        return Refusal(words(error), is_final=False)
    # A message that the client cannot encode must not block others.
    return Refusal(f"cannot be sent: {type(error).__name__}: {error}", is_final=True)


def _flights(ready: list[_Outgoing]) -> Iterator[list[_Outgoing]]:
    """Split messages into flights: with one exchange each, and no message_id twice.

    A channel is closed for a missing exchange, and a returned message is identified by its
    message_id alone.
    """
    by_exchange: dict[str, list[_Outgoing]] = {}
    for one in ready:
        by_exchange.setdefault(one.exchange, []).append(one)
    for mine in by_exchange.values():
        flight, seen = list[_Outgoing](), set[str]()
        for one in mine:
            if one.ready.message_id in seen:
                yield flight
                flight, seen = [], set()
            flight.append(one)
            seen.add(one.ready.message_id)
        yield flight


def _all_ready(records: Sequence[Record], refused: list[Refusal | None]) -> Iterator[_Outgoing]:
    for at, record in enumerate(records):
        try:
            yield _ready(at, record)
        except ValueError as error:
            refused[at] = Refusal(str(error), is_final=True)


def _ready(at: int, record: Record) -> _Outgoing:
    """Return a record ready for publishing; raises ValueError if AMQP cannot represent it."""
    exchange, routing_key = parts_of(record.topic)
    if routing_key is None:
        routing_key = (record.key or b"").decode()
    if max(len(routing_key.encode()), len(exchange.encode())) > _MOST_KEY_BYTES:
        raise ValueError(f"target: got {record.topic!r:.80}, expected at most 255 bytes each")
    try:
        found = properties.read(record.properties) or Properties(str(uuid.uuid4()))
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"properties: expected what a relay writes ({error})") from None
    if record.headers and any(name == REASON_HEADER for name, _ in record.headers):
        # A dead letter must not expire before it is read.
        found.expiration = None
    try:
        data = properties.wire(found, record.headers)
    except OverflowError:
        raise ValueError(
            "properties: got a name or a text over 255 bytes, or a number that has no room in "
            "AMQP, expected less"
        ) from None
    return _Outgoing(at, exchange, routing_key, _Ready(found.message_id, data), record.body or b"")
