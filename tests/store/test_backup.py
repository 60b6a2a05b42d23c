"""A backup is a store of one moment, whatever goes on meanwhile; and it is whole or not there."""

import asyncio
import contextlib
import io
import os
import random
import shutil
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import dwell
from dwell.errors import DiskFull, ForeignReceipt, InvalidInput, StoreClosed, StoreDamaged
from dwell.message import State
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.backup import checkpoint
from dwell.store.embedded.backup.tar import checkpoint_tar, unpack_tar
from dwell.store.embedded.check import check
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.thread import in_thread
from dwell.store.memory import MemoryStore
from dwell.testing.faults import FaultyDisk
from tests.descriptors import descriptors_in
from tests.store.test_faults import Script, everything, puts_of
from tests.store.upkeep import end_of_upkeep
from tests.waiting import until_async

SEGMENT_BYTES = 64 * 1024
ROUNDS = 6


class Load:
    """Puts, takes, acks and cancels without a pause; it knows what must be there, and what may."""

    def __init__(self, queue: dwell.Queue, seed: int) -> None:
        self.queue = queue
        self.random = random.Random(seed)
        self.count = 0
        self.alive: set[str] = set()
        self.unsure: set[str] = set()

    async def put(self) -> None:
        while True:
            ids = [f"{self.count + n}" for n in range(self.random.choice((1, 7, 30)))]
            self.count += len(ids)
            self.unsure |= set(ids)
            bodies = [f"{id_} ".encode() * 60 for id_ in ids]
            delay = self.random.choice(("0s", "0s", "1h"))
            await self.queue.put_many("t", bodies, ids=ids, delay=delay)
            self.unsure -= set(ids)
            self.alive |= set(ids)

    async def ack(self) -> None:
        while True:
            batch = await self.queue.take("t", self.random.choice((1, 25)), wait="1s")
            self.unsure |= set(batch.ids)
            await self.queue.ack(batch)
            self.unsure -= set(batch.ids)
            self.alive -= set(batch.ids)

    async def cancel(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            ids = self.random.sample(sorted(self.alive - self.unsure), min(len(self.alive), 5))
            self.unsure |= set(ids)
            results = await self.queue.cancel("t", ids)
            gone = {i for i, r in zip(ids, results, strict=True) if r is dwell.Result.CANCELLED}
            self.unsure -= set(ids)
            self.alive -= gone


@contextlib.asynccontextmanager
async def loaded(queue: dwell.Queue, seed: int):
    load = Load(queue, seed)
    tasks = [asyncio.create_task(w()) for w in (load.put, load.put, load.ack, load.cancel)]
    try:
        yield load
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(d, asyncio.CancelledError) for d in done), done


def store_of(queue: dwell.Queue) -> EmbeddedStore:
    assert isinstance(queue.store, EmbeddedStore)
    return queue.store


async def ids_of(folder: Path) -> set[str]:
    found: set[str] = set()
    async with dwell.open(folder) as queue:
        for state in (State.DELAYED, State.READY, State.LEASED, State.DEAD):
            async for batch in queue.pages("t", state):
                for message in batch:
                    assert message.body.startswith(f"{message.id} ".encode())
                    found.add(message.id)
    return found


async def copy_to(store: EmbeddedStore, folder: Path, way: str) -> None:
    if way == "folder":
        await store.backup(folder)
        return
    tar = await checkpoint_tar(store)
    chunks = [chunk async for chunk in tar]
    assert sum(map(len, chunks)) == tar.size_bytes

    async def again():
        for chunk in chunks:
            yield chunk

    await unpack_tar(again(), folder)


@pytest.mark.parametrize("way", ["folder", "tar"])
async def test_a_backup_under_load_is_the_store_of_one_moment(tmp_path: Path, way: str) -> None:
    kept: list[tuple[Path, set[str], set[str]]] = []
    async with (
        dwell.open(tmp_path / "store", segment_bytes=SEGMENT_BYTES) as queue,
        loaded(queue, seed=7) as load,
    ):
        for number in range(ROUNDS):
            await asyncio.sleep(0.15)
            sure = load.alive - load.unsure
            before = load.count
            place = tmp_path / f"copy-{number}"
            went = {"alive": set(load.alive), "unsure": set(load.unsure)}
            await copy_to(store_of(queue), place, way)
            # What was there before and is there after was there at that moment.
            lasting = sure & load.alive - load.unsure
            gone = {str(n) for n in range(before)} - went["alive"] - went["unsure"]
            kept.append((place, lasting, gone))
    segments = sorted((tmp_path / "store").glob("journal-*"))
    assert int(segments[0].stem[-8:]) > 0, "nothing was compacted"
    for place, lasting, gone in kept:
        report = await asyncio.to_thread(check, place)
        assert report.ok, report.findings
        found = await ids_of(place)
        assert lasting <= found
        assert not gone & found
        assert found
        assert not list(place.glob("*.new"))
    assert not list(tmp_path.glob("*.new"))
    assert not list((tmp_path / "store").glob("*.new"))


async def test_the_events_of_a_backup_are_those_of_the_store(tmp_path: Path) -> None:
    async with (
        dwell.open(tmp_path / "store", segment_bytes=SEGMENT_BYTES) as queue,
        loaded(queue, seed=8),
    ):
        for number in range(4):
            await asyncio.sleep(0.1)
            await store_of(queue).backup(tmp_path / f"copy-{number}")
        async with dwell.open(tmp_path / "copy-3") as copy:
            page = await copy.events(0, 10_000)
            first = await queue.events(0, len(page.events))
            assert len(page.events) > 500
            assert page.first_position == 0
            assert list(page.events) == list(first.events)


class SlowDisk(Disk):
    """A disk whose syncs take so long that the journal's next frames are written together."""

    def sync(self, fd: int) -> None:
        if threading.current_thread().name == "dwell-committer":
            time.sleep(0.2)
        super().sync(fd)


async def test_events_that_are_written_with_later_ones_are_in_the_backup(tmp_path: Path) -> None:
    async with dwell.open(tmp_path / "store", disk=SlowDisk()) as queue:
        store, puts = store_of(queue), []
        # The second is written while the first is synced.
        queue._turns.most = 2
        for name in ("a", "b"):
            puts.append(asyncio.create_task(queue.put("t", b"", id=name)))
            await asyncio.sleep(0.05)
        backup = asyncio.create_task(store.backup(tmp_path / "copy"))
        await asyncio.sleep(0)
        puts.append(asyncio.create_task(queue.put("t", b"", id="c")))
        await asyncio.sleep(0.01)
        store.core._flush_full()
        await asyncio.gather(backup, *puts)
    async with dwell.open(tmp_path / "copy") as copy:
        assert [event.id for event in (await copy.events()).events] == ["a", "b"]


async def test_the_backup_is_a_store_of_its_own(tmp_path: Path) -> None:
    """What it makes of the next numbers is not what the original does, so no receipt is of both."""

    async with dwell.open(tmp_path / "store") as queue:
        await queue.put("t", b"a")
        taken = await queue.take("t")
        await store_of(queue).backup(tmp_path / "copy")
        await queue.put("t", b"original")
        original = await queue.take("t")
    async with dwell.open(tmp_path / "copy") as copy:
        await copy.put("t", b"copy")
        other = await copy.take("t")
        for receipts in (taken, original):
            with pytest.raises(ForeignReceipt):
                await copy.ack(receipts)
        assert (await copy.get("t", other.ids[0])).state is dwell.State.LEASED
        assert not np.isin(other.receipts[:, 1], original.receipts[:, 1]).any()


async def test_a_store_and_its_backup_are_their_owners_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        async with dwell.open(tmp_path / "store") as queue:
            await queue.put("t", "x")
            await store_of(queue).backup(tmp_path / "copy")
    finally:
        os.umask(umask)
    for folder in (tmp_path / "store", tmp_path / "copy"):
        assert oct(folder.stat().st_mode) == oct(0o40700)
        assert {oct(path.stat().st_mode) for path in folder.iterdir()} == {oct(0o100600)}


async def test_the_backup_of_an_empty_store(tmp_path: Path) -> None:
    async with dwell.open(tmp_path / "store", segment_bytes=SEGMENT_BYTES) as queue:
        await store_of(queue).backup(tmp_path / "deep" / "copy")
    async with dwell.open(tmp_path / "deep" / "copy") as copy:
        assert (await copy.stats()).topics == {}
        await copy.put("t", b"1 ", id="1")
    assert await ids_of(tmp_path / "deep" / "copy") == {"1"}


@pytest.mark.parametrize("fault", ["full", "write", "sync"])
async def test_each_fault_at_each_call_leaves_nothing_half(tmp_path: Path, fault: str) -> None:
    disk = FaultyDisk()
    script = Script(disk, tmp_path / "store")
    await script.run(40, close=False)
    # Events that wait and a snapshot are the store's own, and not what is tested here.
    await script.store.core.flush_events()
    await end_of_upkeep(script.store)
    opened, wanted = len(disk.system.open_files), DiskFull if fault == "full" else OSError
    for at in range(1000):
        place = tmp_path / f"copy-{at}"
        disk.arm(fault, at)
        try:
            await script.store.backup(place)
        except wanted:
            disk.free()
            assert not disk.exists(place)
        else:
            break
        assert disk.names(tmp_path) == ["store"]
        assert not [n for n in disk.names(tmp_path / "store") if n.endswith(".new")]
    assert 5 < at < 1000
    # The store's own upkeep may have closed something meanwhile.
    assert len(disk.system.open_files) <= opened
    disk.free()
    # The store has noticed nothing.
    await script.store.put(puts_of(["more"], script.clock.now_ms()), "keep")
    await script.store.close()
    assert await everything(disk, place) == script.alive


async def test_a_backup_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async with dwell.open(tmp_path / "store", segment_bytes=SEGMENT_BYTES) as queue:
        for _ in range(50):
            await queue.put_many("t", [b"x" * 1000] * 40)
        store = store_of(queue)
        await end_of_upkeep(store)
        archive = [chunk async for chunk in await checkpoint_tar(store)]

        async def again():
            for chunk in archive:
                yield chunk

        opened = descriptors_in(tmp_path)

        def is_clean():
            names = sorted(p.name for p in tmp_path.iterdir())
            return names == ["store"] and descriptors_in(tmp_path) == opened

        copy, cancelled = tmp_path / "copy", []
        for wait_ms in range(20):
            for backup in (store.backup(copy), unpack_tar(again(), copy)):
                task = asyncio.create_task(backup)
                await asyncio.sleep(wait_ms / 1000)
                task.cancel()
                await asyncio.wait([task])
                cancelled.append(task.cancelled())
                if not task.cancelled():
                    # The machine was faster than that.
                    shutil.rmtree(copy)
                # A thread may still be busy with a file that it is to remove.
                await until_async(is_clean)
        assert any(cancelled)
        tar = await checkpoint_tar(store)
        async with contextlib.aclosing(aiter(tar)) as chunks:
            await anext(chunks)
        assert descriptors_in(tmp_path) == opened
        tar = await checkpoint_tar(store)
        await tar.close()
        assert descriptors_in(tmp_path) == opened


async def test_the_loop_does_not_wait_for_the_copy(tmp_path: Path) -> None:
    async with dwell.open(tmp_path / "store", segment_bytes=1 << 20) as queue:
        for _ in range(80):
            await queue.put_many("t", [b"x" * 1000] * 500)
        task = asyncio.create_task(store_of(queue).backup(tmp_path / "copy"))
        answered = 0
        while not task.done():
            await queue.put("u", b"")
            answered += 1
        await task
        assert answered > 10


async def test_places_that_are_refused(tmp_path: Path) -> None:
    async with dwell.open(tmp_path / "store", segment_bytes=SEGMENT_BYTES) as queue:
        store = store_of(queue)
        with pytest.raises(InvalidInput, match="is there already"):
            await store.backup(tmp_path)
        with pytest.raises(InvalidInput, match="lies in the store itself"):
            await store.backup(tmp_path / "store" / "copy")
        (tmp_path / "copy.new").mkdir()
        with pytest.raises(InvalidInput, match=r"copy\.new is there: a backup is being made"):
            await store.backup(tmp_path / "copy")
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="Not a directory"):
            await store.backup(tmp_path / "file" / "copy")
    with pytest.raises(StoreClosed):
        await store.backup(tmp_path / "late")
    with pytest.raises(InvalidInput, match="not kept in a folder"):
        await checkpoint_tar(MemoryStore(dwell.RealClock()))


# --- the archive ----------------------------------------------------------------------------


async def tar_of(folder: Path) -> bytes:
    async with dwell.open(folder, segment_bytes=4 * SEGMENT_BYTES) as queue:
        ids = [f"{n}" for n in range(500)]
        await queue.put_many("t", [f"{n} ".encode() * 50 for n in ids], ids=ids)
        return b"".join([chunk async for chunk in await checkpoint_tar(store_of(queue))])


async def pieces(data: bytes, size_bytes: int):
    for start in range(0, len(data), size_bytes):
        yield data[start : start + size_bytes]


def test_any_tar_makes_a_store_of_the_archive(tmp_path: Path) -> None:
    data = asyncio.run(tar_of(tmp_path / "store"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames()[-1] == "dwell.json"
        archive.extractall(tmp_path / "copy", filter="data")
    assert check(tmp_path / "copy").ok
    assert len(asyncio.run(ids_of(tmp_path / "copy"))) == 500


@pytest.mark.parametrize("size_bytes", [511, 4096, 1 << 20])
async def test_the_chunks_may_be_of_any_size(tmp_path: Path, size_bytes: int) -> None:
    data = await tar_of(tmp_path / "store")
    await unpack_tar(pieces(data, size_bytes), tmp_path / "copy")
    assert len(await ids_of(tmp_path / "copy")) == 500


async def test_an_archive_that_is_cut_short_makes_no_store(tmp_path: Path) -> None:
    data = await tar_of(tmp_path / "store")
    ends = [0, 100, 512, 513, len(data) // 2, len(data) - 1024]
    for end in ends:
        with pytest.raises(StoreDamaged, match="ended before its end"):
            await unpack_tar(pieces(data[:end], 4096), tmp_path / "copy")
        assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    data = asyncio.run(tar_of(tmp_path / "store"))

    def named(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
        info = tarfile.TarInfo(name)
        info.size, info.type = 5, kind
        return info.tobuf(tarfile.GNU_FORMAT) + b"hello".ljust(512, b"\0")

    def without_label() -> bytes:
        return data[: data.index(b"dwell.json\0")]

    bad = [
        b"<html>" * 1000,
        named("../evil"),
        named("/etc/evil"),
        named("lock"),
        named("dwell.json", tarfile.SYMTYPE),
        named("dwell.json") * 2,
    ]
    for what in bad:
        with pytest.raises(StoreDamaged, match="not a checkpoint"):
            asyncio.run(unpack_tar(pieces(what, 700), tmp_path / "copy"))
    with pytest.raises(StoreDamaged, match="ended before its end"):
        asyncio.run(unpack_tar(pieces(without_label() + bytes(1024), 700), tmp_path / "copy"))
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("fault", ["full", "write", "sync"])
async def test_a_full_disk_leaves_nothing_of_an_archive(tmp_path: Path, fault: str) -> None:
    data = await tar_of(tmp_path / "store")
    for at in range(3):
        disk = FaultyDisk(fault, at)
        with pytest.raises((DiskFull, OSError)):
            await unpack_tar(pieces(data, 4096), tmp_path / "copy", disk)
        assert disk.names(tmp_path) == []


async def test_the_backup_remembers_the_ids_of_its_moment(tmp_path, monkeypatch):
    """What is acked while the files are copied is not done in the copy."""
    limits = Limits(snapshot_rows=1)
    async with dwell.Queue(EmbeddedStore(tmp_path / "s", limits=limits)) as queue:
        await queue.put_many("t", [b""] * 4, ids=["done", "again", "there", "other"])
        await queue.ack(await queue.take_ids("t", ["done", "again"]))
        copied = []

        async def in_between(do, *args, **words):
            if getattr(do, "__name__", "") == "write" and not copied:
                copied.append(do)
                await queue.ack(await queue.take_ids("t", ["there"]))
                await queue.put_many("t", [b""] * 2, ids=["new", "again"], on_conflict="replace")
                await queue.ack(await queue.take_ids("t", ["new", "again"]))
            return await in_thread(do, *args, **words)

        monkeypatch.setattr(checkpoint, "in_thread", in_between)
        await queue.store.backup(tmp_path / "copy")
        assert copied
        ids = ["done", "again", "there", "other", "new"]
        answer = await queue.put_many("t", [b""] * 5, ids=ids)
        assert [str(put.result) for put in answer] == ["kept"] * 5
    async with dwell.open(tmp_path / "copy") as queue:
        assert [m and m.id for m in await queue.get("t", ids)] == [
            None,
            None,
            "there",
            "other",
            None,
        ]
        await queue.cancel("t", ["there"])
        answer = await queue.put_many("t", [b""] * 5, ids=ids)
        results = [str(put.result) for put in answer]
        assert results == ["kept", "kept", "created", "kept", "created"]
