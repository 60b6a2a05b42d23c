"""A disk that is small or full: what lives and goes needs no room, and what was freed is used."""

import asyncio
import contextlib
import errno
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dwell.batch.batch import Batch
from dwell.clock import SimulatedClock
from dwell.errors import DiskFull
from dwell.message import Result
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.limits import Limits
from dwell.testing.faults import FaultyDisk, FaultySystem
from dwell.testing.names import CachedFolder
from tests.store.upkeep import end_of_upkeep

SEGMENT_BYTES = 64 * 1024
FOLDER = Path("/stores/store")


class SlowToClose(FaultyDisk):
    def _system_on(
        self, root: CachedFolder, chance: random.Random, size_bytes: int
    ) -> FaultySystem:
        class Slow(FaultySystem):
            def close(self, fd: int) -> None:
                time.sleep(0.02)
                super().close(fd)

        return Slow(root, chance, size_bytes)


def queue_on(disk: FaultyDisk, clock: SimulatedClock | None = None) -> Queue:
    limits = Limits(snapshot_rows=64, room_rows=64)
    return Queue(
        EmbeddedStore(FOLDER, clock=clock, disk=disk, segment_bytes=SEGMENT_BYTES, limits=limits)
    )


def store_of(queue: Queue) -> EmbeddedStore:
    assert isinstance(queue.store, EmbeddedStore)
    return queue.store


async def use_up(call: Callable[[], Awaitable[object]]) -> int:
    """Do something as often as there is room for it, and return how often that was."""
    done = 0
    with contextlib.suppress(DiskFull):
        while done < 100_000:
            await call()
            done += 1
    assert done < 100_000
    return done


async def until_full(call: Callable[[], Awaitable[object]]) -> int:
    """Do something until the disk is full, and return how often it was done."""
    done = await use_up(call)
    assert done > 0
    return done


async def live(queue: Queue, rounds: int, first: int = 0) -> int:
    """Put, take and ack, again while there is no room; return how often there was none."""
    refused = 0
    for number in range(first, first + rounds):
        while True:
            try:
                await queue.put("t", b"x" * 4096, id=f"{number}")
                break
            except DiskFull:
                refused += 1
                assert refused < 10_000
                await end_of_upkeep(store_of(queue))
                await asyncio.sleep(0.01)
        (message,) = await queue.take("t")
        assert message.id == f"{number}"
        assert await queue.ack(message) == Result.ACKED
    return refused


@pytest.mark.parametrize("segments", [5, 6, 7, 9, 14])
async def test_churn_with_little_pending_never_fills_a_small_disk(segments: int) -> None:
    disk = FaultyDisk(size_bytes=segments * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        assert not await live(queue, 200)
    async with queue_on(disk.copied()) as queue:
        assert not await live(queue, 50, first=200)


async def test_a_store_goes_on_by_itself_when_its_messages_are_acked() -> None:
    disk = FaultyDisk(size_bytes=12 * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        put = await until_full(lambda: queue.put("t", b"x" * 2000))
        for _ in range(put):
            assert await queue.ack(await queue.take("t")) == [Result.ACKED]
        await live(queue, 100)


async def test_a_put_needs_no_other_verb_after_a_snapshot_to_find_what_acks_made_free() -> None:
    disk = FaultyDisk(size_bytes=12 * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        await until_full(lambda: queue.put("t", b"x" * 2000))
        await end_of_upkeep(store_of(queue))
        await queue.ack(await queue.take("t", 64))
        store = store_of(queue)
        # It only sees which segments are dead, and they go with the next.
        await store.compact()
        await queue.put("t", b"x" * 2000)


async def test_what_is_freed_is_needed_by_no_snapshot_that_is_left() -> None:
    disk = FaultyDisk()
    async with queue_on(disk) as queue:
        store = store_of(queue)
        for _ in range(10):
            await queue.put_many("t", [b"x" * 2000] * 20)
        await store.compact()
        await queue.ack(await queue.take("t", 150))
        for _ in range(3):
            await store.compact()
            snapshots = {name for name in disk.names(FOLDER) if name.startswith("snapshot")}
            for name in snapshots:
                alone = disk.copied()
                for other in snapshots - {name}:
                    alone.remove(FOLDER / other)
                async with queue_on(alone) as copy:
                    assert (await copy.stats()).totals["ack"] == 150
                    assert len((await copy.peek("t", 100)).bodies) == 50


VERBS: dict[str, Callable[[Queue, Batch], Awaitable[object]]] = {
    "configure": lambda queue, taken: queue.configure("t", lease_ms=5_000),
    "take": lambda queue, taken: queue.take("t"),
    "take by id": lambda queue, taken: queue.take_ids("t", ["last"]),
    "release": lambda queue, taken: queue.release(taken[128]),
    "touch": lambda queue, taken: queue.touch(taken[129]),
    "bury": lambda queue, taken: queue.bury(taken[130]),
    "kick": lambda queue, taken: queue.kick("t", [taken[131].id]),
    "reschedule": lambda queue, taken: queue.reschedule("t", "last", delay="1h"),
    "cancel": lambda queue, taken: queue.cancel("t", "last"),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_each_verb_finds_what_acks_made_free(verb: str) -> None:
    disk = FaultyDisk(size_bytes=12 * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        await queue.put("t", b"", id="last", priority=2_000)
        await until_full(lambda: queue.put("t", b"x" * 2000))
        taken = await queue.take("t", 132, lease="1h")
        await queue.bury(taken[131])
        await until_full(lambda: queue.touch(taken[129], lease="1h"))
        await queue.ack(taken[:128])
        await VERBS[verb](queue, taken)


async def test_a_clock_that_was_wrong_while_the_disk_was_full_leaves_no_mark() -> None:
    clock, disk = SimulatedClock(), FaultyDisk(size_bytes=30 * SEGMENT_BYTES)
    async with queue_on(disk, clock) as queue:
        await queue.put_many("e", [b"E"] * 5, ttl="10m")
        await queue.put_many("l", [b"L"] * 5)
        await queue.take("l", 5, lease="5m")
        await queue.put_many("t", [b""] * 1_000)
        taken = await queue.take("t", 100, lease="6d")
        await until_full(lambda: queue.put("f", b"x" * 2000, delay="300d"))
        await use_up(lambda: queue.touch(taken[:1], lease="6d"))
        with contextlib.suppress(DiskFull):
            for message in taken:
                await queue.ack(message)
        for step_ms in (432_000_000, -432_000_000):
            clock.advance(step_ms)
            with contextlib.suppress(DiskFull):
                await queue.store.tick(clock.now_ms())
        disk.free()
        clock.advance(3_600_000)
        await queue.store.tick(clock.now_ms())
        topics = (await queue.stats()).topics
        assert (topics["l"].ready, topics["l"].leased) == (5, 0)
        assert (topics["e"].ready, topics["e"].dead) == (0, 5)


async def test_ends_that_there_is_no_room_for_hinder_no_ack() -> None:
    clock, disk = SimulatedClock(), FaultyDisk(size_bytes=30 * SEGMENT_BYTES)
    async with queue_on(disk, clock) as queue:
        for _ in range(4):
            await queue.put_many("e", [b""] * 1_000, ttl="1m")
        await queue.put_many("t", [b"job"] * 40)
        await until_full(lambda: queue.put("f", b"x" * 2000, delay="5h"))
        taken = await queue.take("t", 20, lease="1h")
        await use_up(lambda: queue.touch(taken[:1], lease="1h"))
        clock.advance(61_000)
        for message in taken[:5]:
            assert await queue.ack(message) == Result.ACKED


def flip_a_bit(disk: FaultyDisk, path: Path) -> None:
    fd, at = disk.open(path), disk.size_bytes(path) - 100
    disk.write(fd, [bytes([disk.read_part(fd, 1, at)[0] ^ 1])], at)
    disk.close(fd)


async def test_a_damaged_snapshot_is_not_the_one_that_a_full_disk_keeps() -> None:
    disk = FaultyDisk(size_bytes=40 * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        for _ in range(3):
            for _ in range(3):
                await queue.put_many("t", [b"x" * 2000] * 20)
            await queue.ack(await queue.take("t", 55))
            store = store_of(queue)
            await store.compact()
        await end_of_upkeep(store_of(queue))
        await queue.put_many("t", [b"z" * 2000] * 10)
        disk.kill()
    disk = disk.restarted()
    newest = FOLDER / max(name for name in disk.names(FOLDER) if name.startswith("snapshot"))
    flip_a_bit(disk, newest)
    async with queue_on(disk) as queue:
        store = store_of(queue)
        disk.system.size_bytes = disk.system.used_bytes + 4_096
        await store.compact()
        assert not disk.exists(newest)
        disk.kill()
    async with queue_on(disk.restarted()) as queue:
        assert (await queue.stats()).topics["t"].ready == 25


async def test_a_snapshot_in_the_place_of_a_damaged_one_counts() -> None:
    disk = FaultyDisk()
    for _ in range(2):
        async with queue_on(disk) as queue:
            await queue.put_many("t", [b"x" * 2000] * 20)
        disk = disk.copied()
    newest = FOLDER / max(name for name in disk.names(FOLDER) if name.startswith("snapshot"))
    flip_a_bit(disk, newest)
    async with queue_on(disk) as queue:
        store = store_of(queue)
        await store.compact()
        assert disk.exists(newest)
        await queue.ack(await queue.take("t", 35))
        for _ in range(3):
            await store.compact()
            async with queue_on(disk.copied()) as copy:
                assert len((await copy.peek("t", 100)).bodies) == 5


async def test_a_restart_needs_no_more_room_than_before() -> None:
    disk = FaultyDisk(size_bytes=24 * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        store = store_of(queue)
        for _ in range(40):
            await queue.put_many("t", [b""] * 100, delay="1h")
        for lease_ms in (1_000, 2_000):
            await queue.configure("t", lease_ms=lease_ms)
            await store.compact()
        await queue.put_many("t", [b""] * 50, delay="1h")
    async with queue_on(disk.copied()) as queue:
        await queue.put_many("t", [b""] * 50, delay="1h")


@pytest.mark.parametrize("turns", range(8))
async def test_nothing_is_kept_up_behind_the_lock(turns: int) -> None:
    queue = queue_on(FaultyDisk())
    async with queue:
        store = store_of(queue)
        await queue.put_many("t", [b"x" * 200] * 100, delay="1h")
        first = asyncio.create_task(store.compact())
        for _ in range(turns):
            await asyncio.sleep(0)
        await queue.put("t", b"later", delay="1h")
        second = asyncio.create_task(store.compact())
        await asyncio.sleep(0)
    assert store.core._upkeep is None
    await asyncio.gather(first, second)
    assert store.core._upkeep is None


async def test_what_could_not_be_freed_is_freed_later() -> None:
    disk = FaultyDisk(size_bytes=12 * SEGMENT_BYTES)

    def fail(path: Path, size_bytes: int) -> int:
        raise OSError(errno.EIO, "it cannot be made (injected)")

    async with queue_on(disk) as queue:
        await until_full(lambda: queue.put("t", b"x" * 2000))
        await end_of_upkeep(store_of(queue))
        await queue.ack(await queue.take("t", 128))
        disk.create = fail  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await queue.put("t", b"x" * 2000)
        await end_of_upkeep(store_of(queue))
        del disk.create
        for _ in range(1_000):
            with contextlib.suppress(DiskFull):
                await queue.put("t", b"x" * 2000)
                return
            await asyncio.sleep(0.02)
        pytest.fail("there is never room")


async def test_room_that_a_closing_file_still_holds_is_waited_for() -> None:
    disk = SlowToClose(size_bytes=12 * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        await until_full(lambda: queue.put("t", b"x" * 2000))
        await end_of_upkeep(store_of(queue))
        await queue.ack(await queue.take("t", 64))
        await queue.put("t", b"x" * 2000)


async def test_a_store_goes_on_by_itself_when_others_free_room() -> None:
    disk = FaultyDisk(size_bytes=6 * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        await until_full(lambda: queue.put("t", b"x" * 2000))
        disk.system.size_bytes *= 2
        await queue.put("t", b"y")


async def end_leases(queue: Queue, clock: SimulatedClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1_000)
        await queue.store.tick(clock.now_ms())


async def test_touches_leave_the_room_for_acks_and_reads_need_none() -> None:
    clock = SimulatedClock()
    disk = FaultyDisk(size_bytes=6 * SEGMENT_BYTES)
    async with queue_on(disk, clock) as queue:
        await until_full(lambda: queue.put("t", b"x" * 500))
        taken = await queue.take("t", 15, lease="1h")
        for number in range(200):
            await queue.take("t", 1, lease=f"{number + 1}s")
        await until_full(lambda: queue.touch(taken[:1], lease="1h"))
        with pytest.raises(DiskFull):
            queue.store.check()
        for message in taken[:7]:
            assert await queue.ack(message) == Result.ACKED
        # Leases that end have to be written: what reads does without.
        with pytest.raises(DiskFull):
            await end_leases(queue, clock, 200)
        assert (await queue.stats()).topics["t"].ready
        assert (await queue.events(0, 10)).end_position > 0
        assert len(await queue.peek("t", 5)) == 5


async def test_what_a_start_removes_does_not_come_back() -> None:
    disk = FaultyDisk()
    async with queue_on(disk) as queue:
        await queue.put_many("t", [b"x" * 1000] * 40)
        await end_of_upkeep(store_of(queue))
        assert "journal-00000001.dwl" in disk.only_synced().names(FOLDER)
        killed = disk.copied()
    write = killed.write

    def after_the_removal(*args):
        if "journal-00000001.dwl" not in killed.names(FOLDER):
            assert "journal-00000001.dwl" not in killed.only_synced().names(FOLDER)
        return write(*args)

    # Not a byte is written before, so that nothing can seem to be followed by what comes back.
    killed.write = after_the_removal
    async with queue_on(killed):
        assert "journal-00000001.dwl" not in killed.only_synced().names(FOLDER)


async def test_without_a_snapshot_s_room_no_segment_is_made() -> None:
    disk = FaultyDisk(size_bytes=8 * SEGMENT_BYTES)
    async with queue_on(disk) as queue:
        await until_full(lambda: queue.put_many("t", [b""] * 100, delay="1h"))
        store = store_of(queue)
        await end_of_upkeep(store_of(queue))
        for lease_ms in (1_000, 2_000, 3_000):
            await queue.configure("t", lease_ms=lease_ms)
            await store.compact()
            assert store.core.compactor.covered == store.core.journal.position


async def pass_through(queue: Queue, rounds: int) -> int:
    """Put, take and ack messages with ids of the caller's; return how many puts were refused."""
    refused = 0
    for number in range(rounds):
        ids = [f"order-{number}-{at}" for at in range(500)]
        try:
            await queue.put_many("t", [b"x" * 20] * 500, ids=ids)
        except DiskFull:
            refused += 1
        assert len(await queue.ack(await queue.take("t", 500))) in (0, 500)
        await end_of_upkeep(store_of(queue))
    return refused


async def test_remembered_ids_leave_a_snapshot_its_room(caplog: pytest.LogCaptureFixture) -> None:
    """Events give way to them, and what has been remembered long enough gives way to more."""
    clock = SimulatedClock()
    disk = FaultyDisk(size_bytes=20 * SEGMENT_BYTES)
    async with queue_on(disk, clock) as queue:
        assert not await pass_through(queue, 30)
        # Each id takes 32 bytes in two snapshots; what does not fit is refused, no more.
        assert await pass_through(queue, 60)
        assert "no snapshot" not in caplog.text
        clock.advance(700_000)
        assert not await pass_through(queue, 10)
        assert "no snapshot" not in caplog.text
    async with queue_on(disk, clock) as queue:
        assert not await pass_through(queue, 1)


async def test_events_make_room_for_remembered_ids() -> None:
    disk = FaultyDisk(size_bytes=8 << 20)
    store = EmbeddedStore(FOLDER, disk=disk, segment_bytes=256 * 1024)
    async with Queue(store) as queue:
        # These are fifteen megabytes of events, and three of ids in two snapshots.
        assert not await pass_through(queue, 200)
        events = store.core.machine.events
        assert events.next_position - events.first_position > 10_000
