"""The event log while a block of it is being written in a thread."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dwell import Queue
from dwell.errors import DiskFull, StoreFailed
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.disk import Buffer, Disk

_MANY = 10_000


class HeldDisk(Disk):
    """A disk whose writes of large blocks of events wait until they are let go, and may fail."""

    def __init__(self) -> None:
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


async def put_until_held(queue: Queue, disk: HeldDisk) -> None:
    """Put 40,000 messages, and return when the block of their puts is under way."""
    for _ in range(4):
        await queue.put_many("t", [b"x"] * _MANY)
    await asyncio.to_thread(disk.come.wait, 60)


@contextlib.asynccontextmanager
async def a_block_being_written(folder: Path, disk: HeldDisk):
    """Yield a queue with 40,000 messages, while the block of their puts is under way."""
    async with Queue(EmbeddedStore(folder, disk=disk)) as queue:
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


def test_verbs_go_on_and_events_are_read_when_they_are_written(tmp_path: Path) -> None:
    async def main() -> None:
        disk = HeldDisk()
        async with a_block_being_written(tmp_path / "s", disk) as queue:
            taken = await queue.take("t", 100)
            await queue.ack(taken)
            readers = [asyncio.create_task(queue.events(0, 10)) for _ in range(3)]
            await asyncio.sleep(0.05)
            assert not any(reader.done() for reader in readers)
            readers[0].cancel()
            await asyncio.wait([readers[0]])
            disk.go.set()
            for reader in readers[1:]:
                assert (await reader).events.positions.tolist() == list(range(10))
            assert await positions_of(queue) == list(range(4 * _MANY + 200))
        assert await positions_in(tmp_path / "s") == list(range(4 * _MANY + 200))

    asyncio.run(main())


def test_a_close_waits_for_the_block(tmp_path: Path) -> None:
    async def main() -> None:
        disk = HeldDisk()
        async with a_block_being_written(tmp_path / "s", disk):
            asyncio.get_running_loop().call_later(0.05, disk.go.set)
        assert await positions_in(tmp_path / "s") == list(range(4 * _MANY))

    asyncio.run(main())


def test_a_block_that_cannot_be_written_stops_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        disk = HeldDisk()
        disk.error = OSError(errno.EIO, "broken (injected)")
        async with a_block_being_written(tmp_path / "s", disk) as queue:
            disk.go.set()
            with pytest.raises(StoreFailed, match="broken"):
                await queue.events(0, 10)
            with pytest.raises(StoreFailed, match="broken"):
                await queue.put("t", b"y")
        assert await positions_in(tmp_path / "s") == list(range(4 * _MANY))

    asyncio.run(main())


def test_without_room_events_wait_in_memory(tmp_path: Path) -> None:
    async def main() -> None:
        disk = HeldDisk()
        disk.error = OSError(errno.ENOSPC, "no room (injected)")
        async with a_block_being_written(tmp_path / "s", disk) as queue:
            disk.go.set()
            with pytest.raises(DiskFull, match="event log"):
                await queue.events(0, 10)
            await queue.ack(await queue.take("t", 100))
            disk.error = None
            assert await positions_of(queue) == list(range(4 * _MANY + 200))
            disk.error = OSError(errno.ENOSPC, "no room (injected)")
            for _ in range(4):
                await queue.put_many("t", [b"y"] * _MANY)
        assert await positions_in(tmp_path / "s") == list(range(8 * _MANY + 200))

    asyncio.run(main())


def test_a_store_opens_without_room_for_its_events(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
            if "events-" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.ENOSPC, "no room (injected)")
            super().write(fd, buffers, offset)

    async def main() -> None:
        for start in range(2):
            async with Queue(EmbeddedStore(tmp_path / "s", disk=FullDisk())) as queue:
                await queue.put_many("t", [b"x"] * _MANY)
                assert (await queue.stats()).topics["t"].ready == (start + 1) * _MANY
        assert await positions_in(tmp_path / "s") == list(range(2 * _MANY))

    asyncio.run(main())


def test_a_close_that_is_cancelled_waits_for_the_block_too(tmp_path: Path) -> None:
    async def main() -> None:
        disk = HeldDisk()
        queue = Queue(EmbeddedStore(tmp_path / "s", disk=disk))
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

    asyncio.run(main())
