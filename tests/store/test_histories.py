"""Whose the events of a store are: a copy that goes on by itself is told from its original."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

import dwell
from dwell.clock import RealClock
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.openings import Opening, begun, history
from dwell.store.memory import MemoryStore
from dwell.testing.faults import FaultyDisk


def live(folder: Path, count: int) -> list[str]:
    """Put some messages; return whose the event before each position is by then."""
    with dwell.open(folder) as queue:
        queue.put_many("t", ["x"] * count)
        end = queue.events(0).end_position
        return [queue.events(position, 1).since for position in range(end + 1)]


def test_a_store_that_is_started_again_goes_on_with_its_history(tmp_path: Path) -> None:
    first = live(tmp_path / "store", 3)
    assert first[0] == ""
    assert len(set(first[1:])) == 1
    for _ in range(3):
        live(tmp_path / "store", 0)
    second = live(tmp_path / "store", 2)
    assert second[:4] == first
    assert second[4] == second[5] not in first


def test_starts_without_events_leave_nothing_behind(tmp_path: Path) -> None:
    live(tmp_path / "store", 3)
    sizes = set()
    for _ in range(5):
        live(tmp_path / "store", 0)
        sizes.add(len(json.loads((tmp_path / "store" / "dwell.json").read_bytes())["openings"]))
    assert sizes == {2}


@pytest.mark.parametrize("kind", ["copy", "backup"])
def test_a_copy_has_the_same_history_up_to_where_it_was_made(tmp_path: Path, kind: str) -> None:
    async def backup() -> None:
        async with dwell.open(tmp_path / "store") as queue:
            store = queue.store
            assert isinstance(store, EmbeddedStore)
            await store.backup(tmp_path / "copy")

    before = live(tmp_path / "store", 5)
    if kind == "copy":
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    else:
        asyncio.run(backup())
    one, other = live(tmp_path / "store", 4), live(tmp_path / "copy", 4)
    assert one[:6] == other[:6] == before
    assert not set(one[6:]) & set(other[6:])


def test_a_copy_that_is_put_in_the_place_of_its_original_is_told(tmp_path: Path) -> None:
    live(tmp_path / "store", 5)
    shutil.copytree(tmp_path / "store", tmp_path / "older")
    seen = live(tmp_path / "store", 50)
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "older", tmp_path / "store")
    now = live(tmp_path / "store", 50)
    assert len(now) == len(seen)
    assert now[5] == seen[5]
    assert now[-1] != seen[-1]


def test_a_page_says_whose_its_begin_and_its_end_are(tmp_path: Path) -> None:
    live(tmp_path / "store", 2)
    with dwell.open(tmp_path / "store") as queue:
        queue.put_many("t", ["x"] * 2)
        page = queue.events(1, 2)
        assert page.since == queue.events(0, 1).history
        assert page.history == queue.events(3, 1).since != page.since
        assert queue.events(100, 1).since == ""


async def test_a_store_in_memory_names_its_history() -> None:
    names = []
    for _ in range(2):
        async with dwell.Queue(MemoryStore(RealClock())) as queue:
            await queue.put("t", "x")
            page = await queue.events(0)
            assert page.since == ""
            assert page.history == (await queue.events(1)).since != ""
            names.append(page.history)
    assert names[0] != names[1]


async def test_a_full_disk_keeps_no_store_from_opening(tmp_path: Path) -> None:
    disk = FaultyDisk()
    for _ in range(2):
        async with dwell.Queue(EmbeddedStore(tmp_path / "store", disk=disk)) as queue:
            await queue.put("t", "x")
    renamed = disk.rename

    def full(old: Path, new: Path) -> None:
        if new.name == "dwell.json":
            raise OSError(28, "no room")
        renamed(old, new)

    disk.rename = full  # type: ignore[method-assign]
    async with dwell.Queue(EmbeddedStore(tmp_path / "store", disk=disk)) as queue:
        assert (await queue.stats()).topics["t"].ready == 2
        assert (await queue.events(2)).since
    assert not [name for name in disk.names(tmp_path / "store") if name.endswith(".new")]


def test_the_oldest_openings_are_forgotten() -> None:
    openings: tuple[Opening, ...] = ()
    for position in range(1_500):
        openings = begun(openings, position, f"{position}")
    assert len(openings) == 1_000
    assert history(openings, 400, 2_000) == ""
    assert history(openings, 1_000, 2_000) == "999"
    # What a power cut undid was of no opening.
    assert history(begun(openings, 700, "new"), 1_000, 2_000) == "new"
