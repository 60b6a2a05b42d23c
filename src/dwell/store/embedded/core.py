"""The core: the machine over its journal in one folder, and the upkeep that goes with them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np

from dwell.errors import DiskFull, StoreClosed, StoreDamaged, StoreError
from dwell.message import I64, U32, State, TopicSettings
from dwell.store.embedded import keys, snapshot
from dwell.store.embedded.admission import has_bounds
from dwell.store.embedded.compactor import Compactor
from dwell.store.embedded.disk import Disk, is_no_room
from dwell.store.embedded.events import Block, EventLog
from dwell.store.embedded.finder import Finder
from dwell.store.embedded.folder import Hold, Label, write_label
from dwell.store.embedded.ids import HASHERS
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.journal.room import Use
from dwell.store.embedded.journal.segment import segment_path
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.openings import begun, history
from dwell.store.embedded.recent import Recent
from dwell.store.embedded.scratch import Scratch
from dwell.store.embedded.snapshotreader import SnapshotReader
from dwell.store.embedded.thread import in_thread
from dwell.tasks import whole

#: How long events wait in memory on a full disk before the next attempt to write them.
_NO_ROOM_S = 1.0
#: How many topics have their takers woken in one turn of the event loop.
_MOST_WOKEN = 2_000
_log = logging.getLogger(__name__)

#: The use of each kind of record; kinds not listed change messages, which never lets the store grow
#: for long.
USES = {
    **dict.fromkeys(
        (RecordKind.PUT, RecordKind.PUT_OWN, RecordKind.REPLACE, RecordKind.DONE), Use.GROW
    ),
    **dict.fromkeys(
        (
            *(RecordKind.ACK, RecordKind.CANCEL, RecordKind.LAPSE),
            *(RecordKind.EXPIRE, RecordKind.FORGET),
        ),
        Use.END,
    ),
}


class Core:
    """Opens a folder, writes records, and maintains the files."""

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
        limits: Limits = LIMITS,
        memory_bytes: int | None = None,
    ) -> None:
        self.limits = limits
        self.folder = folder
        self.disk = disk
        self._segment_bytes = segment_bytes
        self._sync_every_ms = sync_every_ms
        self._events_bytes = events_bytes
        self._memory_bytes = memory_bytes
        self.scratch = Scratch(disk, folder, None)
        self._upkeep: asyncio.Task[None] | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._flush_after_s = 0.0
        self._free_after_s = 0.0
        self._rows_with_room = self._ids_with_room = 0
        self._latest_ms = 0
        self.is_open = False
        self._flushes: set[asyncio.Task[None]] = set()
        self._flushing, self._learning = asyncio.Lock(), asyncio.Lock()
        #: The damages of segments that were logged.
        self.told_damage: set[tuple[Path, int]] = set()

    # --- open and close -------------------------------------------------------------------------

    def open(
        self,
        now_ms: int,
        woken: Callable[[str, int, bool], None],
        *,
        tolerant: list[str] | None = None,
    ) -> None:
        """Lock the folder, restore the state, and start writing."""
        self._hold = Hold(self.disk, self.folder, self._segment_bytes)
        self.label, self.folder_fd = self._hold.label, self._hold.fd
        # Positions of the cut tail are assigned again.
        self.recent = Recent(self.limits.recent_bytes)
        self._flusher, self._flush_after_s, self._free_after_s = None, 0.0, 0.0
        try:
            self._recover(now_ms, woken, tolerant)
            self._note_opening()
            self.journal.start()
        except BaseException:
            self.scratch.close()
            self._hold.close()
            raise
        self.is_open = True

    def condition(self) -> dict[str, int | str]:
        """Return how the journal, the snapshots, the event log and the disk are."""
        events, journal = self.machine.events, self.journal
        return {
            "segments": len(journal.segments),
            "journal_bytes": len(journal.segments) * journal.segment_bytes,
            "snapshot_bytes": self.compactor.snapshot_bytes,
            "since_snapshot_bytes": journal.position - self.compactor.covered,
            "events": events.next_position - events.first_position,
            **self.scratch.condition(),
            "disk_free_bytes": self.disk.free_bytes(self.folder),
        }

    def check_open(self) -> None:
        """Raise StoreClosed unless the folder is open."""
        if not self.is_open:
            raise StoreClosed(f"{self.folder}: the store is closed")

    def _recover(
        self,
        now_ms: int,
        woken: Callable[[str, int, bool], None],
        tolerant: list[str] | None,
    ) -> None:
        self._remove_unfinished()
        self.journal = Journal(
            self.disk, self.folder, self.label.segment_bytes, self._sync_every_ms, self.limits
        )
        self.journal.open_segments()
        position = self._load_snapshot(woken, tolerant)
        self.compactor = Compactor(
            self.disk, self.folder, self.journal, self.machine, position, now_ms, self.limits
        )
        self.journal.room.kept_bytes = self.compactor.kept_bytes
        self._find_missing(now_ms, tolerant)
        self.machine.replaying = True
        self.machine.tolerant = tolerant
        for record in self.journal.replay(position, tolerant=tolerant):
            self.machine.apply(record)
            self.scratch.tend()
            if self.machine.events.is_full(self.limits.replayed_parts):
                self._flush_replayed()
        if tolerant is not None:
            self.machine.mend()
        self._learn_settings()
        self.machine.begin(self.disk.system.random_bits(72))
        self.machine.rebuild(now_ms)
        self.scratch.kept_bytes = self.compactor.kept_bytes

    def _learn_settings(self) -> None:
        """Load the take limits of each topic, and its keys where they matter."""
        machine = self.machine
        for number in machine.topics.numbered().values():
            settings = machine.topics.settings_of(number)
            if has_bounds(settings):
                machine.admission.configure(number, settings)
        for number in machine.admission.keyed():
            keys.read_keys(machine, self.journal, number, self.limits.keyed_rows)

    def finder(self) -> Finder:
        """Return the finder of messages by their ids, once the store is open."""
        return Finder(self.machine, HASHERS[self.label.ids](self.label.seed))

    def _note_opening(self) -> None:
        """Write a record that gives later events the name of this opening, and not of a copy's."""
        name = f"{self.disk.system.random_bits(64):016x}"
        openings = begun(self.label.openings, self.machine.events.next_position, name)
        noted = msgspec.structs.replace(self.label, openings=openings)
        try:
            write_label(self.disk, self.folder, noted)
        except OSError as error:
            if not is_no_room(error):
                raise
            # A full disk must not stop acks; a copy opened on a full disk is not told apart.
            _log.warning("%s: no room to note that it was opened", self.folder)
            self._remove_unfinished()
            return
        self.label = noted

    def histories(self, positions: Iterable[int], end: int) -> list[str]:
        """Return the history of the event before each position; ``end`` is the next position."""
        return [history(self.label.openings, position, end) for position in positions]

    def _find_missing(self, now_ms: int, tolerant: list[str] | None) -> None:
        """Mark segments with messages of the snapshot that are missing; raises StoreDamaged."""
        missing = sorted(self.compactor.living.keys() - self.journal.segments.keys())
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
            self.machine.events.wait_for_room()

    def _load_snapshot(
        self, woken: Callable[[str, int, bool], None], tolerant: list[str] | None
    ) -> int:
        """Load the newest whole snapshot into a machine; return its position."""
        for position in reversed(snapshot.snapshot_positions(self.disk, self.folder)):
            self.machine = self._new_machine(woken)
            try:
                meta = SnapshotReader(self.disk, self.folder, position).load(self.machine)
            except StoreDamaged as damage:
                # The snapshot before it, or the whole journal if it still exists, serves as well.
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
        events = EventLog(self.disk, self.folder, self.journal, self._events_bytes, self.limits)

        def promote(numbers: U32, counts: I64) -> None:
            topics, first = machine.topics, slice(_MOST_WOKEN)
            for number, count in zip(numbers[first].tolist(), counts[first].tolist(), strict=True):
                woken(topics.names[number], count, topics.settings_of(number).paused)
            if len(numbers) > _MOST_WOKEN:
                # Takers of the remaining topics wait a little longer, so that others get their
                # turn.
                rest = slice(_MOST_WOKEN, None)
                asyncio.get_running_loop().call_soon(promote, numbers[rest], counts[rest])

        # A machine that was filled from a damaged snapshot is given up with its files.
        self.scratch.close()
        self.scratch = Scratch(
            self.disk, self.folder, self._memory_bytes, self.limits, self._mapped_segments
        )
        machine = Machine(events, promote, self.limits, self.scratch)
        events.topic_names = machine.topics.names
        return machine

    def _mapped_segments(self) -> list[Callable[[], None]]:
        return [segment.let_go for segment in self.journal.segments.values()]

    def _remove_unfinished(self) -> None:
        for name in self.disk.names(self.folder):
            path = self.folder / name
            if name.endswith(".new") and not self.disk.is_folder(path):
                self.disk.remove(path)

    async def close(self, now_ms: int, *, repaired: bool = False) -> None:
        """Finish the upkeep, write a snapshot if anything is new, and release the folder.

        After a repair the snapshot has the saved messages: it must succeed, and no other is kept.
        """
        self.is_open = False
        while self._upkeep is not None:
            await asyncio.wait([self._upkeep])
        try:
            if self.journal.failure is None:
                await self._settle(now_ms, repaired=repaired)
        finally:
            if self._flushes:
                # A thread may still be writing to a file that is closed here.
                await asyncio.wait(self._flushes)
            await self.journal.lengthened()
            with contextlib.ExitStack() as stack:
                # The lock is released last, even if the other steps fail.
                stack.callback(self._hold.close)
                stack.callback(self.scratch.close)
                stack.callback(self.machine.events.close)
                stack.callback(self.journal.close)

    async def _settle(self, now_ms: int, *, repaired: bool) -> None:
        if repaired:
            await self.flush_events()
            self.compactor.start_anew(now_ms)
            return
        # If either fails, the next start replays the journal and makes the events again.
        with contextlib.suppress(OSError, StoreError):
            await self.flush_events()
            self.compactor.finish(now_ms)

    # --- write ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def known_keys(self, topic: str, settings: TopicSettings) -> AsyncIterator[None]:
        """Load the keys of a topic's messages for the block, if the settings need them."""
        if not (settings.ordered or settings.fair):
            yield
            return
        topics, admission = self.machine.topics, self.machine.admission
        async with self._learning, contextlib.AsyncExitStack() as expected:
            # A topic may be deleted meanwhile, and put into again under another number.
            while (number := topics.find(topic)) is not None and not admission.has_keys(number):
                # Keys of later puts are noted as they come.
                admission.expect(number)
                expected.callback(admission.expect_no_more, number)
                await keys.learn(self.machine, self.journal, number, self.limits.keyed_rows)
            yield

    def reserve(self, size_bytes: int, use: Use) -> None:
        """Make sure that a record of this size can be written; raises DiskFull, StoreFailed."""
        try:
            self.journal.reserve(size_bytes, use)
        except DiskFull:
            self._plan_freeing()
            raise

    def write(self, record: Record) -> None:
        """Append a record and apply it; raises DiskFull or StoreFailed before either."""
        self._latest_ms = record.time_ms
        try:
            self._check_snapshot_room(record)
            self.machine.prepare(record)
            self.journal.append(record, USES.get(record.kind, Use.CHANGE))
        except DiskFull:
            self._plan_freeing()
            raise
        try:
            self.machine.apply(record)
        except BaseException as error:
            # The journal has a record that the state lacks: only a replay can reconcile them.
            self.journal.fail(error)
            raise
        if self.journal.room.is_low:
            # Copy live blobs out of sparse segments while there is room for them.
            self._plan_freeing()
        if self._flusher is None and self.machine.events.is_full():
            self._flush_full()
        if self._upkeep is None and self.compactor.is_due(record.time_ms):
            self._upkeep = whole(self._keep_up(record.time_ms))

    async def committed(self) -> None:
        """Return when all earlier records are as safe as ``sync`` asks; raises StoreFailed."""
        await self.journal.committed()

    async def room(self) -> None:
        """Return when growing verbs need not wait for the disk in the loop's thread."""
        if self.journal.is_short:
            await self.journal.lengthened()

    async def flush_events(self, until: int | None = None) -> None:
        """Write the events of all records so far, or up to a position; raises DiskFull."""
        until = self.machine.events.next_position if until is None else until
        await self.committed()
        # A caller that is cancelled must not leave a block half noted.
        await asyncio.shield(self._start_flush(until))
        self.journal.check()

    async def sync_events(self) -> None:
        """Sync the written events; raises StoreFailed."""
        async with self._flushing:
            await self._must(self.machine.events.sync)

    async def sync_journal(self) -> None:
        """Sync the journal up to the last write; raises StoreFailed."""
        await self._must(self.journal.sync)

    async def _must(self, sync: Callable[[], None]) -> None:
        try:
            await in_thread(sync)
        except OSError as error:
            # The data of a failed sync may be lost, and a second sync would report success.
            self.journal.fail(error)
        self.journal.check()

    def _start_flush(self, until: int) -> "asyncio.Task[None]":
        task = whole(self._flush(until))
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        return task

    async def _flush(self, until: int) -> None:
        events = self.machine.events
        async with self._flushing:
            try:
                for block in events.blocks(until):
                    events.written(block, await self._write_events(block))
                    await asyncio.sleep(0)
                await in_thread(events.remove_dropped)
            except (OSError, StoreError) as error:
                if not is_no_room(error):
                    return self.journal.fail(error)
                events.wait_for_room()
                raise DiskFull(f"{self.folder}: no room for the event log") from error
        return None

    async def _write_events(self, block: Block) -> int:
        """Write a block, deleting older blocks if the disk is full; return its size in bytes."""
        events = self.machine.events
        while True:
            try:
                if self.disk.free_bytes(self.folder) < self.compactor.kept_bytes():
                    raise DiskFull(f"{self.folder}: no room beside that of the next snapshot")
                if events.needs_file or events.is_coarse(block):
                    return await in_thread(events.write, block)
                return events.write(block)
            except (OSError, StoreError) as error:
                if not is_no_room(error) or not events.make_room():
                    raise
            await in_thread(events.remove_dropped)

    def _flush_full(self) -> None:
        """Write events, once they fill a block and are committed."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._flush_after_s:
            return
        self._flusher = whole(self.flush_events())
        self._flushes.add(self._flusher)
        self._flusher.add_done_callback(self._flushed)

    def _flushed(self, task: "asyncio.Task[None]") -> None:
        self._flusher = None
        self._flushes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self.journal.failure is None:
            # Events follow from the journal, so they can wait in memory until there is room.
            _log.warning("%s: it waits in memory", str(error))
            self._flush_after_s = task.get_loop().time() + _NO_ROOM_S

    async def _keep_up(self, now_ms: int) -> None:
        try:
            await self._compact(now_ms)
        finally:
            self._upkeep = None

    def _check_snapshot_room(self, record: Record) -> None:
        """Raise DiskFull if the new rows or ids leave no room for a snapshot."""
        table, known, count = self.machine.table, self.machine.known, len(record)
        has_room = table.top + count <= self._rows_with_room
        has_room &= known.used + count <= self._ids_with_room
        if has_room or record.kind not in (RecordKind.PUT, RecordKind.PUT_OWN):
            return
        free_bytes = self.disk.free_bytes(self.folder)
        if free_bytes < self.compactor.kept_bytes(count):
            known.drop_over(record.time_ms)
            if free_bytes < self.compactor.kept_bytes(count):
                words = "no room for a snapshot of more messages and remembered ids"
                raise DiskFull(f"{self.folder}: {words}")
        self._rows_with_room = table.top + count + self.limits.room_rows
        self._ids_with_room = known.used + count + self.limits.room_rows

    async def freed(self) -> None:
        """Return when everything that can be freed is free; used when there is no room."""
        # A run in progress may have started too early to free enough.
        for _ in range(2):
            self._plan_freeing()
            if self._upkeep is not None:
                await asyncio.wait([self._upkeep])

    def _plan_freeing(self) -> None:
        """Schedule a run that frees space, because there is no room."""
        loop = asyncio.get_running_loop()
        # A run takes a while, so it is not repeated while nothing changes.
        is_time = loop.time() >= self._free_after_s or self.compactor.may_well_free
        is_free = self._upkeep is None and self.is_open
        if is_free and is_time and self.compactor.can_free:
            self._free_after_s = loop.time() + _NO_ROOM_S
            self._upkeep = whole(self._free(self._latest_ms))

    async def _free(self, now_ms: int) -> None:
        # A segment goes when it lies before two snapshots, so it takes two.
        await self._compact(now_ms)
        await self._keep_up(now_ms)
        self.journal.make_ahead()

    async def compact_now(self, now_ms: int) -> None:
        """Make a snapshot and free space; waits for a run in progress."""
        while self._upkeep is not None:
            await asyncio.wait([self._upkeep])
        if not self.is_open:
            return
        self._upkeep = whole(self._keep_up(now_ms))
        await asyncio.wait([self._upkeep])

    async def _compact(self, now_ms: int) -> None:
        try:
            await self.compactor.run(now_ms, self)
        except Exception as error:
            # The next segment tries again; the journal itself needs no snapshot.
            _log.warning("%s: no snapshot: %s", self.folder, str(error))
            self.compactor.postpone()
