"""The core: the machine over its journal in one folder, and the upkeep that goes with them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dwell.errors import DiskFull, StoreDamaged, StoreError
from dwell.message import State
from dwell.store.embedded import snapshot
from dwell.store.embedded.compactor import Compactor
from dwell.store.embedded.disk import Disk, is_no_room
from dwell.store.embedded.events import EventLog
from dwell.store.embedded.folder import Label, open_folder
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.journal.record import Record
from dwell.store.embedded.journal.segment import segment_path
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.recent import Recent
from dwell.store.embedded.thread import in_thread

_FLUSH_EVENTS_S = 1.0
_log = logging.getLogger(__name__)


class Core:
    """Opens a folder, writes records, and keeps the folder in shape."""

    label: Label
    machine: Machine
    journal: Journal
    recent: Recent

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        segment_bytes: int,
        sync_every_ms: int | None,
        events_bytes: int,
    ) -> None:
        self.folder = folder
        self.disk = disk
        self._segment_bytes = segment_bytes
        self._sync_every_ms = sync_every_ms
        self._events_bytes = events_bytes
        self._upkeep: asyncio.Task[None] | None = None
        self._flusher: asyncio.TimerHandle | None = None
        self._is_flushing_now = False
        self._has_room = True
        self._flushes: set[asyncio.Task[None]] = set()
        self._flushing = asyncio.Lock()
        self._lock = -1

    # --- open and close -------------------------------------------------------------------------

    def open(
        self,
        now_ms: int,
        woken: Callable[[str, int, bool], None],
        *,
        tolerant: list[str] | None = None,
    ) -> None:
        """Lock the folder and bring back the state; begin to write."""
        self._lock, self.label = open_folder(self.disk, self.folder, self._segment_bytes)
        # Positions of what was cut off are given out again.
        self.recent = Recent()
        self._flusher, self._is_flushing_now, self._has_room = None, False, True
        try:
            self._recover(now_ms, woken, tolerant)
            self.journal.start()
        except BaseException:
            self.disk.close(self._lock)
            raise

    def _recover(
        self,
        now_ms: int,
        woken: Callable[[str, int, bool], None],
        tolerant: list[str] | None,
    ) -> None:
        self._remove_unfinished()
        self.journal = Journal(
            self.disk, self.folder, self.label.segment_bytes, self._sync_every_ms
        )
        self.journal.open_segments()
        position = self._load_snapshot(woken, tolerant)
        self._compactor = Compactor(self.disk, self.folder, self.journal, self.machine, position)
        self._find_missing(now_ms, tolerant)
        self.machine.replaying = True
        self.machine.tolerant = tolerant
        for record in self.journal.replay(position, tolerant=tolerant):
            self.machine.apply(record)
            if self.machine.events.is_full and self._has_room:
                self._flush_replayed()
        self._flush_replayed()
        if tolerant is not None:
            self.machine.mend()
        self.machine.rebuild(now_ms)

    def _find_missing(self, now_ms: int, tolerant: list[str] | None) -> None:
        """Miss the segments in which messages of the snapshot lie; raises StoreDamaged."""
        missing = sorted(self._compactor.living.keys() - self.journal.segments.keys())
        if not missing:
            return
        words = f"{segment_path(self.folder, missing[0])}: is missing, and messages lie in it"
        if tolerant is None:
            raise StoreDamaged(f"{words}; dwell check --repair saves what can be saved")
        tolerant.append(words)
        table = self.machine.table
        self.machine.drop(
            table.rows_where(
                lambda part: (
                    (table.state[part] != State.GONE)
                    & np.isin(table.position[part] // self.label.segment_bytes, missing)
                )
            ),
            now_ms,
        )

    def _flush_replayed(self) -> None:
        try:
            self.machine.events.flush()
        except (OSError, StoreError) as error:
            if not is_no_room(error):
                raise
            self._has_room = False

    def _load_snapshot(
        self, woken: Callable[[str, int, bool], None], tolerant: list[str] | None
    ) -> int:
        """Fill a machine from the newest snapshot that is whole; return where it stands."""
        for position in reversed(snapshot.snapshot_positions(self.disk, self.folder)):
            self.machine = self._new_machine(woken)
            try:
                meta = snapshot.load(self.disk, self.folder, position, self.machine)
            except StoreDamaged as damage:
                # The one before it, or the whole journal if it is still there, does as well.
                _log.warning("%s; using what was before it", damage)
                if tolerant is not None:
                    tolerant.append(f"{damage}; used what was before it")
                continue
            self.machine.events.open(meta.next_event, meta.totals)
            return position
        self.machine = self._new_machine(woken)
        self.machine.events.open(0, [])
        return 0

    def _new_machine(self, woken: Callable[[str, int, bool], None]) -> Machine:
        events = EventLog(self.disk, self.folder, self.journal, self._events_bytes)

        def promote(number: int, count: int) -> None:
            topics = machine.topics
            woken(topics.names[number], count, topics.settings_of(number).paused)

        machine = Machine(events, promote)
        events.topic_names = machine.topics.names
        return machine

    def _remove_unfinished(self) -> None:
        for name in self.disk.names(self.folder):
            if name.endswith(".new"):
                self.disk.remove(self.folder / name)

    async def close(self, now_ms: int, *, repaired: bool = False) -> None:
        """Finish the upkeep, write a snapshot if there is anything new, and let go.

        After a repair the snapshot is what was saved: it must succeed, and no other is kept.
        """
        if self._upkeep is not None:
            await self._upkeep
        if self._flusher is not None:
            self._flusher.cancel()
        try:
            if self.journal.failure is None:
                await self._settle(now_ms, repaired=repaired)
        finally:
            if self._flushes:
                # A thread may still write to a file that is closed here.
                await asyncio.wait(self._flushes)
            self.journal.close()
            self.machine.events.close()
            self.disk.close(self._lock)

    async def _settle(self, now_ms: int, *, repaired: bool) -> None:
        if repaired:
            await self.flush_events()
            self._compactor.start_anew(now_ms)
            return
        # Without either the next start replays the journal, and makes the events again.
        with contextlib.suppress(OSError, StoreError):
            await self.flush_events()
            self._compactor.finish(now_ms)

    # --- write ----------------------------------------------------------------------------------

    def reserve(self, size_bytes: int, *, growing: bool = False) -> None:
        """Make sure that a record of so many bytes can be written; raises DiskFull, StoreFailed."""
        self.journal.reserve(size_bytes, growing=growing)

    def write(self, record: Record, *, growing: bool = False) -> None:
        """Append a record and apply it; raises DiskFull or StoreFailed before either."""
        self.machine.prepare(record)
        self.journal.append(record, growing=growing)
        try:
            self.machine.apply(record)
        except BaseException as error:
            # The journal says what the state does not: only a replay can bring them together.
            self.journal.fail(error)
            raise
        is_urgent = self.machine.events.is_full and not self._flushes and self._has_room
        if self._flusher is None or (is_urgent and not self._is_flushing_now):
            self._plan_flush(now=is_urgent)
        if self._upkeep is None and self._compactor.is_due:
            self._upkeep = asyncio.get_running_loop().create_task(self._keep_up(record.time_ms))

    async def committed(self) -> None:
        """Return when everything so far is as safe as was asked for; raises StoreFailed."""
        await self.journal.committed()

    async def flush_events(self, until: int | None = None) -> None:
        """Write the events of everything so far, or up to a position; raises DiskFull."""
        until = self.machine.events.next_position if until is None else until
        await self.committed()
        # A caller that is cancelled must not leave a block half noted.
        await asyncio.shield(self._start_flush(until))
        self.journal.check()

    def _start_flush(self, until: int) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._flush(until))
        self._flushes.add(task)
        task.add_done_callback(self._flushed)
        return task

    def _flushed(self, task: "asyncio.Task[None]") -> None:
        self._flushes.discard(task)
        self._has_room = not task.cancelled() and task.exception() is None
        if not self._has_room and self._flusher is None:
            # Events follow from the journal, so they can wait in memory until there is room.
            self._plan_flush(now=False)

    async def _flush(self, until: int) -> None:
        events = self.machine.events
        async with self._flushing:
            try:
                for block in events.blocks(until):
                    if block.is_coarse:
                        size_bytes = await in_thread(events.write, block)
                    else:
                        size_bytes = events.write(block)
                    events.written(block, size_bytes)
            except (OSError, StoreError) as error:
                if not is_no_room(error):
                    return self.journal.fail(error)
                if self._has_room:
                    _log.warning("%s: no room for the event log: it waits in memory", self.folder)
                raise DiskFull(f"{self.folder}: no room for the event log") from error
        return None

    async def _keep_up(self, now_ms: int) -> None:
        try:
            await self._compactor.run(now_ms, self.write, self.flush_events)
        except (OSError, StoreError) as error:
            # It is tried again after the next segment; the journal itself needs no snapshot.
            _log.warning("%s: no snapshot: %s", self.folder, error)
            self._compactor.postpone()
        finally:
            self._upkeep = None

    def _plan_flush(self, *, now: bool) -> None:
        if self._flusher is not None:
            self._flusher.cancel()
        wait = 0.0 if now else _FLUSH_EVENTS_S
        self._flusher = asyncio.get_running_loop().call_later(wait, self._flush_when_safe)
        self._is_flushing_now = now

    def _flush_when_safe(self) -> None:
        self._flusher, self._is_flushing_now = None, False
        if self.journal.failure is not None:
            return
        until = self.machine.events.next_position

        def flush(done: "asyncio.Future[None]") -> None:
            if not done.cancelled() and done.exception() is None and self.journal.segments:
                self._start_flush(until)

        self.journal.committed().add_done_callback(flush)
