"""The embedded store: the verbs. Each one resolves what it is asked against the state, makes a
record of what will happen, appends it to the journal, applies it, and answers when it is on disk.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dwell.clock import Clock, RealClock
from dwell.errors import (
    ForeignReceipt,
    IdExists,
    InvalidSettings,
    StoreClosed,
    StoreError,
    TopicFull,
)
from dwell.message import (
    I64,
    QUEUE_ID_MARK,
    U8,
    U32,
    U64,
    Batch,
    Kind,
    Message,
    Result,
    State,
    TopicSettings,
    retry_delay_ms,
)
from dwell.store.base import Cursor, EventPage, Page, PutAnswer, Puts, Stats, Store, TopicStats
from dwell.store.embedded.blobs import BlobReader, interleaved, sizes_of
from dwell.store.embedded.core import Core
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.ids import IdHasher, LazyIds, parse_queue_ids
from dwell.store.embedded.journal.journal import SEGMENT_BYTES
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.machine import first_of_each

_SYNCS = {"always": 0, "never": None}


class EmbeddedStore(Store):
    """A store in one folder, for one process.

    ``sync`` says when an answer leaves: ``always`` (the default) when it is on the disk; ``never``
    when the operating system has it, which survives the process but not the machine; ``100ms`` (any
    number) the same, with a sync at least that often. ``events_bytes`` is how much of the event log
    is kept. ``disk`` and ``segment_bytes`` are for tests.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        sync: str = "always",
        events_bytes: int = 1 << 30,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk | None = None,
    ) -> None:
        self.clock = clock or RealClock()
        self._core = Core(
            disk or Disk(), Path(path), segment_bytes, _sync_every_ms(sync), events_bytes
        )
        self._opened = False

    async def open(self) -> None:
        """Lock the folder, read the newest snapshot and what came after it.

        Raises StoreLocked, NotAStore, StoreTooNew, StoreDamaged or DiskFull.
        """
        self._core.open(self.clock.now_ms(), self._woken)
        self.number = self._core.label.number
        self._hasher = IdHasher(self._core.label.seed)
        self._machine, self._table = self._core.machine, self._core.machine.table
        self._deadline_ms: int | None = 0
        self._latest_ms = 0
        self._opened = True

    async def close(self) -> None:
        """Write a snapshot, and let go of the folder."""
        if self._opened:
            self._opened = False
            await self._core.close(self.clock.now_ms())

    # --- put ------------------------------------------------------------------------------------

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages (see the contract)."""
        now_ms = self._begin()
        count = len(puts)
        if puts.ids is None:
            answer = self._put_new(puts, now_ms)
        else:
            answer = self._put_own(puts, on_conflict, now_ms)
        if count:
            await self._core.committed()
        return answer

    def _put_new(self, puts: Puts, now_ms: int) -> PutAnswer:
        """Put messages whose ids the queue makes."""
        count = len(puts)
        results: U8 = np.full(count, Result.CREATED, dtype=np.uint8)
        fitting = self._fitting(puts.topic, count)
        if fitting < count:
            results[fitting:] = Result.DROPPED
            puts = _part(puts, np.arange(fitting))
        rows, seqs = self._create(puts, None, now_ms)
        if fitting < count:
            rows = np.concatenate([rows, np.zeros(count - fitting, np.uint32)])
            seqs = np.concatenate([seqs, np.zeros(count - fitting, np.uint64)])
        return PutAnswer(LazyIds(rows, seqs, None), results)

    def _put_own(self, puts: Puts, on_conflict: str, now_ms: int) -> PutAnswer:
        """Put messages with the caller's ids, those that stand twice in waves of their own."""
        assert puts.ids is not None
        ids = puts.ids
        hashes = self._hasher.hash(self._machine.topics.seed(puts.topic), ids)
        waves = _waves(hashes[0])
        if on_conflict == "error":
            self._refuse_known(puts, hashes, waves)
        results: U8 = np.zeros(len(ids), dtype=np.uint8)
        fitting = self._count_fitting(puts, hashes, on_conflict, now_ms)
        for wave in waves:
            part = puts if len(waves) == 1 else _part(puts, wave)
            keys = (hashes[0][wave], hashes[1][wave])
            results[wave] = self._put_distinct(part, keys, on_conflict, fitting, now_ms)
            fitting -= int((results[wave] == Result.CREATED).sum())
        return PutAnswer(_texts(ids), results)

    def _put_distinct(
        self, puts: Puts, hashes: tuple[U64, U32], on_conflict: str, fitting: int, now_ms: int
    ) -> U8:
        """Put messages with distinct ids of the caller's; return the results."""
        rows, found = self._find_own(puts.topic, hashes)
        results: U8 = np.full(len(puts), Result.CREATED, dtype=np.uint8)
        if on_conflict == "keep":
            results[found | self._machine.remembered.holds(*hashes, now_ms)] = Result.KEPT
        else:
            leased = found & (self._table.state[rows] == State.LEASED)
            results[found] = Result.REPLACED
            results[leased] = Result.LEASED
        new = np.flatnonzero(results == Result.CREATED)
        results[new[fitting:]] = Result.DROPPED
        new = new[:fitting]
        if len(new) == len(puts):
            self._create(puts, hashes, now_ms)
        elif len(new):
            self._create(_part(puts, new), (hashes[0][new], hashes[1][new]), now_ms)
        old = np.flatnonzero(results == Result.REPLACED)
        if len(old):
            self._write_bodies(RecordKind.REPLACE, _part(puts, old), rows[old], now_ms, {})
        return results

    def _create(self, puts: Puts, hashes: tuple[U64, U32] | None, now_ms: int) -> tuple[U32, U64]:
        count = len(puts)
        if not count:
            return np.zeros(0, np.uint32), np.zeros(0, np.uint64)
        first = self._machine.next_seq
        rows = self._table.next_free(count)
        kind = RecordKind.PUT if hashes is None else RecordKind.PUT_OWN
        own = {} if hashes is None else {"id_hash": hashes[0], "id_check": hashes[1]}
        self._write_bodies(kind, puts, rows, now_ms, own)
        return rows, np.arange(first, first + count, dtype=np.uint64)

    def _write_bodies(
        self, kind: RecordKind, puts: Puts, rows: U32, now_ms: int, own: dict[str, np.ndarray]
    ) -> None:
        count = len(puts)
        id_bytes, extra_bytes = sizes_of(puts.ids, count), sizes_of(puts.extras, count)
        columns = {
            **own,
            "rows": rows,
            "due_ms": puts.due_ms,
            "expires_ms": puts.expires_ms,
            "priority": puts.priority,
            "lease_ms": puts.lease_ms,
            "size_bytes": (id_bytes + extra_bytes + sizes_of(puts.bodies, count)).astype(np.uint32),
            "id_bytes": id_bytes.astype(np.uint16),
            "extra_bytes": extra_bytes.astype(np.uint16),
            "max_attempts": puts.max_attempts,
        }
        blobs = interleaved((puts.ids, puts.extras, puts.bodies), count)
        meta = Meta(topic=puts.topic, first_seq=self._machine.next_seq)
        self._write(Record(kind, now_ms, columns, meta, blobs), growing=True)

    def _refuse_known(
        self, puts: Puts, hashes: tuple[U64, U32], waves: Sequence[np.ndarray]
    ) -> None:
        assert puts.ids is not None
        _, found = self._find_own(puts.topic, hashes)
        if len(waves) > 1:
            found[waves[1][0]] = True
        if found.any():
            first = puts.ids[int(np.argmax(found))].decode(errors="replace")
            count = int(found.sum())
            raise IdExists(
                f"id: {first!r} exists in topic {puts.topic!r} (and {count - 1} more); put nothing"
            )

    def _count_fitting(
        self, puts: Puts, hashes: tuple[U64, U32], on_conflict: str, now_ms: int
    ) -> int:
        """Return how many messages may be created; raises TopicFull where those are too few."""
        if not self._machine.topics.settings(puts.topic).max_pending:
            return len(puts)
        known = self._find_own(puts.topic, hashes)[1]
        if on_conflict == "keep":
            known |= self._machine.remembered.holds(*hashes, now_ms)
        return self._fitting(puts.topic, len(np.unique(hashes[0][~known])))

    def _fitting(self, topic: str, wanted: int) -> int:
        """Return how many of the messages wanted a topic has room for; raises TopicFull."""
        settings = self._machine.topics.settings(topic)
        number = self._machine.topics.find(topic)
        if not settings.max_pending or number is None:
            return wanted
        pending = self._table.count(number, State.DELAYED, State.READY)
        room = max(settings.max_pending - pending, 0)
        if wanted > room and settings.on_full == "refuse":
            raise TopicFull(
                f"topic {topic!r}: {pending} pending, max_pending is {settings.max_pending}; "
                f"refused {wanted} messages"
            )
        return min(wanted, room)

    # --- take -----------------------------------------------------------------------------------

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease ready messages (see the contract)."""
        now_ms = self._begin()
        found = []
        self._core.reserve(8192 + 16 * limit)
        for topic in dict.fromkeys(topics):
            number = self._machine.topics.find(topic)
            if limit and number is not None and not self._machine.topics.settings_of(number).paused:
                if self._table.count(number, State.READY):
                    found.append(self._machine.pop_ready(number, limit))
                    limit -= len(found[-1])
        rows = np.concatenate([_NO_ROWS, *found]) if len(found) != 1 else found[0]
        if not len(rows):
            return Batch.empty()
        leases = np.full(len(rows), lease_ms) if lease_ms else self._machine.lease_ms_of(rows)
        columns = {"rows": rows, "lease_until_ms": now_ms + leases}
        self._write(Record(RecordKind.TAKE, now_ms, columns, Meta(owner=owner)))
        return await self._read(rows, receipts=True)

    async def held(self, owner: str) -> Batch:
        """Return again what an owner holds (see the contract)."""
        self._begin()
        number = self._machine.owners.get(owner)
        if number is None:
            return Batch.empty()
        table = self._table
        rows = table.rows_where(
            lambda part: (table.state[part] == State.LEASED) & (table.owner[part] == number)
        )
        rows = rows[np.lexsort((table.seq[rows], table.due_ms[rows]))]
        return await self._read(rows, receipts=True)

    async def _read(self, rows: U32, *, receipts: bool) -> Batch:
        """Return messages as they are now, once everything that made them so is on disk."""
        if not len(rows):
            return Batch.empty(receipts=receipts)
        table, machine = self._table, self._machine
        reader = BlobReader(
            self._core.journal,
            table.position[rows],
            table.size_bytes[rows],
            table.id_bytes[rows],
            table.extra_bytes[rows],
        )
        names = machine.topics.names
        numbers = table.topic[rows]
        topics = _Same(names[numbers[0]], len(rows)) if (numbers == numbers[0]).all() else None
        leased = table.state[rows] == State.LEASED
        columns = {
            "topics": topics or [names[number] for number in numbers.tolist()],
            "due_ms": table.due_ms[rows],
            "priority": table.priority[rows],
            "attempt": table.attempt[rows],
            "max_attempts": table.max_attempts[rows],
            "lease_ms": table.lease_ms[rows],
            "lease_until_ms": np.where(leased, table.lease_until_ms[rows], 0),
            "expires_ms": table.expires_ms[rows],
            "state": table.state[rows],
            "receipts": machine.receipts_of(rows, self.number) if receipts else None,
            "errors": _errors_of(machine.errors, rows),
        }
        seqs = table.seq[rows]
        await self._core.committed()
        ids, extras, bodies = reader.read()
        none = _Same(b"", len(rows))
        return Batch(ids=LazyIds(rows, seqs, ids), extras=extras or none, bodies=bodies, **columns)

    # --- by receipt -----------------------------------------------------------------------------

    async def ack(self, receipts: U64) -> U8:
        """Forget messages that are done (see the contract)."""
        now_ms = self._begin()
        rows, good = self._leased_once(receipts)
        if good.any():
            self._write(Record(RecordKind.ACK, now_ms, {"rows": rows[good]}))
        return await self._answer(good, Result.ACKED, Result.STALE)

    async def release(
        self, receipts: U64, delay_ms: int | None, error: str | None, *, counted: bool
    ) -> U8:
        """Give messages back (see the contract)."""
        now_ms = self._begin()
        rows, good = self._leased_once(receipts)
        going = rows[good]
        results: U8 = np.where(good, Result.RELEASED, Result.STALE).astype(np.uint8)
        if len(going):
            due_ms = now_ms + self._release_delays(going, delay_ms)
            columns = {"rows": going, "due_ms": due_ms}
            meta = Meta(error=error, counted=counted)
            self._write(Record(RecordKind.RELEASE, now_ms, columns, meta))
            dead = self._table.state[rows] == State.DEAD
            results[good & dead] = Result.BURIED
            await self._core.committed()
        return results

    def _release_delays(self, rows: U32, delay_ms: int | None) -> I64:
        if delay_ms is not None:
            return np.full(len(rows), delay_ms, dtype=np.int64)
        topics = map(self._machine.topics.settings_of, self._table.topic[rows].tolist())
        attempts = self._table.attempt[rows].tolist()
        delays = [retry_delay_ms(s, attempt) for s, attempt in zip(topics, attempts, strict=True)]
        return np.array(delays, dtype=np.int64)

    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Let leases end later (see the contract)."""
        now_ms = self._begin()
        rows, good = self._leased(receipts)
        going = np.unique(rows[good])
        if len(going):
            leases = np.full(len(going), lease_ms) if lease_ms else self._machine.lease_ms_of(going)
            columns = {"rows": going, "lease_until_ms": now_ms + leases}
            self._write(Record(RecordKind.TOUCH, now_ms, columns))
        return await self._answer(good, Result.TOUCHED, Result.STALE)

    async def bury(self, receipts: U64, reason: str | None) -> U8:
        """Set messages aside as dead (see the contract)."""
        now_ms = self._begin()
        rows, good = self._leased_once(receipts)
        if good.any():
            columns = {"rows": rows[good]}
            self._write(Record(RecordKind.BURY, now_ms, columns, Meta(error=reason)))
        return await self._answer(good, Result.BURIED, Result.STALE)

    def _leased_once(self, receipts: U64) -> tuple[U32, np.ndarray]:
        rows, good = self._leased(receipts)
        return rows, first_of_each(rows, good)

    def _leased(self, receipts: U64) -> tuple[U32, np.ndarray]:
        foreign = receipts[:, 0] >> _HALF != np.uint64(self.number)
        if foreign.any():
            raise ForeignReceipt(
                f"receipt: number {int(np.argmax(foreign))} was made by another store"
            )
        return self._machine.leased_rows(receipts)

    # --- by id ----------------------------------------------------------------------------------

    async def kick(self, topic: str, ids: Sequence[bytes], delay_ms: int) -> U8:
        """Bring dead messages back (see the contract)."""
        now_ms = self._begin()
        rows, found = self._find(topic, ids)
        good = first_of_each(rows, found & (self._table.state[rows] == State.DEAD))
        if good.any():
            due_ms = np.full(int(good.sum()), now_ms + delay_ms)
            columns = {"rows": rows[good], "due_ms": due_ms}
            self._write(Record(RecordKind.KICK, now_ms, columns))
        return await self._answer(good, Result.KICKED, Result.UNKNOWN)

    async def cancel(self, topic: str, ids: Sequence[bytes]) -> U8:
        """Forget messages that nobody has taken (see the contract)."""
        now_ms = self._begin()
        rows, found = self._find(topic, ids)
        leased = found & (self._table.state[rows] == State.LEASED)
        good = first_of_each(rows, found & ~leased)
        if good.any():
            self._write(Record(RecordKind.CANCEL, now_ms, {"rows": rows[good]}))
        results = await self._answer(good, Result.CANCELLED, Result.UNKNOWN)
        results[leased] = Result.LEASED
        return results

    async def reschedule(self, topic: str, ids: Sequence[bytes], due_ms: I64) -> U8:
        """Change when messages fall due (see the contract)."""
        now_ms = self._begin()
        rows, found = self._find(topic, ids)
        state = self._table.state[rows]
        leased = found & (state == State.LEASED)
        good = found & ~leased & (state != State.DEAD)
        moving = np.flatnonzero(good)
        for wave in _waves(rows[moving]) if len(moving) else []:
            which = moving[wave]
            columns = {"rows": rows[which], "due_ms": due_ms[which]}
            self._write(Record(RecordKind.MOVE, now_ms, columns))
        results = await self._answer(good, Result.MOVED, Result.UNKNOWN)
        results[leased] = Result.LEASED
        return results

    async def get(self, topic: str, ids: Sequence[bytes]) -> list[Message | None]:
        """Return messages by their ids (see the contract)."""
        self._begin()
        rows, found = self._find(topic, ids)
        batch = await self._read(rows[found], receipts=False)
        messages = iter(batch)
        return [next(messages) if there else None for there in found.tolist()]

    def _find(self, topic: str, ids: Sequence[bytes]) -> tuple[U32, np.ndarray]:
        """Return the row of each id, and whether there is such a message."""
        number = self._machine.topics.find(topic)
        if number is None or not self._table.top or not ids:
            return np.zeros(len(ids), np.uint32), np.zeros(len(ids), dtype=bool)
        mark = QUEUE_ID_MARK.encode()
        made = np.fromiter((text[:1] == mark for text in ids), dtype=bool, count=len(ids))
        if not made.any():
            return self._find_own(topic, self._hasher.hash(self._machine.topics.seed(topic), ids))
        rows, seqs = parse_queue_ids(ids)
        table = self._table
        rows = np.where(rows < table.top, rows, 0)
        found = made & (table.seq[rows] == seqs) & (table.topic[rows] == number)
        found &= (table.id_bytes[rows] == 0) & (table.state[rows] != State.GONE)
        own = np.flatnonzero(~made)
        if len(own):
            rows[own], found[own] = self._find(topic, [ids[index] for index in own])
        return rows, found

    def _find_own(self, topic: str, hashes: tuple[U64, U32]) -> tuple[U32, np.ndarray]:
        rows, found = self._machine.index.find(hashes[0])
        rows = np.where(found, rows, 0)
        return rows, found & (self._table.id_check[rows] == hashes[1])

    # --- looking --------------------------------------------------------------------------------

    async def scan(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return messages of one state in order of due (see the contract)."""
        self._begin()
        number = self._machine.topics.find(topic)
        if number is None:
            return Page(Batch.empty(receipts=False), None)
        rows = self._ordered_rows(number, state, cursor, limit + 1)
        more = len(rows) > limit
        rows = rows[:limit]
        last = (
            Cursor(int(self._table.due_ms[rows[-1]]), int(self._table.seq[rows[-1]]))
            if more
            else None
        )
        return Page(await self._read(rows, receipts=False), last)

    def _ordered_rows(self, number: int, state: State, cursor: Cursor | None, limit: int) -> U32:
        table = self._table

        def wanted(part: slice) -> np.ndarray:
            fits = (table.topic[part] == number) & (table.state[part] == state)
            if cursor is not None:
                due_ms = table.due_ms[part]
                later = table.seq[part] > np.uint64(cursor.arrival)
                fits &= (due_ms > cursor.due_ms) | ((due_ms == cursor.due_ms) & later)
            return fits

        rows = table.rows_where(wanted)
        if len(rows) > limit:
            # Only those up to the limit's due have to be sorted.
            bound = np.partition(table.due_ms[rows], limit - 1)[limit - 1]
            rows = rows[table.due_ms[rows] <= bound]
        return rows[np.lexsort((table.seq[rows], table.due_ms[rows]))][:limit]

    async def events(self, position: int, limit: int) -> EventPage:
        """Return events in order (see the contract)."""
        self._begin()
        log = self._machine.events
        await self._core.flush_events()
        events = log.read(position, limit)
        following = events[-1].position + 1 if events else max(position, log.first_position)
        return EventPage(events, following, log.first_position)

    async def stats(self) -> Stats:
        """Return the counts."""
        self._begin()
        states = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
        topics = {
            name: TopicStats(*(self._table.count(number, state) for state in states))
            for number, name in enumerate(self._machine.topics.names)
        }
        totals = self._machine.events.totals
        return Stats(topics, {str(kind): int(totals[kind]) for kind in Kind})

    async def configure(self, topic: str, settings: TopicSettings) -> None:
        """Set what holds for a topic from now on."""
        now_ms = self._begin()
        if settings.on_full not in ("refuse", "drop"):
            raise InvalidSettings(f"on_full: got {settings.on_full!r}, expected refuse or drop")
        meta = Meta(topic=topic, settings=settings)
        self._write(Record(RecordKind.CONFIGURE, now_ms, {}, meta))
        number = self._machine.topics.number(topic)
        if not settings.paused and (ready := self._table.count(number, State.READY)):
            self.wake(topic, ready)
        await self._core.committed()

    def settings(self, topic: str) -> TopicSettings:
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
        self._check_open()
        now_ms = self.clock.now_ms()
        self._note_time(now_ms)
        if self._deadline_ms is not None and self._deadline_ms <= now_ms:
            self._tick(now_ms)
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
        for wheel, kind, error in (
            (machine.leases, RecordKind.LAPSE, None),
            (machine.expiries, RecordKind.EXPIRE, "expired"),
        ):
            rows = wheel.pop(now_ms)
            if rows is not None and len(rows):
                try:
                    self._write(Record(kind, now_ms, {"rows": rows}, Meta(error=error)))
                except StoreError:
                    wheel.add(rows, np.full(len(rows), now_ms))
                    raise
        rows = machine.delays.pop(now_ms)
        if rows is not None and len(rows):
            machine.make_ready(rows)
        machine.sweep()
        self._deadline_ms = machine.next_deadline_ms()

    def _write(self, record: Record, *, growing: bool = False) -> None:
        """Append a record and do what it says; raises DiskFull or StoreFailed before either."""
        self._core.write(record, growing=growing)
        deadline = self._machine.next_deadline_ms()
        if deadline is not None and (self._deadline_ms is None or deadline < self._deadline_ms):
            self._deadline_ms = deadline
            self.plan()

    async def _answer(self, good: np.ndarray, yes: Result, no: Result) -> U8:
        results: U8 = np.where(good, yes, no).astype(np.uint8)
        if good.any():
            await self._core.committed()
        return results

    def _woken(self, topic: str, count: int, paused: bool) -> None:
        if not paused:
            self.wake(topic, count)


class _Same(Sequence):  # type: ignore[type-arg]
    """One value, ``count`` times."""

    __slots__ = ("_count", "_value")

    def __init__(self, value: object, count: int) -> None:
        self._value, self._count = value, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        if isinstance(index, slice):
            return _Same(self._value, len(range(self._count)[index]))
        return self._value


_NO_ROWS: U32 = np.zeros(0, dtype=np.uint32)
_HALF = np.uint64(32)


def _sync_every_ms(sync: str) -> int | None:
    if sync in _SYNCS:
        return _SYNCS[sync]
    number = sync.removesuffix("ms")
    if sync.endswith("ms") and number.isdigit() and 0 < int(number) <= 60_000:
        return int(number)
    raise InvalidSettings(f'sync: got {sync!r}, expected "always", "never" or a time like "100ms"')


def _part(puts: Puts, which: np.ndarray) -> Puts:
    """Return some of the messages of a put."""

    def pick(column: Sequence[bytes] | None) -> list[bytes] | None:
        return None if column is None else [column[index] for index in which.tolist()]

    return Puts(
        topic=puts.topic,
        bodies=pick(puts.bodies) or [],
        due_ms=puts.due_ms[which],
        priority=puts.priority[which],
        lease_ms=puts.lease_ms[which],
        max_attempts=puts.max_attempts[which],
        expires_ms=puts.expires_ms[which],
        ids=pick(puts.ids),
        extras=pick(puts.extras),
    )


def _waves(hashes: U64 | U32) -> list[np.ndarray]:
    """Cut a batch where an id or row comes again, so that none stands twice in one part.

    Returns the places of each part; as a rule there is one.
    """
    places = np.arange(len(hashes))
    order = np.argsort(hashes, kind="stable")
    again = hashes[order][1:] == hashes[order][:-1]
    if not again.any():
        return [places]
    before = np.full(len(hashes), -1)
    before[order[1:][again]] = order[:-1][again]
    cuts, start = [], 0
    for place in np.flatnonzero(before >= 0).tolist():
        if before[place] >= start:
            cuts.append(place)
            start = place
    return np.split(places, cuts)


def _texts(ids: Sequence[bytes]) -> LazyIds:
    none = np.zeros(len(ids), dtype=np.uint64)
    return LazyIds(none.astype(np.uint32), none, ids)


def _errors_of(errors: dict[int, str], rows: U32) -> dict[int, str]:
    if not errors:
        return {}
    return {i: errors[row] for i, row in enumerate(rows.tolist()) if row in errors}
