"""The timekeeper: applies the passing of time before each verb, and at each deadline.

Leases end, messages expire, and due messages become ready. The first two are written as records,
which take room on the disk; on a full disk, a verb that needs no room runs without them.
"""

import contextlib
from collections.abc import Callable, Iterable

import numpy as np

from dwell.clock import Clock
from dwell.errors import DiskFull
from dwell.message import EXPIRED
from dwell.store.embedded.core import Core
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.table import DONE
from dwell.store.embedded.wheel import Wheel

#: More than a record needs in addition to its rows: its header, an owner, and padding.
RECORD_BYTES = 1024


class Timekeeper:
    """Keeps a store up to its clock. ``plan`` is called when the next deadline comes nearer."""

    _machine: Machine

    def __init__(self, core: Core, clock: Clock, plan: Callable[[], None]) -> None:
        self._core = core
        self._clock = clock
        self._plan = plan
        #: The time of the next change; None when nothing waits for time.
        self.deadline_ms: int | None = 0
        self._latest_ms = 0
        self._ticks = 0

    def open(self, now_ms: int) -> None:
        """Start with the state that the core has restored."""
        self._machine = self._core.machine
        self.deadline_ms = 0
        self._latest_ms = now_ms
        self._ticks = 0

    def begin(self) -> int:
        """Apply the passing of time before a verb, and return the time; raises StoreClosed."""
        now_ms = self.enter()
        if self.deadline_ms is not None and self.deadline_ms <= now_ms:
            self.tick(now_ms)
        return now_ms

    def look(self) -> int:
        """Do the same before a verb that needs no room, as far as room allows."""
        with contextlib.suppress(DiskFull):
            return self.begin()
        return self._clock.now_ms()

    def begin_held(self) -> int:
        """Do the same before a verb by receipt, which does not depend on newly ready messages."""
        now_ms = self.enter()
        if self._machine.ends_before(now_ms):
            # An end that could not be written has not happened, and blocks no ack.
            with contextlib.suppress(DiskFull):
                self.tick(now_ms)
        return now_ms

    def enter(self) -> int:
        """Return the time, which may have gone back; raises StoreClosed."""
        self._core.check_open()
        self._core.journal.part()
        self._core.scratch.tend()
        now_ms = self._clock.now_ms()
        self._note_time(now_ms)
        return now_ms

    def _note_time(self, now_ms: int) -> None:
        if now_ms < self._latest_ms:
            # The clock has jumped back: messages that were due are not due now.
            self._machine.unready(now_ms)
            self.deadline_ms = self._machine.next_deadline_ms()
            self._plan()
        self._latest_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Apply the passing of time, or only a part of it if that is much.

        This passes the deadline. Raises DiskFull when there was no room to write all of it.
        """
        machine, limits = self._machine, self._core.limits
        self._note_time(now_ms)
        full: DiskFull | None = None
        for wheel, rows_at_once, kind, error in (
            (machine.leases, limits.timed_rows, RecordKind.LAPSE, None),
            (machine.expiries, limits.expired_rows, RecordKind.EXPIRE, EXPIRED),
        ):
            try:
                self._run_out(wheel, rows_at_once, kind, error, now_ms)
            except DiskFull as no_room:
                full = no_room
        rows = machine.delays.pop(now_ms, limits.timed_rows)
        if rows is not None and len(rows):
            machine.make_ready(rows)
        machine.come_again(now_ms)
        self._ticks += 1
        if self._ticks % limits.sweep_every == 0:
            machine.sweep()
        self.deadline_ms = machine.next_deadline_ms()
        if full is not None:
            raise full

    def _run_out(
        self, wheel: Wheel, rows_at_once: int, kind: RecordKind, error: str | None, now_ms: int
    ) -> None:
        """Write what has ended by now in a wheel, or a part, in as many records as needed."""
        rows = wheel.pop(now_ms, rows_at_once)
        if rows is None:
            return
        room_bytes = self._core.journal.room.most_record_bytes - RECORD_BYTES
        most = max(min(self._core.limits.most_ended, room_bytes // rows.itemsize), 1)
        are_done = self._machine.table.state[rows] == DONE
        forgotten, left = rows[are_done], rows[~are_done]
        try:
            while len(left):
                self.write(Record(kind, now_ms, {"rows": left[:most]}, Meta(error=error)))
                left = left[most:]
            while len(forgotten):
                self.write(Record(RecordKind.FORGET, now_ms, {"rows": forgotten[:most]}))
                forgotten = forgotten[most:]
        except BaseException:
            # An unwritten end has not happened, and must come again: at its own time, because the
            # clock may be wrong now and be corrected before there is room.
            wheel.put_back(np.concatenate([left, forgotten]))
            raise

    def write(self, record: Record) -> None:
        """Append a record and apply it; raises DiskFull or StoreFailed before either."""
        self._core.write(record)
        self._look_ahead()

    def note_short(self, topics: Iterable[str], now_ms: int, *, wakes: bool = False) -> None:
        """Note which topics have more than their rates allow, and when takers come for it.

        With ``wakes`` they come at once for the present allowance, as after a take: it may have
        grown since its taker was woken, and no taker was woken for the rest.
        """
        machine = self._machine
        if machine.admission.is_used:
            numbers = machine.topics.found(topics)
            if wakes:
                machine.come_again(now_ms, numbers)
            else:
                machine.admission.note_short(numbers, now_ms)
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Schedule the next deadline, if it has come nearer."""
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms is not None and (self.deadline_ms is None or deadline_ms < self.deadline_ms):
            self.deadline_ms = deadline_ms
            self._plan()
