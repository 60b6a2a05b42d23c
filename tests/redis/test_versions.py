"""Versions: a verb by id that names the version it means leaves alone what has changed since."""

import numpy as np
import pytest
from msgspec import structs

from dwell.clock import SimulatedClock
from dwell.message import Result, State, TopicSettings
from dwell.testing.rig import Rig
from tests.redis.test_redis_suite import new_store

LATER_MS = 1_000


async def _receipts(rig: Rig):
    return (await rig.store.take(["t"], 100, LATER_MS, "")).receipts


async def _released(rig: Rig) -> None:
    await rig.store.release(await _receipts(rig), 0, None, counted=False)


async def _ended(rig: Rig) -> None:
    await _receipts(rig)
    rig.clock.advance(2 * LATER_MS)


async def _replaced(rig: Rig) -> None:
    await rig.put(*IDS, on_conflict="replace")


async def _anew(rig: Rig) -> None:
    await rig.cancel(*IDS)
    await rig.put(*IDS)


async def _moved_and_back(rig: Rig) -> None:
    due = (await rig.find(IDS[0])).due_ms
    for at in (due + 5, due):
        await rig.store.reschedule("t", ENCODED, np.full(len(IDS), at, np.int64))


async def _kicked(rig: Rig) -> None:
    await rig.store.bury(await _receipts(rig), None)
    await rig.store.kick("t", ENCODED, np.zeros(len(ENCODED), np.int64))


IDS = [f"i{n}" for n in range(12)]
ENCODED = [id_.encode() for id_ in IDS]
CHANGES = {
    "released": _released,
    "ended": _ended,
    "replaced": _replaced,
    "put anew": _anew,
    "moved and back": _moved_and_back,
    "kicked": _kicked,
}


async def versions(rig: Rig, state: State):
    page = await rig.store.scan("t", state, None, 100)
    assert len(page.versions) == len(page.messages)
    return [id_.encode() for id_ in page.messages.ids], page.versions


@pytest.fixture(params=[1, 3])
async def rig(request, redis_url):
    clock = SimulatedClock()
    rig = Rig(new_store(redis_url, clock, shards=request.param), clock)
    await rig.store.open()
    await rig.store.configure("t", structs.asdict(TopicSettings(max_attempts=100)))
    yield rig
    await rig.store.close()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("verb", ["cancel", "reschedule", "take_ids"])
async def test_what_has_changed_is_left_alone(rig: Rig, change: str, verb: str) -> None:
    await rig.put(*IDS)
    ids, seen = await versions(rig, State.READY)
    await CHANGES[change](rig)
    now = await rig.store.get("t", ids)
    if verb == "take_ids":
        assert not len(await rig.store.take_ids("t", ids, LATER_MS, "", versions=seen))
    else:
        dues = (np.full(len(ids), 5, np.int64),) if verb == "reschedule" else ()
        found = await getattr(rig.store, verb)("t", ids, *dues, versions=seen)
        assert set(found.tolist()) == {Result.UNKNOWN}
    assert await rig.store.get("t", ids) == now


async def test_what_is_as_it_was_seen_is_changed(rig: Rig) -> None:
    await rig.put(*IDS)
    await rig.put("later", delay_ms=LATER_MS)
    ids, seen = await versions(rig, State.READY)
    taken = await rig.store.take_ids("t", ids[:4], LATER_MS, "", versions=seen[:4])
    assert [id_.encode() for id_ in taken.ids] == ids[:4]
    dues = np.full(4, rig.now_ms + LATER_MS, np.int64)
    moved = await rig.store.reschedule("t", ids[4:8], dues, versions=seen[4:8])
    assert set(moved.tolist()) == {Result.MOVED}
    cancelled = await rig.store.cancel("t", ids[8:], versions=seen[8:])
    assert set(cancelled.tolist()) == {Result.CANCELLED}
    await rig.store.bury(taken.receipts, None)
    dead, seen = await versions(rig, State.DEAD)
    kicked = await rig.store.kick("t", dead, np.zeros(len(dead), np.int64), versions=seen)
    assert set(kicked.tolist()) == {Result.KICKED}
    assert set(
        (await rig.store.kick("t", dead, np.zeros(len(dead), np.int64), versions=seen)).tolist()
    ) == {Result.UNKNOWN}


async def test_a_message_that_falls_due_is_not_changed_by_it(rig: Rig) -> None:
    await rig.put(*IDS, delay_ms=LATER_MS)
    ids, seen = await versions(rig, State.DELAYED)
    rig.clock.advance(2 * LATER_MS)
    assert (await versions(rig, State.READY))[1].tolist() == seen.tolist()
    cancelled = await rig.store.cancel("t", ids, versions=seen)
    assert set(cancelled.tolist()) == {Result.CANCELLED}


async def test_a_dead_message_that_was_kicked_and_buried_again_has_changed(rig: Rig) -> None:
    await rig.put(*IDS)
    await rig.store.bury(await _receipts(rig), None)
    ids, seen = await versions(rig, State.DEAD)
    await rig.store.kick("t", ids, np.zeros(len(ids), np.int64))
    await rig.store.bury(await _receipts(rig), None)
    assert set(
        (await rig.store.kick("t", ids, np.zeros(len(ids), np.int64), versions=seen)).tolist()
    ) == {Result.UNKNOWN}
