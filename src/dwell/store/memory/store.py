"""The store in memory: dicts and heaps of plain Python, gone when the process ends.

It is the reference for the behaviour of a store, and the store of the timer inside one process, so
putting and cancelling cost O(log n). No verb waits for anything: each runs to its end before
another begins.
"""

import heapq
import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from dwell.batch.batch import Batch
from dwell.batch.puts import PutAnswer, Puts
from dwell.clock import Clock
from dwell.errors import StoreClosed
from dwell.message import (
    EXPIRED,
    I64,
    LEASE_ENDED,
    MAX_BATCH_BYTES,
    QUEUE_ID_MARK,
    U8,
    U64,
    Kind,
    Result,
    State,
    TopicSettings,
)
from dwell.retries import retry_delay_ms
from dwell.store.allowances import Allowances
from dwell.store.base import AckResults, Delays, Errors
from dwell.store.followups import check_id
from dwell.store.memory.deadlines import Deadlines
from dwell.store.memory.log import EventLog
from dwell.store.memory.reading import Reading, texts_of
from dwell.store.memory.receipts import taken_rows
from dwell.store.memory.rows import Row, Topic, fitting, rows_of

#: How many messages a clear cancels in one call.
_CLEARED = 1_000


class MemoryStore(Reading):
    """A store that keeps its messages in this process only.

    ``max_events`` is the number of latest events that can be read. ``topics`` are its messages.
    """

    limits_ids = True

    def __init__(self, clock: Clock, *, max_events: int = 1_000_000) -> None:
        self.clock = clock
        self._draw()
        self._max_events = max_events
        self._is_open = False
        self._clear()

    def _draw(self) -> None:
        """Draw random numbers that make receipts of this life invalid in another."""
        self.number = secrets.randbelow(2**31 - 1) + 1
        self.secret = secrets.token_bytes(16)

    def _clear(self) -> None:
        self.topics: dict[str, Topic] = {}
        self._taken: dict[int, Row] = {}
        self._numbered: dict[int, Row] = {}
        self._deadlines = Deadlines()
        self._allowances: Allowances[str] = Allowances()
        self._memories: list[tuple[int, str, str]] = []
        # So ids, numbers and versions of one life name nothing in another.
        self._first = 1 + secrets.randbits(40)
        self._arrivals = itertools.count(self._first)
        self._serials = itertools.count(1 + secrets.randbits(40))
        self._takes = itertools.count(1)
        self._log = EventLog(self._max_events)
        self._seen_ms = 0
        self._woken: Counter[str] = Counter()
        #: The topics with messages that have ended since the last announcement.
        self._over: set[str] = set()
        self._is_nearer = False

    async def open(self) -> None:
        """Make the store ready."""
        self._draw()
        self._is_open = True

    async def close(self) -> None:
        """Delete everything."""
        self._is_open = False
        self._clear()

    # --- verbs --------------------------------------------------------------------------------

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages to a topic."""
        answer = self._put_all(puts, on_conflict, self._enter())
        self._announce()
        return answer

    def _put_all(
        self, puts: Puts, on_conflict: str, now_ms: int, on_full: str | None = None
    ) -> PutAnswer:
        topic = self._topic(puts.topic)
        arrivals = [next(self._arrivals) for _ in range(len(puts))]
        ids = self._make_ids(arrivals) if puts.ids is None else texts_of(puts.ids)
        room = topic.room(ids, on_conflict, on_full)
        results = np.zeros(len(puts), np.uint8)
        for at, row in enumerate(rows_of(topic, ids, arrivals, puts)):
            version = 0 if puts.versions is None else int(puts.versions[at])
            result = self._put(row, on_conflict, version, room, now_ms)
            room -= result is Result.CREATED
            results[at] = result
        numbers = np.where(results == Result.CREATED, np.array(arrivals, np.uint64), 0)
        return PutAnswer(ids, results, numbers.astype(np.uint64))

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease ready messages, topic after topic."""
        now_ms = self._enter()
        rows: list[Row] = []
        room_bytes = MAX_BATCH_BYTES
        for name in topics:
            topic = self.topics.get(name)
            if topic is None or topic.settings.paused:
                continue
            most = len(rows) + self._allowed(topic, limit - len(rows), now_ms)
            while len(rows) < most and room_bytes > 0 and (row := topic.pop_ready()) is not None:
                self._lease(row, lease_ms, owner, now_ms)
                topic.spend_turn(row, by_id=False)
                rows.append(row)
                room_bytes -= row.size_bytes
            self._note_left(topic, now_ms)
        self._announce()
        return self._batch(rows, receipts=True)

    def ready(self, topic: str) -> int:
        """Return how many messages of a topic could be taken."""
        known = self.topics.get(topic)
        if known is None or known.settings.paused:
            return 0
        return self._allowed(known, known.takeable, self.clock.now_ms())

    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None = None,
        limit: int | None = None,
    ) -> Batch:
        """Lease some messages by id, if they are ready."""
        now_ms = self._enter()
        known = self.topics.get(topic)
        if known is None or known.settings.paused:
            return Batch.empty()
        every = self._find(topic, ids, versions)
        found = dict.fromkeys(row for row in every if row is not None)
        rows = known.takeable_of([row for row in found if row.state is State.READY])
        rows = rows[:limit]
        rows = fitting(rows[: self._allowed(known, len(rows), now_ms)])
        for row in rows:
            self._lease(row, lease_ms, owner, now_ms)
            known.spend_turn(row, by_id=True)
        self._note_left(known, now_ms)
        self._announce()
        return self._batch(rows, receipts=True)

    async def ack(self, receipts: U64, results: AckResults = None, then: Puts | None = None) -> U8:
        """Delete messages that are done."""
        now_ms = self._enter()
        if then is not None:
            (row,) = taken_rows(self._taken, receipts, self.number)
            if row is not None:
                check_id(then, row.topic.name, row.id)
                self._put_all(then, "keep", now_ms, on_full="refuse")
        own = [None] * len(receipts) if results is None else results
        return self._each_receipt(receipts, lambda row, at: self._ack(row, own[at], now_ms))

    async def release(
        self,
        receipts: U64,
        delay_ms: Delays,
        error: Errors,
        *,
        counted: bool,
        priority: int | None = None,
    ) -> U8:
        """Give messages back."""
        now_ms = self._enter()
        delays_ms = None if delay_ms is None else np.broadcast_to(delay_ms, len(receipts)).tolist()
        errors = [error] * len(receipts) if error is None or isinstance(error, str) else error

        def release(row: Row, at: int) -> Result:
            row.priority = row.priority if priority is None else priority
            return self._release(row, delays_ms and delays_ms[at], errors[at], counted, now_ms)

        return self._each_receipt(receipts, release)

    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Move the ends of leases."""
        now_ms = self._enter()

        def touch(row: Row, _: int) -> Result:
            row.until_ms = now_ms + (lease_ms or row.own_lease_ms())
            self._move(row, State.LEASED)
            return Result.TOUCHED

        return self._each_receipt(receipts, touch)

    async def bury(self, receipts: U64, reason: str | None, *, priority: int | None = None) -> U8:
        """Set messages aside as dead."""
        now_ms = self._enter()

        def bury(row: Row, _: int) -> Result:
            row.error = row.error if reason is None else reason
            row.priority = row.priority if priority is None else priority
            self._end_lease(row)
            self._bury(row, Kind.BURY, now_ms)
            return Result.BURIED

        return self._each_receipt(receipts, bury)

    async def kick(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Bring dead messages back."""
        now_ms = self._enter()
        results = np.full(len(ids), Result.UNKNOWN, np.uint8)
        rows = self._find(topic, ids, versions)
        for at, (row, due) in enumerate(zip(rows, due_ms.tolist(), strict=True)):
            if row is not None and row.state is State.DEAD:
                row.attempt = 0
                row.move_to(max(due, now_ms))
                self._wait(row, now_ms)
                self._log.note(Kind.KICK, row, now_ms)
                results[at] = Result.KICKED
        self._announce()
        return results

    async def cancel(self, topic: str, ids: Sequence[bytes], versions: U64 | None = None) -> U8:
        """Delete messages that are not leased."""
        now_ms = self._enter()
        results = np.full(len(ids), Result.UNKNOWN, np.uint8)
        for at, row in enumerate(self._find(topic, ids, versions)):
            if row is not None and row.state is State.LEASED:
                results[at] = Result.LEASED
            elif row is not None:
                self._log.note(Kind.CANCEL, row, now_ms)
                self._forget(row)
                results[at] = Result.CANCELLED
        self._announce()
        return results

    async def clear_part(self, topic: str, place: int) -> tuple[int, int | None]:
        """Cancel some messages of a topic that are not leased, from the first that is left."""
        now_ms = self._enter()
        known = self.topics.get(topic)
        rows = known.rows.values() if known is not None else ()
        free = (row for row in rows if row.state is not State.LEASED)
        some = list(itertools.islice(free, _CLEARED))
        for row in some:
            self._log.note(Kind.CANCEL, row, now_ms)
            self._forget(row)
        self._announce()
        return len(some), 0 if len(some) == _CLEARED else None

    async def reschedule(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Change when messages fall due."""
        now_ms = self._enter()
        results = np.full(len(ids), Result.UNKNOWN, np.uint8)
        rows = self._find(topic, ids, versions)
        for at, (row, due) in enumerate(zip(rows, due_ms.tolist(), strict=True)):
            if row is not None and row.state is State.LEASED:
                results[at] = Result.LEASED
            elif row is not None and row.state is not State.DEAD:
                row.move_to(due)
                self._wait(row, now_ms)
                self._log.note(Kind.MOVE, row, now_ms)
                results[at] = Result.MOVED
        self._announce()
        return results

    # --- settings and time --------------------------------------------------------------------

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Change some of a topic's settings, and return all of them."""
        self._enter()
        known = self._topic(topic)
        settings = structs.replace(known.settings, **changes)
        known.configure(settings)
        self._allowances.look_again(topic)
        self._is_nearer = True
        if not settings.paused:
            self._woken[topic] += known.counts[State.READY]
        if known.is_idle:
            del self.topics[topic]
        self._announce()
        return settings

    async def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic."""
        known = self.topics.get(topic)
        return known.settings if known is not None else TopicSettings()

    async def tick(self, now_ms: int) -> int | None:
        """Apply the passing of time, and return the next deadline."""
        self._check_open()
        self._settle(now_ms)
        times = (self._deadlines.next_ms(), self._allowances.next_ms())
        return min((time for time in times if time is not None), default=None)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosed("the store in memory is not open")

    def _enter(self) -> int:
        """Apply the passing of time, as every verb must before it reads anything."""
        self._check_open()
        now_ms = self.clock.now_ms()
        self._settle(now_ms)
        return now_ms

    def _settle(self, now_ms: int) -> None:
        if now_ms < self._seen_ms:
            self._turn_back(now_ms)
        self._seen_ms = now_ms
        while (row := self._deadlines.pop(now_ms)) is not None:
            self._come_due(row, now_ms)
        for name in self._allowances.come(now_ms):
            # A topic may have been deleted since.
            if (topic := self.topics.get(name)) is not None:
                self._note_short(topic, now_ms)
                self._woken[name] += self.ready(name)
        while self._memories and self._memories[0][0] <= now_ms:
            until_ms, name, id_ = heapq.heappop(self._memories)
            self.topics[name].forget(id_, until_ms)
        self._announce()

    def _turn_back(self, now_ms: int) -> None:
        """Make ready messages wait again after the clock jumped back, so that none is early."""
        self._allowances.turn_back(now_ms)
        for topic in self.topics.values():
            for row in list(topic.ready_rows()):
                if row.due_ms > now_ms:
                    self._wait(row, now_ms)

    def _come_due(self, row: Row, now_ms: int) -> None:
        """Apply a row's deadline; a lease that ended may leave an expired message."""
        if row.state is State.LEASED:
            self._end_lease(row)
            if row.is_used_up():
                row.error = LEASE_ENDED
                return self._bury(row, Kind.EXHAUST, now_ms)
            self._log.note(Kind.LAPSE, row, now_ms)
        if row.is_expired(now_ms):
            row.error = EXPIRED
            return self._bury(row, Kind.EXPIRE, now_ms)
        return self._wait(row, now_ms)

    def _announce(self) -> None:
        """Report the last change to the queue, for its takers and its sleep."""
        if self._woken:
            woken, self._woken = self._woken, Counter()
            for topic, count in (+woken).items():
                # A taker that sees that the rate allows nothing does not ask.
                self._note_short(self.topics[topic], self._seen_ms)
                self.wake(topic, count)
        if self._over:
            over, self._over = self._over, set()
            for topic in over.intersection(self.watched()):
                self.ended(topic)
        if self._is_nearer:
            self._is_nearer = False
            self.plan()

    # --- one row ------------------------------------------------------------------------------

    def _move(self, row: Row, state: State) -> None:
        """Set the state; earlier plans for the row no longer hold."""
        counts = row.topic.counts
        counts[row.state] -= 1
        counts[state] += 1
        before, row.state = row.state, state
        row.serial = next(self._serials)
        deadline_ms = row.deadline_ms()
        if deadline_ms:
            self._is_nearer |= self._deadlines.push(deadline_ms, row, len(self._numbered))
        more = row.topic.follow(row, before)
        if more and not row.topic.settings.paused:
            self._woken[row.topic.name] += more

    def _wait(self, row: Row, now_ms: int) -> None:
        """Make a row wait for its due, or make it ready when the due has come."""
        was_ready = row.state is State.READY
        self._move(row, State.READY if row.due_ms <= now_ms else State.DELAYED)
        is_new = row.state is State.READY and not was_ready
        if is_new and not row.topic.settings.paused and not row.is_expired(now_ms):
            self._woken[row.topic.name] += 1

    def _bury(self, row: Row, kind: Kind, now_ms: int) -> None:
        self._move(row, State.DEAD)
        self._over.add(row.topic.name)
        row.until_ms = now_ms
        self._log.note(kind, row, now_ms)

    def _forget(self, row: Row) -> None:
        self._move(row, State.GONE)
        self._over.add(row.topic.name)
        del row.topic.rows[row.id]
        del self._numbered[row.arrival]

    def _put(self, new: Row, on_conflict: str, version: int, room: int, now_ms: int) -> Result:
        topic = new.topic
        old = topic.rows.get(new.id)
        if version and (old is None or (old.serial != version and old.state is not State.LEASED)):
            return Result.UNKNOWN
        if old is not None:
            return self._replace(old, new, now_ms) if on_conflict == "replace" else Result.KEPT
        if on_conflict == "keep" and new.id in topic.remembered:
            return Result.KEPT
        if room <= 0:
            return Result.DROPPED
        topic.rows[new.id] = new
        topic.results.pop(new.id, None)
        self._numbered[new.arrival] = new
        self._wait(new, now_ms)
        self._log.note(Kind.PUT, new, now_ms)
        return Result.CREATED

    def _replace(self, old: Row, new: Row, now_ms: int) -> Result:
        if old.state is State.LEASED:
            return Result.LEASED
        # The new row takes the old one's place in the order; moving the old one out of the way
        # makes its entries in the heaps worthless.
        new.arrival = old.arrival
        self._move(old, State.GONE)
        new.topic.rows[new.id] = new
        self._numbered[new.arrival] = new
        self._wait(new, now_ms)
        self._log.note(Kind.REPLACE, new, now_ms)
        return Result.REPLACED

    def _lease(self, row: Row, lease_ms: int, owner: str, now_ms: int) -> None:
        row.attempt += 1
        row.until_ms = now_ms + (lease_ms or row.own_lease_ms())
        row.owner = owner
        row.take = next(self._takes)
        self._taken[row.take] = row
        if row.topic.settings.rate:
            self._allowances.spend(row.topic.name, row.topic.settings.rate, 1, now_ms)
        self._move(row, State.LEASED)
        self._log.note(Kind.TAKE, row, now_ms)

    def _end_lease(self, row: Row) -> None:
        del self._taken[row.take]
        row.until_ms = row.take = 0
        row.owner = ""

    def _ack(self, row: Row, result: bytes | None, now_ms: int) -> Result:
        self._end_lease(row)
        self._log.note(Kind.ACK, row, now_ms)
        self._forget(row)
        topic, is_made = row.topic, row.id.startswith(QUEUE_ID_MARK)
        until_ms = now_ms + topic.settings.remember_ms
        if until_ms == now_ms or (is_made and result is None):
            return Result.ACKED
        if result is not None:
            topic.results[row.id] = until_ms, result
            heapq.heappush(self._memories, (until_ms, topic.name, row.id))
        if not is_made:
            until_ms = max(until_ms, topic.remembered.get(row.id, 0))
            topic.remembered[row.id] = until_ms
            heapq.heappush(self._memories, (until_ms, topic.name, row.id))
        return Result.ACKED

    def _release(
        self, row: Row, delay_ms: int | None, error: str | None, counted: bool, now_ms: int
    ) -> Result:
        self._end_lease(row)
        row.error = row.error if error is None else error
        if counted and row.is_used_up():
            self._bury(row, Kind.EXHAUST, now_ms)
            return Result.BURIED
        # With neither a delay nor the topic's own, which may be 0, the message is unchanged.
        due_ms = row.due_ms
        if counted or delay_ms != 0:
            retry_ms = retry_delay_ms(row.topic.settings.retry_delays_ms, row.attempt)
            due_ms = now_ms + (retry_ms if delay_ms is None else delay_ms)
        if row.is_expired(max(due_ms, now_ms)):
            row.error = EXPIRED if error is None else error
            self._bury(row, Kind.BURY, now_ms)
            return Result.BURIED
        row.due_ms = due_ms
        row.attempt -= not counted
        self._wait(row, now_ms)
        self._log.note(Kind.RELEASE, row, now_ms)
        return Result.RELEASED

    def _allowed(self, topic: Topic, wanted: int, now_ms: int) -> int:
        """Return how many of the wanted rows may be taken."""
        left = self._allowances.left(topic.name, topic.settings, topic.counts[State.LEASED], now_ms)
        return wanted if left is None else min(wanted, left)

    def _note_left(self, topic: Topic, now_ms: int) -> None:
        """Note after a take when takers should retry for the rest, if there is a rate.

        The allowance may have grown since this taker was woken, and no taker was woken for that.
        """
        if topic.settings.rate:
            self._note_short(topic, now_ms)
            self._woken[topic.name] += self.ready(topic.name)

    def _note_short(self, topic: Topic, now_ms: int) -> None:
        """Note when takers should retry, if more is ready than the rate may allow."""
        settings = topic.settings
        if settings.rate and topic.takeable and not settings.paused:
            self._is_nearer |= self._allowances.come_again(topic.name, settings.rate, now_ms)

    # --- helpers ------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name)
        return topic

    def _make_ids(self, arrivals: list[int]) -> list[str]:
        return [f"{QUEUE_ID_MARK}{self.number:08x}{arrival:x}" for arrival in arrivals]

    def _each_receipt(self, receipts: U64, act: Callable[[Row, int], Result]) -> U8:
        """Apply an action to each message with a valid receipt, and its index; others are stale."""
        results = np.full(len(receipts), Result.STALE, np.uint8)
        for at, row in enumerate(taken_rows(self._taken, receipts, self.number)):
            if row is not None:
                results[at] = act(row, at)
        self._announce()
        return results
