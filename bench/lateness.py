"""How late messages are taken while many wait: milliseconds from due to taken, 99th percentile."""

import asyncio
import contextlib
import tempfile
from functools import partial

import numpy as np
import redis.asyncio

import dwell
from bench import redis_queue
from bench.filled import dues, put_pending
from bench.instance import instances
from bench.lifecycle import BODY
from bench.process import now_ms
from bench.redis_servers import Server, redis_server
from bench.result import Result, percentile
from bench.servers import dwell_server

_PART = 1000
_HEAD_START_MS = 1500
_BEHIND_MS = 3_600_000
_LIMIT = 1000
#: On Redis, as many processes of Dwell share the messages; so long they may take to start.
_INSTANCES = 2
_START_MS = 3000
#: The usual rate.
_RATES = {"embedded": 10_000, "redis": 5_000}


def run(*, store: str, over: str, rate: int, pending: int, seconds: int, rounds: int) -> Result:
    """Let messages fall due at a rate, with a backlog behind them.

    One taker in the process acks them, or eight takers that wait at a server (``over`` "http");
    on Redis (``store`` "redis") one taker in each of two instances.
    """
    if over not in ("process", "http") or (store == "redis" and over == "http"):
        raise SystemExit(f"--over: got {over}, expected process, or http with --store embedded")
    rate = rate or _RATES[store]
    params = {"store": store, "over": over, "rate": rate, "pending": pending, "seconds": seconds}
    result = Result("lateness", params, "ms p99")
    p50: dict[str, list[float]] = {"dwell": [], "redis": []}
    early = [0]

    def measure(name: str, late_ms: list[float]) -> float:
        late_ms.sort()
        assert len(late_ms) == rate * seconds
        p50[name].append(percentile(late_ms, 0.50))
        if name == "dwell":
            early[0] += sum(late < 0 for late in late_ms)
        return percentile(late_ms, 0.99)

    with redis_server() as server:
        load = (rate, pending, seconds)
        late = {
            "process": lambda: asyncio.run(_dwell(*load)),
            "http": lambda: asyncio.run(_dwell_http(*load)),
            "redis": lambda: _dwell_redis(server, *load),
        }
        work = {
            "dwell": late["redis" if store == "redis" else over],
            "redis": lambda: asyncio.run(_redis(server.port, *load)),
        }

        def turn(name: str) -> float:
            return measure(name, work[name]())

        result.in_turn(rounds, {name: partial(turn, name) for name in work})
    result.more["p50_ms"] = round(float(np.median(p50["dwell"])), 3)
    result.more["p99_ms"] = round(result.median("dwell"), 3)
    result.more["redis_p50_ms"] = round(float(np.median(p50["redis"])), 3)
    result.more["early"] = early[0]
    return result


def _schedule(rate: int, seconds: int, head_start_ms: int = _HEAD_START_MS) -> np.ndarray:
    """Return the dues of the messages that are measured, evenly spread."""
    start = int(now_ms()) + head_start_ms
    return start + np.arange(rate * seconds) * 1000 // rate


async def _dwell(rate: int, pending: int, seconds: int) -> list[float]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with dwell.open(f"{folder}/store") as queue:
            count = await _load(queue, rate, pending, seconds)
            late_ms: list[float] = []
            await _take_all(queue, count, late_ms)
            return late_ms


async def _dwell_http(rate: int, pending: int, seconds: int) -> list[float]:
    with dwell_server() as address:
        url = "http://{}:{}".format(*address)
        async with contextlib.AsyncExitStack() as stack:
            loader, *takers = [await stack.enter_async_context(dwell.open(url)) for _ in range(9)]
            count = await _load(loader, rate, pending, seconds)
            late_ms: list[float] = []
            await asyncio.gather(*[_take_all(taker, count, late_ms) for taker in takers])
            return late_ms


async def _load(queue: dwell.Queue, rate: int, pending: int, seconds: int) -> int:
    """Put the backlog, and the messages that are measured; return how many those are."""
    await put_pending(queue, pending, "queue", after_ms=_BEHIND_MS)
    return len(await _put(queue, _schedule(rate, seconds)))


async def _put(queue: dwell.Queue, due_ms: np.ndarray) -> set[str]:
    """Put the messages that are measured; return their ids."""
    ids: set[str] = set()
    for at in range(0, len(due_ms), _PART):
        part = due_ms[at : at + _PART]
        ids.update((await queue.put_many("bench", [BODY] * len(part), due=part)).ids)
    return ids


async def _take_all(queue: dwell.Queue, count: int, late_ms: list[float]) -> None:
    """Take and ack until so many messages were taken, by this taker and its fellows."""
    acks = set()
    while len(late_ms) < count:
        taken = await queue.take("bench", _LIMIT, wait=0.5)
        late_ms += (now_ms() - taken.due_ms).tolist()
        if len(taken):
            ack = asyncio.ensure_future(queue.ack(taken))
            acks.add(ack)
            ack.add_done_callback(acks.discard)
    await asyncio.gather(*acks)


def _dwell_redis(
    server: Server, rate: int, pending: int, seconds: int, start_ms: int = _START_MS
) -> list[float]:
    """Let two instances take, and return what both saw; every message must have come once.

    A machine that is not ready ``start_ms`` later gets twice the time.
    """
    server.ask("FLUSHALL")

    async def fill() -> None:
        async with dwell.open(server.url) as queue:
            await put_pending(queue, pending, "queue", after_ms=_BEHIND_MS)

    async def put() -> set[str]:
        async with dwell.open(server.url) as queue:
            return await _put(queue, due_ms)

    asyncio.run(fill())
    due_ms = _schedule(rate, seconds, start_ms + _HEAD_START_MS)
    with instances(_INSTANCES, server.url, int(due_ms[-1])) as some:
        ids = asyncio.run(put())
        is_in_time = now_ms() < due_ms[0]
        seen = [instance.late_ms() for instance in some]
    if not is_in_time:
        return _dwell_redis(server, rate, pending, seconds, 2 * start_ms)
    taken = [id_ for late_ms in seen for id_ in late_ms]
    assert len(taken) == len(ids), f"{len(ids)} messages, {len(taken)} takes"
    assert set(taken) == ids, "something was taken that was not put"
    return [late for late_ms in seen for late in late_ms.values()]


async def _redis(port: int, rate: int, pending: int, seconds: int) -> list[float]:
    """Take all that is due, and look again every 10 ms."""
    plain = redis.Redis(port=port, protocol=2)
    plain.flushall()
    queue = redis_queue.load(plain)
    _redis_fill(queue, plain, pending, rate * seconds)
    due_ms = _redis_put(queue, plain, _schedule(rate, seconds), pending)
    client = redis.asyncio.Redis(port=port, protocol=2)
    late_ms: list[float] = []
    while len(late_ms) < len(due_ms):
        asked_ms = int(now_ms())
        taken = await queue.call(client, "take", asked_ms, _LIMIT, asked_ms + 60_000)
        if taken:
            at_ms = now_ms()
            late_ms += [at_ms - due_ms[name] for name in taken[0]]
            await queue.call(client, "ack", *taken[0])
        if not taken or len(taken[0]) < _LIMIT:
            await asyncio.sleep(0.010)
    await client.aclose()
    return late_ms


def _redis_fill(
    queue: redis_queue.RedisQueue, client: redis.Redis, pending: int, after: int
) -> None:
    for at in range(0, pending, _PART):
        mixed: list[object] = [BODY] * (3 * _PART)
        mixed[::3] = (dues(_PART, at) + _BEHIND_MS).tolist()
        mixed[1::3] = range(after + at, after + at + _PART)
        queue.call(client, "put_due", *mixed)


def _redis_put(
    queue: redis_queue.RedisQueue, client: redis.Redis, due_ms: np.ndarray, _: int
) -> dict[bytes, int]:
    for at in range(0, len(due_ms), _PART):
        part = due_ms[at : at + _PART].tolist()
        mixed: list[object] = [BODY] * (3 * len(part))
        mixed[::3], mixed[1::3] = part, range(at, at + len(part))
        queue.call(client, "put_due", *mixed)
    return {b"%d" % number: due for number, due in enumerate(due_ms.tolist())}
