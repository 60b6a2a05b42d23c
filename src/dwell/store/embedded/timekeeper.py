"""The timekeeper: what time asks of a store is done before each verb, and at each deadline.

Leases end, messages expire, and what is due becomes ready. The first two are written as records,
which takes room on the disk; a verb that needs none itself goes on without them on a full one.
"""

import contextlib
from collections.abc import Callable, Iterable

from dwell.clock import Clock
from dwell.errors import DiskFull
from dwell.message import EXPIRED
from dwell.store.embedded.core import Core
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.wheel import Wheel

#: More than a record needs beside its rows: its header, an owner, and filling.
RECORD_BYTES = 1024


class Timekeeper:
    """Keeps a store up to its clock. ``plan`` is called when the next deadline comes nearer."""

    _machine: Machine

    def __init__(self, core: Core, clock: Clock, plan: Callable[[], None]) -> None:
        self._core = core
        self._clock = clock
        self._plan = plan
        #: When time next asks for something; None when it never does.
        self.deadline_ms: int | None = 0
        self._latest_ms = 0
        self._ticks = 0

    def open(self, now_ms: int) -> None:
        """Begin with the state that the core has brought back."""
        self._machine = self._core.machine
        self.deadline_ms = 0
        self._latest_ms = now_ms
        self._ticks = 0

    def begin(self) -> int:
        """Do what time asks for before a verb, and return the time; raises StoreClosed."""
        now_ms = self.enter()
        if self.deadline_ms is not None and self.deadline_ms <= now_ms:
            self.tick(now_ms)
        return now_ms

    def look(self) -> int:
        """Do the same before a verb that needs no room, as far as there is room for it."""
        with contextlib.suppress(DiskFull):
            return self.begin()
        return self._clock.now_ms()

    def begin_held(self) -> int:
        """Do the same before a verb by receipt, for which it does not matter what became ready."""
        now_ms = self.enter()
        if self._machine.ends_before(now_ms):
            # An end that there is no room to write has not happened, and hinders no ack.
            with contextlib.suppress(DiskFull):
                self.tick(now_ms)
        return now_ms

    def enter(self) -> int:
        """Return the time, which may have gone back; raises StoreClosed."""
        self._core.check_open()
        self._core.journal.part()
        now_ms = self._clock.now_ms()
        self._note_time(now_ms)
        return now_ms

    def _note_time(self, now_ms: int) -> None:
        if now_ms < self._latest_ms:
            # The clock has jumped back: what was due is not due now.
            self._machine.unready(now_ms)
            self.deadline_ms = self._machine.next_deadline_ms()
            self._plan()
        self._latest_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Do what time asks for, or a part of it where that is much.

        The deadline is over then. Raises DiskFull when there was no room to write all of it.
        """
        machine = self._machine
        self._note_time(now_ms)
        full: DiskFull | None = None
        for wheel, kind, error in (
            (machine.leases, RecordKind.LAPSE, None),
            (machine.expiries, RecordKind.EXPIRE, EXPIRED),
        ):
            try:
                self._run_out(wheel, kind, error, now_ms)
            except DiskFull as no_room:
                full = no_room
        rows = machine.delays.pop(now_ms, self._core.limits.timed_rows)
        if rows is not None and len(rows):
            machine.make_ready(rows)
        machine.come_again(now_ms)
        self._ticks += 1
        if self._ticks % self._core.limits.sweep_every == 0:
            machine.sweep()
        self.deadline_ms = machine.next_deadline_ms()
        if full is not None:
            raise full

    def _run_out(self, wheel: Wheel, kind: RecordKind, error: str | None, now_ms: int) -> None:
        """Write what a wheel says has ended by now, in as many records as that takes."""
        rows = wheel.pop(now_ms, self._core.limits.timed_rows)
        if rows is None:
            return
        room_bytes = self._core.journal.room.most_record_bytes - RECORD_BYTES
        most = max(min(self._core.limits.most_ended, room_bytes // rows.itemsize), 1)
        left = rows
        try:
            while len(left):
                self.write(Record(kind, now_ms, {"rows": left[:most]}, Meta(error=error)))
                left = left[most:]
        except BaseException:
            # What is not written has not happened, and has to be met again: at its own time, as
            # the clock may be wrong now and be set right before there is room.
            wheel.put_back(left)
            raise

    def write(self, record: Record) -> None:
        """Append a record and do what it says; raises DiskFull or StoreFailed before either."""
        self._core.write(record)
        self._look_ahead()

    def note_short(self, topics: Iterable[str], now_ms: int, *, wakes: bool = False) -> None:
        """Note which topics have more than their rates allow, and when takers come for that.

        With ``wakes`` they come at once for what is allowed, as after a take: that may be more
        than when its taker was woken, and nobody was woken for the rest.
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
        """Plan for the next deadline, if it has come nearer."""
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms is not None and (self.deadline_ms is None or deadline_ms < self.deadline_ms):
            self.deadline_ms = deadline_ms
            self._plan()
