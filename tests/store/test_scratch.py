"""A store whose state lies in scratch files, of which hardly anything stays in memory."""

import asyncio
import contextlib
import errno
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.clock import SimulatedClock
from dwell.errors import DiskFull, InvalidSettings, StoreDamaged, StoreError
from dwell.message import State
from dwell.store.base import Store
from dwell.store.embedded import EmbeddedStore, snapshotreader
from dwell.store.embedded.area import Area
from dwell.store.embedded.chains import Chains
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.scratch import Scratch
from dwell.store.embedded.stack import Stack
from dwell.store.embedded.sweeping import of_state, paged
from dwell.store.embedded.system import System
from dwell.store.embedded.table import Table
from dwell.store.embedded.wheel import Wheel
from dwell.testing.faults import FaultyDisk
from dwell.testing.suite import StoreSuite
from tests import RUNS
from tests.descriptors import descriptors_in
from tests.store.test_faults import FOLDER, SEGMENT_BYTES, Script, check_kept, places, to_its_end
from tests.store.test_limits import embedded
from tools.parts import disagreements

#: All large arrays lie in areas, which grow by a row, and leave the memory before each verb.
ALL: dict[str, Any] = {"scratch_rows": 0, "scratch_step": 1, "memory_bytes": 1, "tended_s": 0}
_HOUR_MS = 3_600_000
T = TypeVar("T")


class TestStoreInScratch(StoreSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "store"

    async def make_store(self, clock: SimulatedClock) -> Store:
        return EmbeddedStore(
            self.folder,
            clock=clock,
            segment_bytes=8 * 1024 * 1024,
            memory_bytes=1,
            limits=Limits(**ALL, index_slots=2),
        )


def store_on(disk: Disk, folder: Path = FOLDER, **limits: Any) -> EmbeddedStore:
    return EmbeddedStore(
        folder,
        clock=SimulatedClock(),
        disk=disk,
        segment_bytes=SEGMENT_BYTES,
        memory_bytes=1,
        limits=Limits(**{**ALL, **limits}),
    )


async def fill(queue: dwell.Queue, start: int, count: int) -> None:
    ids = [f"id-{number:06d}" for number in range(start, start + count)]
    delays = [f"{1 + number % 400}h" for number in range(count)]
    await queue.put_many("t", [b"x"] * count, ids=ids, delay=delays)


async def fill_up(queue: dwell.Queue) -> None:
    for start in range(0, 1_000_000, 1_000):
        await fill(queue, start, 1_000)


async def test_the_end_of_a_store_frees_its_scratch_files(tmp_path: Path) -> None:
    opened = descriptors_in(tmp_path)
    for _ in range(3):
        store = store_on(Disk(), tmp_path / "store")
        async with dwell.Queue(store) as queue:
            await fill(queue, 0, 500)
            assert store.core.machine.table.is_in_area
        assert descriptors_in(tmp_path) <= opened
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("rows", [0, 4_096])
async def test_all_grows_in_scratch_files(rows: int) -> None:
    disk = FaultyDisk()
    queue = dwell.Queue(store_on(disk, scratch_rows=rows, scratch_step=700))
    async with queue:
        for start in range(0, 9_000, 500):
            await fill(queue, start, 500)
            await queue.cancel("t", [f"id-{number:06d}" for number in range(start, start + 200)])
            await queue.reschedule("t", [f"id-{start + 300:06d}"], delay="3000h")
        core = embedded(queue).core
        assert core.machine.table.is_in_area
        assert core.machine.known.is_in_area
        assert core.condition()["scratch_bytes"] > 9_000 * 50
        assert not disagreements(embedded(queue))
        found = await queue.get("t", [f"id-{number:06d}" for number in range(9_000)])
        assert [message is None for message in found] == [n % 500 < 200 for n in range(9_000)]
    await check_again(disk, 5_400)
    disk.kill()


async def check_again(disk: FaultyDisk, count: int) -> None:
    queue = dwell.Queue(store_on(disk))
    async with queue:
        assert (await queue.stats()).topics["t"].delayed == count
        assert not disagreements(embedded(queue))


# --- the disk is full -------------------------------------------------------------------------


async def test_where_the_scratch_file_has_no_room_a_put_is_refused_as_a_whole() -> None:
    disk = FaultyDisk(size_bytes=8 * 1024 * 1024)
    queue = dwell.Queue(store_on(disk, scratch_step=10_000))
    async with queue:
        with pytest.raises(DiskFull, match="scratch file of more messages"):
            await fill_up(queue)
        accepted = (await queue.stats()).topics["t"].delayed
        assert accepted % 1_000 == 0
        assert not disagreements(embedded(queue))
        ids = [f"id-{number:06d}" for number in range(accepted)]
        results = await queue.cancel("t", ids[:1_000])
        assert results.count(dwell.Result.CANCELLED) == 1_000
        disk.free()
        await fill(queue, accepted, 1_000)
        assert not disagreements(embedded(queue))
    await check_again(disk, accepted)


@pytest.mark.parametrize("fault", ["allocate", "full"])
async def test_a_scratch_file_that_does_not_grow_fails_no_ack(fault: str) -> None:
    """Free rows lie in a stack, which then grows in ordinary memory."""
    disk = FaultyDisk()
    async with dwell.Queue(store_on(disk)) as queue:
        await queue.put_many("t", [b"x"] * 500)
        for _ in range(5):
            taken = await queue.take("t", 100, lease="1h")
            disk.arm(fault, 0)
            assert set(await queue.ack(taken)) == {dwell.Result.ACKED}
            disk.arm("", -1)
        assert (await queue.stats()).totals["ack"] == 500
        assert not disagreements(embedded(queue))


async def test_memory_that_cannot_be_released_fails_no_verb(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the process has no descriptor left to look at its memory."""
    async with dwell.Queue(store_on(FaultyDisk())) as queue:
        await fill(queue, 0, 100)
        with monkeypatch.context() as patch:
            patch.setattr(System, "mapped_bytes", fails(errno.EMFILE))
            await fill(queue, 100, 100)
        assert caplog.text.count("could not release memory: [Errno 24]") == 1
        assert (await queue.stats()).topics["t"].delayed == 200


async def test_a_file_system_that_frees_no_parts_gets_the_space_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(System, "discard", fails(errno.EOPNOTSUPP))
    scratch = Scratch(Disk(), tmp_path, 1, Limits(tended_s=0))
    used = [scratch.area(1 << 20) for _ in range(2)]
    opened = descriptors_in(tmp_path)
    area = used.pop()
    assert area is not None
    scratch.extend(area, 0, 1 << 20)
    scratch.retire(area)
    del area
    scratch.tend()
    assert descriptors_in(tmp_path) < opened
    scratch.close()


def fails(number: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


async def test_a_start_on_a_full_disk_uses_ordinary_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FaultyDisk()
    async with dwell.Queue(store_on(disk)) as queue:
        for start in range(0, 6_000, 1_000):
            await fill(queue, start, 1_000)
    disk.system.size_bytes = disk.system.used_bytes + 64 * 1024
    async with dwell.Queue(store_on(disk)) as queue:
        assert "no room for the scratch file" in caplog.text
        assert not embedded(queue).core.machine.table.is_in_area
        assert (await queue.cancel("t", ["id-000001"])) == [dwell.Result.CANCELLED]
        assert not disagreements(embedded(queue))


async def test_a_start_with_too_little_room_can_return_to_memory() -> None:
    """The rows of the snapshot have room in an area, those of the journal behind it have none."""
    disk = FaultyDisk()
    async with dwell.Queue(store_on(disk)) as queue:
        for start in range(0, 5_000, 1_000):
            await fill(queue, start, 1_000)
        await embedded(queue).compact()
        for start in range(5_000, 9_000, 1_000):
            await fill(queue, start, 1_000)
        disk.kill()
        with contextlib.suppress(StoreError, OSError):
            await queue.close()
    disk = disk.restarted()
    disk.system.size_bytes = disk.system.used_bytes + 800 * 1024
    queue = dwell.Queue(store_on(disk, scratch_step=100))
    async with queue:
        assert not embedded(queue).core.machine.table.is_in_area
        assert (await queue.stats()).topics["t"].delayed == 9_000
        assert not disagreements(embedded(queue))
        found = await queue.get("t", ["id-000000", "id-004999", "id-008999"])
        assert all(message is not None for message in found)


async def test_a_scratch_file_leaves_room_for_snapshots() -> None:
    disk = FaultyDisk()
    queue = dwell.Queue(store_on(disk))
    async with queue:
        for start in range(0, 5_000, 1_000):
            await fill(queue, start, 1_000)
        core = embedded(queue).core
        disk.system.size_bytes = disk.system.used_bytes + core.compactor.kept_bytes() + 8 * 4096
        with pytest.raises(DiskFull, match="scratch file of more messages"):
            core.machine.table.reserve(core.machine.table.capacity + 5_000)
        disk.free()
        core.machine.table.reserve(core.machine.table.capacity + 5_000)


async def test_where_the_index_has_no_room_a_put_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Scratch.area

    def full(self: Scratch, size_bytes: int, *, is_hot: bool = False) -> Area | None:
        if is_hot:
            raise DiskFull("no room for the index")
        return real(self, size_bytes)

    queue = dwell.Queue(store_on(FaultyDisk(), index_slots=2))
    async with queue:
        await fill(queue, 0, 500)
        with monkeypatch.context() as patched:
            patched.setattr(Scratch, "area", full)
            with pytest.raises(DiskFull, match="no room for the index"):
                await fill_up(queue)
        accepted = (await queue.stats()).topics["t"].delayed
        assert embedded(queue).core.journal.failure is None
        await fill(queue, 100_000, 500)
        assert (await queue.stats()).topics["t"].delayed == accepted + 500
        assert not disagreements(embedded(queue))


class ScratchScript(Script):
    def __init__(self, disk: FaultyDisk, step: int) -> None:
        super().__init__(disk)
        self.store = store_on(disk, scratch_step=step, index_slots=2, few_ids=1)
        self.store.clock = self.clock
        self.store._time._clock = self.clock


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["full", "open", "create", "kill", "power"])
def test_each_fault_at_each_call_of_a_store_in_scratch(fault: str) -> None:
    counting = FaultyDisk(fault, 1_000_000)
    asyncio.run(ScratchScript(counting, 64).run(12))
    for at in places(1_000_000 - counting.left):
        disk = FaultyDisk(fault, at, seed=at)
        script = ScratchScript(disk, 64)
        asyncio.run(to_its_end(script, 12))
        disk.kill()
        check_kept(disk.restarted(), script, f"{fault} at call {at}")


# --- without scratch files --------------------------------------------------------------------


class WithoutScratch(System):
    def open_nameless(self, folder: Path, size_bytes: int) -> int:
        raise OSError(errno.EINVAL, "too large for this file system")


async def test_without_scratch_files_ordinary_memory_has_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_on(Disk(WithoutScratch()), tmp_path / "store")
    async with dwell.Queue(store) as queue:
        await fill(queue, 0, 500)
        assert "no scratch file ([Errno 22] too large for this file system)" in caplog.text
        assert not store.core.machine.table.is_in_area
        assert "memory_budget_bytes" not in store.core.condition()
        assert not disagreements(store)


async def test_on_a_file_system_without_nameless_files_the_name_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refused(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refused)
    store = store_on(Disk(), tmp_path / "store")
    async with dwell.Queue(store) as queue:
        await fill(queue, 0, 500)
        assert store.core.machine.table.is_in_area
        assert not [name for name in os.listdir(tmp_path / "store") if "scratch" in name]


@pytest.mark.parametrize("given", [-1, 1, 16 * 1024 * 1024 - 1, True, "1GiB", 2.5])
def test_a_budget_that_cannot_be_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"memory_bytes: got .*, expected"):
        dwell.open(tmp_path / "store", memory_bytes=given)


# --- in a process -----------------------------------------------------------------------------

_PROGRAM = """
import asyncio, os, sys
import dwell

async def main():
    handle = dwell.open(sys.argv[1], memory_bytes=16 << 20)
    async with handle as queue:
        for start in range(0, 400_000, 2_000):
            ids = [f"id-{number:06d}" for number in range(start, start + 2_000)]
            await queue.put_many("t", [b"x"] * 2_000, ids=ids, delay="30d")
        await queue.reschedule("t", ["id-000007"], delay="2d")
        told = await handle.store.condition()
        print(told["memory_mapped_bytes"], told["scratch_bytes"], flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_a_process_keeps_to_its_budget_and_its_end_frees_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mapped, scratch = map(int, process.stdout.readline().split())
        names = os.listdir(folder)
        process.send_signal(signal.SIGKILL)
    # A verb may touch more before the next look.
    assert mapped < 32 << 20
    assert scratch > 32 << 20
    assert {*os.listdir(folder)} == {*names}
    assert not [name for name in names if name.endswith(".new") or "scratch" in name]
    async with dwell.open(folder, memory_bytes=16 << 20) as queue:
        assert (await queue.stats()).topics["t"].delayed == 400_000
        found = await queue.get("t", ["id-000000", "id-399999", "id-400000"])
        assert [message is not None for message in found] == [True, True, False]


# --- the parts --------------------------------------------------------------------------------


def scratch_on(disk: Disk, folder: Path, **limits: Any) -> Scratch:
    return Scratch(disk, folder, 1, Limits(**{**ALL, **limits}))


def test_what_lies_in_an_area_stays_when_its_pages_go(tmp_path: Path) -> None:
    area = Area(Disk(), tmp_path, 1 << 30)
    area.extend(4096, 4096 + 8_000_000)
    values = area.array(np.int64, 4096, 1_000_000)
    values[:] = np.arange(1_000_000)
    for piece in area.pieces(1 << 20):
        area.release(*piece)
    assert (values == np.arange(1_000_000)).all()
    for piece in area.pieces(1 << 20):
        area.discard(*piece)
    assert not values.any()
    assert area.size_bytes == 8_000_000


@settings(max_examples=40 * RUNS, deadline=None)
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(1, 3_000)), max_size=30),
    room=st.sampled_from((1 << 40, 40_000, 0)),
)
def test_chains_and_a_stack_keep_all_that_is_pushed(
    steps: list[tuple[bool, int, int]], room: int
) -> None:
    disk = FaultyDisk(size_bytes=room)
    scratch = scratch_on(disk, Path("/"), scratch_step=1_024)
    chains, stack = Chains(scratch, 1 << 20), Stack(scratch, 1 << 20)
    groups: dict[int, list[int]] = {}
    stacked = list[int]()
    for is_push, group, count in steps:
        rows = np.arange(count, dtype=np.uint32) + np.uint32(7 * count)
        if is_push:
            chains.push(group, rows)
            groups.setdefault(group, []).extend(rows.tolist())
            stack.push(rows)
            stacked += rows.tolist()
        elif group in groups:
            found = chains.pop(group, count)
            assert len(found) >= min(count, len(groups[group]))
            assert groups[group][: len(found)] == found.tolist()
            del groups[group][: len(found)]
            if not groups[group]:
                del groups[group]
            few = min(count, len(stacked))
            assert stack.last(few).tolist() == stacked[len(stacked) - few :]
            stack.drop(few)
            del stacked[len(stacked) - few :]
        scratch.tend()
        # One for each: what had no room for its first rows is closed.
        assert len(scratch._areas) <= 2
        assert chains.count == sum(map(len, groups.values()))
        assert {group: chains.size_of(group) for group in chains} == {
            group: len(rows) for group, rows in groups.items()
        }
        assert stack.numbers().tolist() == stacked
    scratch.close()
    assert disk.system.used_bytes == 0


@settings(max_examples=40 * RUNS, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("move", "move", "pass", "sweep")),
            st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True),
            st.one_of(st.integers(1, 200_000), st.integers(1, 10 * _HOUR_MS)),
        ),
        max_size=40,
    ),
    loaded=st.integers(1, 9),
)
def test_a_wheel_loses_no_row_however_far_it_is_moved(
    steps: list[tuple[str, list[int], int]], loaded: int
) -> None:
    times = np.zeros(64, np.int64)
    limits = Limits(loaded_rows=loaded, deal_at=5, wheel_runs=4, spare_entries=0)
    wheel, now_ms = Wheel(lambda rows: times[rows], limits), 0
    for step, rows, span_ms in [*steps, ("pass", [], 400 * _HOUR_MS)]:
        if step == "move":
            some = np.array(rows)
            times[some] = now_ms + 1 + (some * 7_919 + span_ms) % (span_ms + 1)
            wheel.add(some, times[some])
        elif step == "sweep":
            for _ in range(50):
                wheel.sweep(0)
        else:
            now_ms += span_ms
            for _ in range(2_000):
                if (next_ms := wheel.next_ms()) is None or next_ms > now_ms:
                    break
                due = wheel.pop(now_ms, 3)
                if due is not None:
                    times[due] = 0
            assert not ((times > 0) & (times <= now_ms)).any()
        assert set(np.flatnonzero(times).tolist()) <= set(wheel.rows().tolist())


@pytest.mark.parametrize("loaded", [1, 7, 1_000])
@pytest.mark.parametrize("span_ms", [8, 50_000, 200_000])
def test_a_wheel_has_few_entries_however_often_its_rows_are_moved(loaded: int, span_ms: int):
    chance, rows = np.random.default_rng(1), np.arange(400)
    times = np.zeros(400, np.int64)
    limits = Limits(loaded_rows=loaded, deal_at=5, wheel_runs=4, spare_entries=8)
    wheel, most = Wheel(lambda rows: times[rows], limits), 0
    wheel.pop(1, 1)
    for some in (rows, *[chance.choice(rows, 10, replace=False) for _ in range(1_000)]):
        times[some] = 2 + chance.integers(0, span_ms, len(some))
        wheel.add(some, times[some])
        wheel.sweep(len(rows))
        most = max(most, wheel.size)
    for _ in range(50):
        wheel.sweep(0)
    # Each run may have a row once, and a pass is over before as many are added again.
    assert most <= (2 + 1) * len(rows)
    for now_ms in [*range(2, 10), *np.unique(times)[::37].tolist(), 200_001]:
        while (next_ms := wheel.next_ms()) is not None and next_ms <= now_ms:
            if (due := wheel.pop(now_ms, 1_000)) is not None:
                times[due] = 0
        assert not ((times > 0) & (times <= now_ms)).any()


# --- listing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_a_list_during_changes_has_all_that_stay(seed: int) -> None:
    chance = random.Random(seed)
    dues = [chance.randint(1, 30) for _ in range(chance.randint(20, 40))]
    moves = [(chance.randrange(40), chance.randint(1, 90)) for _ in range(60)]
    limit = chance.randint(1, 9)
    table, count = Table(), len(dues)
    rows = table.allocate(count)
    table.due_ms[rows], table.seq[rows], table.topic[rows] = dues, rows + 1, 1
    table.state[rows] = State.DELAYED
    fit, limits = of_state(table, 1, State.DELAYED), Limits(scanned_rows=2, paused_rows=1)
    changes = [(row % count, due_ms) for row, due_ms in moves]
    moved, found, cursor = {row for row, _ in changes}, list[int](), None
    while True:
        page, cursor = driven(paged(table, fit, cursor, limit, limits), table, changes)
        assert len(page) <= limit
        assert table.due_ms[page].tolist() == sorted(table.due_ms[page].tolist())
        found += page.tolist()
        if cursor is None:
            break
    stayed = sorted({*rows.tolist()} - moved, key=lambda row: (dues[row], row))
    assert [row for row in found if row not in moved] == stayed


def driven(call: Coroutine[Any, Any, T], table: Table, changes: list[tuple[int, int]]) -> T:
    """Run a call to its end, with some changes in each of its pauses."""
    while True:
        try:
            call.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        for _ in range(min(3, len(changes))):
            row, due_ms = changes.pop()
            table.due_ms[row] = due_ms


# --- snapshots --------------------------------------------------------------------------------


async def test_a_flipped_bit_in_a_large_snapshot_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The checksums of a large one are computed beside the reading."""
    monkeypatch.setattr(snapshotreader, "_SMALL_BYTES", 0)
    monkeypatch.setattr(snapshotreader, "_ROWS", 100)
    store = store_on(Disk(), tmp_path / "store")
    async with dwell.Queue(store) as queue:
        await fill(queue, 0, 1_000)
        await queue.cancel("t", ["id-000001"])
    (path,) = (tmp_path / "store").glob("snapshot-*.dws")
    whole = path.read_bytes()
    caplog.set_level(logging.CRITICAL, "dwell")
    for offset in range(2_000, len(whole), len(whole) // 40):
        if not any(whole[offset : offset + 1]):
            continue
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        with contextlib.suppress(StoreError):
            reader = snapshotreader.SnapshotReader(Disk(), tmp_path / "store", position_of(path))
            with pytest.raises(StoreDamaged, match="is damaged at offset"):
                reader.load(store.core._new_machine(lambda *_: None))
    path.write_bytes(whole)
    async with dwell.Queue(store_on(Disk(), tmp_path / "store")) as queue:
        assert (await queue.stats()).topics["t"].delayed == 999


def position_of(path: Path) -> int:
    return int(path.stem.removeprefix("snapshot-"))


async def test_messages_of_a_snapshot_expire() -> None:
    disk, clock = FaultyDisk(), SimulatedClock()
    for memory_bytes in (0, 1):
        store = EmbeddedStore(
            FOLDER, clock=clock, disk=disk, memory_bytes=memory_bytes, limits=Limits(**ALL)
        )
        async with dwell.Queue(store) as queue:
            if not memory_bytes:
                await queue.put_many("t", [b"x"] * 10, delay="1h", ttl="2h")
                continue
            clock.advance(3 * _HOUR_MS)
            assert (await queue.stats()).topics["t"].dead == 10
