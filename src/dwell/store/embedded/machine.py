"""The state machine: the effect of each record on the state, live and in a replay alike.

A record has every external input (times, rows, dues); the rest follows from the state before it.
Whether a waiting message is DELAYED or READY is not recorded: it follows from the clock. So a
replay leaves out the wheels and the ready runs, and :meth:`Machine.rebuild` makes them afterwards.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import numpy as np

from dwell.errors import StoreDamaged, StoreFull
from dwell.message import I64, LEASE_ENDED, U32, Kind, Rows, State
from dwell.store.embedded.admission import Admission, Opened
from dwell.store.embedded.arrivals import Arrivals
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.donecalls import TAKE_ARRAYS, DoneCalls
from dwell.store.embedded.events import EventLog
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.known import KnownIds
from dwell.store.embedded.lasterrors import LastErrors
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.ready import Ready
from dwell.store.embedded.scratch import Scratch
from dwell.store.embedded.table import DONE, Table
from dwell.store.embedded.terms import Terms
from dwell.store.embedded.topics import Topics
from dwell.store.embedded.wheel import Wheel

_REBUILD_STEP = 1 << 18


class Snapshot(Protocol):
    """The calls of the machine to a snapshot in progress."""

    def keep(self, rows: Rows) -> None:
        """Save the values of rows that are about to change."""

    def keep_memories(self, known: KnownIds, entries: Rows) -> None:
        """Save the memories of ids that are about to be acked."""


class Machine:
    """The whole state of a store except the bytes on disk.

    ``promote`` is called with the numbers of topics with newly ready messages, and their counts.
    While ``tolerant`` is a list, a record that does not fit the state is applied as far as
    possible, and a text about each skipped part is added to the list.
    """

    def __init__(
        self,
        events: EventLog,
        promote: Callable[[U32, I64], None],
        limits: Limits = LIMITS,
        scratch: Scratch | None = None,
    ) -> None:
        self._limits = limits
        self.table = Table(limits, scratch)
        self.admission = Admission(self.table, limits)
        self.topics = Topics(limits, self.admission.allowances.forget)
        self.terms = Terms(self.table, self.topics)
        #: The topics whose ready messages are not yet placed as their settings say: no take from
        #: them. The value is the number of the record that changed the settings.
        self.forming: dict[int, int] = {}
        self.ready = Ready(self.table, self.topics, self.admission, self.forming, limits)
        #: The index of messages by arrival, made at the first lookup.
        self.arrivals: Arrivals | None = None
        self.known = KnownIds(limits, scratch)
        self.errors = LastErrors()
        self.calls, self.takes = DoneCalls(limits), DoneCalls(limits, TAKE_ARRAYS)
        # The number of an owner that holds nothing is eventually dropped, and not reused.
        self.owners: dict[str, int] = {"": 0}
        self.next_owner = 1
        self._most_owners = limits.idle_names
        self.next_seq = 1
        self.next_take = 1
        self.events = events
        #: Called with the topics of messages that ended, if it is set.
        self.ended: Callable[[U32], None] | None = None
        #: Snapshots in progress, which must save rows before these change.
        self.snapshots: list[Snapshot] = []
        self.replaying = False
        self.tolerant: list[str] | None = None
        #: How many records were applied; the next start replays those after a snapshot.
        self.applied = 0
        self._promote = promote
        self.delays = Wheel(self._due_of, limits, scratch)
        self.leases = Wheel(self._lease_end_of, limits, scratch)
        self.expiries = Wheel(self._expiry_of, limits, scratch)
        self._appliers: dict[RecordKind, Callable[[Record], None]] = {
            RecordKind.PUT: self._put,
            RecordKind.PUT_OWN: self._put,
            RecordKind.REPLACE: self._replace,
            RecordKind.TAKE: self._take,
            RecordKind.ACK: self._ack,
            RecordKind.RELEASE: self._release,
            RecordKind.TOUCH: self._touch,
            RecordKind.BURY: partial(self._die, Kind.BURY),
            RecordKind.KICK: self._kick,
            RecordKind.CANCEL: self._cancel,
            RecordKind.MOVE: partial(self._move_to, Kind.MOVE),
            RecordKind.LAPSE: self._lapse,
            RecordKind.EXPIRE: partial(self._die, Kind.EXPIRE),
            RecordKind.CONFIGURE: self._configure,
            RecordKind.COPY: lambda record: self._place(record, record.rows),
            RecordKind.DONE: self._done,
            RecordKind.FORGET: lambda record: self._free(record.rows, record.time_ms),
        }

    def prepare(self, record: Record) -> None:
        """Make room for the rows that a record will add; changes nothing if it raises.

        Raises StoreFull, OSError or MemoryError.
        """
        if record.kind in (RecordKind.PUT, RecordKind.PUT_OWN):
            most = self._limits.most_rows
            if self.table.used + len(record) > most:
                raise StoreFull(f"store: holds {self.table.used} messages, at most {most} allowed")
            self.table.prepare(len(record))
        if record.kind == RecordKind.PUT_OWN:
            self.known.make_room(len(record), record.time_ms)

    def apply(self, record: Record) -> None:
        """Apply a record."""
        self.applied += 1
        if self.snapshots and "rows" in record.columns:
            self.keep(record.rows)
        if self.tolerant is None or self._fit(record):
            change = partial(self._appliers[record.kind], record)
            if self.replaying or "rows" not in record.columns:
                change()
            else:
                self._change(record.kind, record.rows, change)
            if "calls" in record.columns and record.kind is RecordKind.TAKE:
                self.takes.note_take(record)
            elif "calls" in record.columns:
                self.calls.note(record, self.table.state[record.rows] == State.DEAD)

    def _change(self, kind: RecordKind, rows: Rows, change: Callable[[], None]) -> None:
        """Change messages; where takes are limited, update the messages that may be taken."""
        if not self.admission.is_used:
            change()
            return
        # Before they change: a row that is ready again may be parked again, and must stay so.
        self.admission.unpark(kind, rows)
        change()
        self._open(self.admission.follow(kind, rows))

    def begin(self, bits: int) -> None:
        """Continue arrivals and takes from numbers that no copy of this store uses.

        ``bits`` are random, 72 of them. A store and its copy have the same state, so without this
        both would give the same ids and receipts to different messages.
        """
        self.next_seq += 1 + (bits >> 32)
        self.next_take = 1 + (bits & 0xFFFFFFFF)

    def keep(self, rows: Rows) -> None:
        """Have snapshots in progress save rows before they change."""
        for snapshot in self.snapshots:
            snapshot.keep(rows)

    # --- what the table says of rows ------------------------------------------------------------

    def _due_of(self, rows: Rows) -> I64:
        return np.where(self.table.state[rows] == State.DELAYED, self.table.due_ms[rows], 0)

    def _lease_end_of(self, rows: Rows) -> I64:
        return np.where(self.table.state[rows] == State.LEASED, self.table.lease_until_ms[rows], 0)

    def _expiry_of(self, rows: Rows) -> I64:
        state = self.table.state[rows]
        has_expiry = (state == State.DELAYED) | (state == State.READY) | (state == DONE)
        return np.where(has_expiry, self.table.expires_ms[rows], 0)

    # --- time -----------------------------------------------------------------------------------

    def make_ready(self, rows: Rows) -> None:
        """Make due messages available to takes."""
        self.table.move(rows, State.READY)
        self._promote(*self.ready.add(rows))

    def _open(self, opened: Iterable[Opened]) -> None:
        for part in opened:
            if len(part.rows):
                self.ready.add(part.rows)
            self._promote(part.topics, part.counts)

    def come_again(self, now_ms: int, topics: Iterable[int] | None = None) -> None:
        """Wake takers for messages that rates allow now, of some topics or those due for it."""
        self._open(self.admission.come_again(now_ms, topics))

    def unready(self, now_ms: int) -> None:
        """Make messages wait again that are no longer due, because the clock went back."""
        table = self.table
        early = table.rows_where(
            lambda part: (table.state[part] == State.READY) & (table.due_ms[part] > now_ms)
        )
        if len(early):
            self._change(RecordKind.MOVE, early, partial(self._delay, early))
        self.admission.allowances.turn_back(now_ms)

    def ends_before(self, now_ms: int) -> bool:
        """Tell whether a lease or an expiry may have ended by now."""
        times = (self.leases.next_ms(), self.expiries.next_ms())
        return any(time is not None and time <= now_ms for time in times)

    def unexpired(self, rows: Rows, now_ms: int) -> Rows:
        """Return the unexpired messages of some; an expiry may not be recorded yet."""
        next_ms = self.expiries.next_ms()
        if next_ms is None or next_ms > now_ms:
            return rows
        expires_ms = self.table.expires_ms[rows]
        left: Rows = rows[(expires_ms == 0) | (expires_ms > now_ms)]
        return left

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next possible event."""
        found: int | None = None
        for timed in (self.delays, self.leases, self.expiries, self.admission.allowances):
            next_ms = timed.next_ms()
            if next_ms is not None and (found is None or next_ms < found):
                found = next_ms
        return found

    def sweep(self) -> None:
        """Drop outdated entries from the wheels, if they are many."""
        table = self.table
        self.delays.sweep(table.total(State.DELAYED))
        self.leases.sweep(table.total(State.LEASED))
        self.expiries.sweep(table.total(State.DELAYED, State.READY, DONE))
        if self.topics.are_many:
            events = self.events
            pending = table.counts(len(self.topics.names), *_HELD).sum(axis=1)
            self.topics.forget_idle(pending, events.written_position, events.next_position)

    def rebuild(self, now_ms: int) -> None:
        """Make wheels and ready runs from the table, after a replay."""
        self.replaying = False
        self.topics.forget_ready()
        for wheel in (self.delays, self.leases, self.expiries):
            wheel.clear()
        table = self.table
        for part in table.parts(_REBUILD_STEP):
            self.place(np.arange(part.start, part.stop), now_ms)
        for number in self.admission.keyed():
            self._begin_forming(number)
            self.form(number, self.to_form(number))
        self.forming.clear()

    def place(self, rows: Rows, now_ms: int) -> None:
        """Add messages to the wheels and the ready runs, according to their states."""
        table = self.table
        state = table.state[rows]
        waiting = rows[(state == State.DELAYED) | (state == State.READY)]
        if len(waiting):
            self._wait(waiting, now_ms)
        leased = rows[state == State.LEASED]
        self.leases.add(leased, table.lease_until_ms[leased])
        done = rows[state == DONE]
        self.expiries.add(done, table.expires_ms[done])

    def _wait(self, rows: Rows, now_ms: int) -> None:
        """Make messages wait for their due, or make them ready if it has come."""
        if self.replaying:
            self.table.move(rows, State.DELAYED)
            return
        due = self.table.due_ms[rows] <= now_ms
        if due.all():
            self.make_ready(rows)
        elif not due.any():
            self._delay(rows)
        else:
            self.make_ready(rows[due])
            self._delay(rows[~due])
        # Only after they wait: a wheel drops rows that have no time in their state.
        if self.table.has_expiries:
            expires_ms = self.table.expires_ms[rows]
            self.expiries.add(rows[expires_ms > 0], expires_ms[expires_ms > 0])

    def _delay(self, rows: Rows) -> None:
        self.table.move(rows, State.DELAYED)
        self.delays.add(rows, self.table.due_ms[rows])

    # --- verbs ----------------------------------------------------------------------------------

    def _put(self, record: Record) -> None:
        rows = record.rows
        if self.tolerant is None:
            if not np.array_equal(self.table.allocate(len(rows)), rows):
                raise StoreDamaged("journal: a put has other rows than those that are free then")
        else:
            self.table.claim(rows)
        table = self.table
        count = len(rows)
        first = record.meta.first_seq
        table.seq[rows] = np.arange(first, first + count, dtype=np.uint64)
        self.next_seq = first + count
        self._note_arrivals(first, rows)
        table.topic[rows] = self.topics.number(record.meta.topic)
        if record.kind == RecordKind.PUT_OWN:
            table.id_entry[rows] = self.known.add(
                record.columns["id_hash"], record.columns["id_check"], rows, record.time_ms
            )
        table.state[rows] = State.GONE
        self._fill(record, rows)
        self._wait(rows, record.time_ms)
        self._tell(Kind.PUT, record, rows)

    def _note_arrivals(self, first: int, rows: Rows) -> None:
        if self.arrivals is None:
            return
        try:
            self.arrivals.add(first, rows)
        except MemoryError:
            # The index can be made again, and writes in progress continue.
            self.arrivals = None

    def _replace(self, record: Record) -> None:
        rows = record.rows
        if self.admission.is_used and not self.replaying:
            # The row may be used again with another key.
            self.table.move(rows, State.GONE)
            self._open(self.admission.follow(record.kind, rows))
        self._fill(record, rows)
        if self.errors:
            self.errors.forget(rows.tolist())
        self._wait(rows, record.time_ms)
        self._tell(Kind.REPLACE, record, rows)

    def _fill(self, record: Record, rows: Rows) -> None:
        table, columns = self.table, record.columns
        for name in _FILLED:
            getattr(table, name)[rows] = columns[name]
        table.attempt[rows] = 0
        expires_ms = columns["expires_ms"]
        table.has_expiries |= bool(expires_ms.any())
        if table.has_expiries:
            table.expires_ms[rows] = expires_ms
        self._place(record, rows)
        table.takes[rows] = table.position[rows].astype(np.uint32)
        if self.admission.is_used and not self.replaying:
            self.admission.put(int(table.topic[rows[0]]), rows, record)

    def _place(self, record: Record, rows: Rows) -> None:
        """Note the places of a record's blobs."""
        position = record.columns.get("position")
        self.table.position[rows] = record.positions() if position is None else position

    def _take(self, record: Record) -> None:
        rows, table = record.rows, self.table
        table.move(rows, State.LEASED)
        table.attempt[rows] = np.minimum(table.attempt[rows], _MOST_ATTEMPTS) + np.uint16(1)
        first = record.meta.first_take
        # Format 2 counted the takes of each row.
        taken = np.arange(first, first + len(rows)) if first else table.takes[rows] + np.uint32(1)
        table.takes[rows] = taken.astype(np.uint32)
        self.next_take = first + len(rows)
        table.lease_until_ms[rows] = record.columns["lease_until_ms"]
        owner = self.owners.get(record.meta.owner)
        if owner is None:
            owner = self._new_owner(record.meta.owner)
        if self.next_owner > 1:
            table.owner[rows] = owner
        if not self.replaying:
            self.leases.add(rows, record.columns["lease_until_ms"])
            if self.admission.is_used:
                self.admission.taken(rows, record.time_ms)
        self._tell(Kind.TAKE, record, rows)

    def _new_owner(self, name: str) -> int:
        if len(self.owners) >= self._most_owners:
            table = self.table
            held = table.rows_where(lambda part: table.state[part] == State.LEASED)
            holding = {0, *distinct(table.owner[held]).tolist()}
            self.owners = {n: number for n, number in self.owners.items() if number in holding}
            self._most_owners = 2 * len(self.owners) + self._limits.idle_names
        number = self.owners[name] = self.next_owner
        self.next_owner += 1
        return number

    def _ack(self, record: Record) -> None:
        rows = record.rows
        self._tell(Kind.ACK, record, rows)
        self._free(rows, record.time_ms, remembered=True)

    def _done(self, record: Record) -> None:
        """Ack messages, and keep the results that are the record's blobs."""
        rows, table = record.rows, self.table
        self._tell(Kind.ACK, record, rows)
        until_ms = record.time_ms + self.terms.remember_ms(rows)
        is_own = table.id_bytes[rows] > 0
        entries = table.id_entry[rows[is_own]].astype(np.intp)
        for snapshot in self.snapshots:
            snapshot.keep_memories(self.known, entries)
        self.known.keep(entries, rows[is_own], until_ms[is_own])
        if self.errors:
            self.errors.forget(rows.tolist())
        table.move(rows, DONE)
        table.size_bytes[rows] = record.columns["size_bytes"]
        table.extra_bytes[rows] = 0
        table.expires_ms[rows], table.has_expiries = until_ms, True
        self._place(record, rows)
        if not self.replaying:
            self.expiries.add(rows, until_ms)

    def _cancel(self, record: Record) -> None:
        rows = record.rows
        self._tell(Kind.CANCEL, record, rows)
        self._free(rows, record.time_ms)

    def _free(self, rows: Rows, time_ms: int, *, remembered: bool = False) -> None:
        table = self.table
        own = rows[table.id_bytes[rows] > 0]
        if len(own):
            until_ms = time_ms + self.terms.remember_ms(own) if remembered else 0
            entries = table.id_entry[own].astype(np.intp)
            for snapshot in self.snapshots if remembered else ():
                snapshot.keep_memories(self.known, entries)
            self.known.end(entries, own, until_ms, time_ms)
        if self.errors:
            self.errors.forget(rows.tolist())
        table.move(rows, State.GONE)
        table.free(rows)

    def _release(self, record: Record) -> None:
        rows, table = record.rows, self.table
        self.errors.note(record.errors())
        self._set_priority(rows, record.meta.priority)
        due_ms = table.due_ms[rows]
        table.due_ms[rows] = record.columns["due_ms"]
        if not record.meta.counted:
            table.attempt[rows] -= (table.attempt[rows] > 0).astype(np.uint16)
            used_up = np.zeros(len(rows), dtype=bool)
        else:
            used_up = self._are_used_up(rows)
        # Messages without attempts left are not delayed, and keep their due.
        table.due_ms[rows[used_up]] = due_ms[used_up]
        self._wait_or_die(Kind.RELEASE, record, rows, used_up)

    def _lapse(self, record: Record) -> None:
        used_up = self._are_used_up(record.rows)
        self.errors.note(dict.fromkeys(record.rows[used_up].tolist(), LEASE_ENDED))
        self._wait_or_die(Kind.LAPSE, record, record.rows, used_up)

    def _are_used_up(self, rows: Rows) -> np.ndarray:
        used_up: np.ndarray = self.table.attempt[rows] >= self.terms.max_attempts(rows)
        return used_up

    def _wait_or_die(self, kind: Kind, record: Record, rows: Rows, used_up: np.ndarray) -> None:
        dead, alive = rows[used_up], rows[~used_up]
        if len(dead):
            self._set_dead(dead, record.time_ms)
            self._tell(Kind.EXHAUST, record, dead)
        if len(alive):
            self._tell(kind, record, alive)
            self._wait(alive, record.time_ms)

    def _touch(self, record: Record) -> None:
        rows = record.rows
        self.table.lease_until_ms[rows] = record.columns["lease_until_ms"]
        if not self.replaying:
            self.leases.add(rows, record.columns["lease_until_ms"])

    def _die(self, kind: Kind, record: Record) -> None:
        rows = record.rows
        self.errors.note(record.errors())
        self._set_priority(rows, record.meta.priority)
        self._set_dead(rows, record.time_ms)
        self._tell(kind, record, rows)

    def _set_dead(self, rows: Rows, time_ms: int) -> None:
        self.table.move(rows, State.DEAD)
        self.table.lease_until_ms[rows] = time_ms

    def _kick(self, record: Record) -> None:
        self.table.attempt[record.rows] = 0
        self._move_to(Kind.KICK, record)

    def _move_to(self, kind: Kind, record: Record) -> None:
        rows, due_ms = record.rows, record.columns["due_ms"]
        self.table.due_ms[rows] = due_ms
        if self.table.has_expiries:
            expires_ms = self.table.expires_ms[rows]
            self.table.expires_ms[rows] = np.where(expires_ms > due_ms, expires_ms, 0)
        self._tell(kind, record, rows)
        self._wait(rows, record.time_ms)

    def _configure(self, record: Record) -> None:
        assert record.meta.settings is not None
        number = self.topics.configure(record.meta.topic, record.meta.settings)
        if self.replaying:
            self.forget_idle(record.meta.topic)
        elif self.admission.configure(number, record.meta.settings):
            self._begin_forming(number)

    def forget_idle(self, topic: str) -> None:
        """Drop a topic without settings that has no messages."""
        number = self.topics.find(topic)
        assert number is not None
        if number not in self.forming and not any(self.table.count(number, of) for of in _HELD):
            self.topics.forget(number, self.events.next_position)

    def _begin_forming(self, topic: int) -> None:
        """Start placing the ready messages of a topic again, after its settings changed.

        :meth:`form` does the rest for each message.
        """
        table = self.table
        self.admission.begin(
            topic,
            table.rows_where(lambda part: (table.topic[part] == topic) & table.are_begun(part)),
        )
        self.topics.empty_runs(topic)
        self.forming[topic] = self.applied

    def to_form(self, topic: int) -> Rows:
        """Return the ready messages of a topic, in order; in any thread."""
        table = self.table
        rows = table.rows_where(
            lambda part: (table.topic[part] == topic) & (table.state[part] == State.READY)
        )
        columns = (table.seq[rows], table.due_ms[rows], table.priority[rows])
        return rows[np.lexsort(columns)]

    def form(self, topic: int, rows: Rows) -> None:
        """Place some messages of a topic among the ready ones, if they are still ready."""
        rows = rows[(self.table.state[rows] == State.READY) & (self.table.topic[rows] == topic)]
        rows = self.admission.not_standing(rows)
        if len(rows):
            self.ready.add(rows)

    def _tell(self, kind: Kind, record: Record, rows: Rows) -> None:
        self.events.add(kind, record.time_ms, rows, self.table)
        if kind in _ENDS and self.ended is not None and not self.replaying:
            self.ended(self.table.topic[rows])

    def _set_priority(self, rows: Rows, priority: int | None) -> None:
        if priority is not None:
            self.table.priority[rows] = priority

    # --- repair ---------------------------------------------------------------------------------

    def _fit(self, record: Record) -> bool:
        """Drop the rows that a record cannot mean, after the loss of a part of the journal.

        Tells whether any row is left.
        """
        if "rows" not in record.columns:
            return True
        rows = record.rows
        if "size_bytes" in record.columns:
            record.columns["position"] = record.positions()
        live = np.zeros(len(rows), dtype=bool)
        inside = rows < self.table.top
        live[inside] = self.table.state[rows[inside]] != State.GONE
        if record.kind is RecordKind.COPY:
            # A copied blob has its old size; otherwise it belongs to an earlier message of the row.
            live[inside] &= (
                self.table.size_bytes[rows[inside]] == record.columns["size_bytes"][inside]
            )
        if record.kind in (RecordKind.PUT, RecordKind.PUT_OWN):
            lost = rows[live]
            if len(lost):
                self._note(f"{len(lost)} messages were replaced: what ended them is lost")
                self._free(lost, record.time_ms)
        elif not live.all():
            self._note(f"{record.kind.name.lower()} of {int((~live).sum())} messages that are lost")
            record.keep(live)
        return len(record) > 0

    def mend(self) -> None:
        """Rebuild the free list and the counts, after rows were claimed out of order."""
        self.tolerant = None
        self.table.recount()
        self.table.restore_free(self.table.rows_where(lambda part: self.table.state[part] == 0))

    def drop(self, rows: Rows, now_ms: int) -> None:
        """Delete lost messages, without an event."""
        self._free(rows, now_ms)

    def _note(self, words: str) -> None:
        assert self.tolerant is not None
        self.tolerant.append(words)


_MOST_ATTEMPTS = np.uint16(65_534)
#: The states of rows that belong to a topic.
_HELD = (*[*State][1:], DONE)
#: The events after which nothing more happens to a message by itself.
_ENDS = (Kind.ACK, Kind.EXHAUST, Kind.EXPIRE, Kind.BURY, Kind.CANCEL)
_FILLED = (
    *("due_ms", "priority", "lease_ms", "size_bytes"),
    *("id_bytes", "extra_bytes", "max_attempts"),
)
