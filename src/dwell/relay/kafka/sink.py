"""Records into Kafka topics: an idempotent producer, with what each record came to.

Keys go to the partitions to which Java's clients send them.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from dwell.errors import InvalidUrl
from dwell.relay.kafka.address import Address
from dwell.relay.kafka.words import reason, refusal
from dwell.relay.record import Record, Refusal

_log = logging.getLogger(__name__)

_POLL_S = 0.1
#: What is the same for each producer of a relay.
PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 2,
    "queue.buffering.max.messages": 200_000,
    "delivery.report.only.error": True,
    "logger": _log,
}
_TUNED = ("linger.ms", "compression.type", "partitioner")


def producer_of(address: Address, most_ms: int, **more: Any) -> Producer:
    """Return a producer that may take so long for a record; raises InvalidUrl for bad options."""
    tuned = {name: address.options[name] for name in _TUNED if name in address.options}
    more["delivery.timeout.ms"] = most_ms
    try:
        return Producer(address.options | PRODUCER | tuned | more)
    except KafkaException as error:
        raise InvalidUrl(f"--to: {reason(error)}") from None


class Flight:
    """Records on their way, and why the broker has not some of them.

    The broker only says what went wrong: an answer for each record would cost as much as sending
    it. That all have been answered is seen when nothing of the producer's is on its way.
    ``passed_over`` are errors that another record's brings with it.
    """

    def __init__(self, records: Sequence[Record], passed_over: Collection[int] = ()) -> None:
        self._records = records
        self._passed_over = passed_over
        self.refused: list[Refusal | None] = [None] * len(records)

    def launch(self, producer: Producer) -> None:
        """Hand the records to a producer, in their order; blocks while its buffer is full."""
        for at, record in enumerate(self._records):
            told = partial(self._told, at)
            try:
                while not _is_produced(producer, record, told):
                    producer.poll(_POLL_S)
            except (KafkaException, TypeError, ValueError) as error:
                told(_kafka_error(error), None)

    def _told(self, at: int, error: KafkaError | None, _message: object) -> None:
        if error is not None and error.code() not in self._passed_over:
            self.refused[at] = refusal(error)


def single_out(
    send: Callable[[Sequence[Record]], list[Refusal | None]],
    records: Sequence[Record],
    refused: list[Refusal | None],
) -> None:
    """Send again, in ever smaller parts, what was refused for the sake of another record."""
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
    """Hand a record over; False when there is no room for it yet."""
    headers: Any = record.headers
    try:
        # Without headers the call without them, which costs less.
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


class KafkaSink:
    """The topics of the brokers of an address; ``most_ms`` is how long they may take."""

    def __init__(self, url: str, most_ms: int) -> None:
        self._address = Address.of(url)
        self._most_ms = most_ms
        self._producer: Producer | None = None
        self._sending = asyncio.Lock()

    async def open(self) -> None:
        """Make the producer; that the brokers are there shows when something is sent."""
        self._producer = producer_of(self._address, self._most_ms)

    async def send(self, records: Sequence[Record]) -> Sequence[Refusal | None]:
        """Send records; what takes longer than the broker may is refused for now."""
        if not records:
            return []
        async with self._sending:
            return await asyncio.to_thread(self._send, records)

    def _send(self, records: Sequence[Record]) -> list[Refusal | None]:
        refused = self._fly(records)
        single_out(self._fly, records, refused)
        return refused

    def _fly(self, records: Sequence[Record]) -> list[Refusal | None]:
        assert self._producer is not None
        flight = Flight(records)
        flight.launch(self._producer)
        while self._producer.flush(self._most_ms / 1000):
            _log.warning("kafka: %d records have no answer yet", len(self._producer))
        if any(refusal is not None and not refusal.is_final for refusal in flight.refused):
            # An idempotent producer that lost count takes nothing any more.
            self._producer = producer_of(self._address, self._most_ms)
        return flight.refused

    async def close(self) -> None:
        """End; nothing is on its way after a send."""
        self._producer = None
