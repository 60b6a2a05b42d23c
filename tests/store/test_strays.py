"""Stores with damaged insides: what find_stale says of them, and what it puts right."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from dwell.clock import SimulatedClock
from dwell.message import State, TopicSettings
from dwell.store.base import Stale, Store, TopicStats
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.testing.machine import StoreMachine
from dwell.testing.rig import Rig, encoded, receipts_of
from dwell.testing.suite.arrows import LATER_MS
from dwell.testing.suite.ids import one_in_each_state


def play(rig: Rig, scene: Callable[[Rig], Awaitable[None]]) -> None:
    """Run a scene on an open store with a message in each state."""

    async def main() -> None:
        await rig.store.open()
        await one_in_each_state(rig)
        assert await rig.store.find_stale() == []
        await scene(rig)
        await rig.store.close()

    asyncio.run(asyncio.wait_for(main(), 60))


async def found(rig: Rig, *, repair: bool = False, limit: int = 1000) -> list[tuple[str, str]]:
    """Return id and problem of what is found."""
    stale = await rig.store.find_stale(repair=repair, limit=limit)
    assert {one.repaired for one in stale} <= {repair}
    assert {one.topic for one in stale} <= {"t"}
    return sorted((one.id, one.problem) for one in stale)


async def repaired(rig: Rig, *expected: tuple[str, str]) -> None:
    """Prove that this is found, that looking changes nothing, and that a repair does it all."""
    assert await found(rig) == sorted(expected)
    assert await found(rig) == sorted(expected)
    assert await found(rig, repair=True) == sorted(expected)
    assert await found(rig) == []


async def all_are_whole(rig: Rig) -> None:
    """Prove that no message was lost, and that each can still go its way."""
    topics = (await rig.store.stats()).topics
    assert topics["t"] == TopicStats(delayed=1, ready=1, leased=1, dead=1)
    (held,) = await rig.store.held("me")
    assert held.id == "leased"
    assert await rig.take_ids() == ["ready"]
    rig.advance(LATER_MS + TopicSettings().lease_ms)
    assert sorted(await rig.take_ids()) == ["delayed", "leased", "ready"]
    assert await rig.kick("dead") == ["kicked"]
    assert await rig.take_ids() == ["dead"]


# --- in memory --------------------------------------------------------------------------------


def memory() -> tuple[Rig, MemoryStore]:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    return Rig(store, clock), store


def _no_ready(store: MemoryStore) -> None:
    store._topics["t"].ready.clear()


def _no_taken(store: MemoryStore) -> None:
    store._taken.clear()


def _no_number(store: MemoryStore) -> None:
    del store._numbered[store._topics["t"].rows["dead"].arrival]


def _other_number(store: MemoryStore) -> None:
    rows = store._topics["t"].rows
    store._numbered[rows["dead"].arrival] = rows["ready"]


def _no_deadlines(store: MemoryStore) -> None:
    store._deadlines.clear()


@pytest.mark.parametrize(
    ("damage", "ids"),
    [
        (_no_ready, ["ready"]),
        (_no_taken, ["leased"]),
        (_no_number, ["dead"]),
        (_other_number, ["dead"]),
        (_no_deadlines, ["delayed", "leased"]),
    ],
)
def test_a_whole_message_gets_its_place_back(
    damage: Callable[[MemoryStore], None], ids: list[str]
) -> None:
    rig, store = memory()

    async def scene(rig: Rig) -> None:
        damage(store)
        await repaired(rig, *((id_, "no state") for id_ in ids))
        await all_are_whole(rig)

    play(rig, scene)


def test_a_lost_message_that_is_ready_again_wakes_a_taker() -> None:
    rig, store = memory()

    async def scene(rig: Rig) -> None:
        _no_ready(store)
        rig.hush()
        await found(rig, repair=True)
        assert rig.woken == {"t": 1}

    play(rig, scene)


@pytest.mark.parametrize(
    ("id_", "problem"),
    [
        ("ready", "no body"),
        ("leased", "no body"),
        ("delayed", "no body"),
        ("dead", "no message"),
    ],
)
def test_what_has_no_body_is_forgotten(id_: str, problem: str) -> None:
    rig, store = memory()

    async def scene(rig: Rig) -> None:
        del store._topics["t"].rows[id_]
        await repaired(rig, (id_, problem))
        counts = {name: int(name != id_) for name in ("delayed", "ready", "leased", "dead")}
        assert (await rig.store.stats()).topics["t"] == TopicStats(**counts)
        assert await rig.put(id_) == ["created"]
        rig.advance(LATER_MS)
        assert id_ in await rig.take_ids()
        assert len(store._numbered) == 4

    play(rig, scene)


def test_a_row_that_should_be_gone_is_dropped() -> None:
    rig, store = memory()

    async def scene(rig: Rig) -> None:
        row = store._topics["t"].rows["dead"]
        store._forget(row)
        store._topics["t"].rows["dead"] = row
        await repaired(rig, ("dead", "no state"))
        assert await rig.find("dead") is None

    play(rig, scene)


@pytest.mark.parametrize(("more", "problem"), [(3, "no message"), (-1, "no state")])
def test_wrong_counts_are_counted_anew(more: int, problem: str) -> None:
    rig, store = memory()

    async def scene(rig: Rig) -> None:
        store._topics["t"].counts[State.READY] += more
        assert await rig.store.find_stale() == [Stale("t", "", 0, problem)]
        await repaired(rig, ("", problem))
        await all_are_whole(rig)

    play(rig, scene)


def test_a_limit_holds_for_what_is_put_right_too() -> None:
    rig, store = memory()

    async def scene(rig: Rig) -> None:
        await rig.put(*"abcde")
        _no_ready(store)
        assert await found(rig, limit=2) == [("a", "no state"), ("ready", "no state")]
        assert len(await found(rig, repair=True, limit=4)) == 4
        assert await found(rig) == [("d", "no state"), ("e", "no state")]

    play(rig, scene)


# --- embedded ---------------------------------------------------------------------------------


def embedded(folder: Path) -> tuple[Rig, EmbeddedStore]:
    clock = SimulatedClock()
    store = EmbeddedStore(folder / "store", clock=clock, segment_bytes=1 << 20)
    return Rig(store, clock), store


def row_of(store: EmbeddedStore, id_: str) -> np.ndarray:
    rows, there = store._finder.find("t", encoded([id_]))
    assert there.all()
    return rows


def _no_delays(store: EmbeddedStore) -> None:
    store._machine.delays.clear()


def _no_leases(store: EmbeddedStore) -> None:
    store._machine.leases.clear()


def _no_runs(store: EmbeddedStore) -> None:
    store._machine.topics.forget_ready()


def _no_index(store: EmbeddedStore) -> None:
    store._machine.known.index.rebuild(np.zeros(0, np.uint32))


@pytest.mark.parametrize(
    ("damage", "ids"),
    [
        (_no_delays, ["delayed"]),
        (_no_leases, ["leased"]),
        (_no_runs, ["ready"]),
        (_no_index, ["dead", "delayed", "leased", "ready"]),
    ],
)
def test_a_whole_message_gets_its_place_back_in_a_folder(
    damage: Callable[[EmbeddedStore], None], ids: list[str], tmp_path: Path
) -> None:
    rig, store = embedded(tmp_path)

    async def scene(rig: Rig) -> None:
        damage(store)
        await repaired(rig, *((id_, "no state") for id_ in ids))
        await all_are_whole(rig)

    play(rig, scene)


def test_an_expiry_that_nothing_waits_for_is_found(tmp_path: Path) -> None:
    rig, store = embedded(tmp_path)

    async def scene(rig: Rig) -> None:
        await rig.put("short", delay_ms=LATER_MS, expires_in_ms=100)
        store._machine.expiries.clear()
        await repaired(rig, ("short", "no state"))
        rig.advance(100)
        assert await rig.state("short") is State.DEAD

    play(rig, scene)


def test_ids_that_name_no_message_are_forgotten(tmp_path: Path) -> None:
    rig, store = embedded(tmp_path)

    async def scene(rig: Rig) -> None:
        gone = row_of(store, "dead")
        known, entry = store._machine.known, store._table.id_entry[gone]
        hashes = np.append(known.hash[entry], np.uint64(7))
        checks = np.append(known.check[entry], np.uint32(7))
        await rig.cancel("dead")
        known.add(hashes, checks, np.append(gone, np.uint32(999_999)), 0)
        stale = await rig.store.find_stale(repair=True)
        assert [(one.topic, one.id, one.problem) for one in stale] == [
            ("t", "", "no message"),
            ("", "", "no message"),
        ]
        assert await found(rig) == []
        assert await rig.put("dead", "new") == ["created", "created"]
        assert [await rig.state(id_) for id_ in ("dead", "new")] == [State.READY] * 2

    play(rig, scene)


@pytest.mark.parametrize(("more", "problem"), [(2, "no message"), (-1, "no state")])
def test_wrong_counts_of_a_folder_are_counted_anew(more: int, problem: str, tmp_path: Path) -> None:
    rig, store = embedded(tmp_path)

    async def scene(rig: Rig) -> None:
        store._table._counts[0, State.READY] += more
        await repaired(rig, ("", problem))
        await all_are_whole(rig)

    play(rig, scene)


def overwrite_bodies(rig: Rig, folder: Path, body: bytes) -> None:
    """Damage a body on the disk, under the store that has it open."""
    (path,) = (folder / "store").glob("journal-*.dwl")
    at = path.read_bytes().index(body)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * len(body))


def test_a_body_that_is_damaged_on_the_disk_is_found_and_let_go(tmp_path: Path) -> None:
    rig, _ = embedded(tmp_path)
    body = b"the body to be lost"

    async def scene(rig: Rig) -> None:
        await rig.put("own", delay_ms=5, body=body)
        overwrite_bodies(rig, tmp_path, body)
        await repaired(rig, ("", "no body"))
        assert await rig.find("own") is None
        assert await rig.put("own", body=b"new") == ["created"]
        assert (await rig.get("own")).body == b"new"
        assert [event.kind.name for event in (await rig.events())[-2:]] == ["CANCEL", "PUT"]
        await rig.cancel("own")
        # What was let go stays so, and everything else is there after a restart.
        await rig.store.close()
        await rig.store.open()
        assert await found(rig) == []
        await all_are_whole(rig)

    play(rig, scene)


def test_a_made_id_is_told_though_its_body_is_gone(tmp_path: Path) -> None:
    rig, _ = embedded(tmp_path)
    body = b"the body to be lost"

    async def scene(rig: Rig) -> None:
        ids = await rig.put_made(2, body=body, delay_ms=5)
        numbers = {id_: (await rig.get(id_)).number for id_ in ids}
        overwrite_bodies(rig, tmp_path, body)
        stale = await rig.store.find_stale(limit=1)
        assert [(one.id, one.number) for one in stale] == [(ids[0], numbers[ids[0]])]
        # One frame held both, and with one broken byte it vouches for none of its bodies.
        await repaired(rig, *((id_, "no body") for id_ in ids))
        await all_are_whole(rig)

    play(rig, scene)


def test_verbs_may_go_on_while_the_journal_is_read(tmp_path: Path) -> None:
    rig, _ = embedded(tmp_path)

    async def scene(rig: Rig) -> None:
        for number in range(400):
            await rig.put(f"before {number}", body=b"x" * 200_000, delay_ms=LATER_MS)
        looking = asyncio.create_task(found(rig, repair=True))
        number = 0
        while not looking.done():
            number += 1
            await rig.put(f"{number}", body=b"x" * 5_000)
            await rig.ack(receipts_of(await rig.take(1)))
        assert await looking == []
        assert number > 1
        assert await found(rig) == []

    play(rig, scene)


# --- whatever happens -------------------------------------------------------------------------


class AgreeingMachine(StoreMachine):
    """A store beside the model, whose parts have to agree after every step."""

    @invariant()
    def parts_agree(self) -> None:
        if not self.has_only_moved:
            assert self.run(self.store.find_stale()) == []


class AgreeingMemory(AgreeingMachine):
    async def make_store(self, clock: SimulatedClock) -> Store:
        return MemoryStore(clock)


class AgreeingFolder(AgreeingMachine):
    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        super().__init__()

    async def make_store(self, clock: SimulatedClock) -> Store:
        return EmbeddedStore(self.root / "store", clock=clock, segment_bytes=1 << 20)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.root)


TestAgreeingMemory = AgreeingMemory.TestCase
TestAgreeingMemory.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestAgreeingFolder = AgreeingFolder.TestCase
TestAgreeingFolder.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
