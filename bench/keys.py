"""put -> take -> ack of messages with keys: an ordered topic beside one without order.

Each message has one of ``keys`` keys: by turns, so that those who put have the same keys at the
same time, or drawn at ``random``. ``fair`` is a topic whose keys take turns.
"""

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass
from functools import partial

import dwell
from bench.lifecycle import BODY
from bench.redis_servers import redis_server
from bench.result import Result

_AT_ONCE = 16
_SETTINGS = {
    "dwell": {"ordered": True},
    "unordered": {},
    "fair": {"fair": True},
}


def run(*, store: str, keys: int, spread: str, batch: int, messages: int, rounds: int) -> Result:
    """Measure topics with and without order in turn."""
    params = {"store": store, "keys": keys, "spread": spread, "batch": batch, "messages": messages}
    names = _names(keys, spread, messages)
    result = Result("keys", params, "messages/s")
    if store == "redis":
        with redis_server() as server:
            _in_turn(result, server.url, names, batch, messages, rounds)
    else:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            _in_turn(result, folder + "/store", names, batch, messages, rounds)
    return result


def _names(keys: int, spread: str, messages: int) -> list[str]:
    """Return the key of each message, or as many as come before they begin anew."""
    names = [f"key-{number:08d}" for number in range(keys)]
    return random.Random(keys).choices(names, k=messages) if spread == "random" else names


def _in_turn(
    result: Result, url: str, names: list[str], batch: int, messages: int, rounds: int
) -> None:
    systems = {name: partial(_measure, url, name, names, batch, messages) for name in _SETTINGS}
    result.in_turn(rounds, systems)


def _measure(url: str, name: str, names: list[str], batch: int, messages: int) -> float:
    return asyncio.run(_through(url, name, names, batch, messages))


async def _through(url: str, name: str, names: list[str], batch: int, messages: int) -> float:
    """Let messages go all the way through one topic; return how many did so a second."""
    async with dwell.open(url) as queue:
        await queue.configure(name, **_SETTINGS[name])
        share = messages // _AT_ONCE // batch * batch
        left = Left(_AT_ONCE * share)
        start = time.perf_counter()
        jobs = [_work(queue, name, names, batch, at * share, share, left) for at in range(_AT_ONCE)]
        await asyncio.gather(*jobs)
        return _AT_ONCE * share / (time.perf_counter() - start)


@dataclass
class Left:
    """How many messages have not gone all the way."""

    count: int


async def _work(
    queue: dwell.Queue,
    topic: str,
    names: list[str],
    batch: int,
    first: int,
    count: int,
    left: Left,
) -> None:
    """Put batch after batch, each time taking and acking one, and then what is left of all."""
    for at in range(first, first + count, batch):
        keys = [names[number % len(names)] for number in range(at, at + batch)]
        await queue.put_many(topic, [BODY] * batch, key=keys)
        await _finish(queue, topic, batch, left, wait=0)
    while left.count:
        await _finish(queue, topic, batch, left, wait=0.05)


async def _finish(queue: dwell.Queue, topic: str, batch: int, left: Left, wait: float) -> None:
    taken = await queue.take(topic, batch, wait=wait)
    await queue.ack(taken)
    left.count -= len(taken)
