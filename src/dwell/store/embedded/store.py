"""The embedded store: the verbs.

Each verb compares its arguments with the state, makes a record of the change, appends it to the
journal, applies it, and answers when it is on disk.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from msgspec import structs

from dwell.batch.batch import Batch
from dwell.batch.calls import plain
from dwell.batch.events import EventPage
from dwell.batch.outcome import Outcome
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import PutAnswer, Puts
from dwell.batch.stats import Stale
from dwell.batch.sweep import Sweep, Wanted
from dwell.clock import Clock, RealClock
from dwell.errors import DiskFull, InvalidSettings, StoreDamaged, StoreError
from dwell.message import (
    I64,
    MAX_ERROR_CHARS,
    U8,
    U32,
    U64,
    Message,
    Result,
    Rows,
    State,
    TopicSettings,
)
from dwell.store.base import AckResults, Delays, Errors
from dwell.store.bounds import within
from dwell.store.embedded import strays
from dwell.store.embedded.backup.backup import copy_to, new_folder, new_place
from dwell.store.embedded.backup.checkpoint import Checkpoint, checkpoint_of
from dwell.store.embedded.core import Core
from dwell.store.embedded.counting import Counting
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.distinct import distinct, first_of_each
from dwell.store.embedded.finder import waves_of
from dwell.store.embedded.folder import LABEL
from dwell.store.embedded.journal.journal import SEGMENT_BYTES
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.journal.room import Use
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.memoryoption import budget_bytes
from dwell.store.embedded.ownids import ids_of
from dwell.store.embedded.putter import Putter, most_bytes
from dwell.store.embedded.reading import read
from dwell.store.embedded.receipts import leased_rows, receipts_of
from dwell.store.embedded.releases import releases_of, size_bytes_of
from dwell.store.embedded.results import acks_of, outcomes
from dwell.store.embedded.results import size_bytes_of as acks_bytes
from dwell.store.embedded.sweeping import held_by, of_state, paged, places_with_key, swept
from dwell.store.embedded.syncoption import sync_every_ms
from dwell.store.embedded.thread import in_thread
from dwell.store.embedded.timekeeper import RECORD_BYTES, Timekeeper
from dwell.store.embedded.versions import versions_of
from dwell.tasks import finished, whole

T = TypeVar("T")
_log = logging.getLogger(__name__)
_GoodAndLeased: TypeAlias = tuple[np.ndarray, np.ndarray]


class _Named(NamedTuple):
    """The arguments of a verb by id for its messages, other than the change itself."""

    topic: str
    ids: Sequence[bytes]
    versions: U64 | None = None
    calls: U64 | None = None


class EmbeddedStore(Counting):
    """A store in one folder, for one process.

    ``sync`` sets when a call returns: ``always`` (the default) when the data is on the disk;
    ``never`` when the operating system has it, which survives the process but not the machine;
    ``100ms`` (any number) the same, with a sync at least that often. ``events_bytes`` is how much
    of the event log is kept. ``memory_bytes`` is a budget for the state of the messages, at least
    16 MiB: what is over it lies in a scratch file, in the folder; 0 (the default) for as much
    memory as they need. ``disk``, ``segment_bytes`` and ``limits`` are for tests, as is
    ``core``, its parts.
    """

    keeps_calls = True
    limits_ids = True
    counts_bytes = True
    # One sync runs at a time, and covers all earlier writes.
    most_small = 1

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        sync: str = "always",
        events_bytes: int = 1 << 30,
        memory_bytes: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self.clock = clock or RealClock()
        self.core = Core(
            disk or Disk(),
            Path(path).expanduser().absolute(),
            segment_bytes,
            sync_every_ms(sync),
            events_bytes,
            limits,
            budget_bytes(memory_bytes, limits),
        )
        self.most_topics = limits.taken_topics
        self._time = Timekeeper(self.core, self.clock, lambda: self.plan())

    async def is_made(self) -> bool:
        """Tell whether the folder has a label, which is written last when a store is made."""
        return self.core.disk.exists(self.core.folder / LABEL)

    async def open(self) -> None:
        """Lock the folder, read the newest snapshot and the journal after it.

        Raises StoreLocked, NotAStore, StoreTooNew, StoreDamaged or DiskFull.
        """
        now_ms = self.clock.now_ms()
        self.core.open(now_ms, self._woken)
        self.number, self.secret = self.core.label.number, self.core.label.secret
        self._machine, self._table = self.core.machine, self.core.machine.table
        self._finder = self.core.finder()
        self._machine.ended = self._ended
        core, time = self.core, self._time
        self._putter = Putter(self._machine, self._finder, core.recent, core.reserve, time.write)
        self.timings = core.journal.timings
        time.open(now_ms)

    async def close(self) -> None:
        """Write a snapshot, and release the folder."""
        if self.core.is_open:
            await self.core.close(self.clock.now_ms())

    async def checkpoint(self) -> Checkpoint:
        """Return all files of the store as they are now, held for copying."""
        return await checkpoint_of(self.core, self._time.begin())

    async def backup(self, folder: str | Path) -> None:
        """Copy the store as it is now to a new folder, which can be opened at once.

        The store stays in use during the copy. Raises InvalidInput when the folder exists already,
        and DiskFull when there is no room; then nothing of the copy is left.
        """
        place = new_place(self.core.disk, folder, self.core.folder)
        async with new_folder(self.core.disk, place) as new:
            checkpoint = await self.checkpoint()
            try:
                await copy_to(checkpoint, new)
            finally:
                await checkpoint.close()

    async def compact(self) -> None:
        """Make a snapshot and free disk space; the store also does this itself when it is due.

        A failure is logged as a warning.
        """
        await self.core.compact_now(self._time.begin())

    def check(self) -> None:
        """Raise StoreClosed, the journal's error, or DiskFull if nothing can be put."""
        self.core.check_open()
        self.core.journal.check()
        self.core.journal.check_room()

    # --- put ------------------------------------------------------------------------------------

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages (see the contract)."""
        await self.core.room()
        answer = await self._in_room(
            lambda: self._putter.put(puts, on_conflict, self._time.begin())
        )
        if len(puts):
            await self.core.committed()
        return answer

    # --- take -----------------------------------------------------------------------------------

    async def take(
        self,
        topics: Sequence[str],
        limit: int,
        lease_ms: int,
        owner: str,
        *,
        calls: U64 | None = None,
    ) -> Batch:
        """Lease ready messages (see the contract)."""
        while True:
            rows, has_more = await self._in_room(
                lambda: self._take(topics, limit, lease_ms, owner, calls)
            )
            batch = await self._handed(rows)
            if 0 < len(batch) < len(rows) and calls is not None and (calls != calls[0]).any():
                # Damaged messages are left out, and the others would have the numbers of those.
                assert batch.receipts is not None
                await self.release(batch.receipts, 0, None, counted=False)
                batch = Batch.empty()
            # All leased messages may be damaged.
            if len(batch) or not (has_more or len(rows)):
                return batch
            await asyncio.sleep(0)

    def _take(
        self,
        topics: Sequence[str],
        limit: int,
        lease_ms: int,
        owner: str,
        calls: U64 | None,
    ) -> tuple[Rows, bool]:
        now_ms, machine = self._time.begin(), self._machine
        ready, rows, has_more = machine.ready.counts(topics, now_ms), _NO_ROWS, False
        limit = min(limit, sum(ready.values()))
        if limit:
            # Popped messages must be written, so the room for them is reserved first.
            self.core.reserve(RECORD_BYTES + 16 * limit, Use.CHANGE)
            rows, has_more = machine.ready.pop_first(ready, limit)
            popped = len(rows)
            rows = machine.unexpired(rows, now_ms)
            has_more |= len(rows) < popped
        if len(rows):
            machine.admission.take_turns(rows)
            self._lease(rows, lease_ms, owner, now_ms, calls)
        self._time.note_short(topics, now_ms, wakes=len(rows) > 0)
        if has_more:
            # Takers of each of these topics that got nothing must ask again.
            for topic in topics:
                self.wake(topic, limit)
        return rows, has_more

    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None = None,
        limit: int | None = None,
    ) -> Batch:
        """Lease some messages by id, if they are ready (see the contract)."""
        which, most = _Named(topic, ids, versions), len(ids) if limit is None else limit
        rows = await self._in_room(lambda: self._take_ids(which, most, lease_ms, owner))
        return await self._handed(rows)

    def _take_ids(self, which: _Named, limit: int, lease_ms: int, owner: str) -> Rows:
        now_ms, topic = self._time.begin(), which.topic
        if self._machine.topics.settings(topic).paused or self._is_forming(topic):
            return _NO_ROWS
        rows, _, free, _ = self._find(which, now_ms)
        good = first_of_each(rows, free & (self._table.state[rows] == State.READY))
        going: Rows = self._machine.unexpired(rows[good], now_ms)
        sizes = self._table.size_bytes[going]
        going = going[: within(sizes, self.core.limits.answer_bytes)]
        if (admission := self._machine.admission).is_used and len(going):
            going = admission.take_ids(int(self._table.topic[going[0]]), going, limit, now_ms)
        going = going[:limit]
        if len(going):
            # Their entries in the ready runs are dropped when they come to the front.
            self._lease(going, lease_ms, owner, now_ms)
        self._time.note_short((topic,), now_ms, wakes=len(going) > 0)
        return going

    async def _handed(self, rows: Rows) -> Batch:
        """Return the leased messages; a cancelled call gives them back unchanged."""
        receipts = receipts_of(self._table, rows, self.number)
        try:
            return await self._whole(rows, receipts)
        except asyncio.CancelledError:
            with contextlib.suppress(StoreError):
                self._release(receipts, (0, None), Meta(counted=False))
            raise

    async def _whole(self, rows: Rows, receipts: U64) -> Batch:
        """Read the leased messages; damaged messages are buried, so that they block no others."""
        batch, are_whole, damage = await read(self.core, rows, receipts=True)
        if not damage:
            return batch
        # Leases may have ended during the check of the segments.
        _, are_held = leased_rows(self._table, receipts, self.number)
        bad = are_held & ~are_whole
        names = {self._machine.topics.names[n] for n in self._table.topic[rows].tolist()}
        self._bury(receipts[bad], Meta(error=damage[:MAX_ERROR_CHARS]), None)
        _log.error("%s: %d damaged messages are buried", damage, int(bad.sum()))
        for name in names:
            # Takers that were merged into this take may find other messages in their place.
            self._woken(name, len(bad), self._machine.topics.settings(name).paused)
        return batch.picked(np.flatnonzero(are_held[are_whole]).tolist())

    async def undo_takes(self, calls: U64) -> int:
        """Release the messages of takes by their numbers (see the contract)."""
        self._time.begin_held()
        taken = self._machine.takes.taken(calls)
        rows = taken.rows.astype(np.intp)
        rows, takes = rows[rows < self._table.top], taken.seqs[rows < self._table.top]
        good = (self._table.state[rows] == State.LEASED) & (self._table.takes[rows] == takes)
        if not good.any():
            return 0
        receipts = receipts_of(self._table, rows[good], self.number)
        done = await self.release(receipts, 0, None, counted=False)
        _log.info("released %d messages of takes whose answers were lost", len(done))
        return len(done)

    def _lease(
        self,
        rows: Rows,
        lease_ms: int,
        owner: str,
        now_ms: int,
        calls: U64 | None = None,
    ) -> None:
        until_ms = now_ms + self._leases(rows, lease_ms)
        columns: dict[str, np.ndarray] = {"rows": rows, "lease_until_ms": until_ms}
        if calls is not None:
            columns["calls"] = calls[: len(rows)]
        meta = Meta(owner=owner, first_take=self._machine.next_take)
        self._time.write(Record(RecordKind.TAKE, now_ms, columns, meta))

    async def peek(self, topic: str, limit: int) -> Batch:
        """Return the ready messages that a take would give first (see the contract)."""
        self._time.look()
        number = self._machine.topics.find(topic)
        if self._is_forming(topic):
            return Batch.empty(receipts=False)
        most = limit
        while number is not None and (ready := self._table.count(number, State.READY)):
            rows, has_more = self._machine.ready.peek(number, min(most, ready))
            batch = (await read(self.core, rows, receipts=False)).batch[:limit]
            # If all of the first messages are damaged, the next messages are read too.
            is_over = not len(rows) or most >= ready
            if len(batch) or (is_over and not has_more):
                return batch
            most += len(rows)
            await asyncio.sleep(0)
        return Batch.empty(receipts=False)

    def ready(self, topic: str) -> int:
        """Return how many messages of a topic could be taken (see the contract)."""
        now_ms = self.clock.now_ms()
        self._time.note_short((topic,), now_ms)
        return sum(self._machine.ready.counts((topic,), now_ms).values())

    def _leases(self, rows: Rows, lease_ms: int) -> I64:
        return np.full(len(rows), lease_ms) if lease_ms else self._machine.terms.lease_ms(rows)

    async def held(self, owner: str) -> Batch:
        """Return again the messages that an owner holds (see the contract)."""
        self._time.look()
        number, table = self._machine.owners.get(owner), self._table
        rows = _NO_ROWS if number is None else table.rows_where(held_by(table, number))
        rows = rows[np.lexsort((table.seq[rows], table.due_ms[rows]))]
        return (await read(self.core, rows, receipts=True)).batch

    async def held_page(self, owner: str, cursor: Cursor | None, limit: int) -> Page:
        """Return a page of the messages that an owner holds (see the contract)."""
        self._time.look()
        number, rows, last = self._machine.owners.get(owner), _NO_ROWS, None
        if number is not None:
            fit = held_by(self._table, number)
            rows, last = await paged(self._table, fit, cursor, limit, self.core.limits)
        return Page((await read(self.core, rows, receipts=True)).batch, last)

    # --- by receipt -----------------------------------------------------------------------------

    async def ack(
        self,
        receipts: U64,
        results: AckResults = None,
        then: Puts | None = None,
        *,
        calls: U64 | None = None,
    ) -> U8:
        """Delete messages that are done (see the contract)."""
        if results is not None or then is not None:
            await self.core.room()
        good = await self._in_room(lambda: self._ack(receipts, results, then, calls))
        return await self._answer(good, Result.ACKED, Result.STALE)

    def _ack(
        self, receipts: U64, results: AckResults, then: Puts | None, calls: U64 | None
    ) -> np.ndarray:
        now_ms = self._time.begin_held()
        rows, good = self._leased_once(receipts)
        done = self._done(calls, now_ms, len(rows))
        if good.any():
            columns = {"rows": rows[good], **_numbered(calls, good)}
            own = None if results is None else list(compress(results, good.tolist()))
            records = acks_of(self.core, columns, own, now_ms)
            if records[-1].kind is RecordKind.DONE or then is not None:
                # All are written or none: a receipt is good only once. They share a frame.
                more = 0 if then is None else most_bytes(then, 1)
                self.core.reserve(acks_bytes(records) + more, Use.GROW)
            if then is not None:
                self._putter.check_follow_up(then, rows[good], now_ms)
                self._putter.put(then, "keep", now_ms)
            for record in records:
                self._time.write(record)
        known: np.ndarray = good | (done > 0)
        return known

    async def release(
        self,
        receipts: U64,
        delay_ms: Delays,
        error: Errors,
        *,
        counted: bool,
        priority: int | None = None,
        calls: U64 | None = None,
    ) -> U8:
        """Give messages back (see the contract)."""
        meta = Meta(counted=counted, priority=priority)
        told = delay_ms, error
        good, dead = await self._in_room(lambda: self._release(receipts, told, meta, calls))
        results = await self._answer(good, Result.RELEASED, Result.STALE)
        results[dead] = Result.BURIED
        return results

    def _release(
        self,
        receipts: U64,
        told: tuple[Delays, Errors],
        meta: Meta,
        calls: U64 | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        now_ms = self._time.begin_held()
        rows, good = self._leased_once(receipts)
        done = self._done(calls, now_ms, len(rows))
        if good.any():
            columns = {"rows": rows[good], **_numbered(calls, good)}
            which, most_bytes = (self._machine.terms, columns, good), self.core.limits.errors_bytes
            records = releases_of(*which, now_ms, told, meta, most_bytes)
            # All are written or none: a receipt is good only once.
            self.core.reserve(size_bytes_of(records), Use.CHANGE)
            for record in records:
                self._time.write(record)
        dead = good & (self._table.state[rows] == State.DEAD)
        return good | (done > 0), dead | (done == Result.BURIED)

    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Move the ends of leases (see the contract)."""
        good = await self._in_room(lambda: self._touch(receipts, lease_ms))
        return await self._answer(good, Result.TOUCHED, Result.STALE)

    def _touch(self, receipts: U64, lease_ms: int) -> np.ndarray:
        now_ms = self._time.begin_held()
        rows, good = leased_rows(self._table, receipts, self.number)
        going = distinct(rows[good])
        if len(going):
            until_ms = now_ms + self._leases(going, lease_ms)
            columns: dict[str, np.ndarray] = {"rows": going, "lease_until_ms": until_ms}
            self._time.write(Record(RecordKind.TOUCH, now_ms, columns))
        return good

    async def bury(
        self,
        receipts: U64,
        reason: str | None,
        *,
        priority: int | None = None,
        calls: U64 | None = None,
    ) -> U8:
        """Set messages aside as dead (see the contract)."""
        meta = Meta(error=reason, priority=priority)
        good = await self._in_room(lambda: self._bury(receipts, meta, calls))
        return await self._answer(good, Result.BURIED, Result.STALE)

    def _bury(self, receipts: U64, meta: Meta, calls: U64 | None) -> np.ndarray:
        now_ms = self._time.begin_held()
        rows, good = self._leased_once(receipts)
        done = self._done(calls, now_ms, len(rows))
        if good.any():
            columns = {"rows": rows[good], **_numbered(calls, good)}
            self._time.write(Record(RecordKind.BURY, now_ms, columns, meta))
        return good | (done > 0)

    def _leased_once(self, receipts: U64) -> tuple[Rows, np.ndarray]:
        rows, good = leased_rows(self._table, receipts, self.number)
        return rows, first_of_each(rows, good)

    # --- by id ----------------------------------------------------------------------------------

    async def kick(
        self,
        topic: str,
        ids: Sequence[bytes],
        due_ms: I64,
        versions: U64 | None = None,
        *,
        calls: U64 | None = None,
    ) -> U8:
        """Bring dead messages back (see the contract)."""
        which = _Named(topic, ids, versions, calls)
        good = await self._in_room(lambda: self._kick(which, due_ms))
        return await self._answer(good, Result.KICKED, Result.UNKNOWN)

    def _kick(self, which: _Named, due_ms: I64) -> np.ndarray:
        now_ms = self._time.begin()
        rows, _, free, done = self._find(which, now_ms)
        good = first_of_each(rows, free & (self._table.state[rows] == State.DEAD))
        if good.any():
            own_ms = np.maximum(due_ms[good], now_ms)
            columns = {"rows": rows[good], "due_ms": own_ms, **_numbered(which.calls, good)}
            self._time.write(Record(RecordKind.KICK, now_ms, columns))
        known: np.ndarray = good | done
        return known

    async def cancel(
        self,
        topic: str,
        ids: Sequence[bytes],
        versions: U64 | None = None,
        *,
        calls: U64 | None = None,
    ) -> U8:
        """Delete messages that are not leased (see the contract)."""
        which = _Named(topic, ids, versions, calls)
        good, leased = await self._in_room(lambda: self._cancel(which))
        results = await self._answer(good, Result.CANCELLED, Result.UNKNOWN)
        results[leased] = Result.LEASED
        return results

    def _cancel(self, which: _Named) -> _GoodAndLeased:
        now_ms = self._time.look()
        rows, leased, free, done = self._find(which, now_ms)
        good = first_of_each(rows, free)
        if good.any():
            columns = {"rows": rows[good], **_numbered(which.calls, good)}
            self._time.write(Record(RecordKind.CANCEL, now_ms, columns))
        return good | done, leased

    async def reschedule(
        self,
        topic: str,
        ids: Sequence[bytes],
        due_ms: I64,
        versions: U64 | None = None,
        *,
        calls: U64 | None = None,
    ) -> U8:
        """Change when messages fall due (see the contract)."""
        which = _Named(topic, ids, versions, calls)
        good, leased = await self._in_room(lambda: self._reschedule(which, due_ms))
        results = await self._answer(good, Result.MOVED, Result.UNKNOWN)
        results[leased] = Result.LEASED
        return results

    def _reschedule(self, which: _Named, due_ms: I64) -> _GoodAndLeased:
        now_ms = self._time.begin()
        rows, leased, free, done = self._find(which, now_ms)
        good = free & (self._table.state[rows] != State.DEAD)
        if which.versions is not None:
            good = first_of_each(rows, good)
        moving = np.flatnonzero(good)
        waves = waves_of(rows[moving]) if len(moving) else []
        self.core.reserve(len(waves) * RECORD_BYTES + 24 * len(moving), Use.CHANGE)
        for wave in waves:
            going = moving[wave]
            columns = {"rows": rows[going], "due_ms": due_ms[going]}
            columns |= _numbered(which.calls, going)
            self._time.write(Record(RecordKind.MOVE, now_ms, columns))
        return good | done, leased

    async def outcomes(self, calls: U64) -> U8:
        """Return the earlier results of repeated calls (see the contract)."""
        done = self._done(calls, self._time.begin_held(), len(calls))
        await self.core.committed()
        return done

    async def get(self, topic: str, ids: Sequence[bytes]) -> list[Message | StoreDamaged | None]:
        """Return messages by their ids (see the contract)."""
        self._time.look()
        rows, found = self._finder.find(topic, ids)
        batch, are_whole, damage = await read(self.core, rows[found], receipts=False)
        messages: list[Message | StoreDamaged | None] = [None] * len(ids)
        places = np.flatnonzero(found)
        for at, message in zip(places[are_whole].tolist(), batch, strict=True):
            messages[at] = message
        for at in places[~are_whole].tolist():
            words = f"topic {topic!r}: message {ids[at].decode()!r} cannot be read"
            messages[at] = StoreDamaged(f"{words}: {damage}")
        return messages

    async def results(self, topic: str, ids: Sequence[bytes]) -> list[Outcome | StoreDamaged]:
        """Return what came of messages (see the contract)."""
        now_ms = self._time.look()
        return await outcomes(self.core, self._finder, topic, ids, now_ms)

    async def named(self, numbers: U64) -> list[tuple[str, str] | None]:
        """Return topic and id of the message of each number (see the contract)."""
        self._time.look()
        rows, there = await self._finder.numbered(numbers)
        names = self._machine.topics.names
        topics = [names[number] for number in self._table.topic[rows[there]].tolist()]
        ids = await ids_of(self.core, self._finder, rows[there])
        pairs = iter(zip(topics, ids, strict=True))
        found = [next(pairs) if is_there else None for is_there in there.tolist()]
        return [None if pair is None or pair[1] is None else (pair[0], pair[1]) for pair in found]

    async def versions(self, numbers: U64) -> U64:
        """Return the version of the message of each number (see the contract)."""
        self._time.look()
        rows, there = await self._finder.numbered(numbers)
        found: U64 = np.where(there, versions_of(self._table, rows), 0).astype(np.uint64)
        return found

    async def taken_from(self, receipts: U64) -> list[str | None]:
        """Return the topic of the message of each receipt (see the contract)."""
        self._time.begin_held()
        rows, good = leased_rows(self._table, receipts, self.number)
        names = self._machine.topics.names
        rows[~good] = 0
        topics = self._table.topic[rows].tolist()
        is_good = good.tolist()
        return [names[topic] if ok else None for topic, ok in zip(topics, is_good, strict=True)]

    # --- looking --------------------------------------------------------------------------------

    async def scan(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return messages of one state in order of due (see the contract)."""
        self._time.look()
        number = self._machine.topics.find(topic)
        if number is None:
            return Page(Batch.empty(receipts=False), None)
        fit = of_state(self._table, number, state)
        rows, last = await paged(self._table, fit, cursor, limit, self.core.limits)
        rows = rows if self._machine.topics.find(topic) == number else _NO_ROWS  # deleted since
        versions = versions_of(self._table, rows)
        batch, are_whole, _ = await read(self.core, rows, receipts=False)
        return Page(batch, last, versions[are_whole])

    async def sweep(self, wanted: Wanted, start: int, stop: int, limit: int) -> Sweep:
        """Return messages by place, which is the row (see the contract)."""
        self._time.look()
        rows, place = swept(self._machine, wanted, start, stop, limit, self.core.limits)
        versions, places = versions_of(self._table, rows), self._table.top
        batch, are_whole, _ = await read(self.core, rows, receipts=False)
        versions = versions[are_whole]
        if wanted.key is not None:
            kept = places_with_key(batch, wanted.key)
            batch, versions = batch.picked(kept), versions[kept]
        return Sweep(batch, place, places, versions)

    async def clear_part(self, topic: str, place: int) -> tuple[int, int | None]:
        """Cancel messages of a topic by place, which is the row (see the contract)."""
        count, following = await self._in_room(lambda: self._clear_part(topic, place))
        await self.core.committed()
        return count, following

    def _clear_part(self, topic: str, place: int) -> tuple[int, int | None]:
        now_ms = self._time.look()
        wanted = Wanted(topics=(topic,), states=(State.DELAYED, State.READY, State.DEAD))
        most = self.core.limits.cleared_rows
        rows, following = swept(self._machine, wanted, place, 2**63 - 1, most, self.core.limits)
        if len(rows):
            self._time.write(Record(RecordKind.CANCEL, now_ms, {"rows": rows}))
        return len(rows), following

    async def events(self, position: int, limit: int) -> EventPage:
        """Return events in order (see the contract)."""
        self._time.look()
        log = self._machine.events
        until = log.next_position
        await self.core.committed()
        events = log.read(position, limit, until)
        # The log may have lost its beginning since, after the events that were read.
        at = int(events.positions[0]) if len(events) else max(position, log.first_position)
        following = at + len(events)
        known = self.core.histories((position, following), until)
        return EventPage(events, following, log.first_position, until, *known)

    async def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]:
        """Read the journal, and return the messages without a body there (see the contract)."""
        return await strays.found(self.core, self._time, repair=repair, limit=limit)

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Change some of a topic's settings (see the contract)."""

        def changed() -> TopicSettings:
            return structs.replace(self._machine.topics.settings(topic), **changes)

        def write() -> TopicSettings:
            # Others may have changed settings while the keys were read.
            meta = Meta(topic=topic, settings=changed())
            self._time.write(Record(RecordKind.CONFIGURE, self._time.begin(), {}, meta))
            return self._machine.topics.settings(topic)

        if (on_full := changed().on_full) not in ("refuse", "drop"):
            raise InvalidSettings(f"on_full: got {on_full!r}, expected refuse or drop")
        async with self.core.known_keys(topic, changed()):
            settings = await self._in_room(write)
            if self._is_forming(topic):
                await finished(whole(self._form(topic)))
        number = self._machine.topics.number(topic)
        if not settings.paused and (ready := self._table.count(number, State.READY)):
            self.wake(topic, ready)
        self._machine.forget_idle(topic)
        await self.core.committed()
        return settings

    def _is_forming(self, topic: str) -> bool:
        return self._machine.topics.find(topic) in self._machine.forming

    async def _form(self, topic: str) -> None:
        """Place the ready messages of a topic as its new settings say, a part at a time."""
        machine, number = self._machine, self._machine.topics.number(topic)
        change, step = machine.forming[number], self.core.limits.formed_rows
        rows = await in_thread(machine.to_form, number)
        for start in range(0, len(rows), step):
            if machine.forming.get(number) != change:
                # The settings have changed again, and that call goes on.
                return
            machine.form(number, rows[start : start + step])
            await asyncio.sleep(0)
        if machine.forming.get(number) == change:
            del machine.forming[number]
        while machine.admission.free(step):
            await asyncio.sleep(0)

    async def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic."""
        return self._machine.topics.settings(topic)

    async def tick(self, now_ms: int) -> int | None:
        """Do everything that is due by now; return the next deadline."""
        self.core.check_open()
        self._time.tick(now_ms)
        return self._time.deadline_ms

    # --- inside ---------------------------------------------------------------------------------

    def _find(self, which: _Named, now_ms: int) -> tuple[Rows, np.ndarray, np.ndarray, np.ndarray]:
        """Return each id's row, and whether its message is leased, may be changed, was changed.

        Messages changed by an earlier send of the request count only as changed, even if new
        messages have their ids now.
        """
        rows, found = self._finder.find(which.topic, which.ids)
        done = self._done(which.calls, now_ms, len(rows)) > 0
        if done.any():
            found &= done | ~np.isin(rows, rows[found & done])
        leased = found & (self._table.state[rows] == State.LEASED) & ~done
        free = found & ~leased & ~done
        if which.versions is not None and free.any():
            free &= versions_of(self._table, rows) == which.versions
        return rows, leased, free, done

    def _done(self, calls: U64 | None, now_ms: int, count: int) -> U8:
        """Return the earlier result of each call, 0 without one."""
        found = self._machine.calls.find(calls, now_ms) if calls is not None else None
        return np.zeros(count, dtype=np.uint8) if found is None else found.results

    async def _answer(self, good: np.ndarray, yes: Result, no: Result) -> U8:
        results: U8 = np.where(good, yes, no).astype(np.uint8)
        # An absent message may depend on a record that is not on the disk yet.
        await self.core.committed()
        return results

    async def _in_room(self, verb: Callable[[], T]) -> T:
        """Run a verb; on a full disk, free space and run it once more."""
        with contextlib.suppress(DiskFull):
            return verb()
        await self.core.freed()
        return verb()

    def _ended(self, topics: U32) -> None:
        if watched := self.watched():
            names = self._machine.topics.names
            for topic in {names[number] for number in distinct(topics).tolist()} & {*watched}:
                self.ended(topic)

    def _woken(self, topic: str, count: int, paused: bool) -> None:
        if not paused:
            self.wake(topic, count)


def _numbered(calls: U64 | None, which: np.ndarray) -> dict[str, np.ndarray]:
    """Return the column with the call numbers of some messages, if they have any."""
    return {} if calls is None else {"calls": plain(calls[which])}


_NO_ROWS: Rows = np.zeros(0, dtype=np.intp)
