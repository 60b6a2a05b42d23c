"""Admission: which of the ready messages may be taken, where their topic's settings bound that.

A topic without such settings never comes here. Lanes keep the order of keys, turns are fair between
them (start-time fair queueing: Goyal, Vin, Cheng 1996), and allowances bound how many are taken.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dwell.message import I64, U32, Rows, State, TopicSettings, keys_of
from dwell.store.allowances import Allowances
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.fairness import LaneTurns
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.lanes import Kept, Lanes
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.table import Table

#: Records that change nothing of an existing message except its place on the disk.
_STRANGE = (
    *(RecordKind.PUT, RecordKind.PUT_OWN, RecordKind.COPY, RecordKind.TOUCH),
    RecordKind.FORGET,
)
#: Records that end leases.
_ENDING = (
    *(RecordKind.ACK, RecordKind.DONE, RecordKind.RELEASE, RecordKind.BURY, RecordKind.LAPSE),
)


class Opened(NamedTuple):
    """How many more messages of a topic may be taken, and which rows are among the ready again."""

    topics: U32
    counts: I64
    rows: Rows

    @classmethod
    def of(cls, topic: int, count: int, rows: list[int]) -> "Opened":
        """Return the result for one topic."""
        return cls(np.array([topic], np.uint32), np.array([count]), np.array(rows, np.intp))


class Admission:
    """The limits on the takes of all topics; a topic is named by its number."""

    def __init__(self, table: Table, limits: Limits) -> None:
        self._table = table
        self._limits = limits
        self._settings: dict[int, TopicSettings] = {}
        self._kept = Kept()
        self._lanes: dict[int, Lanes] = {}
        self._turns: dict[int, LaneTurns] = {}
        self._expected: set[int] = set()
        self._retired: list[Lanes | LaneTurns] = []
        self.allowances: Allowances[int] = Allowances()

    @property
    def is_used(self) -> bool:
        """Whether any topic has such settings."""
        return bool(self._settings or self._expected)

    def has_keys(self, topic: int) -> bool:
        """Tell whether it matters which keys the messages of a topic have."""
        return topic in self._lanes or topic in self._turns or topic in self._expected

    def keyed(self) -> list[int]:
        """Return the topics whose message keys matter."""
        return [*{**self._lanes, **self._turns}]

    def fair(self) -> list[int]:
        """Return the topics whose keys take turns."""
        return list(self._turns)

    def is_fair(self, topic: int) -> bool:
        """Tell whether the keys of a topic take turns."""
        return topic in self._turns

    # --- settings and keys ----------------------------------------------------------------------

    def configure(self, topic: int, settings: TopicSettings) -> bool:
        """Set the settings of a topic; tell whether its ready messages have to be placed again."""
        self.allowances.look_again(topic)
        if has_bounds(settings):
            self._settings[topic] = settings
        else:
            self._settings.pop(topic, None)
        had_lanes, had_turns = topic in self._lanes, topic in self._turns
        if settings.ordered and not had_lanes:
            self._lanes[topic] = Lanes(self._table, self._kept, self._limits)
        if settings.fair and not had_turns:
            self._turns[topic] = LaneTurns()
        if not settings.ordered and had_lanes:
            self._retired.append(self._lanes.pop(topic))
        if not settings.fair and had_turns:
            self._retired.append(self._turns.pop(topic))
        return (had_lanes, had_turns) != (settings.ordered, settings.fair)

    def expect(self, topic: int) -> None:
        """Note the keys of all later puts into a topic, because they will soon matter."""
        self._expected.add(topic)

    def expect_no_more(self, topic: int) -> None:
        """Note that not all keys of the topic are known."""
        self._expected.discard(topic)

    def begin(self, topic: int, begun: Rows) -> None:
        """Start over with a topic without parked messages, some of whose messages were taken."""
        self._make_room()
        top = self._table.top
        its = self._table.topic[:top] == topic
        self._kept.parking[:top][its] = self._kept.turn[:top][its] = 0
        if topic in self._turns:
            self._retired.append(self._turns[topic])
            self._turns[topic] = LaneTurns()
        if topic in self._lanes:
            self._retired.append(self._lanes[topic])
            lanes = self._lanes[topic] = Lanes(self._table, self._kept, self._limits)
            lanes.begin(begun)

    def free(self, most: int) -> bool:
        """Free a part of the lanes and turns no longer used; tell whether more is left.

        Freeing millions of entries at once would block all callers.
        """
        while self._retired and most > 0:
            most -= self._retired[-1].free(most)
            if most > 0:
                self._retired.pop()
        return bool(self._retired)

    def not_standing(self, rows: Rows) -> Rows:
        """Return the ready messages that have no turn and are not parked."""
        if not self.is_used:
            return rows
        left: Rows = rows[(self._kept.turn[rows] == 0) & (self._kept.parking[rows] == 0)]
        return left

    def learn_none(self, rows: Rows) -> None:
        """Note that messages have no keys."""
        self._make_room()
        self._kept.lane[rows] = 0

    def learn(self, rows: Rows, extras: Sequence[bytes]) -> None:
        """Note the keys of messages."""
        self._make_room()
        self._kept.lane[rows] = np.fromiter(_lanes_of(extras), np.int64, len(rows))

    def put(self, topic: int, rows: Rows, record: Record) -> None:
        """Note the keys of messages just put."""
        self.learn_none(rows)
        extra_bytes = record.columns["extra_bytes"]
        if self.has_keys(topic) and extra_bytes.any():
            self.learn(rows, _extras(record))

    def _make_room(self) -> None:
        self._kept.reserve(self._table.capacity)

    # --- taking ---------------------------------------------------------------------------------

    def left(self, topic: int, ready: int, now_ms: int) -> int:
        """Return how many of the ready messages of a topic may be taken, or fewer."""
        lanes = self._lanes.get(topic)
        return self.allowed(topic, ready if lanes is None else ready - lanes.parked, now_ms)

    def allowed(self, topic: int, wanted: int, now_ms: int) -> int:
        """Return how many of the wanted messages may be taken as far as their number goes."""
        settings = self._settings.get(topic)
        if settings is None:
            return wanted
        leased = self._table.count(topic, State.LEASED)
        left = self.allowances.left(topic, settings, leased, now_ms)
        return wanted if left is None else min(wanted, left)

    def lanes(self, topic: int) -> Lanes | None:
        """Return the lanes of an ordered topic."""
        return self._lanes.get(topic)

    def take_ids(self, topic: int, rows: Rows, limit: int, now_ms: int) -> Rows:
        """Return the ready rows that a take by id may take now; the caller takes them."""
        lanes = self._lanes.get(topic)
        if lanes is not None:
            rows = rows[lanes.firsts(rows, self._ready_parts(topic))]
        rows = rows[: self.allowed(topic, min(limit, len(rows)), now_ms)]
        if lanes is not None:
            lanes.enter(rows)
        return rows

    def _ready_parts(self, topic: int) -> Iterator[Rows]:
        """Yield the ready rows of a topic, a part at a time."""
        table = self._table
        return table.rows_in_parts(
            lambda part: (table.topic[part] == topic) & (table.state[part] == State.READY),
            self._limits.scanned_rows,
        )

    def taken(self, rows: Rows, now_ms: int) -> None:
        """Note that messages were taken."""
        for topic, some in self._by_topic(rows):
            settings = self._settings[topic]
            if settings.rate:
                self.allowances.spend(topic, settings.rate, len(some), now_ms)
            # A take by id does not advance the turns.
            stood = some[self._kept.turn[some] > 0]
            if topic in self._turns and len(stood):
                self._turns[topic].leave(self._kept.lane[stood])
                self._kept.turn[stood] = 0

    def note_short(self, topics: Iterable[int], now_ms: int) -> None:
        """Note which of the polled topics have more ready messages than their rates allow."""
        for topic in topics:
            rate, lanes = self._rate(topic), self._lanes.get(topic)
            parked = 0 if lanes is None else lanes.parked
            if rate and self._table.count(topic, State.READY) > parked:
                self.allowances.come_again(topic, rate, now_ms)

    def come_again(self, now_ms: int, topics: Iterable[int] | None = None) -> Iterator[Opened]:
        """Yield how many messages may be taken, for topics with rates and those due for a retry."""
        coming = self.allowances.come(now_ms) if topics is None else filter(self._rate, topics)
        for topic in coming:
            # Takes by id may have used up the allowance since.
            self.note_short([topic], now_ms)
            if left := self.left(topic, self._table.count(topic, State.READY), now_ms):
                yield Opened.of(topic, left, [])

    def _rate(self, topic: int) -> float:
        settings = self._settings.get(topic)
        return settings.rate if settings else 0

    # --- what changes ---------------------------------------------------------------------------

    def unpark(self, kind: RecordKind, rows: Rows) -> None:
        """Unpark messages that a record is about to change."""
        if kind not in _STRANGE:
            for topic, some in self._by_topic(rows):
                if topic in self._lanes:
                    self._lanes[topic].unpark(some)

    def follow(self, kind: RecordKind, rows: Rows) -> Iterator[Opened]:
        """Update lanes after a record changed messages, unparked before; yield what it opened."""
        if kind in _STRANGE:
            return
        for topic, some in self._by_topic(rows):
            settings, lanes = self._settings[topic], self._lanes.get(topic)
            self._give_back(topic, some[self._table.state[some] != State.READY])
            more = 0
            following: list[int] = []
            if lanes is not None and kind is not RecordKind.TAKE:
                more, following = lanes.follow(some)
            if settings.most_leased and kind in _ENDING:
                more = max(more, len(some))
            if more:
                yield Opened.of(topic, more, following)

    def _by_topic(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """Yield the rows of each topic that is bounded."""
        topics = self._table.topic[rows]
        if len(topics) and (topics == topics[0]).all():
            numbers = [int(topics[0])]
        else:
            numbers = distinct(topics).tolist()
        for number in numbers:
            if number in self._settings:
                yield number, rows if len(numbers) == 1 else rows[topics == number]

    # --- turns ----------------------------------------------------------------------------------

    def let_stand(self, rows: Rows) -> Rows:
        """Return the newly ready messages that may be taken now.

        Those of fair topics get turns. If the topic is ordered too, one message of a key is
        returned and the others are parked.
        """
        is_whole = True
        for topic, some in self._by_topic(rows):
            turns, lanes = self._turns.get(topic), self._lanes.get(topic)
            if turns is None:
                continue
            self._give_back(topic, some)
            table = self._table
            if lanes is None:
                some = some[np.lexsort((table.seq[some], table.due_ms[some]))]
            else:
                columns = (table.seq[some], table.due_ms[some], table.priority[some])
                some = lanes.stand(some[np.lexsort(columns)])
                some = some[self._kept.turn[some] == 0]
                is_whole = False
            if len(some):
                self._kept.turn[some] = turns.next(self._kept.lane[some]) + 1
        return rows if is_whole else rows[self._kept.parking[rows] == 0]

    def take_turns(self, rows: Rows) -> None:
        """Note that it was the turn of messages, which are about to be taken."""
        for topic, some in self._by_topic(rows):
            if topic in self._turns:
                self._turns[topic].take(self._kept.lane[some], self._kept.turn[some] - 1)
                self._kept.turn[some] = 0

    def _give_back(self, topic: int, rows: Rows) -> None:
        """Note that messages can no longer be taken, and give back their unused turns."""
        stood = rows[self._kept.turn[rows] > 0]
        if topic in self._turns and len(stood):
            self._turns[topic].give_back(self._kept.lane[stood], self._kept.turn[stood] - 1)
            self._kept.turn[stood] = 0

    def turns(self, rows: Rows) -> I64:
        """Return the turns of ready messages of fair topics."""
        turns: I64 = self._kept.turn[rows]
        return turns


def has_bounds(settings: TopicSettings) -> bool:
    """Tell whether settings limit the takes."""
    return bool(settings.rate or settings.most_leased or settings.ordered or settings.fair)


def _lanes_of(extras: Sequence[bytes]) -> list[int]:
    """Return the numbers of keys' lanes; keys that share one are taken one at a time together.

    Python's own hash is keyed per process, so nobody can construct keys that share a lane.
    """
    try:
        keys = keys_of(extras)
    except msgspec.DecodeError:
        keys = [_key_of(extra) for extra in extras]
    return [0 if key is None else hash(key) or 1 for key in keys]


def _key_of(extra: bytes) -> str | None:
    # Damage is reported to the reader of the message.
    with contextlib.suppress(msgspec.DecodeError):
        return keys_of([extra])[0]
    return None


def _extras(record: Record) -> list[bytes]:
    columns, blobs = record.columns, bytes(record.blobs)
    size, ids = columns["size_bytes"].astype(np.int64), columns["id_bytes"].astype(np.int64)
    starts = np.cumsum(size) - size + ids
    ends = starts + columns["extra_bytes"]
    return [blobs[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
