"""put -> take -> ack of messages with 200-byte bodies: messages a second.

With ``--store embedded`` Dwell answers after fdatasync, and the peers are Redis and, for single
messages, beanstalkd. With ``--store redis`` Dwell and its peers have one redis-server in turn.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import redis
import redis.asyncio

import dwell
from bench import redis_queue
from bench.bullmq import bullmq_lifecycle
from bench.process import cpu_seconds
from bench.redis_servers import Server, redis_server
from bench.result import Result
from bench.servers import beanstalkd_server
from dwell.store.redis import RedisStore

BODY = b"x" * 200
#: How many messages Dwell has under way at least, in a folder.
_UNDER_WAY = 16_000
#: How many batches Dwell has under way on Redis; of 2 to 32 this was the fastest.
_BATCHES_AT_ONCE = 16


class Life(NamedTuple):
    """Messages that went all the way: how many a second, and what each cost the servers."""

    speed: float
    commands: float
    server_cpu_us: float


def run(
    *, store: str, batch: int, ids: str, messages: int, concurrency: int, rounds: int
) -> Result:
    """Measure Dwell and its peers in turn; ``concurrency`` is that of single messages.

    With 0 ``messages`` it is as many as take every system some three seconds a round.
    """
    messages = messages or _enough(store, batch, ids)
    params = {"store": store, "batch": batch, "ids": ids, "messages": messages}
    result = Result("lifecycle", {**params, "concurrency": concurrency}, "messages/s")
    measure = _on_redis if store == "redis" else _in_folder
    measure(result, messages, batch, ids, concurrency, rounds)
    return result


def _in_folder(
    result: Result, messages: int, batch: int, ids: str, concurrency: int, rounds: int
) -> None:
    with redis_server() as server, beanstalkd_server(fsync=True) as stalk_port:
        systems = {
            "dwell": partial(_dwell, messages, batch, ids, concurrency),
            "redis": partial(_redis, server.port, messages, batch, ids, concurrency),
        }
        if batch == 1:
            few = max(messages // 3, concurrency)
            systems["beanstalkd"] = partial(_beanstalkd, stalk_port, few, concurrency)
        result.in_turn(rounds, systems)


def _enough(store: str, batch: int, ids: str) -> int:
    if store == "redis":
        return 1_200_000
    if batch == 1:
        return 80_000
    return 4_800_000 if batch >= 1000 and ids == "queue" else 2_400_000


def _on_redis(
    result: Result, messages: int, batch: int, ids: str, concurrency: int, rounds: int
) -> None:
    with redis_server() as server:
        measures = _measures(server, messages, batch, ids, concurrency)
        lives: dict[str, list[Life]] = {name: [] for name in measures}

        def speed_of(name: str) -> float:
            server.ask("FLUSHALL")
            lives[name].append(measures[name]())
            return lives[name][-1].speed

        result.in_turn(rounds, {name: partial(speed_of, name) for name in measures})
    commands = statistics.median(life.commands for life in lives["dwell"])
    result.more["commands_per_message"] = round(commands, 4)
    for name, some in lives.items():
        cpu_us = statistics.median(life.server_cpu_us for life in some)
        result.more[f"{name}_server_cpu_us"] = round(cpu_us, 2)


def _measures(
    server: Server, messages: int, batch: int, ids: str, concurrency: int
) -> dict[str, Callable[[], Life]]:
    """Return what measures each system; the slower ones are given fewer messages."""
    own = max(messages // 10, concurrency) if batch == 1 else messages
    few, jobs = _fewer(messages, batch, concurrency), messages // 20
    of_redis = partial(_redis, server.port, messages, batch, ids, concurrency)
    of_bullmq = partial(bullmq_lifecycle, server.port, jobs, batch)
    return {
        "dwell": partial(dwell_on_redis, server.url, [server.pid], own, batch, ids, concurrency),
        "redis": partial(_weighed, server, few, of_redis),
        "bullmq": partial(_weighed, server, jobs, of_bullmq),
    }


def own_ids(start: int, count: int) -> list[str]:
    """Return ids as a caller makes them."""
    return [f"order-{number:010d}" for number in range(start, start + count)]


# --- Dwell ----------------------------------------------------------------------------------------


def _dwell(messages: int, batch: int, ids: str, concurrency: int) -> float:
    return asyncio.run(_dwell_async(messages, batch, ids, concurrency))


async def _dwell_async(messages: int, batch: int, ids: str, concurrency: int) -> float:
    at_once = concurrency if batch == 1 else max(_UNDER_WAY // batch, concurrency)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with dwell.open(folder + "/store") as queue:
            done, seconds = await _through(queue, messages, batch, ids, at_once)
            return done / seconds


def dwell_on_redis(
    url: str, pids: Sequence[int], messages: int, batch: int, ids: str, concurrency: int
) -> Life:
    """Let messages go all the way through a store on Redis, whose processes are ``pids``.

    Of batches of more than one a few are under way at once, whatever the ``concurrency``.
    """
    at_once = concurrency if batch == 1 else _BATCHES_AT_ONCE
    return asyncio.run(_dwell_on_redis(url, pids, messages, batch, ids, at_once))


async def _dwell_on_redis(
    url: str, pids: Sequence[int], messages: int, batch: int, ids: str, at_once: int
) -> Life:
    async with dwell.open(url) as queue:
        store = queue.store
        assert isinstance(store, RedisStore)
        commands, cpu_s = store.commands, cpu_seconds(*pids)
        done, seconds = await _through(queue, messages, batch, ids, at_once)
        cpu_us = 1_000_000 * (cpu_seconds(*pids) - cpu_s)
        return Life(done / seconds, (store.commands - commands) / done, cpu_us / done)


async def _through(
    queue: dwell.Queue, messages: int, batch: int, ids: str, at_once: int
) -> tuple[int, float]:
    """Let messages go all the way; return how many did, and how many seconds it took."""
    share = messages // at_once
    work = _dwell_singles if batch == 1 else dwell_batches
    names = own_ids(0, messages) if ids == "caller" else None
    parts = [names and names[n * share : (n + 1) * share] for n in range(at_once)]
    jobs = [work(queue, share, batch, part) for part in parts]
    start = time.perf_counter()
    done = sum(await asyncio.gather(*jobs))
    return done, time.perf_counter() - start


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


def _weighed(server: Server, messages: int, run: Callable[[], float]) -> Life:
    """Measure a peer, whose commands are not counted."""
    cpu_s = cpu_seconds(server.pid)
    speed = run()
    return Life(speed, 0.0, 1_000_000 * (cpu_seconds(server.pid) - cpu_s) / messages)


def _fewer(messages: int, batch: int, concurrency: int) -> int:
    """Return how many messages Redis is given, which is slower."""
    return max(messages // 10, concurrency) if batch == 1 else messages // 4


def _redis(port: int, messages: int, batch: int, ids: str, concurrency: int) -> float:
    few = messages // 4
    if batch == 1:
        return _redis_single(port, few, ids, concurrency)
    return redis_batches(port, few, batch, ids)


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
