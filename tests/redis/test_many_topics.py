"""Who uses a topic for each user has many: no call visits all, and empty ones are forgotten."""

import asyncio
import contextlib

import pytest

import dwell
from dwell.clock import SimulatedClock
from dwell.errors import ServerUnreachable
from dwell.server.beanstalk.taken import take_best
from dwell.store.redis import RedisStore
from tests.redis.servers import redis_server

TOPICS = 1_000


@contextlib.asynccontextmanager
async def opened():
    """Give a queue over a store on a real Redis, and both."""
    with redis_server() as server:
        store = RedisStore(server.url, clock=SimulatedClock())
        async with asyncio.timeout(60), dwell.Queue(store) as queue:
            yield queue, store, server


async def use(queue: dwell.Queue, topics: list[str], ids=None) -> None:
    """Put, take and ack a message of each topic."""
    await asyncio.gather(*[queue.put(topic, "x", id=ids) for topic in topics])
    for topic in topics:
        await queue.ack(await queue.take(topic))


async def sweep(store: RedisStore) -> None:
    """Let so many seconds go by, in each of which some topics are looked at."""
    for _ in range(150):
        store.clock.advance(1_000)
        await store.tick(store.clock.now_ms())


async def test_stats_are_made_of_calls_that_are_bounded():
    async with opened() as (queue, store, server):
        with server.client() as client:
            pipeline = client.pipeline(transaction=False)
            for at in range(20_000):
                pipeline.hset("dwell:{0}:known", f"user-{at}", "1024")
                pipeline.hset(f"dwell:{{0}}:counts:user-{at}", "delayed", 1)
            pipeline.execute()
        # What a script does is counted in commands: its time depends on who else is there.
        before, calls = server.ask("INFO", "commandstats"), store.commands
        stats = await queue.stats()
        after, calls = server.ask("INFO", "commandstats"), store.commands - calls
        assert len(stats.topics) == 20_000
        looked = after["cmdstat_hmget"]["calls"] - before["cmdstat_hmget"]["calls"]
        assert looked / calls <= 300
        # The counts of one topic are one call.
        calls = store.commands
        assert [size.delayed for size in await queue.sizes("user-7")] == [1]
        assert store.commands - calls == 1


@pytest.mark.campaign
async def test_topics_that_are_empty_and_have_no_settings_are_forgotten():
    async with opened() as (queue, store, server):
        await use(queue, [f"user-{at}" for at in range(TOPICS)])
        await queue.configure("set", max_attempts=3)
        await use(queue, ["set"])
        await queue.put("late", "x", delay="1h")
        await queue.put("held", "x")
        await queue.take("held", lease="1h")
        await queue.put("dead", "x")
        await queue.bury(await queue.take("dead"))
        await use(queue, ["remembered"], "an id")
        await sweep(store)
        left = {"set", "late", "held", "dead", "remembered"}
        assert set((await queue.stats()).topics) == left
        keys = {key.split(":", 3)[-1] for key in server.ask("KEYS", "dwell:{0}:counts:*")}
        assert keys == left
        # What is remembered was not forgotten with its topic.
        put = await queue.put("remembered", "x", id="an id")
        assert put.result is dwell.Result.KEPT
        # A topic that is used again is as new.
        await queue.put("user-7", "x", priority=3)
        assert (await queue.stats()).topics["user-7"].ready == 1
        assert len(await queue.take("user-7")) == 1
        assert await queue.find_stale() == []


async def test_a_topic_in_use_is_not_forgotten():
    async with opened() as (queue, store, _server):
        for _ in range(5):
            await use(queue, ["t"])
            for _ in range(20):
                store.clock.advance(1_000)
                await store.tick(store.clock.now_ms())
            await queue.put("t", "x")
            store.clock.advance(1_000)
            await store.tick(store.clock.now_ms())
            assert (await queue.stats()).topics["t"].ready == 1
            await queue.ack(await queue.take("t"))


@pytest.mark.parametrize("count", [1, 1_000])
async def test_a_tick_asks_for_some_of_the_topics_a_call(count):
    async with opened() as (queue, store, _server):
        topics = [f"t{at}" for at in range(count)]
        await queue.put(topics[-1], "x")
        woken = []
        store.waiting = lambda: topics
        store.wake = lambda topic, number: woken.append((topic, number))
        before = store.commands
        await store.tick(store.clock.now_ms())
        assert woken == [(topics[-1], 1)]
        assert store.commands - before == max(count // 200, 1)


async def test_a_take_asks_for_some_of_the_topics_a_call():
    async with opened() as (queue, store, _server):
        topics, asked = [f"t{at}" for at in range(1_000)], []
        run = store.shards.run

        async def noting(shard, verb, *own, **how):
            if verb == "take":
                asked.append(sum(one in topics for one in own))
            return await run(shard, verb, *own, **how)

        store.shards.run = noting
        assert not len(await store.take(topics, 10, 1_000, ""))
        assert asked == [200] * 5
        asked.clear()
        for topic in (topics[900], topics[450], topics[0]):
            await queue.put_many(topic, ["x"] * 2)
        assert (await store.take(topics, 3, 1_000, "")).topics == ["t0", "t0", "t450"]
        # Where it has enough, it asks no further.
        assert asked == [200] * 3
        assert (await store.take(topics, 9, 1_000, "")).topics == ["t450", "t900", "t900"]


async def test_the_most_urgent_of_many_topics_are_found_in_few_calls():
    async with opened() as (queue, store, _server):
        topics, asked = [f"t{at}" for at in range(1_000)], []
        run = store.shards.run

        async def noting(shard, verb, *own, **how):
            # The queue ticks, too, for no topics.
            if verb != "tick" or own:
                asked.append(verb)
            return await run(shard, verb, *own, **how)

        store.shards.run = noting
        assert await take_best(queue, topics, 2) == []
        assert asked == ["tick"] * 5
        for at in (900, 450, 0):
            await queue.put(topics[at], "x", priority=1_000 - at)
        asked.clear()
        batches = await take_best(queue, topics, 2)
        assert sorted(topic for batch in batches for topic in batch.topics) == ["t450", "t900"]
        verbs = {verb: asked.count(verb) for verb in asked}
        assert verbs == {"tick": 5, "peek": 3, "texts": 3, "take": 2}


@pytest.mark.parametrize("down", range(4))
async def test_topics_with_something_ready_are_known_without_one_shard(down, monkeypatch):
    with redis_server() as server:
        store = RedisStore(f"{server.url}?shards=4", clock=SimulatedClock())
        async with asyncio.timeout(60), dwell.Queue(store) as queue:
            for topic in "ab":
                await queue.put_many(topic, ["x"] * 40, ids=list(map(str, range(40))))
            run = store.shards.run

            async def failing(shard, verb, *own, **how):
                if shard == down:
                    raise ServerUnreachable(f"shard {shard} is down")
                return await run(shard, verb, *own, **how)

            monkeypatch.setattr(store.shards, "run", failing)
            assert await store.with_ready(["a", "none", "b"]) == ["a", "b"]
            monkeypatch.setattr(store.shards, "run", lambda *own: failing(down, *own[1:]))
            with pytest.raises(ServerUnreachable):
                await store.with_ready(["a"])
