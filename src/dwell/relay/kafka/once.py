"""Exactly once into Kafka: what a lane sends, and what it sent last, in one transaction.

Each lane has a transactional id of its own, so whoever has the lane now shuts out whoever had it
before. The numbers of the messages that were sent stand in a compacted topic, one record a lane,
written in the same transaction: when a relay dies after the commit and before the queue was told,
the next one reads there what it must not send again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dwell.message import U64
from dwell.relay.contract import BrokerUnreachable, LaneLost
from dwell.relay.kafka.sink import Flight, KafkaSink, producer_of, single_out
from dwell.relay.kafka.words import reason
from dwell.relay.record import Record, Refusal

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: What becomes of the rest of a transaction in which one record was refused.
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)

_POLL_S = 0.05
_ASK_S = 15.0
#: As long as the broker may wait for the end of a transaction of a relay that died.
_READ_S = 90.0


class OnceKafkaSink(KafkaSink):
    """The topics of an address, sent to in transactions; ``name`` is the same for all relays."""

    def __init__(self, url: str, most_ms: int, name: str) -> None:
        super().__init__(url, most_ms)
        self._name = name
        self._state = f"{name}-sent"
        self._by_lane: dict[str, Producer] = {}

    async def open(self) -> None:
        """Make the topic of what was sent, if it is not there."""
        await super().open()
        await asyncio.to_thread(self._make_topic)

    async def enter(self, lane: str) -> U64:
        """Shut out who had the lane before; return the numbers that it sent last."""
        return await asyncio.to_thread(_told, self._enter, lane)

    async def send_once(
        self, lane: str, records: Sequence[Record], numbers: U64
    ) -> Sequence[Refusal | None]:
        """Send all records of a lane, or none, and keep the numbers with them."""
        return await asyncio.to_thread(_told, self._send_once, lane, records, numbers)

    async def leave(self, lane: str) -> None:
        """End with a lane: no transaction is open between two calls."""
        self._by_lane.pop(lane, None)

    # --- in a thread ----------------------------------------------------------------------------

    def _make_topic(self) -> None:
        config = {"cleanup.policy": "compact"}
        topic = NewTopic(self._state, num_partitions=1, config=config)
        options: dict[str, Any] = self._address.options | {"logger": _log}
        # Without a name of its own it would be gone before it was answered.
        admin = AdminClient(options)
        made = admin.create_topics([topic], request_timeout=_ASK_S)
        try:
            made[self._state].result(_ASK_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerUnreachable(f"kafka: {self._state}: {reason(error)}") from None

    def _enter(self, lane: str) -> U64:
        producer = producer_of(
            self._address,
            self._most_ms,
            **{
                "transactional.id": f"{self._name}.{lane}",
                "transaction.timeout.ms": self._most_ms,
            },
        )
        producer.init_transactions(_ASK_S)
        self._by_lane[lane] = producer
        return self._sent(lane)

    def _sent(self, lane: str) -> U64:
        """Return what the lane's last transaction says, once all before it are decided."""
        part = TopicPartition(self._state, 0, OFFSET_BEGINNING)
        options = {"group.id": self._name, "enable.auto.commit": False, "logger": _log}
        options |= self._address.options | {"enable.partition.eof": True}
        written = Consumer(options | {"isolation.level": "read_uncommitted"})
        reader = Consumer(options | {"isolation.level": "read_committed"})
        try:
            _, end = written.get_watermark_offsets(part, _ASK_S, cached=False)
            reader.assign([part])
            return self._last(reader, lane, end)
        finally:
            written.close()
            reader.close()

    def _last(self, reader: Consumer, lane: str, end: int) -> U64:
        last, key = b"", lane.encode()
        until_s = time.monotonic() + _READ_S
        at = 0
        while at < end:
            if time.monotonic() > until_s:
                raise BrokerUnreachable(f"kafka: {self._state}: a transaction there does not end")
            one = reader.poll(_POLL_S)
            if one is None:
                continue
            error = one.error()
            if error is None:
                at = (one.offset() or 0) + 1
                last = one.value() or b"" if one.key() == key else last
            elif error.code() == KafkaError._PARTITION_EOF:
                at = max(at, one.offset() or 0)
            else:
                raise KafkaException(error)
        return np.frombuffer(last, dtype="<u8").astype(np.uint64)

    def _send_once(
        self, lane: str, records: Sequence[Record], numbers: U64
    ) -> list[Refusal | None]:
        producer = self._by_lane[lane]
        state = numbers.astype("<u8").tobytes()
        refused = self._transaction(
            producer,
            records,
            lambda: producer.produce(self._state, state, lane.encode(), partition=0),
        )
        # Who is refused is found out in transactions that come to nothing.
        single_out(partial(self._transaction, producer), records, refused)
        return refused

    def _transaction(
        self,
        producer: Producer,
        records: Sequence[Record],
        seal: Callable[[], None] | None = None,
    ) -> list[Refusal | None]:
        """Send records and what seals them, all or nothing; without a seal nothing."""
        flight = Flight(records, _PURGED)
        producer.begin_transaction()
        try:
            flight.launch(producer)
            if seal is not None:
                seal()
            # Raises what became of a record too late, so what the flight was told counts.
            with contextlib.suppress(KafkaException):
                producer.flush(self._most_ms / 1000)
            if seal is None or any(flight.refused):
                producer.abort_transaction(_ASK_S)
            else:
                _again(lambda: producer.commit_transaction(_ASK_S), self._most_ms)
        except KafkaException as error:
            _abort(producer, error)
            raise
        return flight.refused


def _again(work: Callable[[], T], most_ms: int) -> T:
    """Do what may be done again until it is known what became of it."""
    until_s = time.monotonic() + most_ms / 1000
    while True:
        try:
            return work()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until_s:
                raise


def _abort(producer: Producer, error: KafkaException) -> None:
    if not error.args[0].fatal():
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(_ASK_S)


def _told(work: Callable[..., T], *given: Any) -> T:
    try:
        return work(*given)
    except KafkaException as error:
        first = error.args[0]
        if first.fatal() or first.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            raise LaneLost(f"kafka: {reason(error)}") from None
        raise BrokerUnreachable(f"kafka: {reason(error)}") from None
