"""The store in memory, by the suite and beside the model."""

import asyncio
import gc

import pytest
from hypothesis import settings

import dwell
from dwell.clock import SimulatedClock
from dwell.errors import ForeignReceipt, StoreClosed
from dwell.store.memory import MemoryStore
from dwell.store.memory.rows import Row
from dwell.testing.machine import StoreMachine
from dwell.testing.model import Entry
from dwell.testing.rig import Rig, receipts_of
from dwell.testing.suite import StoreSuite
from dwell.testing.views import puts_of
from tests import RUNS
from tests.alive import newcomers


class TestMemoryStore(StoreSuite):
    async def make_store(self, clock: SimulatedClock) -> MemoryStore:
        return MemoryStore(clock)


class MemoryMachine(StoreMachine):
    async def make_store(self, clock: SimulatedClock) -> MemoryStore:
        return MemoryStore(clock)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=RUNS * 50, stateful_step_count=50, deadline=None)


def make_rig(max_events: int = 1000) -> Rig:
    clock = SimulatedClock()
    return Rig(MemoryStore(clock, max_events=max_events), clock)


def test_verbs_before_open_are_refused() -> None:
    with pytest.raises(StoreClosed, match="not open"):
        asyncio.run(make_rig().put("x"))


async def test_old_events_go_and_positions_stay() -> None:
    rig = make_rig(max_events=10)
    await rig.store.open()
    for number in range(200):
        await rig.put(f"{number}")
        page = await rig.store.events(0, 1000)
        assert page.first_position == max(number - 9, 0)
        assert page.next_position == number + 1
        assert [event.id for event in page.events] == [
            f"{n}" for n in range(page.first_position, number + 1)
        ]
    page = await rig.store.events(195, 2)
    assert [event.position for event in page.events] == [195, 196]
    assert (await rig.store.stats()).totals == {"put": 200}


async def test_timers_that_are_set_and_cancelled_do_not_pile_up() -> None:
    rig = make_rig()
    await rig.store.open()
    store = rig.store
    assert isinstance(store, MemoryStore)
    await rig.put("stays", delay_ms=10**7)
    for number in range(2_000):
        await rig.put(f"{number}", delay_ms=10**6)
        await rig.cancel(f"{number}")
        await rig.put("ready", on_conflict="replace")
    assert len(store._deadlines.entries) < 200
    assert len(store.topics["t"].ready) < 200
    assert await rig.tick() == 10**7
    assert await rig.take_ids() == ["ready"]


@pytest.mark.parametrize("limits", [{"ordered": True}, {"fair": True}], ids=str)
async def test_what_stood_behind_another_and_was_cancelled_does_not_pile_up(
    limits: dict[str, bool],
) -> None:
    rig, rows = make_rig(), newcomers(Row)
    await rig.store.open()
    await rig.configure(**limits)
    await rig.put("first", "second", key="k")
    for number in range(1_000):
        await rig.put(f"{number}", key="k")
        await rig.cancel(f"{number}")
    gc.collect()
    assert len(rows()) < 200
    assert await rig.take_ids(1) == ["first"]


async def test_keys_that_came_and_went_are_forgotten() -> None:
    rig = make_rig()
    await rig.store.open()
    await rig.configure(fair=True)
    for number in range(3_000):
        await rig.put(f"{number}", key=f"{number}")
        if number:
            await rig.ack(receipts_of(await rig.take(1)))
    assert isinstance(rig.store, MemoryStore)
    lanes = rig.store.topics["t"].lanes
    assert lanes is not None
    assert len(lanes._lanes) == 1
    assert lanes._turns is not None
    assert len(lanes._turns._last) < 2_000


async def test_close_forgets_everything() -> None:
    rig = make_rig()
    await rig.store.open()
    await rig.put("x")
    receipts = receipts_of(await rig.take())
    await rig.store.close()
    await rig.store.open()
    assert await rig.find("x") is None
    assert await rig.events() == []
    with pytest.raises(ForeignReceipt):
        await rig.ack(receipts)


async def test_a_number_is_of_its_own_life() -> None:
    numbers = set()
    for _ in range(3):
        store = MemoryStore(SimulatedClock())
        for _ in range(2):
            await store.open()
            numbers |= set(
                (await store.put(puts_of("t", [Entry("a", b"", 0)]), "keep")).numbers.tolist()
            )
            await store.close()
    assert len(numbers) == 6


async def test_clear__very_many__looks_at_each_message_once() -> None:
    """Every part begins at the first that is left."""
    looked = []

    class Rows(dict):
        def values(self):
            return (looked.append(row) or row for row in super().values())

    async with dwell.Queue(MemoryStore(SimulatedClock())) as queue:
        await queue.put_many("t", [b"x"] * 5_500)
        await queue.take("t", 10)
        topic = queue.store.topics["t"]
        topic.rows = Rows(topic.rows)
        assert await queue.clear("t") == 5_490
        assert len(looked) <= 5_500 + 6 * 10
        assert (await queue.stats()).topics["t"].leased == 10
