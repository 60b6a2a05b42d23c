"""The event log while a block of it is being written in a thread."""

import asyncio
import contextlib
import errno
import os
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dwell import Queue
from dwell.errors import StoreError, StoreFailed
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.eventfile import EventFile
from dwell.store.embedded.limits import Limits
from dwell.testing.faults import FaultyDisk

_MANY = 10_000
_LIMITS = Limits(block_events=4 * _MANY)


class HeldDisk(Disk):
    """A disk whose writes of large blocks of events wait until they are let go, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.come = threading.Event()
        self.go = threading.Event()
        self.error: OSError | None = None

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        if threading.current_thread().name.startswith("asyncio"):
            self.come.set()
            assert self.go.wait(60)
            if self.error is not None:
                raise self.error
        super().write(fd, buffers, offset)


def store_of(queue: Queue) -> EmbeddedStore:
    store = queue.store
    assert isinstance(store, EmbeddedStore)
    return store


async def put_until_held(queue: Queue, disk: HeldDisk) -> None:
    """Put 40,000 messages, and return when the block of their puts is under way."""
    for _ in range(4):
        await queue.put_many("t", [b"x"] * _MANY)
    await asyncio.to_thread(disk.come.wait, 60)


@contextlib.asynccontextmanager
async def a_block_being_written(folder: Path, disk: HeldDisk):
    """Yield a queue with 40,000 messages, while the block of their puts is under way."""
    async with Queue(EmbeddedStore(folder, disk=disk, limits=_LIMITS)) as queue:
        await put_until_held(queue, disk)
        yield queue


async def positions_of(queue: Queue) -> list[int]:
    found: list[int] = []
    while len(page := (await queue.events(len(found), _MANY)).events):
        found += page.positions.tolist()
    return found


async def positions_in(folder: Path) -> list[int]:
    async with Queue(EmbeddedStore(folder)) as queue:
        return await positions_of(queue)


async def test_verbs_go_on_and_events_are_read_when_they_are_written(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with a_block_being_written(tmp_path / "s", disk) as queue:
        taken = await queue.take("t", 100)
        await queue.ack(taken)
        assert (await queue.events(0, 10)).events.positions.tolist() == list(range(10))
        disk.go.set()
        assert await positions_of(queue) == list(range(4 * _MANY + 200))
    assert await positions_in(tmp_path / "s") == list(range(4 * _MANY + 200))


async def test_a_close_waits_for_the_block(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with a_block_being_written(tmp_path / "s", disk):
        asyncio.get_running_loop().call_later(0.05, disk.go.set)
    assert await positions_in(tmp_path / "s") == list(range(4 * _MANY))


async def test_a_block_that_cannot_be_written_stops_the_store(tmp_path: Path) -> None:
    disk = HeldDisk()
    disk.error = OSError(errno.EIO, "broken (injected)")
    async with a_block_being_written(tmp_path / "s", disk) as queue:
        disk.go.set()
        while store_of(queue).core.journal.failure is None:
            await asyncio.sleep(0)
        with pytest.raises(StoreFailed, match="broken"):
            await queue.put("t", b"y")
    assert await positions_in(tmp_path / "s") == list(range(4 * _MANY))


async def test_without_room_events_wait_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = HeldDisk()
    disk.error = OSError(errno.ENOSPC, "no room (injected)")
    async with a_block_being_written(tmp_path / "s", disk) as queue:
        disk.go.set()
        while "waits in memory" not in caplog.text:
            await asyncio.sleep(0)
        await queue.ack(await queue.take("t", 100))
        disk.error = None
        assert await positions_of(queue) == list(range(4 * _MANY + 200))
        disk.error = OSError(errno.ENOSPC, "no room (injected)")
        for _ in range(4):
            await queue.put_many("t", [b"y"] * _MANY)
    assert await positions_in(tmp_path / "s") == list(range(8 * _MANY + 200))


async def test_a_store_opens_without_room_for_its_events(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
            if "events-" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.ENOSPC, "no room (injected)")
            super().write(fd, buffers, offset)

    for start in range(2):
        async with Queue(EmbeddedStore(tmp_path / "s", disk=FullDisk())) as queue:
            await queue.put_many("t", [b"x"] * _MANY)
            assert (await queue.stats()).topics["t"].ready == (start + 1) * _MANY
    assert await positions_in(tmp_path / "s") == list(range(2 * _MANY))


async def test_a_close_that_is_cancelled_waits_for_the_block_too(tmp_path: Path) -> None:
    disk = HeldDisk()
    queue = Queue(EmbeddedStore(tmp_path / "s", disk=disk, limits=_LIMITS))
    await queue.open()
    await put_until_held(queue, disk)
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    await asyncio.sleep(0.05)
    assert not closing.done()
    disk.go.set()
    await asyncio.wait([closing])
    assert await positions_in(tmp_path / "s") == list(range(4 * _MANY))


# --- what is missing or damaged ---------------------------------------------------------------

_SMALL = Limits(block_parts=3, block_events=20, event_file_bytes=900)


async def with_files(folder: Path, disk: Disk | None = None, rounds: int = 40) -> None:
    """Fill a store whose event log has many small files, and close it."""
    async with Queue(EmbeddedStore(folder, disk=disk, limits=_SMALL)) as queue:
        for number in range(rounds):
            await queue.put("t", b"x", id=f"id-{number}")
            await queue.ack(await queue.take("t"))


async def told(
    folder: Path, first: int = 0, limit: int = 7
) -> tuple[int, list[tuple[int, str, str]]]:
    """Return where the log begins, and what a reader is told who begins at a position."""
    async with Queue(EmbeddedStore(folder, limits=_SMALL)) as queue:
        found: list[tuple[int, str, str]] = []
        page = await queue.events(first, limit)
        while len(page.events):
            found += [(event.position, str(event.kind), event.id) for event in page.events]
            page = await queue.events(page.next_position, limit)
        return page.first_position, found


async def test_a_log_with_a_gap_is_told_of_and_begins_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await with_files(tmp_path / "s")
    whole = (await told(tmp_path / "s"))[1]
    files = sorted((tmp_path / "s").glob("events-*"))
    assert len(files) > 4
    behind = int(files[3].stem.removeprefix("events-"))
    files[2].unlink()
    for first in (0, behind - 1, behind, behind + 1):
        assert await told(tmp_path / "s", first) == (behind, whole[max(first, behind) :])
    assert f"the event log begins at {behind} now, and not at 0" in caplog.text


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(60))
async def test_a_bit_that_turned_is_never_told(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    await with_files(tmp_path / "s", rounds=12)
    whole = (await told(tmp_path / "s"))[1]
    chance = random.Random(seed)
    path = chance.choice(sorted((tmp_path / "s").glob("events-*")))
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    # Pages of many sizes, as damage may be met anywhere in one.
    first, events = await told(tmp_path / "s", limit=1 + seed % 11)
    assert 0 < first <= len(whole)
    # Of what came before the damage a part may have been told, in order, before it was met; all
    # that follows it is told.
    before = len(events) - (len(whole) - first)
    assert 0 <= before <= first
    assert events == whole[:before] + whole[first:]
    assert "the event log begins at" in caplog.text


async def test_an_error_of_the_disk_is_the_stores_and_forgets_nothing() -> None:
    disk = FaultyDisk(seed=3)
    await with_files(Path("/store"), disk)
    async with Queue(EmbeddedStore(Path("/store"), disk=disk, limits=_SMALL)) as queue:
        disk.arm("read", 0)
        with pytest.raises(StoreError, match="read failed"):
            await queue.events(0, 7)
        page = await queue.events(0, 7)
        assert (page.first_position, len(page.events)) == (0, 7)


async def test_all_files_are_safe_before_a_snapshot_counts_on_them() -> None:
    disk = FaultyDisk(seed=3)
    folder = Path("/store")
    await with_files(folder, disk)
    disk.lose_power()
    before = disk.restarted()

    async with Queue(EmbeddedStore(folder, disk=before, limits=_SMALL)) as queue:
        page = await queue.events(0, 1_000)
        assert page.first_position == 0
        assert page.events.positions.tolist() == list(range(120))


async def test_what_waits_in_memory_is_told_from_any_position() -> None:
    async with Queue(EmbeddedStore(Path("/store"), disk=FaultyDisk())) as queue:
        for count in (12, 1, 3, 20, 1):
            await queue.put_many("t", [b"x"] * count)
        whole = [(e.position, e.id) for e in (await queue.events(0, 1_000)).events]
        assert [position for position, _ in whole] == list(range(37))
        for first in range(38):
            for limit in (1, 5, 100):
                page = (await queue.events(first, limit)).events
                found = [(event.position, event.id) for event in page]
                assert found == whole[first : first + limit]


@pytest.mark.parametrize("replayed_parts", [1, 1_000])
async def test_one_block_has_ids_from_many_segments(replayed_parts: int) -> None:
    """Of those that are written live, and those that a start makes again after a kill."""
    disk, limits = FaultyDisk(), Limits(block_parts=50, replayed_parts=replayed_parts)
    path, ids = Path("/store"), [f"{number:x}" * (number % 7) for number in range(200)]

    def store() -> EmbeddedStore:
        return EmbeddedStore(path, disk=disk, segment_bytes=1 << 16, limits=limits)

    async with Queue(store()) as queue:
        for id_ in ids[:120]:
            await queue.put("t", b"x" * 5_000, id=id_ or None)
    queue = Queue(store())
    await queue.open()
    for id_ in ids[120:]:
        await queue.put("t", b"x" * 5_000, id=id_ or None)
    disk.kill()
    disk = disk.restarted()
    async with Queue(store()) as queue:
        told = [event.id for event in (await queue.events(0, 1_000)).events]
        assert [there for there, id_ in zip(told, ids, strict=True) if id_] == list(
            filter(None, ids)
        )


async def test_a_start_leaves_many_small_events_to_be_written_but_not_many_events() -> None:
    disk, limits = FaultyDisk(), Limits(block_parts=4, block_events=100, replayed_parts=20)
    path = Path("/store")

    async def waiting_after(*counts: int) -> int:
        nonlocal disk
        queue = Queue(EmbeddedStore(path, disk=disk, limits=limits))
        await queue.open()
        for count in counts:
            await queue.put_many("t", [b"x"] * count)
        disk.kill()
        disk = disk.restarted()
        async with Queue(EmbeddedStore(path, disk=disk, limits=limits)) as queue:
            events = store_of(queue).core.machine.events
            return events.next_position - events.written_position

    assert await waiting_after(*[1] * 19) == 19
    assert await waiting_after(*[60] * 10) < 100


def test_a_block_takes_little_memory_however_few_events_it_has() -> None:
    log = EventFile(Path("/nowhere"), 0, -1)
    for number in range(1_000):
        log.written(3 * number, 3, 240)
    held = sys.getsizeof(log._firsts) + sys.getsizeof(log._offsets)
    assert held < 20 * 1_000
    assert [log.end_of(number) for number in (0, 2, 3, 2_999)] == [3, 3, 6, 3_000]
