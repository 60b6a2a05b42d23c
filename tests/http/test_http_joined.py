"""Calls that a client joins in one request: the server refuses one of them, and not the others."""

import asyncio
import contextlib
from collections import Counter

import pytest

import dwell
from dwell.errors import InvalidBody, StoreFull, TopicFull
from dwell.server.tokens import Tokens
from dwell.store.redis import RedisStore
from dwell.worker import Worker
from tests.http.served import served
from tests.redis.servers import redis_server
from tests.waiting import PATIENCE_S
from tests.worker.serving import serving

MOST_BYTES = 1_000
LARGE = b"x" * (MOST_BYTES + 1)


@contextlib.asynccontextmanager
async def small_server(folder=None):
    """Serve a store with small bodies, or a small quota by a file in a folder; give a client."""
    tokens = None
    if folder is not None:
        path = folder / "tokens.toml"
        rights = "".join(f'{right} = [""]\n' for right in ("put", "take", "read", "admin"))
        path.write_text(f"[anonymous]\n{rights}quota = {{stored_bytes = {MOST_BYTES}}}\n")
        path.chmod(0o600)
        tokens = Tokens.load(path)
    async with served(tokens=tokens) as server, dwell.open(server.url) as queue:
        if folder is None:
            server.service.most_body_bytes = MOST_BYTES
        yield queue


async def put_one(queue, body):
    return await queue.put("t", body)


async def put_many(queue, body):
    return await queue.put_many("t", [body, body])


async def put_rows(queue, body):
    return await queue.put_many("t", [body] * 30)


@pytest.mark.parametrize("put", [put_one, put_many, put_rows])
@pytest.mark.parametrize("place", [0, 3, 6])
async def test_a_put_that_is_refused_is_refused_alone(put, place):
    async with small_server() as queue:
        bodies = [b"good"] * 7
        bodies[place] = LARGE
        answers = await asyncio.gather(
            *(put(queue, body) for body in bodies), return_exceptions=True
        )
        refused = [isinstance(answer, InvalidBody) for answer in answers]
        assert refused == [at == place for at in range(7)]
        found = [m.body for m in await queue.take("t", 1_000)]
        assert set(found) == {b"good"}
        assert len(found) == 6 * {put_one: 1, put_many: 2, put_rows: 30}[put]


async def test_a_result_that_is_refused_is_refused_alone():
    async with small_server() as queue:
        await queue.put_many("t", [b"x"] * 5)
        acks = [
            queue.ack(message, result=LARGE if at == 2 else b"small")
            for at, message in enumerate(await queue.take("t", 5))
        ]
        answers = await asyncio.gather(*acks, return_exceptions=True)
        assert [isinstance(answer, InvalidBody) for answer in answers] == [
            at == 2 for at in range(5)
        ]
        assert (await queue.stats()).topics["t"].leased == 1


@pytest.mark.parametrize("error", [InvalidBody, StoreFull])
async def test_a_result_that_is_refused_is_a_failure_of_its_own_handler(error, tmp_path):
    """The others have run once; this one has an attempt behind it, and says why."""
    async with small_server(tmp_path if error is StoreFull else None) as queue:
        handled, worker = Counter(), Worker(queue)
        await queue.configure("t", lease_ms=2_000, remember_ms=3_600_000)

        @worker.on("t", concurrency=10, results=True)
        async def handle(message):
            handled[message.id] += 1
            return LARGE if message.id == "4" else b"small"

        ids = [f"{number}" for number in range(10)]
        await queue.put_many("t", ids, ids=ids, max_attempts=1)
        async with serving(worker):
            found = [await queue.result("t", id_, wait=PATIENCE_S) for id_ in ids]
        assert [one.state for one in found] == ["dead" if id_ == "4" else "done" for id_ in ids]
        assert handled == Counter(ids)
        assert error.__name__ in (await queue.get("t", "4")).last_error


async def test_what_was_put_in_part_is_not_put_again():
    """Some shards have room for their part, and the others refuse theirs."""
    with redis_server() as redis:
        store = RedisStore(redis.url, shards=4)
        async with served(store) as server, dwell.open(server.url) as queue:
            await queue.configure("t", max_pending=400, on_full="refuse")
            bodies = [[f"{call}-{number}" for number in range(60)] for call in range(4)]
            # Two thirds belong to one shard, which has room for 100.
            keys = ["a"] * 40 + [f"{number}" for number in range(20)]
            puts = [queue.put_many("t", each, key=keys) for each in bodies]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            refused = [str(one) for one in answers if isinstance(one, TopicFull)]
            assert all("put all the same" in one for one in refused)
            found = Counter()
            while len(batch := await queue.take("t", 1_000)):
                found.update(batch.bodies)
        assert refused
        assert set(found.values()) == {1}
