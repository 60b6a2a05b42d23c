import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import dwell
from dwell.batch.prefixes import Prefixes
from dwell.clock import SimulatedClock
from dwell.errors import StoreError
from dwell.queue import Queue
from dwell.store.base import Store
from dwell.store.embedded import EmbeddedStore, counting
from dwell.store.embedded.limits import Limits
from dwell.testing.faults import FaultyDisk
from dwell.testing.machine import StoreMachine
from dwell.testing.suite import StoreSuite

T = TypeVar("T")

SEGMENT_BYTES = 1024 * 1024
#: More than a machine ever has.
ALL_ROWS = 1000
#: So small that each path that begins at a threshold is entered again and again.
SMALL = st.fixed_dictionaries(
    {},
    optional={
        "deal_at": st.sampled_from((1, 2, 5)),
        "wheel_runs": st.sampled_from((4, 6)),
        "spare_entries": st.sampled_from((0, 2)),
        "spare_parked": st.sampled_from((0, 2)),
        "few_ready": st.sampled_from((0, 5)),
        "small_chunk": st.sampled_from((1, 3)),
        "sweep_every": st.sampled_from((1, 3)),
        "most_ended": st.sampled_from((1, 2)),
        "few_ids": st.sampled_from((1, 8)),
        "index_slots": st.sampled_from((2, 16)),
        "index_step": st.sampled_from((1, 4)),
        "idle_names": st.sampled_from((1, 4)),
        "idle_step": st.sampled_from((1, 3)),
        "block_events": st.sampled_from((1, 3, 10)),
        "block_parts": st.sampled_from((1, 3)),
        "replayed_parts": st.sampled_from((1, 9)),
        "coarse_events": st.sampled_from((0, 2)),
        "event_file_bytes": st.sampled_from((1, 1_000)),
        "large_frame_bytes": st.sampled_from((1, 300)),
        "snapshot_rows": st.sampled_from((1, 3)),
        "snapshot_records": st.sampled_from((1, 10)),
        "snapshot_every_ms": st.sampled_from((0, 20)),
        "scanned_rows": st.sampled_from((1, 3)),
        "paused_rows": st.just(1),
        "swept_rows": st.sampled_from((1, 3)),
        "cleared_rows": st.sampled_from((1, 3)),
        "keyed_rows": st.sampled_from((1, 3)),
        "loaded_rows": st.sampled_from((1, 3, ALL_ROWS, ALL_ROWS)),
        "merged_rows": st.sampled_from((1, 5)),
        "formed_rows": st.sampled_from((1, 3)),
        "errors_bytes": st.sampled_from((1, 20)),
        "copy_bytes": st.sampled_from((1, 300)),
        "recent_bytes": st.sampled_from((0, 300)),
        "scratch_rows": st.sampled_from((0, 4_096)),
        "scratch_step": st.sampled_from((1, 100)),
    },
)
#: Whatever lies in a scratch file leaves the memory before each verb.
TENDED = {"memory_bytes": 1, "tended_s": 0}
FOLDER = Path("/stores/store")


class TestEmbeddedStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "store"

    async def make_store(self, clock: SimulatedClock) -> Store:
        return EmbeddedStore(self.folder, clock=clock, segment_bytes=8 * SEGMENT_BYTES)


class EmbeddedMachine(StoreMachine):
    """The store on a disk that fails, against the model; after a fault it is opened again.

    The process is killed, or the power is cut, between two verbs or at any call of the system,
    also while the store starts; what the process before it wrote and never synced may be lost in
    the power cut that comes after.
    """

    can_reopen = True

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.limits = Limits()
        self.segment_bytes = SEGMENT_BYTES
        self.memory_bytes = 0
        super().__init__()

    @initialize(
        seed=st.integers(0, 2**32),
        limits=SMALL,
        segment_bytes=st.sampled_from((SEGMENT_BYTES, 12 * 1024, 16 * 1024)),
        memory_bytes=st.sampled_from((0, 1, 1)),
    )
    def begin(
        self, seed: int, limits: dict[str, int], segment_bytes: int, memory_bytes: int
    ) -> None:
        self.run(self.store.close())
        self.disk = FaultyDisk(seed=seed)
        self.limits, self.segment_bytes = Limits(**limits, **TENDED), segment_bytes
        self.memory_bytes = memory_bytes
        self.does_time_in_parts = self.limits.loaded_rows < ALL_ROWS
        self.store = self.run(self.make_store(self.clock))
        self._start()

    async def make_store(self, clock: SimulatedClock) -> Store:
        return EmbeddedStore(
            FOLDER,
            clock=clock,
            disk=self.disk,
            segment_bytes=self.segment_bytes,
            memory_bytes=self.memory_bytes,
            limits=self.limits,
        )

    async def reopen(self) -> Store:
        self.disk.kill()
        with contextlib.suppress(StoreError, OSError):
            await self.store.close()
        self.disk = self.disk.restarted()
        return await self.make_store(self.clock)

    @rule(
        fault=st.sampled_from(
            ("torn", "full", "write", "short", "sync", "open", "create", "allocate")
        ),
        at=st.integers(0, 6),
        drops=st.booleans(),
    )
    def arm(self, fault: str, at: int, drops: bool) -> None:
        self.disk.arm(fault, at)
        self.disk.system.drops = drops

    @rule(
        stop=st.sampled_from(("kill", "power")),
        when=st.sampled_from(("before", "during", "after")),
        at=st.integers(0, 20),
    )
    def arm_end(self, stop: str, when: str, at: int) -> None:
        self.disk.arm(stop, at, when)

    @precondition(lambda self: self.clock.now_ms() >= self.latest_ms)
    @rule()
    def kill(self) -> None:
        self._crash()

    @precondition(lambda self: self.clock.now_ms() >= self.latest_ms)
    @rule()
    def lose_power(self) -> None:
        self.disk.lose_power()
        self._crash()

    @precondition(lambda self: self.clock.now_ms() >= self.latest_ms)
    @rule(
        stop=st.sampled_from(("kill", "power")),
        then=st.sampled_from(("kill", "power")),
        when=st.sampled_from(("before", "during", "after")),
        at=st.integers(0, 60),
    )
    def end_while_it_starts(self, stop: str, then: str, when: str, at: int) -> None:
        self.disk.arm(stop, 0)
        self.disk.lose_power() if stop == "power" else self.disk.kill()
        with contextlib.suppress(StoreError, OSError):
            self.run(self.store.close())
        self.disk = self.disk.restarted()
        self.disk.arm(then, at, when)
        self.store = self.run(self.make_store(self.clock))
        with contextlib.suppress(StoreError, OSError):
            self.run(self.store.open())
        self._crash()

    def ask(self, call: Callable[[Store], Awaitable[T]]) -> T:
        # Faults befall what is done, and not the looking at it.
        system = self.disk.system
        left, system.left = system.left, -1
        try:
            return super().ask(call)
        except StoreError:
            # A thread of the store may have met the end of the process meanwhile.
            if not system.dead:
                raise
            self._crash()
            return self._answer(call)
        finally:
            system.left = left

    def teardown(self) -> None:
        self.disk.arm("", -1)
        super().teardown()


_SEARCHES = 6


@pytest.mark.campaign
def test_the_store_on_a_disk_that_fails_is_like_the_model() -> None:
    # What fails is not made smaller: with threads that may take for ever.
    searched = settings(
        max_examples=40, stateful_step_count=40, deadline=None, print_blob=True, database=None,
        phases=[Phase.generate],
    )  # fmt: skip
    for _ in range(_SEARCHES):
        # Threads decide which call a fault meets. Where the same choices lead elsewhere than before
        # Hypothesis gives the search up, and another begins; what it finds wrong it says.
        with contextlib.suppress(FlakyStrategyDefinition):
            return run_state_machine_as_test(EmbeddedMachine, settings=searched)
    return None


async def test_a_clean_stop_and_start_change_nothing(tmp_path: Path) -> None:
    clock = SimulatedClock()
    for opened in range(3):
        store = EmbeddedStore(tmp_path / "store", clock=clock)
        await store.open()
        assert (await store.stats()).topics == {}, opened
        await store.close()


async def test_what_was_ready_at_the_start_is_not_early_after_a_step_back(tmp_path: Path) -> None:
    clock = SimulatedClock()
    async with Queue(EmbeddedStore(tmp_path / "store", clock=clock)) as queue:
        await queue.put("t", b"x", delay="500ms")
    clock.advance(1_000)
    store = EmbeddedStore(tmp_path / "store", clock=clock)
    await store.open()
    clock.advance(-1_000)
    assert not len(await store.take(["t"], 1, 1_000, ""))
    clock.advance(1_000)
    assert len(await store.take(["t"], 1, 1_000, "")) == 1
    await store.close()


async def test_a_caller_that_is_cancelled_takes_no_other_along(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store", segment_bytes=SEGMENT_BYTES)
    await store.open()
    first = asyncio.create_task(store.configure("t", {"paused": True}))
    second = asyncio.create_task(store.configure("u", {"paused": True}))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()
    await store.close()


@pytest.mark.parametrize("sync", ["always", "never", "100ms"])
def test_each_way_to_sync_keeps_what_was_answered(tmp_path: Path, sync: str) -> None:
    with dwell.open(tmp_path / "store", sync=sync) as queue:
        for number in range(20):
            queue.put("t", b"x", id=f"{number}")
    with dwell.open(tmp_path / "store", sync=sync) as queue:
        assert len(queue.take("t", 100)) == 20


def test_an_unknown_way_to_sync_is_refused(tmp_path: Path) -> None:
    for sync in ("sometimes", "0ms", "5s", "ms", "²ms", "9" * 5000 + "ms", ""):
        with pytest.raises(dwell.InvalidSettings, match='expected "always", "never" or a time'):
            dwell.open(tmp_path / "store", sync=sync)
    assert not (tmp_path / "store").exists()


async def test_holders_of_very_many__are_counted_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "_LEASED_AT_ONCE", 10)
    monkeypatch.setattr(counting, "_OWNERS_AT_ONCE", 1)
    clock = SimulatedClock()
    async with Queue(EmbeddedStore(tmp_path, clock=clock)) as queue:
        for topic in ("a", "b"):
            await queue.put_many(topic, ["x"] * 50)
        start_ms = clock.now_ms()
        for number, (topic, owner, count) in enumerate(
            [("a", "me", 20), ("b", "me", 15), ("a", "you", 30), ("b", "me", 15), ("b", "you", 1)]
        ):
            await queue.take(topic, count, owner=owner, lease=f"{60 - number}s")
        looking, turns = asyncio.ensure_future(queue.holders()), 0
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        held = [(one.owner, one.topic, one.messages, one.until_ms) for one in await looking]
        assert held == [
            ("me", "b", 30, start_ms + 57_000),
            ("you", "a", 30, start_ms + 58_000),
            ("me", "a", 20, start_ms + 60_000),
            ("you", "b", 1, start_ms + 56_000),
        ]
        assert turns > 10


async def test_holders_are_found_without_a_look_at_all_topics(tmp_path, monkeypatch):
    seen = []
    cover = Prefixes.cover

    def noted(self, name):
        seen.append(name)
        return cover(self, name)

    monkeypatch.setattr(Prefixes, "cover", noted)
    monkeypatch.setattr(counting, "_NAMES_AT_ONCE", 1)
    async with Queue(EmbeddedStore(tmp_path)) as queue:
        for topic in ("a1", "a2", "b1", "c1"):
            await queue.put_many(topic, ["x"] * 3)
        for topic, count in (("a1", 1), ("a2", 2), ("b1", 3)):
            await queue.take(topic, count, owner="me", lease="1h")
        held = await queue.holders(prefixes=("a", "c"))
        assert [(one.topic, one.messages) for one in held] == [("a2", 2), ("a1", 1)]
        assert sorted(seen) == ["a1", "a2", "b1"]
        assert [one.topic for one in await queue.holders(1, prefixes=("a",))] == ["a2"]
        assert await queue.holders(prefixes=("c",)) == []
