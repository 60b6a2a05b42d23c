"""Records into Kafka topics: an idempotent producer, with the result of each record.

Keys go to the same partitions as with Java's clients.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from dwell.errors import InvalidUrl
from dwell.message import MAX_BODY_BYTES
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.kafka.address import Address
from dwell.relay.kafka.words import reason, refusal
from dwell.relay.record import Record, Refusal

_log = logging.getLogger(__name__)

_POLL_S = 0.1
_LOOK_S = 2.0
#: The pause of a topic that accepted nothing, and the time after which an unused topic is dropped,
#: in seconds.
_APART_S = 1.0
_FORGET_S = 60.0
#: The options common to all producers of a relay.
PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 2,
    # More than any message with its headers: the broker decides what is too large.
    "message.max.bytes": 2 * MAX_BODY_BYTES,
    "queue.buffering.max.messages": 200_000,
    "delivery.report.only.error": True,
    "logger": _log,
}
_TUNED = ("linger.ms", "compression.type", "partitioner", "message.max.bytes")
_STATE = re.compile(r"dwell-.+-sent")


def state_of(hold: str) -> str:
    """Return the topic for the record of messages sent exactly once."""
    return f"dwell-{hold}-sent"


def producer_of(address: Address, most_ms: int, **more: Any) -> Producer:
    """Return a producer with a time limit for each record; raises InvalidUrl for bad options."""
    tuned = {name: address.options[name] for name in _TUNED if name in address.options}
    more["delivery.timeout.ms"] = most_ms
    # The existence of a topic must be known before its records are given up for lack of it.
    more["topic.metadata.propagation.max.ms"] = most_ms // 2
    try:
        return Producer(address.options | PRODUCER | tuned | more)
    except KafkaException as error:
        raise InvalidUrl(f"--to: {reason(error)}") from None


class Flight:
    """Records in flight, and why the broker does not have some of them.

    The broker reports only errors: an answer for each record would cost as much as sending it. All
    are answered when the producer has nothing in flight. ``passed_over`` are errors caused by
    another record.
    """

    def __init__(self, records: Sequence[Record], passed_over: Collection[int] = ()) -> None:
        self._records = records
        self._passed_over = passed_over
        self.refused: list[Refusal | None] = [None] * len(records)

    def launch(self, producer: Producer) -> None:
        """Hand the records to a producer, in order; blocks while its buffer is full."""
        for at, record in enumerate(self._records):
            if _STATE.fullmatch(record.topic):
                # Other writers of that topic could make a relay ack messages that it never sent.
                self.refused[at] = Refusal(
                    f"target: got {record.topic!r:.80}, which keeps the state of relays, expected "
                    "another topic",
                    is_final=True,
                )
                continue
            told = partial(self._told, at)
            try:
                while not _is_produced(producer, record, told):
                    producer.poll(_POLL_S)
            except (KafkaException, TypeError, ValueError, SystemError) as error:
                told(_kafka_error(error), None)

    def _told(self, at: int, error: KafkaError | None, _message: object) -> None:
        if error is not None and error.code() not in self._passed_over:
            self.refused[at] = refusal(error)


def single_out(
    send: Callable[[Sequence[Record]], list[Refusal | None]],
    records: Sequence[Record],
    refused: list[Refusal | None],
) -> None:
    """Send again, in ever smaller parts, records that were refused because of another record."""
    groups = [_shared(range(len(records)), refused)]
    while groups:
        group = groups.pop()
        half = len(group) // 2
        for part in (group[:half], group[half:]) if half else ():
            for at, why in zip(part, send([records[at] for at in part]), strict=True):
                refused[at] = why
            groups.append(_shared(part, refused))


def _shared(places: Iterable[int], refused: Sequence[Refusal | None]) -> list[int]:
    return [at for at in places if (why := refused[at]) is not None and why.is_shared]


def _is_produced(producer: Producer, record: Record, told: Any) -> bool:
    """Hand a record over; False while there is no room for it."""
    headers: Any = record.headers
    try:
        # Without headers use the call without them, which costs less.
        if headers:
            producer.produce(
                record.topic, record.body, record.key, headers=headers, on_delivery=told
            )
        else:
            producer.produce(record.topic, record.body, record.key, on_delivery=told)
    except BufferError:
        return False
    return True


def _kafka_error(error: Exception) -> KafkaError:
    first = error.args[0] if error.args else None
    if isinstance(first, KafkaError):
        return first
    return KafkaError(KafkaError._INVALID_ARG, str(error))


class _Line:
    """A producer with the records of one call in flight at a time."""

    def __init__(self, address: Address, most_ms: int) -> None:
        self._address = address
        self._most_ms = most_ms
        self._producer = producer_of(address, most_ms)
        self._sending = asyncio.Lock()

    @property
    def is_busy(self) -> bool:
        return self._sending.locked()

    def look(self) -> None:
        try:
            self._producer.list_topics(timeout=_LOOK_S)
        except KafkaException as error:
            raise BrokerUnreachable(f"kafka: {reason(error)}") from None

    async def send(self, records: Sequence[Record]) -> list[Refusal | None]:
        if not records:
            return []
        async with self._sending:
            return await asyncio.to_thread(self._send, records)

    def _send(self, records: Sequence[Record]) -> list[Refusal | None]:
        refused = self._fly(records)
        single_out(self._fly, records, refused)
        return refused

    def _fly(self, records: Sequence[Record]) -> list[Refusal | None]:
        flight = Flight(records)
        flight.launch(self._producer)
        while self._producer.flush(self._most_ms / 1000):
            _log.warning("kafka: %d records have no answer yet", len(self._producer))
        if any(refusal is not None and not refusal.is_final for refusal in flight.refused):
            # An idempotent producer that lost count accepts nothing after that.
            self._producer = producer_of(self._address, self._most_ms)
        return flight.refused


class KafkaSink:
    """The topics of the brokers of an address; ``most_ms`` is their time limit.

    A topic that has accepted nothing for that long, such as one without a leader, is set apart: a
    line of its own retries it, one call at a time, and other records for it are refused at once. So
    it delays no other topic.
    """

    def __init__(self, url: str, most_ms: int) -> None:
        self._address = Address.of(url)
        self._most_ms = most_ms
        self._lines: tuple[_Line, _Line] | None = None
        #: The topics set apart, and the time of their next attempts, by the monotonic clock.
        self._apart: dict[str, float] = {}

    async def open(self) -> None:
        """Make the producers; raises BrokerUnreachable while no broker answers."""
        usual, apart = (_Line(self._address, self._most_ms) for _ in range(2))
        await asyncio.to_thread(usual.look)
        self._lines = usual, apart

    async def send(self, records: Sequence[Record]) -> Sequence[Refusal | None]:
        """Send records; records that exceed the time limit are refused for now."""
        assert self._lines is not None
        usual, apart = self._lines
        if not self._apart:
            return await self._told_of(self._noted(records, await usual.send(records)))
        refused: list[Refusal | None] = [None] * len(records)
        now_s, quick, slow = time.monotonic(), list[int](), list[int]()
        for at, record in enumerate(records):
            next_s = self._apart.get(record.topic)
            if next_s is None:
                quick.append(at)
            elif apart.is_busy or now_s < next_s:
                refused[at] = _set_apart(record.topic)
            else:
                slow.append(at)
        lines = ((usual, quick), (apart, slow))
        told = [line.send([records[at] for at in places]) for line, places in lines]
        for (_, places), answers in zip(lines, await asyncio.gather(*told), strict=True):
            for at, why in zip(places, answers, strict=True):
                refused[at] = why
        tried = sorted(quick + slow)
        self._noted([records[at] for at in tried], [refused[at] for at in tried])
        return await self._told_of(refused)

    async def _told_of(self, refused: Sequence[Refusal | None]) -> Sequence[Refusal | None]:
        """Mark refusals for now as the target's, unless no broker answers."""
        if not any(why is not None and not why.is_final for why in refused):
            return refused
        if None not in refused:
            assert self._lines is not None
            try:
                await asyncio.to_thread(self._lines[0].look)
            except BrokerUnreachable:
                return refused
        return [None if why is None else why._replace(is_of_target=True) for why in refused]

    def _noted(
        self, records: Sequence[Record], refused: list[Refusal | None]
    ) -> list[Refusal | None]:
        """Set apart topics that accepted nothing, and return the others to normal."""
        if not self._apart and not any(refused):
            return refused
        now_s = time.monotonic()
        for record, why in zip(records, refused, strict=True):
            if why is not None and not why.is_final:
                self._apart[record.topic] = now_s + _APART_S
            else:
                self._apart.pop(record.topic, None)
        # Unused topics are dropped.
        self._apart = {topic: s for topic, s in self._apart.items() if s > now_s - _FORGET_S}
        return refused

    async def close(self) -> None:
        """Close; nothing is in flight after a send."""
        self._lines = None


def _set_apart(topic: str) -> Refusal:
    return Refusal(f"{topic}: took nothing in time, and is tried again by itself", is_final=False)
