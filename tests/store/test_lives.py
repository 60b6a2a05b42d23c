"""Lives of a store: what one life names, no other life takes for its own.

A store lives on from its files. When these are copied, restored or lose their end, several lives
begin from one state; receipts, ids and numbers of one of them must mean nothing in the others.
"""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dwell
from dwell import Result, State
from dwell.clock import SimulatedClock
from dwell.errors import ForeignReceipt
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.testing.faults import FaultyDisk


class Life:
    """What one life of a store has handed out."""

    def __init__(self) -> None:
        self.receipts: list[dwell.Batch] = []
        self.ids: list[str] = []
        self.numbers: list[int] = []

    async def live(self, queue: Queue, puts: int, takes: int) -> None:
        """Put some messages, and take some of those that there are."""
        results = await queue.put_many("t", [b"x"] * puts) if puts else ()
        self.ids += [result.id for result in results]
        self.numbers += [result.number for result in results]
        if takes and len(batch := await queue.take("t", takes, lease="1h")):
            self.receipts.append(batch)


async def check_strange(queue: Queue, life: Life) -> None:
    """Check that a store knows nothing that another life handed out."""
    before = (await queue.stats()).topics
    for batch in life.receipts:
        with contextlib.suppress(ForeignReceipt):
            assert set((await queue.ack(batch)).codes.tolist()) == {Result.STALE}
    for id_ in life.ids:
        assert await queue.cancel("t", id_) is Result.UNKNOWN
        assert await queue.get("t", id_) is None
    assert await queue.named(life.numbers) == [None] * len(life.numbers)
    assert (await queue.stats()).topics == before


def store_of(queue: Queue) -> EmbeddedStore:
    assert isinstance(queue.store, EmbeddedStore)
    return queue.store


few = st.integers(0, 4)
lived = st.tuples(few, few)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    common=lived,
    lives=st.lists(st.lists(lived, min_size=1, max_size=2), min_size=2, max_size=3),
    by_backup=st.booleans(),
)
async def test_lives__copies__know_nothing_of_each_other(
    tmp_path_factory: pytest.TempPathFactory,
    common: tuple[int, int],
    lives: list[list[tuple[int, int]]],
    by_backup: bool,
) -> None:
    root = tmp_path_factory.mktemp("lives")
    async with dwell.open(root / "first", segment_bytes=64 * 1024) as queue:
        await Life().live(queue, *common)
        if by_backup:
            await store_of(queue).backup(root / "copy")
    if not by_backup:
        shutil.copytree(root / "first", root / "copy")
    known = []
    for number, openings in enumerate(lives):
        folder = root / str(number)
        shutil.copytree(root / "copy", folder)
        known.append(Life())
        for puts, takes in openings:
            async with dwell.open(folder) as queue:
                await known[-1].live(queue, puts, takes)
    for number in range(len(lives)):
        async with dwell.open(root / str(number)) as queue:
            for other, life in enumerate(known):
                if other != number:
                    await check_strange(queue, life)


async def test_lives__own_receipts_and_ids__stay_good_over_restarts(tmp_path: Path) -> None:
    life = Life()
    for _ in range(3):
        async with dwell.open(tmp_path / "store") as queue:
            await life.live(queue, 3, 2)
    async with dwell.open(tmp_path / "store") as queue:
        assert all(await queue.get("t", life.ids))
        assert all(await queue.named(life.numbers))
        for batch in life.receipts:
            assert set((await queue.ack(batch)).codes.tolist()) == {Result.ACKED}


async def test_lives__lost_tail__is_another_life() -> None:
    """With sync=never a power cut may undo what was answered."""
    disk, lost, kept = FaultyDisk(), Life(), Life()
    queue = Queue(EmbeddedStore(Path("/store"), disk=disk, sync="never"))
    await queue.open()
    await store_of(queue).compact()
    image = disk.copied()
    await lost.live(queue, 3, 3)
    await queue.close()
    async with Queue(EmbeddedStore(Path("/store"), disk=image)) as queue:
        await kept.live(queue, 3, 3)
        await check_strange(queue, lost)


async def test_lives__a_new_store_at_the_same_path__is_another_life(tmp_path: Path) -> None:
    lives: list[Life] = []
    for _ in range(2):
        async with dwell.open(tmp_path / "store") as queue:
            lives.append(Life())
            await lives[-1].live(queue, 3, 3)
            for life in lives[:-1]:
                await check_strange(queue, life)
        shutil.rmtree(tmp_path / "store")


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_lives__versions__name_no_message_of_another_life(kind: str, tmp_path: Path) -> None:
    """Messages with the same ids, put at the same moment, in the same order."""
    where, clock = "memory:" if kind == "memory" else str(tmp_path / "store"), SimulatedClock(0)
    seen: dict[int, int] = {}
    for life in range(2):
        async with dwell.open(where, clock=clock) as queue:
            for number in range(5):
                await queue.put("t", str(life), id=f"{number}", due=1_000)
                if life:
                    at = np.array([seen[number]], np.uint64)
                    assert await queue.cancel("t", [f"{number}"], versions=at) == [Result.UNKNOWN]
            page = await queue.scan("t", State.DELAYED)
            seen = dict(zip(map(int, page.messages.ids), page.versions.tolist(), strict=True))
        shutil.rmtree(tmp_path / "store", ignore_errors=True)


@pytest.mark.parametrize("takes", [1, 3])
async def test_lives__takes_of_one_message__have_different_receipts(
    tmp_path: Path, takes: int
) -> None:
    seen: set[tuple[int, int]] = set()
    for _ in range(2):
        async with dwell.open(tmp_path / "store") as queue:
            await queue.put("t", b"x", id="a")
            for _ in range(takes):
                batch = await queue.take("t")
                assert batch.receipts is not None
                seen.add(tuple(batch.receipts[0].tolist()))
                await queue.release(batch, counted=False)
    assert len(seen) == 2 * takes
