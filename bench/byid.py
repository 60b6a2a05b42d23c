"""cancel and reschedule by the caller's id, with many pending: verbs a second."""

import asyncio
import random
import tempfile
import time

import numpy as np
import redis

import dwell
from bench import redis_queue
from bench.filled import dues
from bench.lifecycle import BODY, own_ids
from bench.redis_servers import redis_server
from bench.result import Result

_PART = 1000


def run(*, pending: int, batch: int, rounds: int) -> Result:
    """Reschedule a tenth of the messages, cancel another tenth, of each system in turn."""
    result = Result("byid", {"pending": pending, "batch": batch}, "verbs/s")
    few = pending // 10
    names = random.Random(1).sample(range(pending), 2 * few)
    ids = [f"order-{number:010d}" for number in names]
    moved, cancelled = ids[:few], ids[few:]
    with redis_server() as server:
        client = redis.Redis(port=server.port, protocol=2)
        result.in_turn(
            rounds,
            {
                "dwell": lambda: asyncio.run(_dwell(pending, batch, moved, cancelled)),
                "redis": lambda: _redis(client, pending, batch, moved, cancelled),
            },
        )
    return result


async def _dwell(pending: int, batch: int, moved: list[str], cancelled: list[str]) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with dwell.open(f"{folder}/store") as queue:
            for at in range(0, pending, _PART):
                bodies = [BODY] * _PART
                due = dues(_PART, at)
                await queue.put_many("bench", bodies, ids=own_ids(at, _PART), due=due)
            later = int(dues(1, 1)[0])
            start = time.perf_counter()
            gate = asyncio.Semaphore(8)

            async def reschedule(part: list[str]) -> None:
                async with gate:
                    due = np.full(len(part), later)
                    answers = await queue.reschedule("bench", part, due=due)
                    assert answers.count(dwell.Result.MOVED) == len(part)

            async def cancel(part: list[str]) -> None:
                async with gate:
                    answers = await queue.cancel("bench", part)
                    assert answers.count(dwell.Result.CANCELLED) == len(part)

            await asyncio.gather(*[reschedule(part) for part in _parts(moved, batch)])
            await asyncio.gather(*[cancel(part) for part in _parts(cancelled, batch)])
            return len(moved + cancelled) / (time.perf_counter() - start)


def _redis(
    client: redis.Redis, pending: int, batch: int, moved: list[str], cancelled: list[str]
) -> float:
    client.flushall()
    queue = redis_queue.load(client)
    for at in range(0, pending, _PART):
        mixed: list[object] = [BODY] * (3 * _PART)
        mixed[::3], mixed[1::3] = dues(_PART, at).tolist(), own_ids(at, _PART)
        queue.call(client, "put_due", *mixed)
    later = int(dues(1, 1)[0])
    start = time.perf_counter()
    for many, verb, first in ((moved, "reschedule", [later]), (cancelled, "cancel", [])):
        for parts in _parts(list(_parts(many, batch)), 8):
            pipeline = client.pipeline(transaction=False)
            for part in parts:
                queue.call(pipeline, verb, *first, *part)
            for answer in pipeline.execute():
                assert set(answer) == {1}
    return len(moved + cancelled) / (time.perf_counter() - start)


def _parts(many: list, size: int) -> list[list]:  # type: ignore[type-arg]
    return [many[at : at + size] for at in range(0, len(many), size)]
