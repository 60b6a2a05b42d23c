"""Records of Kafka topics, read as one member of a consumer group.

A partition is a lane: records of one key come from one partition, and one member at a time has it.
Offsets are committed after :meth:`KafkaSource.done` got the records.

A topic may be deleted and made again under a running relay. Offsets do not show that, so the ids of
topics are read again each second while records come: a partition of a new topic is read from its
beginning, and the progress in the old one is not committed.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import methodcaller
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from dwell.digits import number_of
from dwell.errors import InvalidUrl
from dwell.relay.contract import BrokerUnreachable, Lanes
from dwell.relay.kafka.address import Address
from dwell.relay.kafka.topicids import MARK, TopicIds
from dwell.relay.kafka.words import reason
from dwell.relay.record import Record

_log = logging.getLogger(__name__)

#: How long a read waits for the first record, seconds.
_WAIT_S = 0.1
#: How long a member may take to finish with partitions that another member gets, in seconds.
_MOST_END_S = 45.0
_ASK_S = 10.0
_LOOK_S = 1.0
#: How long to wait for the answer to a commit before it is sent once more, in seconds.
_COMMIT_S = 10.0
#: How often to look whether a topic has partitions again that it no longer had, in seconds.
_LED_S = 1.0
#: The values of ``auto.offset.reset`` that begin at the end.
_AT_END = ("latest", "largest", "end")
#: The greatest age of topic ids while records come, and while none come, in seconds.
_IDS_S = 1.0
_IDLE_IDS_S = 10.0
#: The pause of a lane whose records had no room, in seconds.
_REST_S = 1.0
#: The errors of a broker for a partition that does not exist.
_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}

#: For a name that is not UTF-8 the client returns a list with a hole, and leaves an error set. A
#: call by the interpreter's fast path does not check for that, and the hole ends the process; this
#: call always checks, and raises SystemError.
_headers_of = methodcaller("headers")

_Part = tuple[str, int]


class _Place(NamedTuple):
    """The place of a record: its partition, offset and topic, and when the lane was assigned.

    ``turn`` counts the assignments of the lane to this member: a record that was read before the
    lane was lost says nothing about the lane since it came back.
    """

    part: _Part
    offset: int
    mark: str
    turn: int


class KafkaSource:
    """The topics of an address, read as a member of its group."""

    has_lanes = True

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        if not self._address.topics:
            raise InvalidUrl("--from: got no topic, expected one or more after the host")
        self._ids = TopicIds(self._address)
        self._ids_due_s = 0.0
        self._found: list[Any] = []
        self._consumer: Consumer | None = None
        self._lanes: Lanes
        self._reset = ""
        self._loop: asyncio.AbstractEventLoop
        # Rebalances happen within a read, so one thread does everything except commits.
        self._thread = ThreadPoolExecutor(1, "dwell-kafka-read")
        #: The reason to check whether a broker answers; also set before the first record.
        self._trouble: str | None = "no broker has answered yet"
        self._lock = threading.Lock()
        self._done: dict[str, _Place] = {}
        self._deferred: dict[str, _Place] = {}
        #: Commits without an answer, and until when to wait for it.
        self._committing: dict[str, _Place] = {}
        self._commit_until_s = 0.0
        self._is_owing = False
        self._mine: dict[str, _Part] = {}
        #: How often each lane was assigned to this member.
        self._turns: Counter[str] = Counter()
        self._names: dict[_Part, str] = {}
        #: For each lane, the mark of its topic, and the last offset read.
        self._marks: dict[str, str] = {}
        self._read_to: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        self._unknown: list[TopicPartition] = []
        #: Topics whose first partition was assigned, and which may have had more partitions before;
        #: those that were asked about last, and the answer: which have records of such partitions.
        self._led: set[str] = set()
        self._led_due_s = 0.0
        self._asked: set[str] = set()
        self._adopting: Future[set[str]] = Future()
        self._adopting.set_result(set())
        self._resting: dict[str, float] = {}

    async def open(self, lanes: Lanes) -> None:
        """Join the group."""
        self._loop, self._lanes = asyncio.get_running_loop(), lanes
        own = {
            "group.id": self._address.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "error_cb": self._hear,
            "on_commit": self._answered,
            "logger": _log,
        }
        try:
            options = _defaults(self._address) | self._address.options | own
            self._reset = options["auto.offset.reset"].lower()
            consumer = Consumer(options)
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
        """Return the available records, of all partitions of this member."""
        return await self._loop.run_in_executor(self._thread, self._read, limit)

    def _read(self, limit: int) -> list[Record]:
        consumer = self._consumer
        assert consumer is not None
        self._commit()
        self._learn(consumer)
        self._adopt(consumer)
        self._go_back(consumer)
        # The client does not return consumed records again that could not be named.
        self._found = found = self._found or _consumed(consumer, limit)
        anew = self._made_anew(consumer, [one for one in found if one.error() is None])
        self._found = []
        if not found and self._trouble is not None:
            self._look_again(consumer)
        told = [one.error() for one in found]
        troubles = [one for one in told if one and one.code() != KafkaError._PARTITION_EOF]
        if troubles and len(troubles) == len(found):
            raise BrokerUnreachable(f"kafka: {troubles[0].str()}")
        for trouble in troubles:
            _log.warning("kafka: %s", trouble.str())
        return [
            self._read_record(one)
            for one in found
            if one.error() is None and self._lane(one) not in anew
        ]

    def _learn(self, consumer: Consumer) -> None:
        """Read the committed offsets of new lanes, which a rebalance should not wait for."""
        if not self._unknown:
            return
        try:
            for part in consumer.committed(self._unknown, _ASK_S):
                lane = lane_of(part.topic, part.partition)
                first = part.offset
                if first < 0:
                    first = _first_read(consumer, part, self._reset)
                self._committed[lane] = max(first - 1, self._committed.get(lane, -1))
        except KafkaException as error:
            _log.warning("kafka: %s", reason(error))
        else:
            self._unknown = []

    def _adopt(self, consumer: Consumer) -> None:
        """Have this member send what is held of partitions that its topics no longer have.

        While it does, a topic may get them again, and another member reads them.
        """
        now_s = time.monotonic()
        if not self._led or now_s < self._led_due_s or not self._adopting.done():
            return
        self._led_due_s = now_s + _LED_S
        if self._adopting.exception() is None:
            self._led -= self._asked - self._adopting.result()
        try:
            found = consumer.list_topics(timeout=_LOOK_S).topics
        except KafkaException:
            return
        known = [found[topic] for topic in self._led if topic in found]
        counts = {one.topic: len(one.partitions) for one in known if one.error is None}
        self._asked = {*counts}
        self._adopting = asyncio.run_coroutine_threadsafe(self._lanes.adopt(counts), self._loop)

    def _made_anew(self, consumer: Consumer, found: Sequence[Any]) -> Collection[str]:
        """Return lanes whose topic was made again; they are read from its beginning."""
        went_back = False
        for one in found:
            lane, offset = self._lane(one), one.offset()
            went_back |= offset <= self._read_to.get(lane, -1)
            self._read_to[lane] = offset
        self._ids.learn({one.topic() for one in found})
        now_s = time.monotonic()
        if not went_back and now_s < self._ids_due_s - (_IDLE_IDS_S - _IDS_S if found else 0):
            return ()
        self._ids_due_s = now_s + _IDLE_IDS_S
        try:
            # Also for topics that other members read, because a cancel may name a record of them.
            named = {topic for topic in self._address.topics if not topic.startswith("^")}
            self._ids.refresh(named | {topic for topic, _ in self._mine.values()}, _LOOK_S)
        except BrokerUnreachable as error:
            if went_back:
                self._ids_due_s = 0.0
                raise
            # The recent ids serve while newer ids are unavailable.
            self._ids_due_s += _IDLE_IDS_S
            _log.info("%s", error)
            return ()
        anew = []
        for lane, (topic, _) in self._mine.items():
            mark = self._ids.known(topic)
            if mark is not None and self._marks.setdefault(lane, mark) != mark:
                self._begin_anew(consumer, lane)
                anew.append(lane)
        return anew

    def _begin_anew(self, consumer: Consumer, lane: str) -> None:
        topic, partition = self._mine[lane]
        try:
            consumer.seek(TopicPartition(topic, partition, OFFSET_BEGINNING))
        except KafkaException as error:
            if error.args[0].code() not in _GONE:
                raise BrokerUnreachable(f"kafka: {lane}: {reason(error)}") from None
        _log.warning("kafka: %s: the topic was made anew and is read from its beginning", lane)
        self._marks[lane] = self._ids.mark(topic)
        self._committed[lane] = -1
        self._read_to.pop(lane, None)

    def _look_again(self, consumer: Consumer) -> None:
        """Raise BrokerUnreachable while no broker answers."""
        try:
            consumer.list_topics(timeout=_LOOK_S)
        except KafkaException:
            raise BrokerUnreachable(f"kafka: {self._trouble}") from None
        self._trouble = None

    def _lane(self, one: Any) -> str:
        part = (one.topic(), one.partition())
        lane = self._names.get(part)
        if lane is None:
            lane = self._names[part] = lane_of(*part)
        return lane

    def _read_record(self, one: Any) -> Record:
        """Return a record as received; a record with unreadable headers is broken."""
        try:
            headers, broken = self._ids.cancelling(_headers_of(one) or []), ""
        except Exception as error:
            headers, broken = [], f"headers: cannot be read: {type(error).__name__}: {error}"
        lane, topic, offset = self._lane(one), one.topic(), one.offset()
        kind, at_ms = one.timestamp()
        mark = self._ids.mark(topic)
        origin = f"{lane}-{offset}{mark}"
        return Record(
            topic,
            origin,
            one.value(),
            one.key(),
            headers,
            at_ms if kind else 0,
            lane,
            _Place((topic, one.partition()), offset, mark, self._turns[lane]),
            origin,
            broken=broken,
        )

    # --- what became of records -----------------------------------------------------------------

    async def done(self, records: Sequence[Record]) -> None:
        """Commit the offsets after the last record of each lane with the next read.

        A commit from elsewhere would wait for a rebalance, which waits for held records.
        """
        with self._lock:
            self._done |= {one.lane: one.place for one in records if self._is_mine(one)}

    async def defer(self, records: Sequence[Record]) -> None:
        """Pause the lanes of some records, and restart each at its first of them."""
        with self._lock:
            for record in reversed(records):
                if self._is_mine(record):
                    self._deferred[record.lane] = record.place

    def _is_mine(self, record: Record) -> bool:
        """Tell whether a record was read since its lane was assigned to this member last."""
        return record.lane in self._mine and record.place.turn == self._turns[record.lane]

    def comes_again(self, record: Record) -> bool:
        """Tell whether a lane has still to go back, so that its last records come again."""
        deferred = self._deferred.get(record.lane)
        return deferred is not None and deferred.mark == record.place.mark

    def _go_back(self, consumer: Consumer) -> None:
        """Restart at deferred records, and read on in lanes after their pause."""
        with self._lock:
            deferred, self._deferred = self._deferred, {}
        now_s = time.monotonic()
        # Read records without a name come again after them.
        self._found = [one for one in self._found if one.error() or self._lane(one) not in deferred]
        for lane, at in deferred.items():
            if lane in self._mine and self._is_current(at.part, at.mark):
                self._rest(consumer, lane, TopicPartition(*at.part, at.offset))
                self._resting[lane] = now_s + _REST_S
        mine = self._resting.keys() & self._mine.keys()
        for lane in [lane for lane in mine if self._resting[lane] <= now_s]:
            del self._resting[lane]
            consumer.resume([TopicPartition(*self._mine[lane])])

    def _rest(self, consumer: Consumer, lane: str, place: TopicPartition) -> None:
        consumer.pause([place])
        try:
            consumer.seek(place)
        except KafkaException as error:
            if error.args[0].code() not in _GONE:
                # Reading on would commit records that are not held.
                raise
        self._read_to.pop(lane, None)

    def _is_current(self, part: _Part, mark: str) -> bool:
        return self._marks.get(lane_of(*part), mark) == mark

    def _commit(self, *, is_last: bool = False) -> None:
        """Commit the done records, one commit after the other unless it ``is_last``.

        The answer comes within a later read. Waiting for it here could last for ever: a commit in
        flight when the broker is killed is sometimes never answered.
        """
        if self._committing and not is_last:
            if time.monotonic() < self._commit_until_s:
                return
            unanswered, self._committing = self._committing, {}
            self._owe(unanswered, f"no answer within {_COMMIT_S:.0f} s")
        with self._lock:
            done, self._done = self._done, {}
        done = {lane: at for lane, at in done.items() if self._is_current(at.part, at.mark)}
        if not done or self._consumer is None:
            return
        offsets = [TopicPartition(*at.part, at.offset + 1) for at in done.values()]
        # No answer is needed for commits of lanes that another member gets.
        self._committing |= {lane: at for lane, at in done.items() if lane in self._mine}
        self._commit_until_s = time.monotonic() + _COMMIT_S
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._answered(error.args[0], offsets)

    def _answered(self, error: KafkaError | None, parts: Sequence[TopicPartition]) -> None:
        """Process the answer to a commit; commits that were sent again since are skipped."""
        failed: dict[str, _Place] = {}
        why = ""
        for part in parts:
            lane = lane_of(part.topic, part.partition)
            at = self._committing.get(lane)
            if at is None or at.offset + 1 != part.offset:
                continue
            del self._committing[lane]
            if trouble := error or part.error:
                why = trouble.str()
                if trouble.code() not in _GONE:
                    failed[lane] = at
            # Answers for a topic that was made again do not apply to the new one.
            elif lane in self._mine and self._is_current(at.part, at.mark):
                self._committed[lane] = at.offset
                self._is_owing = False
        if why:
            self._owe(failed, why)

    def _owe(self, failed: Mapping[str, _Place], why: str) -> None:
        """Repeat a failed commit with the next read; until then exactly-once messages stay.

        Another member reads its new partitions again, and recognises the ids.
        """
        with self._lock:
            self._done = {
                lane: at for lane, at in failed.items() if lane in self._mine
            } | self._done
        if not self._is_owing:
            _log.warning("kafka: offsets were not committed: %s", why)
        self._is_owing = True

    def is_committed(self, lane: str, origin: str) -> bool:
        """Tell whether the record of a message in a lane of this member is not read again.

        An origin outside the lane's present topic is never read: the message was put by others, or
        the topic was made again since.
        """
        head, _, mark = origin.partition(MARK)
        name, _, digits = head.rpartition("-")
        offset = number_of(digits, 19)
        if name != lane or offset is None:
            return True
        known = self._ids.known(lane.rpartition("-")[0])
        if known is None:
            return False
        return f"{MARK}{mark}" != known or offset <= self._committed.get(lane, -1)

    async def close(self) -> None:
        """Leave the group."""
        if self._consumer is not None:
            await self._loop.run_in_executor(self._thread, self._end, self._consumer)
        self._thread.shutdown(wait=False)

    def _end(self, consumer: Consumer) -> None:
        self._commit(is_last=True)
        consumer.close()

    # --- lanes, told by the thread that reads ---------------------------------------------------

    def _assigned(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        self._unknown += parts
        mine = {lane_of(part.topic, part.partition): (part.topic, part.partition) for part in parts}
        self._forget(mine)
        self._turns.update(mine.keys())
        # A topic that was deleted and made again is another topic.
        self._ids.forget(
            {part.topic for part in parts} - {topic for topic, _ in self._mine.values()}
        )
        self._mine |= mine
        led = {part.topic for part in parts if part.partition == 0}
        self._led |= led
        self._asked -= led
        self._led_due_s = 0.0
        self._ids_due_s = 0.0
        self._wait(self._lanes.open(list(mine)))

    def _revoked(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        lanes = _lanes_of(parts)
        self._wait(self._lanes.close(lanes))
        self._forget(lanes)
        # The client gives partitions away only after earlier commits are answered.
        self._commit(is_last=True)

    def _lost(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        lanes = _lanes_of(parts)
        self._forget(lanes)
        self._wait(self._lanes.close(lanes, is_lost=True))

    def _forget(self, lanes: Collection[str]) -> None:
        """Drop the positions of lanes that another member has, or had."""
        self._led = {topic for topic in self._led if lane_of(topic, 0) not in lanes}
        for known in (self._mine, self._marks, self._read_to, self._committed, self._committing):
            for lane in lanes:
                known.pop(lane, None)

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


def _first_read(consumer: Consumer, part: TopicPartition, reset: str) -> int:
    """Return the first offset that a group without a commit reads: earlier ones never come.

    It is the oldest that is kept, or the end, as the option ``auto.offset.reset`` says.
    """
    try:
        first, end = consumer.get_watermark_offsets(part, _ASK_S, cached=False)
    except KafkaException as error:
        if error.args[0].code() not in _GONE:
            raise
        return 0
    return end if reset in _AT_END else first


def _lanes_of(parts: Sequence[TopicPartition]) -> list[str]:
    return [lane_of(part.topic, part.partition) for part in parts]


def _defaults(address: Address) -> dict[str, Any]:
    """Return the defaults for options that the address does not set."""
    options: dict[str, Any] = {"auto.offset.reset": "earliest"}
    # In the newer protocol the broker decides both, and refuses members that set them.
    if address.options.get("group.protocol", "classic").lower() != "consumer":
        options["partition.assignment.strategy"] = "cooperative-sticky"
        options["session.timeout.ms"] = 10_000
    return options
