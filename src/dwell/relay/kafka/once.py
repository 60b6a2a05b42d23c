"""Exactly once into Kafka: a lane's messages and the note of them, in one transaction.

Each lane of an owner has a transactional id, so the lane's present relay fences off its previous
relay. The names of the sent messages are in a compacted topic, one record for each lane of an
owner, written in the same transaction: when a relay dies after the commit and before the queue was
told, the next relay reads there which messages it must not send again.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

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

from dwell.errors import InvalidSettings
from dwell.relay.contract import BrokerUnreachable, LaneLost
from dwell.relay.kafka.sink import Flight, KafkaSink, producer_of, single_out, state_of
from dwell.relay.kafka.words import reason, told
from dwell.relay.record import Record, Refusal
from dwell.relay.sent import Owner, decoded, encoded

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: The errors of the other records of a transaction after one record was refused.
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)

_POLL_S = 0.05
_ASK_S = 15.0
#: The time that the broker may wait for the end of a dead relay's transaction.
_READ_S = 90.0
#: The greatest age of the known leaders before a transaction.
_LEADERS_S = 1.0
_LANES_AT_ONCE = 32
#: The most that a broker lets a transaction take by default, ``transaction.max.timeout.ms``.
_MOST_MS = 15 * 60_000
#: Each batch writes a record, and all of them are read at a start: Kafka should compact them soon,
#: which it does for whole segments only.
_STATE_CONFIG = {
    "segment.bytes": str(16 * 2**20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}


class OnceKafkaSink(KafkaSink):
    """The topics of an address, sent to in transactions, for one owner of messages.

    ``most_ms`` is the time limit of brokers, at most a quarter of an hour.
    """

    def __init__(self, url: str, most_ms: int, owner: Owner) -> None:
        # A shorter limit than the lease allows is safe: records are given back sooner.
        super().__init__(url, min(most_ms, _MOST_MS))
        self._name = f"dwell-{owner.hold}"
        self._owner = owner
        self._state = state_of(owner.hold)
        #: The producer of each lane, and the owner that it was entered for, as text.
        self._by_lane: dict[str, tuple[Producer, str]] = {}
        #: The topics without a leader, and the time of the last check, by the monotonic clock.
        self._leaderless: frozenset[str] = frozenset()
        self._looked_s = -_LEADERS_S
        self._threads = ThreadPoolExecutor(_LANES_AT_ONCE, "dwell-kafka-once")
        #: The last names of an owner's lanes, as far as the topic was read, and the end of that.
        self._states: dict[bytes, bytes] = {}
        self._read_to = 0
        self._read_for = ""
        self._reading = threading.Lock()

    async def open(self) -> None:
        """Make the topic of the sent names, if it does not exist."""
        await super().open()
        await asyncio.to_thread(self._make_topic)

    async def enter(self, lane: str, store: int) -> Collection[bytes]:
        """Fence off the lane's previous relay; return the names of its last messages."""
        return await self._in_thread(self._enter, lane, self._owner.of(store))

    async def send_once(
        self, lane: str, records: Sequence[Record], names: Collection[bytes]
    ) -> Sequence[Refusal | None]:
        """Send all records of a lane, or none, and keep the names with them."""
        return await self._told_of(await self._in_thread(self._send_once, lane, records, names))

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        # A lane may wait long for a broker, and must not block other work in threads.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _told, work, *given)

    async def leave(self, lane: str) -> None:
        """End with a lane: no transaction is open between two calls."""
        self._by_lane.pop(lane, None)

    # --- in a thread ----------------------------------------------------------------------------

    def _make_topic(self) -> None:
        config = {"cleanup.policy": "compact", **_STATE_CONFIG}
        topic = NewTopic(self._state, num_partitions=1, config=config)
        options: dict[str, Any] = self._address.options | {"logger": _log}
        # Without a reference of its own the client would be collected before the answer.
        admin = AdminClient(options)
        made = admin.create_topics([topic], request_timeout=_ASK_S)
        try:
            told(made[self._state], _ASK_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerUnreachable(f"kafka: {self._state}: {reason(error)}") from None

    def _enter(self, lane: str, owner: str) -> list[bytes]:
        producer = producer_of(
            self._address,
            self._most_ms,
            **{
                "transactional.id": f"{self._name}.{owner}.{lane}",
                "transaction.timeout.ms": self._most_ms,
            },
        )
        try:
            producer.init_transactions(_ASK_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise InvalidSettings(
                f"--lease: lets a transaction take {self._most_ms} ms, which is two thirds of it, "
                "expected at most transaction.max.timeout.ms of the broker"
            ) from None
        self._by_lane[lane] = (producer, owner)
        return self._sent(lane, owner)

    def _sent(self, lane: str, owner: str) -> list[bytes]:
        """Return the names in the lane's last transaction, once all before it are decided."""
        with self._reading:
            if owner != self._read_for:
                self._states, self._read_to, self._read_for = {}, 0, owner
            self._catch_up()
            try:
                return decoded(self._states.get(_key(owner, lane), b""))
            except ValueError as error:
                # Any client with the right to write to the topic may have written it.
                _log.error("kafka: %s: the state of %s is ignored: %s", self._state, lane, error)
                return []

    def _catch_up(self) -> None:
        """Read up to the present end, which is the same for all lanes."""
        options = {"group.id": self._name, "enable.auto.commit": False, "logger": _log}
        options |= self._address.options | {
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        written = Consumer(options | {"isolation.level": "read_uncommitted"})
        reader = Consumer(options | {"isolation.level": "read_committed"})
        try:
            part = TopicPartition(self._state, 0)
            _, end = written.get_watermark_offsets(part, _ASK_S, cached=False)
            if end < self._read_to:
                # The topic was deleted and made again.
                self._states, self._read_to = {}, 0
            part.offset = self._read_to or OFFSET_BEGINNING
            reader.assign([part])
            self._read(reader, end)
        finally:
            written.close()
            reader.close()

    def _read(self, reader: Consumer, end: int) -> None:
        until_s = time.monotonic() + _READ_S
        while self._read_to < end:
            if time.monotonic() > until_s:
                raise BrokerUnreachable(f"kafka: {self._state}: a transaction there does not end")
            one = reader.poll(_POLL_S)
            if one is None:
                continue
            error = one.error()
            if error is None:
                if (key := one.key() or b"").startswith(f"{self._read_for}.".encode()):
                    self._states[key] = one.value() or b""
                self._read_to = (one.offset() or 0) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._read_to = max(self._read_to, one.offset() or 0)
            else:
                raise KafkaException(error)

    def _send_once(
        self, lane: str, records: Sequence[Record], names: Collection[bytes]
    ) -> list[Refusal | None]:
        producer, owner = self._by_lane[lane]
        state = encoded(names)
        if any(refused := self._without_leader(producer, records)):
            return refused
        refused = self._transaction(
            producer,
            records,
            lambda: producer.produce(self._state, state, _key(owner, lane), partition=0),
        )
        # Trial transactions that are aborted find out which record is refused.
        single_out(partial(self._transaction, producer), records, refused)
        return refused

    def _without_leader(
        self, producer: Producer, records: Sequence[Record]
    ) -> list[Refusal | None]:
        """Refuse records for topics without a leader.

        A transaction that includes such a topic neither commits nor aborts before it has one, and
        blocks the rest of the lane.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LEADERS_S:
            topics = producer.list_topics(timeout=_ASK_S).topics
            self._leaderless = frozenset(
                name
                for name, topic in topics.items()
                if any(part.leader < 0 for part in topic.partitions.values())
            )
            self._looked_s = now_s
        return [
            Refusal(f"{one.topic}: has no leader", is_final=False)
            if one.topic in self._leaderless
            else None
            for one in records
        ]

    def _transaction(
        self,
        producer: Producer,
        records: Sequence[Record],
        seal: Callable[[], None] | None = None,
    ) -> list[Refusal | None]:
        """Send records and their seal, all or nothing; abort without a seal."""
        flight = Flight(records, _PURGED)
        producer.begin_transaction()
        try:
            flight.launch(producer)
            if seal is not None:
                seal()
            # It raises the error of a record too late, so the flight's callbacks count. For a
            # fenced producer the client raises in the middle of that, which is a SystemError; the
            # commit reports it properly.
            with contextlib.suppress(KafkaException, SystemError):
                producer.flush(self._most_ms / 1000)
            if seal is None or any(flight.refused):
                producer.abort_transaction(_ASK_S)
            else:
                _again(lambda: producer.commit_transaction(_ASK_S), self._most_ms)
        except KafkaException as error:
            _abort(producer, error)
            raise
        return flight.refused


def _key(owner: str, lane: str) -> bytes:
    return f"{owner}.{lane}".encode()


def _again(work: Callable[[], T], most_ms: int) -> T:
    """Repeat an idempotent operation until its result is known."""
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
