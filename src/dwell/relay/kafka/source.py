"""Records of Kafka topics, as one member of a consumer group reads them.

A partition is a lane: records of one key come by one partition, and one member at a time has it.
Offsets are committed when :meth:`KafkaSource.done` was told of the records.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dwell.errors import InvalidUrl
from dwell.relay.contract import BrokerUnreachable, Lanes
from dwell.relay.kafka.address import Address
from dwell.relay.kafka.topicids import MARK, TopicIds
from dwell.relay.kafka.words import reason
from dwell.relay.record import Record

_log = logging.getLogger(__name__)

#: How long a read waits for the first record, seconds.
_WAIT_S = 0.1
#: How long a member may take to end with partitions that another member gets, seconds.
_MOST_END_S = 45.0
_ASK_S = 10.0
_LOOK_S = 1.0

#: A partition, and the offset of the last record of it that was done.
_Done = tuple[tuple[str, int], int]


class KafkaSource:
    """The topics of an address, read as a member of its group."""

    has_lanes = True

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        if not self._address.topics:
            raise InvalidUrl("--from: got no topic, expected one or more after the host")
        self._ids = TopicIds(self._address)
        self._found: list[Any] = []
        self._consumer: Consumer | None = None
        self._lanes: Lanes
        self._loop: asyncio.AbstractEventLoop
        # Rebalances happen within a read, so all but commits is done by one thread.
        self._thread = ThreadPoolExecutor(1, "dwell-kafka-read")
        #: Why it is to be looked whether a broker answers; so is it before the first record.
        self._trouble: str | None = "no broker has answered yet"
        self._lock = threading.Lock()
        self._done: dict[str, _Done] = {}
        self._is_owing = False
        self._mine: set[str] = set()
        self._names: dict[tuple[str, int], str] = {}
        self._committed: dict[str, int] = {}
        self._unknown: list[TopicPartition] = []

    async def open(self, lanes: Lanes) -> None:
        """Join the group."""
        self._loop, self._lanes = asyncio.get_running_loop(), lanes
        own = {
            "group.id": self._address.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "isolation.level": "read_committed",
            "session.timeout.ms": 10_000,
            "error_cb": self._hear,
            "logger": _log,
        }
        try:
            consumer = Consumer(self._address.options | own | _given(self._address))
            consumer.subscribe(
                list(self._address.topics),
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )
        except KafkaException as error:
            raise InvalidUrl(f"--from: {reason(error)}") from None
        self._consumer = consumer

    async def read(self, limit: int) -> Sequence[Record]:
        """Return the records that are there, of all partitions of this member."""
        return await self._loop.run_in_executor(self._thread, self._read, limit)

    def _read(self, limit: int) -> list[Record]:
        consumer = self._consumer
        assert consumer is not None
        self._commit()
        self._learn(consumer)
        # What came and could not be named is not given by the client again.
        self._found = found = self._found or _consumed(consumer, limit)
        self._ids.learn({one.topic() for one in found if one.error() is None})
        self._found = []
        if not found and self._trouble is not None:
            self._look_again(consumer)
        told = [one.error() for one in found]
        troubles = [one for one in told if one and one.code() != KafkaError._PARTITION_EOF]
        if troubles and len(troubles) == len(found):
            raise BrokerUnreachable(f"kafka: {troubles[0].str()}")
        for trouble in troubles:
            _log.warning("kafka: %s", trouble.str())
        return [self._record(one) for one in found if one.error() is None]

    def _learn(self, consumer: Consumer) -> None:
        """Ask what is committed of new lanes, which a rebalance should not wait for."""
        if not self._unknown:
            return
        try:
            for part in consumer.committed(self._unknown, _ASK_S):
                lane = lane_of(part.topic, part.partition)
                self._committed[lane] = max(part.offset - 1, self._committed.get(lane, -1))
        except KafkaException as error:
            _log.warning("kafka: %s", reason(error))
        else:
            self._unknown = []

    def _look_again(self, consumer: Consumer) -> None:
        """Raise BrokerUnreachable while no broker answers."""
        try:
            consumer.list_topics(timeout=_LOOK_S)
        except KafkaException:
            raise BrokerUnreachable(f"kafka: {self._trouble}") from None
        self._trouble = None

    def _record(self, one: Any) -> Record:
        part = (one.topic(), one.partition())
        lane = self._names.get(part)
        if lane is None:
            lane = self._names[part] = lane_of(*part)
        offset = one.offset()
        kind, at_ms = one.timestamp()
        origin = f"{lane}-{offset}{self._ids.mark(part[0])}"
        return Record(
            part[0],
            origin,
            one.value(),
            one.key(),
            self._ids.cancelling(one.headers() or []),
            at_ms if kind else 0,
            lane,
            (part, offset),
            origin,
        )

    async def done(self, records: Sequence[Record]) -> None:
        """Let the offsets after the last record of each lane be committed with the next read.

        A commit from elsewhere would wait for a rebalance, which waits for what is held.
        """
        with self._lock:
            self._done |= {record.lane: record.place for record in records}

    def _commit(self) -> None:
        with self._lock:
            done, self._done = self._done, {}
        if not done or self._consumer is None:
            return
        offsets = [TopicPartition(*part, at + 1) for part, at in done.values()]
        try:
            told = self._consumer.commit(offsets=offsets, asynchronous=False)
            failed = {lane_of(one.topic, one.partition): one.error for one in told if one.error}
        except KafkaException as error:
            failed = dict.fromkeys(done, error.args[0])
        self._committed |= {lane: at for lane, (_, at) in done.items() if lane not in failed}
        if failed:
            self._owe(failed, done)
        else:
            self._is_owing = False

    def _owe(self, failed: Mapping[str, KafkaError], done: Mapping[str, _Done]) -> None:
        """Commit what failed with the next read, as nothing of it may leave before, exactly once.

        What another member has by now it reads again, and finds the ids.
        """
        with self._lock:
            self._done = {lane: done[lane] for lane in failed if lane in self._mine} | self._done
        if not self._is_owing:
            _log.warning("kafka: offsets were not committed: %s", next(iter(failed.values())).str())
        self._is_owing = True

    def is_committed(self, origin: str) -> bool:
        """Tell whether a record of a lane of this member is not read again."""
        lane, _, offset = origin.partition(MARK)[0].rpartition("-")
        return offset.isdigit() and int(offset) <= self._committed.get(lane, -1)

    async def close(self) -> None:
        """Leave the group."""
        if self._consumer is not None:
            await self._loop.run_in_executor(self._thread, self._commit)
            await self._loop.run_in_executor(self._thread, self._consumer.close)
        self._thread.shutdown(wait=False)

    # --- lanes, told by the thread that reads ---------------------------------------------------

    def _assigned(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        self._unknown += parts
        lanes = _lanes_of(parts)
        self._mine |= set(lanes)
        # One that was deleted and made again is another.
        self._ids.forget({part.topic for part in parts})
        self._wait(self._lanes.open(lanes))

    def _revoked(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        lanes = _lanes_of(parts)
        self._wait(self._lanes.close(lanes))
        self._mine -= set(lanes)
        self._commit()

    def _lost(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        lanes = _lanes_of(parts)
        self._mine -= set(lanes)
        self._wait(self._lanes.close(lanes, is_lost=True))

    def _wait(self, told: Any) -> None:
        try:
            asyncio.run_coroutine_threadsafe(told, self._loop).result(_MOST_END_S)
        except TimeoutError:
            _log.warning("kafka: partitions go to another member while some of theirs is sent")

    def _hear(self, trouble: KafkaError) -> None:
        if self._trouble is None:
            _log.warning("kafka: %s", trouble.str())
        self._trouble = trouble.str()


def lane_of(topic: str, partition: int) -> str:
    """Return the name of a partition."""
    return f"{topic}-{partition}"


def _consumed(consumer: Consumer, limit: int) -> list[Any]:
    try:
        first = consumer.consume(1, _WAIT_S)
        return first + consumer.consume(limit - 1, 0) if first and limit > 1 else first
    except KafkaException as error:
        raise BrokerUnreachable(f"kafka: {reason(error)}") from None


def _lanes_of(parts: Sequence[TopicPartition]) -> list[str]:
    return [lane_of(part.topic, part.partition) for part in parts]


def _given(address: Address) -> dict[str, str]:
    """Return what the user says of options that have a default here."""
    mine = ("partition.assignment.strategy", "session.timeout.ms", "auto.offset.reset")
    return {name: address.options[name] for name in mine if name in address.options}
