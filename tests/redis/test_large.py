"""Large messages: no call does something with many of them; who calls asks again for the others."""

from collections.abc import AsyncIterator

import pytest
import redis

from dwell.batch.stats import TopicStats
from dwell.batch.sweep import Wanted
from dwell.clock import SimulatedClock
from dwell.message import U64, State
from dwell.store.redis.debts import Debts
from dwell.store.redis.limits import Limits
from dwell.store.redis.numbers import split
from dwell.testing.rig import Rig, encoded, receipts_of
from tests.redis.test_redis_suite import new_store

_IDS = [f"{at:02d}" for at in range(24)]
_BODY = b"x" * 2**19
#: They have 12 MiB, of which a call looks at some 4.
_LEAST_CALLS = 3


@pytest.fixture
async def rig(redis_url) -> AsyncIterator[Rig]:
    store = new_store(redis_url, SimulatedClock())
    rig = Rig(store, store.clock)
    await store.open()
    for id_ in _IDS:
        await rig.put_entries([rig.entry(id_, body=_BODY)])
    yield rig
    await store.close()


class _Calls:
    """How many calls an engine has had since it was asked the last time."""

    def __init__(self, url: str) -> None:
        self._engine = redis.Redis.from_url(url)
        self._before = 0

    def since(self) -> int:
        now = self._engine.info("commandstats")["cmdstat_fcall"]["calls"]
        number, self._before = now - self._before, now
        return number


async def _taken(rig: Rig) -> U64:
    """Take all messages, which is one take for who asks."""
    batch = await rig.take()
    assert list(batch.ids) == _IDS
    assert set(batch.bodies) == {_BODY}
    return receipts_of(batch)


async def test_verbs_by_receipt(rig, redis_url):
    calls = _Calls(redis_url)
    for verb, word in (("touch", "touched"), ("release", "released"), ("bury", "buried")):
        receipts = await _taken(rig)
        assert calls.since() >= _LEAST_CALLS
        assert await getattr(rig, verb)(receipts) == [word] * 24
        assert calls.since() >= _LEAST_CALLS
        if verb == "touch":
            assert await rig.release(receipts) == ["released"] * 24
    assert await rig.kick(*_IDS) == ["kicked"] * 24
    receipts = await _taken(rig)
    calls.since()
    assert await rig.ack(receipts) == ["acked"] * 24
    assert calls.since() > 1
    assert (await rig.store.stats()).topics["t"] == TopicStats()


async def test_verbs_by_id(rig, redis_url):
    calls = _Calls(redis_url)
    calls.since()
    assert await rig.reschedule(*_IDS, delay_ms=5) == ["moved"] * 24
    assert calls.since() >= _LEAST_CALLS
    batch = await rig.take_by_ids(*_IDS)
    assert len(batch) == 0
    rig.advance(5)
    batch = await rig.take_by_ids(*_IDS)
    assert list(batch.ids) == _IDS
    assert await rig.bury(receipts_of(batch)) == ["buried"] * 24
    calls.since()
    assert await rig.kick(*_IDS) == ["kicked"] * 24
    assert calls.since() >= _LEAST_CALLS
    assert await rig.cancel(*_IDS) == ["cancelled"] * 24
    assert calls.since() >= _LEAST_CALLS
    assert (await rig.store.stats()).topics["t"] == TopicStats()


async def test_verbs_that_look(rig, redis_url):
    """They give all messages, however many calls that takes."""
    # Small ones as well, so that the names of those that are held come in several parts.
    small = [f"s{at:03d}" for at in range(300)]
    await rig.put_entries([rig.entry(id_, body=b"s") for id_ in small])
    calls, wanted = _Calls(redis_url), encoded([*_IDS, *small])
    calls.since()
    found = await rig.store.get("t", wanted)
    assert [message and message.id for message in found] == [*_IDS, *small]
    assert calls.since() >= len(wanted) / rig.store.shards.limits.ids + _LEAST_CALLS - 1
    page = await rig.store.scan("t", State.READY, None, 1_000)
    assert sorted(page.messages.ids) == sorted([*_IDS, *small])
    calls.since()
    assert list((await rig.store.peek("t", 24)).ids) == _IDS
    # One for the numbers, and those for the messages.
    assert calls.since() > _LEAST_CALLS
    ids, place, sweeps = [], 0, 0
    while place is not None:
        part = await rig.store.sweep(Wanted(), place, 2**60, 1_000)
        ids += list(part.messages.ids)
        place, sweeps = part.next_place, sweeps + 1
    assert sorted(ids) == sorted([*_IDS, *small])
    assert sweeps >= _LEAST_CALLS
    await rig.take(400, owner="me")
    calls.since()
    held = await rig.store.held("me")
    assert sorted(held.ids) == sorted([*_IDS, *small])
    assert calls.since() >= _LEAST_CALLS


async def test_what_nobody_was_handed_is_given_back(rig):
    debts = Debts(rig.store.shards)
    takes, numbers = (await _taken(rig)).T.tolist()
    entries = [
        split(number)[0].to_bytes(7, "big") + (take % 2**32).to_bytes(4, "big")
        for take, number in zip(takes, numbers, strict=True)
    ]
    debts.owe(0, entries)
    await debts.paid(0, None)
    batch = await rig.take()
    assert list(batch.ids) == _IDS
    assert set(batch.attempt.tolist()) == {1}
    await debts.close()


@pytest.mark.parametrize("end", ["leases", "expiries"])
async def test_what_time_ends_is_ended_in_several_calls(rig, redis_url, end):
    calls = _Calls(redis_url)
    if end == "leases":
        await rig.take(lease_ms=5)
        rig.advance(5)
    else:
        await rig.cancel(*_IDS)
        for id_ in _IDS:
            await rig.put_entries([rig.entry(id_, body=_BODY, expires_in_ms=5)])
        rig.advance(5)
    calls.since()
    of = (await rig.store.stats()).topics["t"]
    assert calls.since() >= _LEAST_CALLS
    assert (of.ready, of.dead) == ((24, 0) if end == "leases" else (0, 24))


async def test_a_topic_of_them_becomes_ordered(rig):
    await rig.configure(ordered=True)
    for at, id_ in enumerate(_IDS):
        assert await rig.cancel(id_) == ["cancelled"]
        await rig.put_entries([rig.entry(id_, body=_BODY, key=f"k{at % 2}")])
    await rig.configure()
    await rig.configure(ordered=True)
    for first in range(0, 24, 2):
        batch = await rig.take()
        assert list(batch.ids) == _IDS[first : first + 2]
        await rig.ack(receipts_of(batch))


async def test_a_take_by_ids_of_many_calls_ends_when_it_has_enough(redis_url):
    store = new_store(redis_url, SimulatedClock(), limits=Limits(ids=3))
    rig = Rig(store, store.clock)
    await store.open()
    ids = [f"{at:02d}" for at in range(40)]
    for at in range(0, 40, 8):
        await rig.put(*ids[at : at + 8], body=b"x" * 2**20)
    batch = await rig.take_by_ids(*ids)
    assert 0 < len(batch) < 22
    assert (await rig.store.stats()).topics["t"].leased == len(batch)
    await store.close()
