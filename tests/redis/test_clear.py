"""A clear on Redis: blocks and loose messages, in every kind of topic, a part in each call."""

import random

import pytest

import dwell
from dwell.store.redis import RedisStore
from dwell.store.redis.limits import Limits
from tests.redis.servers import redis_server

KINDS = [{}, {"ordered": True}, {"fair": True}, {"ordered": True, "fair": True}]


@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(3))
async def test_clear__every_kind_of_topic__leaves_what_is_leased_and_nothing_stale(
    settings: dict[str, bool], seed: int
) -> None:
    draw = random.Random(seed)
    with redis_server() as server:
        async with dwell.open(server.url, shards=2) as queue:
            await queue.configure("t", **settings)
            for batch in range(6):
                count = draw.choice([1, 5, 64, 200])
                ids = (
                    [f"{batch}-{number}" for number in range(count)]
                    if draw.random() < 0.7
                    else None
                )
                key = [f"k{draw.randrange(7)}" for _ in range(count)]
                delay = draw.choice(["0s", "1h"])
                await queue.put_many("t", [b"x"] * count, ids=ids, key=key, delay=delay)
            for _ in range(20):
                await queue.put("t", b"x", key="k1")
            await queue.bury(await queue.take("t", 3), "why")
            await queue.release(await queue.take("t", 5), delay="2h")
            held = await queue.take("t", 4)
            before = (await queue.stats()).topics["t"]
            await queue.put("other", b"y")
            assert await queue.clear("t") == before.delayed + before.ready + before.dead
            after = (await queue.stats()).topics["t"]
            assert (after.delayed, after.ready, after.dead, after.leased) == (0, 0, 0, len(held))
            assert await queue.find_stale() == []
            assert (await queue.stats()).topics["other"].ready == 1
            assert set(await queue.ack(held)) <= {dwell.Result.ACKED}
            # The ids are free again, and the keys hold back nothing.
            again = await queue.put_many("t", [b"z"] * 5, ids=list("abcde"), key="k1")
            assert set(again.results.tolist()) == {dwell.Result.CREATED}
            taken = 0
            while batch := await queue.take("t", 5):
                taken += len(batch)
                await queue.ack(batch)
            assert taken == 5


async def test_clear__puts_meanwhile__ends_and_leaves_those() -> None:
    with redis_server() as server:
        store = RedisStore(server.url, limits=Limits(loose=8))
        async with dwell.Queue(store) as queue:
            await queue.put_many("t", [b"x"] * 3_000, delay="1h")
            cancelled, place, puts = 0, 0, 0
            following: int | None = 0
            while following is not None:
                place = following
                # They are due before the others.
                await queue.put_many("t", [b"new"] * 70, delay="1m")
                count, following = await queue.store.clear_part("t", place)
                cancelled, puts = cancelled + count, puts + 70
                assert puts < 70 * 1_000, "the clear does not end"
            left = [body async for page in queue.pages("t") for body in page.bodies]
            assert cancelled + len(left) == 3_000 + puts
            assert set(left) <= {b"new"}
