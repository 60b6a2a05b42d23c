"""put -> take -> ack of messages with 200-byte bodies: messages a second."""

import asyncio
import tempfile
import time
from functools import partial

import redis
import redis.asyncio

import dwell
from bench import redis_queue
from bench.result import Result
from bench.servers import beanstalkd_server, redis_server

BODY = b"x" * 200
#: How many messages Dwell has under way at least.
_UNDER_WAY = 16_000


def run(*, batch: int, ids: str, messages: int, concurrency: int, rounds: int) -> Result:
    """Measure Dwell (every answer after fdatasync) against Redis, and singly against beanstalkd."""
    params = {"batch": batch, "ids": ids, "messages": messages, "concurrency": concurrency}
    result = Result("lifecycle", params, "messages/s")
    with redis_server() as (port, _), beanstalkd_server(fsync=True) as stalk_port:
        if batch == 1:
            few = max(messages // 10, concurrency)
            systems = {
                "dwell": partial(_dwell, messages, 1, ids, concurrency),
                "redis": partial(_redis_single, port, few, ids, concurrency),
                "beanstalkd": partial(_beanstalkd, stalk_port, few, concurrency),
            }
        else:
            systems = {
                "dwell": partial(
                    _dwell, messages, batch, ids, max(_UNDER_WAY // batch, concurrency)
                ),
                "redis": partial(redis_batches, port, messages // 4, batch, ids),
            }
        result.in_turn(rounds, systems)
    return result


def own_ids(start: int, count: int) -> list[str]:
    """Return ids as a caller makes them."""
    return [f"order-{number:010d}" for number in range(start, start + count)]


# --- Dwell ----------------------------------------------------------------------------------------


def _dwell(messages: int, batch: int, ids: str, concurrency: int) -> float:
    return asyncio.run(_dwell_async(messages, batch, ids, concurrency))


async def _dwell_async(messages: int, batch: int, ids: str, concurrency: int) -> float:
    share = messages // concurrency
    work = _dwell_singles if batch == 1 else dwell_batches
    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with dwell.open(folder + "/store") as queue:
            names = own_ids(0, messages) if ids == "caller" else None
            parts = [names and names[n * share : (n + 1) * share] for n in range(concurrency)]
            jobs = [work(queue, share, batch, part) for part in parts]
            start = time.perf_counter()
            done = sum(await asyncio.gather(*jobs))
            return done / (time.perf_counter() - start)


async def _dwell_singles(queue: dwell.Queue, count: int, _: int, ids: list[str] | None) -> int:
    done = 0
    for number in range(count):
        await queue.put("bench", BODY, id=ids[number] if ids else None)
        taken = await queue.take("bench", wait=10)
        await queue.ack(taken)
        done += len(taken)
    return done


async def dwell_batches(queue: dwell.Queue, count: int, batch: int, ids: list[str] | None) -> int:
    """Put, take and ack batch after batch; return how many messages went all the way."""
    done = 0
    bodies = [BODY] * batch
    for at in range(0, count - batch + 1, batch):
        await queue.put_many("bench", bodies, ids=ids and ids[at : at + batch])
        taken = await queue.take("bench", batch, wait=10)
        assert sum(map(len, taken.bodies)) == len(taken) * len(BODY)
        await queue.ack(taken)
        done += len(taken)
    return done


# --- Redis ----------------------------------------------------------------------------------------


def redis_batches(port: int, messages: int, batch: int, ids: str) -> float:
    """One client; the put of each batch travels with the take and ack of those before it."""
    client = redis.Redis(port=port, protocol=2)
    client.flushall()
    queue = redis_queue.load(client)
    held: list[list[bytes]] = []
    bodies, done, at = [BODY] * batch, 0, 0
    names = [text.encode() for text in own_ids(0, 2 * messages)] if ids == "caller" else []
    start = time.perf_counter()
    while done < messages:
        pipeline = client.pipeline(transaction=False)
        now_ms = time.time_ns() // 1_000_000
        # Few enough that client and server both stay in their caches; more was slower.
        for _ in range(max(2000 // batch, 1)):
            if ids == "caller":
                some = names[at : at + batch]
                queue.call(pipeline, "put", now_ms, *redis_queue.pairs(some, bodies))
            else:
                queue.call(pipeline, "put_new", now_ms, *bodies)
            queue.call(pipeline, "take", now_ms, batch, now_ms + 60_000)
            at += batch
        for taken in held:
            queue.call(pipeline, "ack", *taken)
        acks = len(held)
        answers = pipeline.execute()
        done += sum(answers[len(answers) - acks :])
        held = [answer[0] for answer in answers[1 : len(answers) - acks : 2] if answer]
    return done / (time.perf_counter() - start)


def _redis_single(port: int, messages: int, ids: str, concurrency: int) -> float:
    redis.Redis(port=port).flushall()
    return asyncio.run(_redis_single_async(port, messages, ids, concurrency))


async def _redis_single_async(port: int, messages: int, ids: str, concurrency: int) -> float:
    queue = redis_queue.load(redis.Redis(port=port))
    client = redis.asyncio.Redis(port=port, protocol=2, max_connections=concurrency)
    share = messages // concurrency

    async def work(first: int) -> int:
        done = 0
        for number in range(first, first + share):
            now_ms = time.time_ns() // 1_000_000
            if ids == "caller":
                await queue.call(client, "put", now_ms, f"order-{number:010d}", BODY)
            else:
                await queue.call(client, "put_new", now_ms, BODY)
            while not (taken := await queue.call(client, "take", now_ms, 1, now_ms + 60_000)):
                now_ms = time.time_ns() // 1_000_000
            done += await queue.call(client, "ack", *taken[0])
        return done

    start = time.perf_counter()
    done = sum(await asyncio.gather(*[work(n * share) for n in range(concurrency)]))
    speed = done / (time.perf_counter() - start)
    await client.aclose()
    return speed


# --- beanstalkd -----------------------------------------------------------------------------------


def _beanstalkd(port: int, messages: int, concurrency: int) -> float:
    return asyncio.run(_beanstalkd_async(port, messages, concurrency))


async def _beanstalkd_async(port: int, messages: int, concurrency: int) -> float:
    """Speak the protocol directly, over one connection a coroutine: the fastest client."""
    share = messages // concurrency
    put = b"put 0 0 60 %d\r\n%s\r\n" % (len(BODY), BODY)

    async def work() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(share):
            writer.write(put)
            assert (await reader.readline()).startswith(b"INSERTED")
            writer.write(b"reserve\r\n")
            _, job, size = (await reader.readline()).split()
            await reader.readexactly(int(size) + 2)
            writer.write(b"delete %s\r\n" % job)
            assert await reader.readline() == b"DELETED\r\n"
        writer.close()
        return share

    start = time.perf_counter()
    done = sum(await asyncio.gather(*[work() for _ in range(concurrency)]))
    return done / (time.perf_counter() - start)
