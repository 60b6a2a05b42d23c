"""The embedded store: the verbs.

Each one resolves what it is asked against the state, makes a record of what will happen, appends it
to the journal, applies it, and answers when it is on disk.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.events import EventPage
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import PutAnswer, Puts
from dwell.batch.stats import Stale, Stats
from dwell.batch.sweep import Sweep, Wanted
from dwell.clock import Clock, RealClock
from dwell.errors import DiskFull, ForeignReceipt, InvalidSettings, StoreClosed, StoreError
from dwell.message import I64, U8, U64, Message, Result, Rows, State, TopicSettings
from dwell.store.base import Store
from dwell.store.embedded import strays
from dwell.store.embedded.backup import copy_to, new_folder, new_place
from dwell.store.embedded.checkpoint import Checkpoint, checkpoint_of
from dwell.store.embedded.core import Core
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.distinct import distinct, first_of_each
from dwell.store.embedded.finder import Finder, waves_of
from dwell.store.embedded.ids import HASHERS
from dwell.store.embedded.journal.journal import SEGMENT_BYTES, Use
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.numbers import numbers_of, rows_of
from dwell.store.embedded.putter import Putter
from dwell.store.embedded.reading import read, stats_of
from dwell.store.embedded.sweeping import paged, swept, with_key
from dwell.store.embedded.syncoption import sync_every_ms
from dwell.store.embedded.wheel import Wheel

T = TypeVar("T")
_GoodAndLeased: TypeAlias = tuple[np.ndarray, np.ndarray]

_TAKE_BYTES = 1024  # more than a take's record needs beside its rows: header, owner and filling


class EmbeddedStore(Store):
    """A store in one folder, for one process.

    ``sync`` says when an answer leaves: ``always`` (the default) when it is on the disk; ``never``
    when the operating system has it, which survives the process but not the machine; ``100ms`` (any
    number) the same, with a sync at least that often. ``events_bytes`` is how much of the event log
    is kept. ``disk``, ``segment_bytes`` and ``limits`` are for tests.
    """

    # One sync is under way at a time, and covers all that was written before it.
    most_small = 1

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        sync: str = "always",
        events_bytes: int = 1 << 30,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self.clock = clock or RealClock()
        self._core = Core(
            disk or Disk(), Path(path), segment_bytes, sync_every_ms(sync), events_bytes, limits
        )
        self._opened = False

    async def open(self) -> None:
        """Lock the folder, read the newest snapshot and what came after it.

        Raises StoreLocked, NotAStore, StoreTooNew, StoreDamaged or DiskFull.
        """
        now_ms = self.clock.now_ms()
        self._core.open(now_ms, self._woken)
        self.number, self.secret = self._core.label.number, self._core.label.secret
        self._machine, self._table = self._core.machine, self._core.machine.table
        self._finder = Finder(self._machine, HASHERS[self._core.label.ids](self._core.label.seed))
        core = self._core
        self._putter = Putter(self._machine, self._finder, core.recent, core.reserve, self._write)
        self.timings = self._core.journal.timings
        self._deadline_ms: int | None = 0
        self._latest_ms = now_ms
        self._ticks = 0
        self._opened = True

    async def close(self) -> None:
        """Write a snapshot, and let go of the folder."""
        if self._opened:
            self._opened = False
            await self._core.close(self.clock.now_ms())

    async def checkpoint(self) -> Checkpoint:
        """Return all files of the store as they are now, held for copying."""
        return await checkpoint_of(self._core, self._begin())

    async def backup(self, folder: str | Path) -> None:
        """Copy the store as it is now to a new folder, which can be opened at once.

        The store goes on meanwhile. Raises InvalidInput when the folder is there already, and
        DiskFull when there is no room; then nothing is left of it.
        """
        place = new_place(self._core.disk, folder, self._core.folder)
        async with new_folder(self._core.disk, place) as new:
            checkpoint = await self.checkpoint()
            try:
                await copy_to(checkpoint, new)
            finally:
                await checkpoint.close()

    async def compact(self) -> None:
        """Make a snapshot, and free what can be freed; the store does so by itself when it is due.

        What hinders it is told in a warning.
        """
        await self._core.compact_now(self._begin())

    def check(self) -> None:
        """Raise StoreClosed, what made the journal fail, or DiskFull if no more can be put."""
        self._check_open()
        self._core.journal.check()
        self._core.journal.check_room()

    # --- put ------------------------------------------------------------------------------------

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages (see the contract)."""
        await self._core.room()
        answer = await self._in_room(lambda: self._putter.put(puts, on_conflict, self._begin()))
        if len(puts):
            await self._core.committed()
        return answer

    # --- take -----------------------------------------------------------------------------------

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease ready messages (see the contract)."""
        rows = await self._in_room(lambda: self._take(topics, limit, lease_ms, owner))
        return await self._handed(rows)

    def _take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Rows:
        now_ms = self._begin()
        found = []
        ready = {number: count for topic in topics for number, count in self._ready(topic)}
        limit = min(limit, sum(ready.values()))
        if limit:
            # What is popped below must be written, so the room for it comes first.
            self._core.reserve(_TAKE_BYTES + 16 * limit, Use.CHANGE)
        room_bytes = self._core.limits.answer_bytes
        for number, count in ready.items():
            if not limit or room_bytes <= 0:
                break
            found.append(self._machine.pop_ready(number, limit, room_bytes))
            if len(found[-1]) < min(limit, count):
                # It was cut short for its size; what is left of it goes before other topics.
                break
            limit -= len(found[-1])
            room_bytes -= int(self._table.size_bytes[found[-1]].sum())
        rows = np.concatenate([_NO_ROWS, *found]) if len(found) != 1 else found[0]
        if len(rows):
            self._lease(rows, lease_ms, owner, now_ms)
        return rows

    async def take_ids(self, topic: str, ids: Sequence[bytes], lease_ms: int, owner: str) -> Batch:
        """Lease those of some messages that are ready (see the contract)."""
        rows = await self._in_room(lambda: self._take_ids(topic, ids, lease_ms, owner))
        return await self._handed(rows)

    def _take_ids(self, topic: str, ids: Sequence[bytes], lease_ms: int, owner: str) -> Rows:
        now_ms = self._begin()
        if self._machine.topics.settings(topic).paused:
            return _NO_ROWS
        rows, found = self._finder.find(topic, ids)
        good = first_of_each(rows, found & (self._table.state[rows] == State.READY))
        going: Rows = rows[good]
        if len(going):
            # What stands for them in the ready runs is thrown away when it comes to the front.
            self._lease(going, lease_ms, owner, now_ms)
        return going

    async def _handed(self, rows: Rows) -> Batch:
        """Return what was leased; when the call is cancelled it is given back as it was."""
        receipts = self._machine.receipts_of(rows, self.number)
        try:
            return await read(self._core, rows, receipts=True) if len(rows) else Batch.empty()
        except asyncio.CancelledError:
            with contextlib.suppress(StoreError):
                self._release(receipts, 0, Meta(counted=False))
            raise

    def _lease(self, rows: Rows, lease_ms: int, owner: str, now_ms: int) -> None:
        until_ms = now_ms + self._leases(rows, lease_ms)
        columns: dict[str, np.ndarray] = {"rows": rows, "lease_until_ms": until_ms}
        self._write(Record(RecordKind.TAKE, now_ms, columns, Meta(owner=owner)))

    async def peek(self, topic: str, limit: int) -> Batch:
        """Return the ready messages that a take would give first (see the contract)."""
        self._look()
        number = self._machine.topics.find(topic)
        limit = 0 if number is None else min(limit, self._table.count(number, State.READY))
        if number is None or not limit:
            return Batch.empty(receipts=False)
        return await read(self._core, self._machine.peek_ready(number, limit), receipts=False)

    def ready(self, topic: str) -> int:
        """Return how many messages of a topic could be taken (see the contract)."""
        return sum(count for _, count in self._ready(topic))

    def _ready(self, topic: str) -> Iterator[tuple[int, int]]:
        """Yield the topic's number and how many of its messages can be taken, unless none can."""
        number = self._machine.topics.find(topic)
        if number is not None and not self._machine.topics.settings_of(number).paused:
            count = self._table.count(number, State.READY)
            if count:
                yield number, count

    def _leases(self, rows: Rows, lease_ms: int) -> I64:
        return np.full(len(rows), lease_ms) if lease_ms else self._machine.lease_ms_of(rows)

    async def held(self, owner: str) -> Batch:
        """Return again what an owner holds (see the contract)."""
        self._look()
        number = self._machine.owners.get(owner)
        if number is None:
            return Batch.empty()
        table = self._table
        rows = table.rows_where(
            lambda part: (table.state[part] == State.LEASED) & (table.owner[part] == number)
        )
        rows = rows[np.lexsort((table.seq[rows], table.due_ms[rows]))]
        return await read(self._core, rows, receipts=True)

    # --- by receipt -----------------------------------------------------------------------------

    async def ack(self, receipts: U64) -> U8:
        """Forget messages that are done (see the contract)."""
        good = await self._in_room(lambda: self._ack(receipts))
        return await self._answer(good, Result.ACKED, Result.STALE)

    def _ack(self, receipts: U64) -> np.ndarray:
        now_ms = self._begin_held()
        rows, good = self._leased_once(receipts)
        if good.any():
            self._write(Record(RecordKind.ACK, now_ms, {"rows": rows[good]}))
        return good

    async def release(
        self,
        receipts: U64,
        delay_ms: int | None,
        error: str | None,
        *,
        counted: bool,
        priority: int | None = None,
    ) -> U8:
        """Give messages back (see the contract)."""
        meta = Meta(error=error, counted=counted, priority=priority)
        good, dead = await self._in_room(lambda: self._release(receipts, delay_ms, meta))
        results = await self._answer(good, Result.RELEASED, Result.STALE)
        results[dead] = Result.BURIED
        return results

    def _release(
        self, receipts: U64, delay_ms: int | None, meta: Meta
    ) -> tuple[np.ndarray, np.ndarray]:
        now_ms = self._begin_held()
        rows, good = self._leased_once(receipts)
        going = rows[good]
        if len(going):
            columns = {
                "rows": going,
                "due_ms": self._machine.release_dues(going, now_ms, delay_ms, counted=meta.counted),
            }
            self._write(Record(RecordKind.RELEASE, now_ms, columns, meta))
        return good, good & (self._table.state[rows] == State.DEAD)

    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Let leases end later (see the contract)."""
        good = await self._in_room(lambda: self._touch(receipts, lease_ms))
        return await self._answer(good, Result.TOUCHED, Result.STALE)

    def _touch(self, receipts: U64, lease_ms: int) -> np.ndarray:
        now_ms = self._begin_held()
        rows, good = self._leased(receipts)
        going = distinct(rows[good])
        if len(going):
            until_ms = now_ms + self._leases(going, lease_ms)
            columns: dict[str, np.ndarray] = {"rows": going, "lease_until_ms": until_ms}
            self._write(Record(RecordKind.TOUCH, now_ms, columns))
        return good

    async def bury(self, receipts: U64, reason: str | None, *, priority: int | None = None) -> U8:
        """Set messages aside as dead (see the contract)."""
        meta = Meta(error=reason, priority=priority)
        good = await self._in_room(lambda: self._bury(receipts, meta))
        return await self._answer(good, Result.BURIED, Result.STALE)

    def _bury(self, receipts: U64, meta: Meta) -> np.ndarray:
        now_ms = self._begin_held()
        rows, good = self._leased_once(receipts)
        if good.any():
            self._write(Record(RecordKind.BURY, now_ms, {"rows": rows[good]}, meta))
        return good

    def _leased_once(self, receipts: U64) -> tuple[Rows, np.ndarray]:
        rows, good = self._leased(receipts)
        return rows, first_of_each(rows, good)

    def _leased(self, receipts: U64) -> tuple[Rows, np.ndarray]:
        foreign = receipts[:, 0] >> np.uint64(32) != np.uint64(self.number)
        if foreign.any():
            raise ForeignReceipt(
                f"receipt: number {int(np.argmax(foreign))} was made by another store"
            )
        return self._machine.leased_rows(receipts)

    # --- by id ----------------------------------------------------------------------------------

    async def kick(self, topic: str, ids: Sequence[bytes], delay_ms: int) -> U8:
        """Bring dead messages back (see the contract)."""
        good = await self._in_room(lambda: self._kick(topic, ids, delay_ms))
        return await self._answer(good, Result.KICKED, Result.UNKNOWN)

    def _kick(self, topic: str, ids: Sequence[bytes], delay_ms: int) -> np.ndarray:
        now_ms = self._begin()
        rows, found = self._finder.find(topic, ids)
        dead = found & (self._table.state[rows] == State.DEAD) & ~self._machine.are_worn(rows)
        good = first_of_each(rows, dead)
        if good.any():
            due_ms = np.full(int(good.sum()), now_ms + delay_ms)
            columns = {"rows": rows[good], "due_ms": due_ms}
            self._write(Record(RecordKind.KICK, now_ms, columns))
        return good

    async def cancel(self, topic: str, ids: Sequence[bytes]) -> U8:
        """Forget messages that nobody has taken (see the contract)."""
        good, leased = await self._in_room(lambda: self._cancel(topic, ids))
        results = await self._answer(good, Result.CANCELLED, Result.UNKNOWN)
        results[leased] = Result.LEASED
        return results

    def _cancel(self, topic: str, ids: Sequence[bytes]) -> _GoodAndLeased:
        now_ms = self._look()
        rows, found = self._finder.find(topic, ids)
        leased = found & (self._table.state[rows] == State.LEASED)
        good = first_of_each(rows, found & ~leased)
        if good.any():
            self._write(Record(RecordKind.CANCEL, now_ms, {"rows": rows[good]}))
        return good, leased

    async def reschedule(self, topic: str, ids: Sequence[bytes], due_ms: I64) -> U8:
        """Change when messages fall due (see the contract)."""
        good, leased = await self._in_room(lambda: self._reschedule(topic, ids, due_ms))
        results = await self._answer(good, Result.MOVED, Result.UNKNOWN)
        results[leased] = Result.LEASED
        return results

    def _reschedule(self, topic: str, ids: Sequence[bytes], due_ms: I64) -> _GoodAndLeased:
        now_ms = self._begin()
        rows, found = self._finder.find(topic, ids)
        state = self._table.state[rows]
        leased = found & (state == State.LEASED)
        good = found & ~leased & (state != State.DEAD)
        moving = np.flatnonzero(good)
        waves = waves_of(rows[moving]) if len(moving) else []
        self._core.reserve(len(waves) * _TAKE_BYTES + 16 * len(moving), Use.CHANGE)
        for wave in waves:
            which = moving[wave]
            columns = {"rows": rows[which], "due_ms": due_ms[which]}
            self._write(Record(RecordKind.MOVE, now_ms, columns))
        return good, leased

    async def get(self, topic: str, ids: Sequence[bytes]) -> list[Message | None]:
        """Return messages by their ids (see the contract)."""
        self._look()
        rows, found = self._finder.find(topic, ids)
        batch = await read(self._core, rows[found], receipts=False)
        messages = iter(batch)
        return [next(messages) if there else None for there in found.tolist()]

    async def named(self, numbers: U64) -> list[tuple[str, str] | None]:
        """Return topic and id of the message of each number (see the contract)."""
        self._look()
        rows = rows_of(numbers)
        there = rows < self._table.top
        rows[~there] = 0
        if there.any():
            there &= numbers_of(rows, self._table.seq[rows]) == numbers
            there &= self._table.state[rows] != State.GONE
        batch = await read(self._core, rows[there], receipts=False)
        names = zip(batch.topics, batch.ids, strict=True)
        return [next(names) if is_there else None for is_there in there.tolist()]

    async def taken_from(self, receipts: U64) -> list[str | None]:
        """Return the topic of the message of each receipt (see the contract)."""
        self._begin_held()
        rows, good = self._leased(receipts)
        names = self._machine.topics.names
        rows[~good] = 0
        topics = self._table.topic[rows].tolist()
        is_good = good.tolist()
        return [names[topic] if ok else None for topic, ok in zip(topics, is_good, strict=True)]

    # --- looking --------------------------------------------------------------------------------

    async def scan(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return messages of one state in order of due (see the contract)."""
        self._look()
        number = self._machine.topics.find(topic)
        if number is None:
            return Page(Batch.empty(receipts=False), None)
        rows, last = paged(self._table, number, state, cursor, limit, self._core.limits)
        return Page(await read(self._core, rows, receipts=False), last)

    async def sweep(self, wanted: Wanted, start: int, stop: int, limit: int) -> Sweep:
        """Return messages by place, which is the row (see the contract)."""
        self._look()
        rows, place = swept(self._machine, wanted, start, stop, limit, self._core.limits)
        batch = await read(self._core, rows, receipts=False)
        if wanted.key is not None:
            batch = with_key(batch, wanted.key)
        return Sweep(batch, place, self._table.top)

    async def events(self, position: int, limit: int) -> EventPage:
        """Return events in order (see the contract)."""
        self._look()
        log = self._machine.events
        until = log.next_position
        await self._core.committed()
        events = log.read(position, limit, until)
        # The log may have lost its beginning meanwhile, behind what was read.
        at = int(events.positions[0]) if len(events) else max(position, log.first_position)
        following = at + len(events)
        known = self._core.histories((position, following), until)
        return EventPage(events, following, log.first_position, until, *known)

    async def stats(self) -> Stats:
        """Return the counts."""
        self._look()
        return stats_of(self._machine)

    async def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]:
        """Read the journal, and say which messages have no body there (see the contract)."""
        self._look()
        whole, until = await strays.whole_frames(self._core)
        now_ms = self._look()
        rows = strays.bodiless(self._machine, whole, until)[:limit]
        answer = strays.told(self._machine, rows, repaired=repair)
        if repair and len(rows):
            # What ends messages has to be written, so the room for it comes first.
            self._core.reserve(_TAKE_BYTES + 16 * len(rows), Use.END)
            self._write(strays.ended(self._machine, rows, now_ms))
            await self._core.committed()
        return answer

    async def configure(self, topic: str, settings: TopicSettings) -> None:
        """Set what holds for a topic from now on."""
        if settings.on_full not in ("refuse", "drop"):
            raise InvalidSettings(f"on_full: got {settings.on_full!r}, expected refuse or drop")
        meta = Meta(topic=topic, settings=settings)
        await self._in_room(
            lambda: self._write(Record(RecordKind.CONFIGURE, self._begin(), {}, meta))
        )
        number = self._machine.topics.number(topic)
        if not settings.paused and (ready := self._table.count(number, State.READY)):
            self.wake(topic, ready)
        await self._core.committed()

    async def settings(self, topic: str) -> TopicSettings:
        """Return what holds for a topic."""
        return self._machine.topics.settings(topic)

    async def tick(self, now_ms: int) -> int | None:
        """Do what time asks for; return the next deadline."""
        self._check_open()
        self._tick(now_ms)
        return self._deadline_ms

    # --- inside ---------------------------------------------------------------------------------

    def _begin(self) -> int:
        """Do what time asks for before a verb, and return the time."""
        now_ms = self._enter()
        if self._deadline_ms is not None and self._deadline_ms <= now_ms:
            self._tick(now_ms)
        return now_ms

    def _look(self) -> int:
        """Do the same before a verb that needs no room, as far as there is room for it."""
        with contextlib.suppress(DiskFull):
            return self._begin()
        return self.clock.now_ms()

    def _begin_held(self) -> int:
        """Do the same before a verb by receipt, for which it does not matter what became ready."""
        now_ms = self._enter()
        if self._machine.ends_before(now_ms):
            # An end that there is no room to write has not happened, and hinders no ack.
            with contextlib.suppress(DiskFull):
                self._tick(now_ms)
        return now_ms

    def _enter(self) -> int:
        self._check_open()
        self._core.journal.part()
        now_ms = self.clock.now_ms()
        self._note_time(now_ms)
        return now_ms

    def _note_time(self, now_ms: int) -> None:
        if now_ms < self._latest_ms:
            # The clock has jumped back: what was due is not due now.
            self._machine.unready(now_ms)
            self._deadline_ms = self._machine.next_deadline_ms()
            self.plan()
        self._latest_ms = now_ms

    def _check_open(self) -> None:
        if not self._opened:
            raise StoreClosed(f"{self._core.folder}: the store is closed")

    def _tick(self, now_ms: int) -> None:
        machine = self._machine
        self._note_time(now_ms)
        full: DiskFull | None = None
        for wheel, kind, error in (
            (machine.leases, RecordKind.LAPSE, None),
            (machine.expiries, RecordKind.EXPIRE, "expired"),
        ):
            try:
                self._run_out(wheel, kind, error, now_ms)
            except DiskFull as no_room:
                full = no_room
        rows = machine.delays.pop(now_ms)
        if rows is not None and len(rows):
            machine.make_ready(rows)
        self._ticks += 1
        if self._ticks % self._core.limits.sweep_every == 0:
            machine.sweep()
        self._deadline_ms = machine.next_deadline_ms()
        if full is not None:
            raise full

    def _run_out(self, wheel: Wheel, kind: RecordKind, error: str | None, now_ms: int) -> None:
        """Write what a wheel says has ended by now, in as many records as that takes."""
        rows = wheel.pop(now_ms)
        if rows is None:
            return
        room_bytes = self._core.journal.most_record_bytes - _TAKE_BYTES
        most = max(min(self._core.limits.most_ended, room_bytes // rows.itemsize), 1)
        left = rows
        try:
            while len(left):
                self._write(Record(kind, now_ms, {"rows": left[:most]}, Meta(error=error)))
                left = left[most:]
        except BaseException:
            # What is not written has not happened, and has to be met again: at its own time, as
            # the clock may be wrong now and be set right before there is room.
            wheel.put_back(left)
            raise

    def _write(self, record: Record) -> None:
        """Append a record and do what it says; raises DiskFull or StoreFailed before either."""
        self._core.write(record)
        deadline = self._machine.next_deadline_ms()
        if deadline is not None and (self._deadline_ms is None or deadline < self._deadline_ms):
            self._deadline_ms = deadline
            self.plan()

    async def _answer(self, good: np.ndarray, yes: Result, no: Result) -> U8:
        results: U8 = np.where(good, yes, no).astype(np.uint8)
        # That something is gone may rest on what another has just written.
        await self._core.committed()
        return results

    async def _in_room(self, verb: Callable[[], T]) -> T:
        """Do a verb; where there is no room for it, once more when what can be freed is free."""
        with contextlib.suppress(DiskFull):
            return verb()
        await self._core.freed()
        return verb()

    def _woken(self, topic: str, count: int, paused: bool) -> None:
        if not paused:
            self.wake(topic, count)


_NO_ROWS: Rows = np.zeros(0, dtype=np.intp)
