"""Beyond each limit the store does the same as before it."""

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dwell.clock import SimulatedClock
from dwell.errors import StoreError, StoreFailed, StoreFull
from dwell.message import Result, State
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded import store as store_of_folders
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.sweeping import paged
from dwell.testing.faults import FaultyDisk

SEGMENT_BYTES = 64 * 1024
FOLDER = Path("/stores/store")


def queue_on(
    disk: Disk,
    clock: SimulatedClock | None = None,
    *,
    sync: str = "always",
    segment_bytes: int = SEGMENT_BYTES,
    **limits: int,
) -> Queue:
    return Queue(
        EmbeddedStore(
            FOLDER,
            clock=clock or SimulatedClock(),
            disk=disk,
            sync=sync,
            segment_bytes=segment_bytes,
            limits=Limits(**limits),
        )
    )


def embedded(queue: Queue) -> EmbeddedStore:
    store = queue.store
    assert isinstance(store, EmbeddedStore)
    return store


async def put_many_times(queue: Queue) -> None:
    for _ in range(200):
        await queue.put("t", b"x" * 1_000)


@pytest.mark.parametrize("deal_at", [1, 7, 100, 1_000])
async def test_all_that_expires_does_so_wherever_the_wheel_deals(deal_at: int) -> None:
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock, deal_at=deal_at) as queue:
        for number in range(60):
            await queue.put_many("t", [b"x"] * 7, ttl="1h", delay="30m" if number % 2 else None)
        await queue.release(await queue.take("t", 50), delay="10m")
        clock.advance(2 * 3_600_000)
        counts = (await queue.stats()).topics["t"]
        assert (counts.delayed, counts.ready, counts.leased, counts.dead) == (0, 0, 0, 420)
        assert not len(await queue.take("t", 10))


@pytest.mark.parametrize("wheel_runs", [4, 12])
async def test_wheels_deal_and_merge_at_any_count(wheel_runs: int) -> None:
    clock = SimulatedClock()
    limits = {"deal_at": 5, "wheel_runs": wheel_runs, "spare_entries": 3, "sweep_every": 2}
    async with queue_on(FaultyDisk(), clock, **limits) as queue:
        start_ms = clock.now_ms()
        dues = np.random.default_rng(1).integers(start_ms, start_ms + 300_000, 300)
        for part in np.split(dues, 60):
            await queue.put_many("t", [b"x"] * 5, due=part)
        taken: list[int] = []
        for _ in range(31):
            batch = await queue.take("t", 1_000)
            assert (batch.due_ms <= clock.now_ms()).all()
            taken += batch.due_ms.tolist()
            await queue.ack(batch)
            clock.advance(10_000)
        assert taken == sorted(dues.tolist())


async def test_a_snapshot_is_of_one_moment_whatever_happens_while_it_is_copied() -> None:
    disk, clock = FaultyDisk(), SimulatedClock()
    async with queue_on(disk, clock, snapshot_rows=3, segment_bytes=1 << 20) as queue:
        ids = [f"{number:03d}" for number in range(90)]
        await queue.put_many("t", ids, ids=ids, priority=5)
        leased = await queue.take("t", 20, owner="first")
        await queue.bury(leased[10:], "because")
        before = await picture(queue)
        store = embedded(queue)
        making = asyncio.create_task(store.compact())
        while not store.core.machine.snapshots:
            await asyncio.sleep(0)
        # Freed rows are given to others, and every verb changes rows that are not copied yet.
        await queue.ack(leased[:10])
        await queue.cancel("t", ids[80:])
        await queue.put_many("u", [b"new"] * 15, delay="1h")
        await queue.reschedule("t", ids[60:70], delay="2h")
        await queue.kick("t", leased.ids[10:])
        await queue.put_many("t", ["other"] * 3, ids=ids[40:43], on_conflict="replace")
        assert store.core.machine.snapshots, "it was over before anything changed"
        await making
        covered = store.core.compactor.covered
        after = await picture(queue)
        disk.kill()
    # With the journal behind the snapshot all is there, and without it what was then.
    end = disk.copied()
    async with queue_on(end, clock) as queue:
        assert await picture(queue) == after
    short = disk.copied()
    path = FOLDER / "journal-00000000.dwl"
    fd = short.open(path)
    short.write(fd, [bytes((1 << 20) - covered)], covered)
    short.close(fd)
    async with queue_on(short, clock) as queue:
        assert await picture(queue) == before


async def test_a_start_replays_few_records_however_small_they_are() -> None:
    disk = FaultyDisk()
    async with queue_on(disk, snapshot_records=20, snapshot_every_ms=0) as queue:
        for number in range(110):
            await queue.put("t", b"x", id=f"{number}")
        while embedded(queue).core.compactor.covered == 0:
            await asyncio.sleep(0.001)
        disk.kill()
    async with queue_on(disk.copied(), snapshot_records=10_000) as queue:
        assert embedded(queue).core.machine.applied < 110
        assert (await queue.stats()).topics["t"].ready == 110


async def test_small_records_make_no_snapshots_one_after_another() -> None:
    """They are as far apart as is said, and write no more than so much for each record."""
    clock, limits = SimulatedClock(), {"snapshot_records": 5, "snapshot_every_ms": 1_000}
    async with queue_on(FaultyDisk(), clock, segment_bytes=1 << 20, **limits) as queue:
        await queue.configure("t", remember_ms=86_400_000)
        await queue.put_many("t", [b"x"] * 1_000, ids=[f"{at}" for at in range(1_000)])
        await queue.ack(await queue.take("t", 1_000))
        store = embedded(queue)
        await store.compact()
        size_bytes, covered = store.core.compactor.snapshot_bytes, {store.core.compactor.covered}
        for number in range(300):
            clock.advance(100)
            await queue.put("u", b"x", id=f"{number}")
            await asyncio.sleep(0.001)
            covered.add(store.core.compactor.covered)
        assert 1 < len(covered) <= 1 + 300 * 8192 // size_bytes + 1


async def test_a_start_has_first_to_catch_up() -> None:
    """What it replayed makes a snapshot due, but not at once."""
    clock, disk = SimulatedClock(), FaultyDisk()
    async with queue_on(disk, clock, snapshot_records=10_000) as queue:
        for number in range(50):
            await queue.put("t", b"x", id=f"{number}")
        disk.kill()
    small = {"snapshot_records": 5, "snapshot_every_ms": 1_000}
    async with queue_on(disk.copied(), clock, **small) as queue:
        compactor = embedded(queue).core.compactor
        for number in range(50, 100):
            await queue.put("t", b"x", id=f"{number}")
            await asyncio.sleep(0.001)
        assert compactor.covered == 0
        clock.advance(1_000)
        await queue.put("t", b"x")
        while compactor.covered == 0:
            await asyncio.sleep(0.001)


async def picture(queue: Queue) -> dict[tuple[str, str], tuple[object, ...]]:
    """Return what is there, by topic and body or id."""
    found: dict[tuple[str, str], tuple[object, ...]] = {}
    for topic in ("t", "u"):
        for state in ("delayed", "ready", "leased", "dead"):
            async for batch in queue.pages(topic, state):
                for m in batch:
                    found[topic, m.id] = (state, m.body, m.due_ms, m.attempt, m.last_error)
    held = await queue.held("first")
    return {**found, ("held", ""): tuple(held.ids)}


async def test_a_snapshot_remembers_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dwell.store.embedded.snapshot._REMEMBERED_STEP", 5)

    disk = FaultyDisk()
    ids = [f"{number}" for number in range(40)]
    async with queue_on(disk, snapshot_rows=7) as queue:
        await queue.put_many("t", ids, ids=ids)
        await queue.ack(await queue.take("t", 33))
    async with queue_on(disk.copied()) as queue:
        again = await queue.put_many("t", ids, ids=ids)
        assert [put.result for put in again] == [Result.KEPT] * 40
        assert (await queue.stats()).topics["t"].ready == 7


async def test_owners_that_hold_nothing_are_forgotten_and_never_mixed_up() -> None:
    disk, clock = FaultyDisk(), SimulatedClock()
    async with queue_on(disk, clock, idle_names=4) as queue:
        await queue.put_many("t", [b"x"] * 10)
        kept = await queue.take("t", 1, owner="stays")
        for number in range(200):
            taken = await queue.take("t", 1, owner=f"worker-{number}")
            await queue.release(taken, counted=False)
        assert len(embedded(queue).core.machine.owners) < 20
        assert list((await queue.held("stays")).ids) == list(kept.ids)
    async with queue_on(disk.copied(), clock, idle_names=4) as queue:
        nobody = await queue.take("t", 9)
        known = set(embedded(queue).core.machine.owners) - {"", "stays"}
        assert known
        for name in known:
            assert not len(await queue.held(name))
        await queue.release(nobody, counted=False)
        for number in range(200):
            taken = await queue.take("t", 1, owner=f"other-{number}")
            held = await queue.held(f"other-{number}")
            assert list(held.ids) == list(taken.ids)
            await queue.release(taken, counted=False)
        assert list((await queue.held("stays")).ids) == list(kept.ids)
        assert not len(await queue.held("worker-199"))


async def test_topics_without_messages_and_settings_are_forgotten() -> None:
    disk, clock = FaultyDisk(), SimulatedClock()
    limits = {"idle_names": 4, "sweep_every": 1, "block_parts": 8}
    async with queue_on(disk, clock, **limits) as queue:
        await queue.configure("set", lease_ms=1_000)
        await queue.put("full", b"x", delay="1h", id="a")
        for number in range(150):
            name = f"user-{number}"
            await queue.put(name, name, id="a")
            (message,) = await queue.take(name)
            assert message.body == name.encode()
            assert await queue.ack(message) == Result.ACKED
            await queue.store.tick(clock.now_ms())
        assert len((await queue.stats()).topics) < 30
        assert len(embedded(queue).core.machine.topics.names) < 60
        # The ids of what was acked are remembered all the same.
        assert (await queue.put("user-0", b"again", id="a")).result == Result.KEPT
        named = [(e.topic, str(e.kind)) for e in (await queue.events(0, 1_000)).events]
        assert named[1:] == [
            (f"user-{number}", kind) for number in range(150) for kind in ("put", "take", "ack")
        ]
    async with queue_on(disk.copied(), clock, **limits) as queue:
        assert {"set", "full"} <= set((await queue.stats()).topics)
        assert (await queue.settings("set")).lease_ms == 1_000
        assert (await queue.get("full", "a")).body == b"x"
        await queue.put("one", b"more")
        assert len(await queue.take("one")) == 1


async def test_a_topic_with_the_number_of_another_has_its_whole_rate() -> None:
    clock = SimulatedClock()
    limits = {"idle_names": 4, "sweep_every": 1, "block_parts": 8}
    async with queue_on(FaultyDisk(), clock, **limits) as queue:
        for number in range(60):
            name = f"user-{number}"
            await queue.configure(name, rate="1/h")
            await queue.put_many(name, [b"x"] * 2)
            taken = await queue.take(name, 2)
            assert len(taken) == 1
            assert len(await queue.take(name, 2)) == 0
            await queue.ack(taken)
            await queue.delete_topic(name)
            await queue.store.tick(clock.now_ms())
        assert len(embedded(queue).core.machine.topics.names) < 60


async def test_unused_topics_are_searched_in_steps() -> None:
    """A step takes a millisecond for each thousand, during which nothing else runs."""
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock, idle_names=4, idle_step=10) as queue:
        await queue.configure("set", lease_ms=1_000)
        for number in range(95):
            await queue.put(f"user-{number}", b"x")
            await queue.ack(await queue.take(f"user-{number}", 1))
        machine = embedded(queue).core.machine
        counts = [len(machine.topics.numbered())]
        while counts[-1] > 1:
            machine.sweep()
            counts.append(len(machine.topics.numbered()))
            assert counts[-2] - 10 <= counts[-1] < counts[-2]


async def test_a_topic_after_many_forgotten_topics_is_restored() -> None:
    """Numbers of topics in a snapshot have gaps where topics were forgotten."""
    disk, clock = FaultyDisk(), SimulatedClock()
    limits = {"idle_names": 4, "sweep_every": 1}
    async with queue_on(disk, clock, **limits) as queue:
        for number in range(100):
            await queue.put(f"user-{number}", b"x")
        await queue.put("last", b"kept", delay="1h", id="a")
        await queue.configure("last", lease_ms=1_000)
        for number in range(400):
            await queue.put(f"user-{number}", b"x")
            await queue.ack(await queue.take(f"user-{number}", 2))
            await queue.store.tick(clock.now_ms())
        assert not {f"user-{number}" for number in range(100)} & set((await queue.stats()).topics)
        await embedded(queue).compact()
    async with queue_on(disk.copied(), clock, **limits) as queue:
        assert (await queue.settings("last")).lease_ms == 1_000
        assert (await queue.get("last", "a")).body == b"kept"


async def test_more_messages_than_numbers_can_name_are_refused() -> None:
    async with queue_on(FaultyDisk(), most_rows=20) as queue:
        await queue.put_many("t", [b"x"] * 15)
        with pytest.raises(StoreFull, match="holds 15 messages, at most 20 allowed"):
            await queue.put_many("t", [b"x"] * 6)
        await queue.put_many("t", [b"x"] * 5)
        await queue.ack(await queue.take("t", 1))
        await queue.put("t", b"x")


@pytest.mark.parametrize("sync", ["always", "never", "60000ms"])
async def test_what_is_synced_later_is_forgotten_with_its_file(sync: str) -> None:
    disk = FaultyDisk()
    async with queue_on(disk, sync=sync) as queue:
        for _ in range(80):
            await queue.put_many("t", [b"x" * 500] * 20)
            await queue.ack(await queue.take("t", 20))
        store = embedded(queue)
        await store.compact()
        await queue.put("t", b"written after what was released")
        journal = store.core.journal
        assert len(journal.segments) < 20
        assert journal._committer is not None
        open_now = {segment.fd for segment in journal.segments.values()}
        assert set(journal._committer._unsynced) <= open_now
    assert not disk.system.open_files


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (errno.EIO, StoreFailed, "open the store again"),
        (errno.EMFILE, StoreError, "no segment can be made"),
    ],
)
async def test_a_segment_that_cannot_be_made_is_an_error_of_the_store(
    code: int, error: type[StoreError], words: str
) -> None:
    class Broken(FaultyDisk):
        is_broken = False

        def create(self, path: Path, size_bytes: int) -> int:
            if self.is_broken and "journal" in path.name:
                raise OSError(code, "broken (injected)")
            return super().create(path, size_bytes)

    disk = Broken()
    async with queue_on(disk) as queue:
        await queue.put("t", b"first")
        disk.is_broken = True
        with pytest.raises(error, match=words):
            await put_many_times(queue)
        disk.is_broken = False
        if code == errno.EMFILE:
            # A process may have files again at any time.
            await put_many_times(queue)
        else:
            with pytest.raises(StoreFailed):
                await queue.put("t", b"x")


async def test_the_loop_waits_for_no_disk() -> None:
    class Watching(FaultyDisk):
        waited: tuple[str, ...] = ()
        is_on = False

        def sync(self, fd: int) -> None:
            self._note("sync")
            super().sync(fd)

        def sync_folder(self, folder: Path) -> None:
            self._note("sync_folder")
            super().sync_folder(folder)

        def _note(self, what: str) -> None:
            if self.is_on and threading.current_thread() is threading.main_thread():
                self.waited += (what,)

    disk = Watching()
    async with queue_on(disk, segment_bytes=1 << 20, event_file_bytes=4_000) as queue:
        disk.is_on = True
        for _ in range(60):
            await queue.put_many("t", [b"x" * 1_000] * 100)
            await queue.ack(await queue.take("t", 100))
        await embedded(queue).compact()
        disk.is_on = False
    assert not disk.waited


async def test_upkeep_that_fails_oddly_does_not_keep_the_folder(tmp_path: Path) -> None:
    class Odd(Disk):
        def create(self, path: Path, size_bytes: int) -> int:
            if "snapshot" in path.name:
                raise RuntimeError("odd (injected)")
            return super().create(path, size_bytes)

    queue = Queue(EmbeddedStore(tmp_path / "store", disk=Odd(), segment_bytes=SEGMENT_BYTES))
    await queue.open()
    for _ in range(100):
        await queue.put("t", b"x" * 2_000)
        await queue.ack(await queue.take("t"))
    with pytest.raises(RuntimeError):
        await queue.close()
    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        assert (await queue.stats()).topics["t"].ready == 0


async def test_a_scan_of_a_topic_that_is_deleted_meanwhile_shows_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = {"idle_names": 1, "sweep_every": 1, "block_events": 1, "block_parts": 1}
    async with queue_on(FaultyDisk(), **small) as queue:
        store = embedded(queue)
        topics = store.core.machine.topics
        await queue.put("mine", b"x", id="a", delay="1h")
        await queue.cancel("mine", "a")
        number = topics.find("mine")

        async def after_others(*given: Any) -> Any:
            await queue.delete_topic("mine")
            for at in range(100):
                await queue.put(f"other-{at}", b"secret", delay="1h")
                await store.tick(store.clock.now_ms())
                if topics.find(f"other-{at}") == number:
                    return await paged(*given)
            raise AssertionError(f"nobody got the number {number}")

        monkeypatch.setattr(store_of_folders, "paged", after_others)
        assert len((await queue.scan("mine", State.DELAYED)).messages) == 0
