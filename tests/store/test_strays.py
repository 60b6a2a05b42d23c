"""Messages that lost their bodies under an open store, and stores whose parts do not agree."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from dwell.batch.stats import TopicStats
from dwell.clock import SimulatedClock
from dwell.message import State, TopicSettings
from dwell.store.base import Store
from dwell.store.embedded import EmbeddedStore, check
from dwell.store.embedded.strays import bodiless
from dwell.store.memory import MemoryStore
from dwell.testing.machine import StoreMachine
from dwell.testing.rig import Rig, receipts_of
from dwell.testing.suite.arrows import LATER_MS
from dwell.testing.suite.ids import one_in_each_state
from tools.parts import disagreements


@contextlib.asynccontextmanager
async def one_in_each(rig: Rig):
    """Open a store with a message in each state."""
    async with asyncio.timeout(60):
        await rig.store.open()
        await one_in_each_state(rig)
        assert await rig.store.find_stale() == []
        yield
        await rig.store.close()


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


# --- bodies -----------------------------------------------------------------------------------


def embedded(folder: Path) -> tuple[Rig, EmbeddedStore]:
    clock = SimulatedClock()
    store = EmbeddedStore(folder / "store", clock=clock, segment_bytes=1 << 20)
    return Rig(store, clock), store


def overwrite_bodies(rig: Rig, folder: Path, body: bytes) -> None:
    """Damage a body on the disk, under the store that has it open."""
    (path,) = (folder / "store").glob("journal-*.dwl")
    at = path.read_bytes().index(body)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * len(body))


async def test_a_body_that_is_damaged_on_the_disk_is_found_and_let_go(tmp_path: Path) -> None:
    rig, _ = embedded(tmp_path)
    body = b"the body to be lost"

    async with one_in_each(rig):
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


async def test_bodies_of_very_many__are_looked_for_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others end, move or put between two parts is told as it is in the end."""
    monkeypatch.setattr(check, "_ROWS_AT_ONCE", 10)
    rig, store = embedded(tmp_path)
    await store.open()
    await rig.put(*(f"{number}" for number in range(100)))
    machine, position = store.core.machine, int(store.core.machine.table.position[0])
    looking = asyncio.ensure_future(bodiless(machine, [(0, position)], 1 << 62, 1000))
    for _ in range(6):
        await asyncio.sleep(0)
    assert not looking.done()
    await rig.cancel("3", "50", "99")
    assert len(await looking) == 97
    assert (await bodiless(machine, [(0, position)], 1 << 62, 15)).tolist() == [
        *(at for at in range(16) if at != 3)
    ]
    await store.close()


async def test_a_made_id_is_told_though_its_body_is_gone(tmp_path: Path) -> None:
    rig, _ = embedded(tmp_path)
    body = b"the body to be lost"

    async with one_in_each(rig):
        ids = await rig.put_made(2, body=body, delay_ms=5)
        numbers = {id_: (await rig.get(id_)).number for id_ in ids}
        overwrite_bodies(rig, tmp_path, body)
        stale = await rig.store.find_stale(limit=1)
        assert [(one.id, one.number) for one in stale] == [(ids[0], numbers[ids[0]])]
        # One frame held both, and with one broken byte it vouches for none of its bodies.
        await repaired(rig, *((id_, "no body") for id_ in ids))
        await all_are_whole(rig)


async def test_verbs_may_go_on_while_the_journal_is_read(tmp_path: Path) -> None:
    rig, _ = embedded(tmp_path)

    async with one_in_each(rig):
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


# --- parts ------------------------------------------------------------------------------------


def memory(_: Path) -> tuple[Rig, MemoryStore]:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    return Rig(store, clock), store


def _no_ready(store: MemoryStore) -> None:
    store.topics["t"].ready.clear()


def _no_taken(store: MemoryStore) -> None:
    store._taken.clear()


def _no_number(store: MemoryStore) -> None:
    del store._numbered[store.topics["t"].rows["dead"].arrival]


def _other_number(store: MemoryStore) -> None:
    rows = store.topics["t"].rows
    store._numbered[rows["dead"].arrival] = rows["ready"]


def _no_deadlines(store: MemoryStore) -> None:
    store._deadlines.entries.clear()


def _no_row(store: MemoryStore) -> None:
    del store.topics["t"].rows["ready"]


def _still_there(store: MemoryStore) -> None:
    row = store.topics["t"].rows["dead"]
    store._forget(row)
    store.topics["t"].rows["dead"] = row


def _other_count(store: MemoryStore) -> None:
    store.topics["t"].counts[State.READY] += 1


def _no_delays(store: EmbeddedStore) -> None:
    store.core.machine.delays.clear()


def _no_leases(store: EmbeddedStore) -> None:
    store.core.machine.leases.clear()


def _no_runs(store: EmbeddedStore) -> None:
    store.core.machine.topics.forget_ready()


def _no_index(store: EmbeddedStore) -> None:
    store.core.machine.known.index.rebuild(np.zeros(0, np.uint32))


def _no_expiries(store: EmbeddedStore) -> None:
    store.core.machine.expiries.clear()


def _strange_ids(store: EmbeddedStore) -> None:
    hashes, checks = np.array([7], np.uint64), np.array([7], np.uint32)
    store.core.machine.known.add(hashes, checks, np.array([999]), 0)


def _other_count_in_a_folder(store: EmbeddedStore) -> None:
    store._table._counts[0, State.READY] += 1


@pytest.mark.parametrize(
    ("make", "damage", "words"),
    [
        (memory, _no_ready, "'ready': is READY, and not where those are"),
        (memory, _no_taken, "'leased': is LEASED, and not where those are"),
        (memory, _no_number, "'dead': is DEAD, and not where those are"),
        (memory, _other_number, "'dead': is DEAD, and not where those are"),
        (memory, _no_deadlines, "'delayed': is DELAYED, and not where those are"),
        (memory, _no_row, "'ready': no topic has it"),
        (memory, _still_there, "'dead': is GONE, and not where those are"),
        (memory, _other_count, "t: 2 READY, and there are 1"),
        (embedded, _no_delays, "the wheel of dues lacks rows"),
        (embedded, _no_leases, "the wheel of leases lacks rows"),
        (embedded, _no_runs, "the ready runs lacks rows"),
        (embedded, _no_expiries, "the wheel of expiries lacks rows"),
        (embedded, _no_index, "the index lacks rows"),
        (embedded, _strange_ids, "the index has rows [999] of no message"),
        (embedded, _other_count_in_a_folder, "t: 2 READY, and there are 1"),
    ],
)
async def test_parts_that_do_not_agree_are_told(
    make: Callable[[Path], tuple[Rig, Store]],
    damage: Callable[[Store], None],
    words: str,
    tmp_path: Path,
) -> None:
    rig, store = make(tmp_path)

    async with one_in_each(rig):
        await rig.put("short", delay_ms=LATER_MS, expires_in_ms=100)
        assert disagreements(store) == []
        damage(store)
        assert any(one.startswith(words) for one in disagreements(store))


# --- whatever happens -------------------------------------------------------------------------


class AgreeingMachine(StoreMachine):
    """A store beside the model, whose parts have to agree after every step."""

    @invariant()
    def parts_agree(self) -> None:
        if not self.has_only_moved:
            assert self.run(self.store.find_stale()) == disagreements(self.store) == []


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
