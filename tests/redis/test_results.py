"""Results on Redis: over instances and shards, in blocks or not, and when memory is full."""

import asyncio
import itertools

import pytest
import redis

import dwell
from dwell import Outcome, Result
from dwell.errors import InvalidInput, StoreFull
from dwell.store.redis import store
from dwell.store.redis.engine import Engine
from dwell.store.redis.putting import shard_for
from tests.redis.servers import redis_server
from tests.waiting import PATIENCE_S, until_async


def prefixed(url, name, shards=1):
    return f"{url}?prefix={name}&shards={shards}"


@pytest.mark.parametrize("shards", [1, 4])
async def test_other_instances_are_told_of_an_end(redis_url, monkeypatch, shards):
    """With looks a minute apart only the channel can tell them in time."""
    url = prefixed(redis_url, f"told{shards}", shards)
    monkeypatch.setattr(store, "_FALLBACK_MS", 60_000)
    monkeypatch.setattr(store, "_WATCH_MS", 120_000)
    monkeypatch.setattr(store.RedisStore, "untold_ms", 60_000)
    async with dwell.open(url) as worker, dwell.open(url) as producer:
        for id_, key in (("1", None), ("2", "k"), ("3", "k")):
            await producer.put("t", b"", id=id_, key=key)
            wait = asyncio.create_task(producer.result("t", id_, wait="30s"))
            await until_async(lambda: bool(producer._watchers.topics))
            # It counts as watched once the producer has looked.
            await producer.result("t", id_)
            (message,) = await worker.take("t", wait=PATIENCE_S)
            await worker.ack(message, result=id_)
            assert await asyncio.wait_for(wait, 20) == Outcome("done", id_.encode())


async def test_results_whose_time_is_over_go_while_nobody_calls(redis_url):
    async with dwell.open(prefixed(redis_url, "idle")) as queue:
        await queue.configure("t", remember_ms=1_000)
        await queue.put_many("t", [b""] * 400)
        for message in await queue.take("t", 400):
            await queue.ack(message, result="kept")
        with redis.Redis.from_url(redis_url) as engine:
            await until_async(lambda: not engine.keys("*idle*:results:t"))


async def test_topics_that_nobody_watches_any_more_are_dropped(redis_url, monkeypatch):
    monkeypatch.setattr(store, "_WATCH_MS", 100)
    async with dwell.open(prefixed(redis_url, "seldom")) as queue:
        for number in range(60):
            await queue.put(f"t{number}", b"", id="1")
            assert (await queue.result(f"t{number}", "1", wait="50ms")).state == "ready"
            assert (await queue.result(f"none{number}", "1", wait="50ms")).state == "unknown"
        with redis.Redis.from_url(redis_url) as engine:
            (watched,) = engine.keys("*seldom*:watched")
            assert engine.hlen(watched) < 30


async def test_end_that_was_not_told_is_found(redis_url, monkeypatch):
    """A message on the channel may be lost."""
    url = prefixed(redis_url, "untold")
    async with dwell.open(url) as worker, dwell.open(url) as producer:
        monkeypatch.setattr(producer.store, "ended", lambda topic: None)
        await producer.put("t", b"", id="1")
        wait = asyncio.create_task(producer.result("t", "1", wait=PATIENCE_S))
        await until_async(lambda: bool(producer._watchers.topics))
        await worker.ack(await worker.take("t", wait=PATIENCE_S), results=["found"])
        assert (await wait).result == b"found"


@pytest.mark.parametrize("part", [64, 20, 1])
async def test_blocks_are_acked_with_results_in_any_part(redis_url, part):
    """Whole, in parts and one by one, in any order; of made ids and of callers' own."""
    url = prefixed(redis_url, f"blocks{part}")
    async with dwell.open(url) as queue:
        for ids in (None, [str(n) for n in range(200)]):
            await queue.put_many("t", [b"x"] * 200, ids=ids)
            batch = await queue.take("t", 200)
            order = batch if part == 64 else batch[::-1]
            for start in range(0, 200, part):
                some = order[start : start + part]
                results = [None if n % 5 == 0 else id_ for n, id_ in enumerate(some.ids)]
                assert set(await queue.ack(some, results=results)) == {Result.ACKED}
                found = [await queue.result("t", id_) for id_ in some.ids]
                if ids is not None or part > 1:
                    assert [one.result for one in found] == [r and r.encode() for r in results]
        assert (await queue.stats()).topics["t"].leased == 0
        assert await queue.find_stale() == []


async def test_large_results_go_in_parts(redis_url):
    async with dwell.open(prefixed(redis_url, "large")) as queue:
        await queue.put_many("t", [b"x"] * 12, ids=[str(n) for n in range(12)])
        batch = await queue.take("t", 12)
        results = [id_.encode() * 900_000 for id_ in batch.ids]
        results = [result[:900_000] for result in results]
        assert set(await queue.ack(batch, results=results)) == {Result.ACKED}
        found = await queue.store.results("t", [id_.encode() for id_ in batch.ids])
        assert [one.result for one in found] == results


async def test_results_are_forgotten_in_the_engine(redis_url):
    """Nothing of them is left once their time is over."""
    async with dwell.open(prefixed(redis_url, "forgot")) as queue:
        await queue.configure("t", remember_ms=200)
        await queue.put_many("t", [b"x"] * 1000)
        await queue.ack(await queue.take("t", 1000), results=[b"r"] * 1000)
        engine = queue.store.shards.engine
        name = engine.keys(0).results + "t"
        assert await engine.ask("HLEN", name) == 1000
        await asyncio.sleep(0.25)

        async def is_empty() -> bool:
            await queue.stats()
            return not await engine.ask("EXISTS", name)

        for _ in range(200):
            if await is_empty():
                break
            await asyncio.sleep(0.05)
        assert await is_empty()


async def test_full_memory_refuses_results_and_no_ack():
    with redis_server() as server:
        async with dwell.open(server.url, timeout=2) as queue:
            await queue.put_many("t", [b"x"] * 2, ids=["1", "2"])
            batch = await queue.take("t", 2)
            await queue.store.shards.engine.ask("CONFIG", "SET", "maxmemory", "1mb")
            with pytest.raises(StoreFull):
                await queue.ack(batch[0], result=b"r" * 1000)
            assert set(await queue.ack(batch)) == {Result.ACKED}


async def test_acks_that_counted_before_memory_was_full_are_told_so(monkeypatch):
    """Acks of many callers are joined; their results are too large for one call of the engine."""
    run, left = Engine.run, 0

    async def filling(engine, shard, name, *own, **large):
        nonlocal left
        told = await run(engine, shard, name, *own, **large)
        if name == "done":
            left -= 1
            if left == 0:
                await engine.ask("CONFIG", "SET", "maxmemory", "1mb")
        return told

    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            await queue.put_many("t", [b"x"] * 12, ids=[f"{n}" for n in range(12)])
            batch = list(await queue.take("t", 12, lease="1h"))
            monkeypatch.setattr(Engine, "run", filling)
            left = 2
            acks = (queue.ack(message, result=b"r" * 600_000) for message in batch[:8])
            answers = await asyncio.gather(*acks, return_exceptions=True)
            assert answers[:2] == [Result.ACKED] * 2
            assert {type(answer) for answer in answers[2:]} == {StoreFull}
            states = [(await queue.result("t", message.id)).state for message in batch[:8]]
            assert states == ["done"] * 2 + ["leased"] * 6
            # One caller of many messages is told how many of them counted.
            await queue.store.shards.engine.ask("CONFIG", "SET", "maxmemory", "0")
            left = 2
            with pytest.raises(StoreFull, match="; 2 of the batch were done all the same"):
                await queue.ack(batch[8:], results=[b"r" * 600_000] * 4)
            assert (await queue.stats()).topics["t"].leased == 8
            assert set(await queue.ack([*batch[2:8], *batch[10:]])) == {Result.ACKED}


@pytest.mark.parametrize("shards", [1, 4])
async def test_chains_move_each_message_once(redis_url, shards):
    """Several takers on two instances, with leases that end under them."""
    url = prefixed(redis_url, f"chain{shards}", shards)
    async with dwell.open(url) as one, dwell.open(url) as other:
        await one.put_many("s0", [str(n) for n in range(200)])

        async def work(queue):
            for turn in range(12):
                for step in range(3):
                    batch = await queue.take(f"s{step}", 20, lease="20ms" if turn < 6 else "1m")
                    await asyncio.sleep(0.01)
                    thens = [dwell.Then(f"s{step + 1}", message.body) for message in batch]
                    acks = map(lambda m, then: queue.ack(m, then=then), batch, thens)
                    await asyncio.gather(*acks)

        await asyncio.gather(*(work(queue) for queue in (one, other, one, other)))
        bodies = []
        for step in range(4):
            for state in ("delayed", "ready", "leased", "dead"):
                async for batch in one.pages(f"s{step}", state):
                    bodies += batch.bodies
        assert sorted(bodies) == sorted(str(n).encode() for n in range(200))
        assert await one.find_stale() == []


async def test_follow_up_of_another_shard_is_refused_and_nothing_done(redis_url):
    async with dwell.open(prefixed(redis_url, "shards", 4)) as queue:
        await queue.put("t", b"", id="1")
        (message,) = await queue.take("t")
        refused = 0
        for number in range(40):
            try:
                await queue.ack(message, then=dwell.Then("u", b"", id=f"{number}", key=f"{number}"))
                break
            except InvalidInput as error:
                refused += "belongs to shard" in str(error)
                assert (await queue.result("t", "1")).state == "leased"
        assert (await queue.stats()).topics["u"].ready == 1
        assert refused == number


async def test_the_newest_end_of_an_id_counts_of_several_shards(redis_url):
    """With one key it had a result, and with another it has none."""
    async with dwell.open(prefixed(redis_url, "ends", 4)) as queue:
        keys = {shard_for(b"", f"k{n}", 4): f"k{n}" for n in range(40)}
        for id_, pair in enumerate(itertools.permutations(keys.values(), 2)):
            for key, result in zip(pair, ("old", None), strict=True):
                ended_ms = queue.clock.now_ms()
                await until_async(lambda before_ms=ended_ms: queue.clock.now_ms() > before_ms + 1)
                await queue.put("t", b"", id=f"{id_}", key=key, on_conflict="replace")
                (message,) = await queue.take("t")
                await queue.ack(message, result=result)
            assert await queue.result("t", f"{id_}") == Outcome("done")


async def test_a_result_counts_though_an_older_memory_ends_later(redis_url):
    """Its topic remembered for longer then."""
    async with dwell.open(prefixed(redis_url, "lower", 4)) as queue:
        keys = {shard_for(b"", f"k{n}", 4): f"k{n}" for n in range(40)}
        for id_, pair in enumerate(itertools.permutations(keys.values(), 2)):
            for key, result, remember_ms in zip(
                pair, (None, 7), (7 * 86_400_000, 3_600_000), strict=True
            ):
                await queue.configure("t", remember_ms=remember_ms)
                await queue.put("t", b"", id=f"{id_}", key=key, on_conflict="replace")
                (message,) = await queue.take("t")
                await queue.ack(message, result=result)
            assert await queue.result("t", f"{id_}") == Outcome("done", b"7")
