"""Answers that come late, twice or not at all: what they name is somebody else's by then."""

import asyncio

import pytest

import dwell
from dwell import Result
from dwell.store.redis import taking
from tests.http.between import between
from tests.redis.calls import call_of
from tests.redis.servers import redis_server
from tests.waiting import until_async


async def other_takes(queue: dwell.Queue) -> dwell.Batch:
    """Take what comes back when a lease has ended."""
    taken = await queue.take("t", 10, lease="10m", wait=30)
    while len(taken) < 3:
        taken = dwell.Batch.joined([taken, await queue.take("t", 10, lease="10m", wait=30)])
    return taken


@pytest.mark.parametrize("packed", [1, 1000], ids=["block", "loose"])
@pytest.mark.parametrize("verb", ["take", "take_ids"])
@pytest.mark.parametrize("how", ["held", "mute", "cut"])
async def test_what_comes_after_the_end_of_its_lease_is_not_handed_out(packed, verb, how):
    """The engine or the network keeps the answer of a take until the lease is over."""

    with redis_server() as server:
        async with (
            between(server.url) as wire,
            dwell.open(wire.url, packed=packed, timeout=20) as one,
            dwell.open(server.url, packed=packed) as other,
        ):
            ids = ["a", "b", "c"]
            await other.put_many("t", ids, ids=ids)
            asks = {
                "take": lambda topic: one.take(topic, 3, lease=0.01),
                "take_ids": lambda topic: one.take_ids(topic, ids, lease=0.01),
            }
            # The first time, connections are made.
            await asks[verb]("warm")
            wire.break_(how, None if how == "mute" else 1, call_of(verb))
            taking = asyncio.create_task(asks[verb]("t"))
            # What was cut before the engine had it leases when it is asked for again.
            if how != "cut":
                while (await other.stats()).totals.get("take", 0) < 3:
                    await asyncio.sleep(0.001)
                theirs = await other_takes(other)
                assert set(theirs.attempt.tolist()) == {2}
                wire.break_("pass")
                wire.let_go.set()
                assert list(await taking) == []
                assert set(await other.ack(theirs)) == {Result.ACKED}
            else:
                taken = await taking
                now_ms = one.clock.now_ms()
                assert all(message.lease_until_ms > now_ms - 100 for message in taken)


async def test_a_take_whose_first_answer_was_lost_takes_all_that_is_wanted():
    with redis_server() as server:
        async with between(server.url) as wire, dwell.open(wire.url, packed=1000) as queue:
            # One call leases some of them, and says that there are more.
            await queue.put_many("t", [b"x"] * 700)
            wire.break_("mute", 1, call_of("take"))
            assert len(await queue.take("t", 700)) == 700
            assert wire.how == "pass"


async def test_calls_that_were_given_up_leave_nothing_in_the_engine():
    with redis_server() as server:
        async with between(server.url) as wire, dwell.open(wire.url) as queue:
            store = queue.store
            await store.cancel("t", [b"nobody"])
            calls = f"dwell:{{0}}:calls:{store.shards.engine.name}"
            before = server.ask("HLEN", calls)
            for _ in range(10):
                wire.break_("held", 1, call_of("cancel"))
                cancelling = asyncio.create_task(store.cancel("t", [b"nobody"]))
                # Its answer is there, and does not come.
                await until_async(lambda: wire.how == "pass")
                cancelling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cancelling
            wire.let_go.set()
            await store.cancel("t", [b"nobody"])
            # A tick may have been under way beside them.
            assert server.ask("HLEN", calls) <= before + 4


async def test_a_verb_that_is_cancelled_while_the_engine_hangs_ends():
    with redis_server() as server:
        async with dwell.open(server.url, timeout=2, connections=4) as queue:
            await queue.put("t", "x", id="x")
            server.stop()
            for _ in range(50):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(queue.store.cancel("t", [b"nobody"]), 0.002)
            server.cont()
            assert (await queue.get("t", ["x"]))[0].body == b"x"


async def test_a_request_that_comes_twice_is_done_once():
    with redis_server() as server:
        async with between(server.url) as wire, dwell.open(wire.url) as queue:
            for verb in ("put", "take", "ack"):
                # The first time, connections are made.
                await queue.put("warm", "x")
                await queue.ack(await queue.take("warm"))
                wire.break_("twice", 1, call_of(verb))
                await queue.put_many("t", ["a", "b", "c"])
                taken = await queue.take("t", 2)
                assert [message.body for message in taken] == [b"a", b"b"]
                assert list(await queue.ack(taken)) == [Result.ACKED] * 2
                (left,) = await queue.take("t", 10)
                assert (left.body, left.attempt) == (b"c", 1)
                assert await queue.ack(left) is Result.ACKED
                assert wire.how == "pass"
                assert await queue.find_stale() == []


async def test_what_is_remembered_is_forgotten_as_fast_as_it_comes():
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            await queue.configure("t", remember_ms=1)
            for turn in range(6):
                ids = [f"{turn}-{at}" for at in range(10_000)]
                await queue.put_many("t", ["x"] * 10_000, ids=ids)
                parts = [await queue.take("t", 4_000) for _ in range(3)]
                await queue.ack(dwell.Batch.joined(parts))
            # Each ack makes 20 entries.
            assert server.ask("ZCARD", "dwell:{0}:forgets") <= 60


async def test_a_shard_whose_answers_take_long_is_waited_for_longer_each_time(monkeypatch):
    """Over a slow link a full answer may need longer than others are kept waiting for it."""
    monkeypatch.setattr(taking, "_PATIENCE", 0.05 / 20)
    with redis_server() as server:
        async with (
            between(server.url) as wire,
            dwell.open(wire.url, shards=2, timeout=20) as queue,
        ):
            ids = [f"{number}" for number in range(20)]
            await queue.put_many("t", ids, ids=ids)
            wire.delay_s = 0.2
            wire.break_("slow", None, call_of("take"))
            seen: list[str] = []
            while len(seen) < len(ids):
                seen += (await queue.take("t", 20)).ids
            assert sorted(seen) == sorted(ids)
