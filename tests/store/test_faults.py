"""Each fault at each call it can befall: what was answered is there, the rest whole or gone."""

import asyncio
import contextlib
import os
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from dwell.batch.puts import Puts, uniform
from dwell.clock import SimulatedClock
from dwell.errors import DiskFull, StoreError, StoreFailed
from dwell.message import Result, State
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.journal.record import Record
from dwell.testing.faults import FaultyDisk

pytestmark = pytest.mark.campaign

SEGMENT_BYTES = 64 * 1024
FOLDER = Path("/stores/store")
_TOPIC = "t"
_BATCH = 20
_FAULT_ROUNDS = 20
#: Small enough for an end at each call, with several segments and snapshots all the same.
_FEW_ROUNDS = 8
_SMALL_BYTES = 16 * 1024
_ALL = os.environ.get("DWELL_FAULTS") == "all"
#: At how many calls each fault is tried, unless DWELL_FAULTS says that it is all of them: at the
#: last, in which a store is closed, and at some that chance draws.
_LAST_PLACES, _MOST_PLACES = 6, 16


def puts_of(ids: list[str], now_ms: int, size_bytes: int = 300) -> Puts:
    count = len(ids)
    return Puts(
        topic=_TOPIC,
        bodies=[name.encode() * (size_bytes // len(name)) for name in ids],
        due_ms=uniform(now_ms, count, np.int64),
        priority=uniform(1024, count, np.uint32),
        lease_ms=uniform(0, count, np.uint32),
        max_attempts=uniform(0, count, np.uint16),
        expires_ms=uniform(0, count, np.int64),
        ids=[name.encode() for name in ids],
    )


class Script:
    """Puts, takes, acks and cancels in a fixed order, over several segments and snapshots."""

    def __init__(
        self, disk: FaultyDisk, folder: Path = FOLDER, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.clock = SimulatedClock()
        self.store = EmbeddedStore(folder, clock=self.clock, disk=disk, segment_bytes=segment_bytes)
        self.alive: set[str] = set()
        self.asked: list[set[str]] = []

    async def run(self, rounds: int = 24, *, close: bool = True) -> None:
        """Do it all; ``asked`` holds what is under way when it fails."""
        await self.store.open()
        for number in range(rounds):
            ids = [f"{number:03d}-{index:03d}" for index in range(_BATCH)]
            self.asked = [set(ids)]
            await self.store.put(puts_of(ids, self.clock.now_ms()), "keep")
            self.alive |= set(ids)
            self.asked = []
            taken = await self.store.take([_TOPIC], _BATCH // 2, 0, "me")
            self.asked = [set(taken.ids)]
            assert taken.receipts is not None
            await self.store.ack(taken.receipts)
            self.alive -= set(taken.ids)
            gone = ids[-3:]
            self.asked = [set(gone)]
            answers = await self.store.cancel(_TOPIC, [name.encode() for name in gone])
            assert set(answers.tolist()) == {Result.CANCELLED}
            self.alive -= set(gone)
            self.asked = []
        if close:
            await self.store.close()


async def everything(disk: FaultyDisk, folder: Path = FOLDER) -> set[str]:
    """Return the ids of a store on a disk without faults, bodies checked."""
    store = EmbeddedStore(folder, clock=SimulatedClock(), disk=disk)
    await store.open()
    found: set[str] = set()
    for state in (State.DELAYED, State.READY, State.LEASED, State.DEAD):
        page = await store.scan(_TOPIC, state, None, 10_000)
        for message in page.messages:
            assert message.body == message.id.encode() * (300 // len(message.id))
            found.add(message.id)
    await store.close()
    return found


async def to_its_end(script: Script, rounds: int) -> None:
    """Run a script until it is done or cannot go on."""
    try:
        await script.run(rounds)
    except (StoreError, OSError):
        with contextlib.suppress(StoreError, OSError):
            await script.store.close()


def calls_of(fault: str, rounds: int, segment_bytes: int = SEGMENT_BYTES) -> int:
    """Return how many calls of a whole script a fault can befall."""
    disk = FaultyDisk(fault, 1_000_000)
    asyncio.run(Script(disk, segment_bytes=segment_bytes).run(rounds))
    return 1_000_000 - disk.left


def places(calls: int) -> Iterable[int]:
    """Return at which calls a fault is tried.

    What fails names its place, which is the whole of the chance in it.
    """
    if _ALL or calls <= _MOST_PLACES:
        return range(calls)
    last = range(calls - _LAST_PLACES, calls)
    return [*sorted(random.sample(range(last.start), _MOST_PLACES - _LAST_PLACES)), *last]


def check_kept(disk: FaultyDisk, script: Script, what: str) -> None:
    """Open what is left of a store: what was answered is there, the rest whole or gone."""
    found = asyncio.run(everything(disk))
    maybe = set().union(*script.asked)
    assert found - maybe == script.alive - maybe, what
    assert found & maybe in (set(), maybe & (script.alive | maybe)), f"{what}: a half"


@pytest.mark.parametrize(
    ("fault", "drops"),
    [(fault, False) for fault in ("torn", "write", "short", "sync", "full", "open", "create")]
    + [("sync", True)],
)
def test_each_fault_at_each_call(fault: str, drops: bool) -> None:
    calls = calls_of(fault, _FAULT_ROUNDS)
    assert calls > 5
    for at in places(calls):
        disk = FaultyDisk(fault, at, seed=at)
        disk.system.drops = drops
        script = Script(disk)
        asyncio.run(to_its_end(script, _FAULT_ROUNDS))
        disk.lose_power()
        check_kept(disk.restarted(), script, f"{fault} at call {at}")


@pytest.mark.parametrize("segments", range(2, 12))
def test_a_disk_of_each_size(segments: int) -> None:
    for over_bytes in (0, 4096, 5 * 4096):
        disk = FaultyDisk(size_bytes=segments * SEGMENT_BYTES + over_bytes)
        script = Script(disk)
        asyncio.run(to_its_end(script, 48))
        disk.lose_power()
        disk = disk.restarted()
        with contextlib.suppress(DiskFull):
            # It starts, or says what it lacks.
            asyncio.run(started(EmbeddedStore(FOLDER, disk=disk, clock=script.clock)))
        disk.free()
        check_kept(disk, script, f"{segments} segments and {over_bytes} bytes")


async def check_answers_rest_on_the_disk(disk: FaultyDisk, script: Script, what: str) -> None:
    """Open what is left of a store, ask once more for all of it, and cut the power at once."""
    store = EmbeddedStore(FOLDER, clock=script.clock, disk=disk, segment_bytes=_SMALL_BYTES)
    await store.open()
    # What was taken may be done with, and then it is not put again.
    maybe = set().union(*script.asked)
    ids = sorted(script.alive - maybe if maybe & script.alive else script.alive | maybe)
    for start in range(0, len(ids), _BATCH):
        # Whether it answers created or kept, it promises them.
        await store.put(puts_of(ids[start : start + _BATCH], script.clock.now_ms()), "keep")
    cut = disk.copied()
    cut.lose_power()
    least = disk.only_synced()
    disk.kill()
    with contextlib.suppress(StoreError, OSError):
        await store.close()
    done = maybe - set(ids)
    assert await everything(least) - done == set(ids), f"{what}, then only what was synced"
    assert await everything(cut.restarted()) - done == set(ids), f"{what}, then a power cut"


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("stop", ["kill", "power"])
def test_an_end_at_each_call(stop: str, when: str) -> None:
    for at in places(calls_of(stop, _FEW_ROUNDS, _SMALL_BYTES)):
        what = f"{stop} {when} call {at}"
        disk = FaultyDisk(stop, at, seed=at, when=when)
        script = Script(disk, segment_bytes=_SMALL_BYTES)
        asyncio.run(to_its_end(script, _FEW_ROUNDS))
        disk.kill()
        check_kept(disk.copied(), script, what)
        asyncio.run(check_answers_rest_on_the_disk(disk.restarted(), script, what))


@pytest.mark.parametrize("stop", ["kill", "power"])
@pytest.mark.parametrize("first", ["kill", "power"])
def test_an_end_at_each_call_of_a_start(first: str, stop: str) -> None:
    calls = calls_of(first, _FEW_ROUNDS, _SMALL_BYTES)
    for at in range(0, calls, calls // 12) if _ALL else [calls // 2]:
        ended = FaultyDisk(first, at, seed=at, when="during")
        script = Script(ended, segment_bytes=_SMALL_BYTES)
        asyncio.run(to_its_end(script, _FEW_ROUNDS))
        ended.kill()
        for start_at in range(1000):
            disk = ended.copied()
            disk.arm(stop, start_at, "after")
            store = EmbeddedStore(FOLDER, clock=script.clock, disk=disk)
            with contextlib.suppress(StoreError, OSError):
                asyncio.run(started(store))
            if not disk.dead:
                break
            check_kept(disk.restarted(), script, f"{first} at {at}, {stop} at {start_at}")


async def started(store: EmbeddedStore) -> None:
    await store.open()
    await store.close()


async def test_a_failed_sync_stops_the_store_until_it_is_opened_again() -> None:
    disk = FaultyDisk()
    store = EmbeddedStore(FOLDER, disk=disk, segment_bytes=SEGMENT_BYTES)
    await store.open()
    now_ms = store.clock.now_ms()
    await store.put(puts_of(["before"], now_ms), "keep")
    disk.arm("sync", 0)
    with pytest.raises(StoreFailed, match="sync failed"):
        await store.put(puts_of(["lost"], now_ms), "keep")
    for _ in range(3):
        # The disk works again, but what it has of the journal is not known any more.
        with pytest.raises(StoreFailed, match="open the store again"):
            await store.put(puts_of(["after"], now_ms), "keep")
    with contextlib.suppress(StoreError):
        await store.close()
    disk.lose_power()
    assert await everything(disk.restarted()) - {"lost"} == {"before"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("fault", "at"), [("kill", 1), ("sync", 0)])
async def test_what_was_left_unsynced_is_on_the_disk_before_it_is_answered(
    fault: str, at: int, seed: int
) -> None:
    disk = FaultyDisk(seed=seed)
    store = EmbeddedStore(FOLDER, disk=disk)
    await store.open()
    await store.put(puts_of(["a"], 0), "keep")
    # Between the write and its sync, or in the sync, after which memory counts as synced.
    disk.arm(fault, at)
    with pytest.raises(StoreFailed):
        await store.put(puts_of(["b"], 0), "keep")
    disk.kill()
    with contextlib.suppress(StoreError, OSError):
        await store.close()
    disk = disk.restarted()
    store = EmbeddedStore(FOLDER, disk=disk)
    await store.open()
    await store.put(puts_of(["b"], 0), "keep")
    assert await everything(disk.only_synced()) == {"a", "b"}
    await store.close()


async def test_records_of_any_size_are_read_over_the_ends_of_segments() -> None:
    disk, chance = FaultyDisk(), random.Random(1)
    store = EmbeddedStore(FOLDER, disk=disk, segment_bytes=_SMALL_BYTES)
    await store.open()
    names: set[str] = set()
    for number in range(80):
        batch = [f"{number}-{index}" for index in range(chance.randrange(1, 13))]
        await store.put(puts_of(batch, 0), "keep")
        names.update(batch)
        if number % 8 == 7:
            assert await everything(disk.copied()) == names
    await store.close()


async def test_on_a_full_disk_puts_are_refused_and_acks_go_on() -> None:
    disk = FaultyDisk()
    store = EmbeddedStore(FOLDER, disk=disk, segment_bytes=SEGMENT_BYTES)
    await store.open()
    now_ms, accepted = store.clock.now_ms(), 0
    disk.arm("full", 0)
    while accepted < 10_000:
        try:
            await store.put(puts_of([f"{accepted:05d}"], now_ms), "keep")
        except DiskFull:
            break
        accepted += 1
    assert 50 < accepted < 10_000
    with pytest.raises(DiskFull, match="no room for 65536 bytes more"):
        await store.put(puts_of(["one more"], now_ms), "keep")
    taken = await store.take([_TOPIC], 30, 0, "")
    assert len(taken) == 30
    assert taken.receipts is not None
    assert set((await store.ack(taken.receipts)).tolist()) == {Result.ACKED}
    assert (await store.stats()).topics[_TOPIC].ready == accepted - 30
    disk.free()
    await store.put(puts_of(["again"], now_ms), "keep")
    await store.close()
    assert "again" in await everything(disk)


_MANY = 20_000


async def with_many_to_end(folder: Path) -> EmbeddedStore:
    """Open a store in which more messages expire, and more leases end, than fit in one record."""
    clock = SimulatedClock()
    store = EmbeddedStore(folder, clock=clock, segment_bytes=SEGMENT_BYTES, sync="never")
    await store.open()
    for start in range(0, 2 * _MANY, 500):
        ids = [f"{number:05d}" for number in range(start, start + 500)]
        puts = puts_of(ids, clock.now_ms(), 20)
        puts.expires_ms[:] = clock.now_ms() + 60_000
        await store.put(puts, "keep")
    for _ in range(_MANY // 2_000):
        assert len(await store.take([_TOPIC], 2_000, 60_000, "")) == 2_000
    clock.advance(60_000)
    return store


async def settled(store: EmbeddedStore) -> None:
    """Let a store do all that time asks for, which it does in parts."""
    now_ms = store.clock.now_ms()
    while (deadline_ms := await store.tick(now_ms)) is not None and deadline_ms <= now_ms:
        pass


async def states(store: EmbeddedStore) -> tuple[int, int, int]:
    await settled(store)
    counts = (await store.stats()).topics[_TOPIC]
    return counts.ready, counts.leased, counts.dead


async def test_more_can_end_at_once_than_fits_in_one_record(tmp_path: Path) -> None:
    store = await with_many_to_end(tmp_path / "store")
    # What was leased comes back, and has expired as well.
    assert await states(store) == (0, 0, 2 * _MANY)
    await store.close()
    store = EmbeddedStore(tmp_path / "store", clock=store.clock)
    await store.open()
    assert await states(store) == (0, 0, 2 * _MANY)
    await store.close()


@pytest.mark.parametrize("fails_at", range(4))
async def test_what_could_not_be_ended_is_ended_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    store = await with_many_to_end(tmp_path / "store")
    write, calls = store.core.write, iter(range(1_000))

    def failing(record: Record) -> None:
        if next(calls) == fails_at:
            raise MemoryError
        write(record)

    monkeypatch.setattr(store.core, "write", failing)
    with pytest.raises(MemoryError):
        await settled(store)
    assert await states(store) == (0, 0, 2 * _MANY)
    await store.close()


def test_segments_are_freed_behind_the_snapshots() -> None:
    disk = FaultyDisk()
    asyncio.run(Script(disk).run(200))
    names = disk.names(FOLDER)
    assert sum(name.startswith("journal-") for name in names) < 20
    assert sum(name.startswith("snapshot-") for name in names) <= 3


async def test_a_put_that_replaces_and_creates_is_all_or_nothing_on_a_full_disk() -> None:
    disk = FaultyDisk()
    store = EmbeddedStore(FOLDER, disk=disk, segment_bytes=SEGMENT_BYTES)
    await store.open()
    now_ms = store.clock.now_ms()
    await store.put(puts_of(["old"], now_ms), "keep")
    disk.arm("full", 0)
    refused = 0
    for number in range(400):
        new = f"{number:03d}"
        try:
            await store.put(puts_of([new, "old", new], now_ms, 900), "replace")
        except DiskFull:
            refused += 1
            assert await store.get(_TOPIC, [new.encode()]) == [None]
    assert refused
    await store.close()


@pytest.mark.parametrize("rounds", [60, 61, 62, 63, 64, 90])
@pytest.mark.parametrize("power", [False, True])
async def test_a_start_from_the_snapshot_before_finds_everything(rounds: int, power: bool) -> None:
    disk = FaultyDisk()
    script = Script(disk)
    with contextlib.suppress(StoreError, OSError):
        # Cut off, so that there is a journal behind the newest snapshot.
        await script.run(rounds, close=False)
    disk.kill()
    with contextlib.suppress(StoreError, OSError):
        await script.store.close()
    if power:
        disk.lose_power()
    for newest in (True, False):
        copy = disk.copied()
        names = copy.names(FOLDER)
        snapshots = [name for name in names if name.endswith(".dws")]
        # It may have been stopped before it removed one, or a power cut brought one back.
        assert len(snapshots) >= 2
        assert power or "journal-00000000.dwl" not in names
        if not newest:
            copy.remove(FOLDER / snapshots[-1])
        assert await everything(copy) == script.alive


def test_no_room_is_needed_for_what_is_gone() -> None:
    disk = FaultyDisk(size_bytes=40 * SEGMENT_BYTES)
    script = Script(disk)
    asyncio.run(script.run(150))
    assert disk.system.used_bytes <= 40 * SEGMENT_BYTES
    assert asyncio.run(everything(disk)) == script.alive
