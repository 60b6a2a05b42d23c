"""The longest stop of the event loop, in milliseconds: while snapshots and files are made.

Many messages are pending, others live and go, and each sync of the disk takes a third of a second.
Beside this a process does nothing but sleep: how late that wakes is the machine's doing. Then as
many topics as may be have a message each that falls due in the same millisecond. Verbs and time
touch all messages of one large topic, very many schedules are listed, and figures of as many topics
are asked for: in a folder and on a Redis, of which the longest call is noted too.
"""

import asyncio
import gc
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import dwell
from bench.filled import put_pending
from bench.largetopic import stops_of
from bench.lifecycle import BODY, own_ids
from bench.manynames import look_at_many
from bench.redis_servers import redis_server
from bench.result import Result, percentile
from bench.stops import Stops
from bench.watch import Watch
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.disk import Disk

_BATCH = 200
_SEGMENT_BYTES = 16 * 1024 * 1024
_TOPICS_AT_ONCE = 200


class SlowDisk(Disk):
    """A disk whose syncs take ``sync_s`` seconds longer than they do."""

    sync_s = 0.0

    def sync(self, fd: int) -> None:
        """Return late."""
        time.sleep(self.sync_s)
        super().sync(fd)


@contextmanager
def sleeper(result: Result) -> Iterator[None]:
    """Have a process sleep meanwhile, and add how late it woke at most."""
    spawned = multiprocessing.get_context("spawn")
    ended, late_ms = spawned.Event(), spawned.Value("d", 0.0)
    process = spawned.Process(target=_sleep, args=(ended, late_ms), daemon=True)
    process.start()
    try:
        yield
    finally:
        ended.set()
        process.join()
    result.add("sleeping process", late_ms.value)


def _sleep(ended, late_ms) -> None:  # type: ignore[no-untyped-def]
    while not ended.is_set():
        start = time.perf_counter()
        time.sleep(0.001)
        late_ms.value = max(late_ms.value, (time.perf_counter() - start) * 1000 - 1)


def run(
    *,
    pending: int,
    rate: int,
    seconds: int,
    sync_ms: int,
    ids: str,
    topics: int,
    large: int,
    schedules: int,
    rounds: int,
) -> Result:
    """Measure all; ``large`` is the size of the large topic, and ``rounds`` how often."""
    params = {"pending": pending, "rate": rate, "seconds": seconds, "sync_ms": sync_ms, "ids": ids}
    result = Result(
        "stall", {**params, "topics": topics, "large": large, "schedules": schedules}, "ms"
    )
    for _ in range(rounds):
        asyncio.run(_measure(result, pending, rate, seconds, sync_ms, ids))
        asyncio.run(_measure_topics(result, topics))
        with tempfile.TemporaryDirectory(dir=".") as folder:
            asyncio.run(_measure_large(result, folder, Stops(), large, schedules))
        with redis_server() as server:
            stops = Stops(server, "redis_")
            asyncio.run(_measure_large(result, server.url, stops, large, schedules))
    return result


async def _measure(
    result: Result, pending: int, rate: int, seconds: int, sync_ms: int, ids: str
) -> None:
    disk = SlowDisk()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = EmbeddedStore(f"{folder}/store", disk=disk, segment_bytes=_SEGMENT_BYTES)
        async with dwell.Queue(store) as queue:
            await put_pending(queue, pending, ids, after_ms=3_600_000)
            # As the server does once it has started: what is imported is not the store's.
            gc.freeze()
            disk.sync_s = sync_ms / 1000
            snapshots = asyncio.create_task(_snapshots(store))
            with sleeper(result):
                watch = Watch()
                lived = await _live(queue, rate, seconds, ids)
                late_ms = await watch.stop()
            snapshots.cancel()
            disk.sync_s = 0.0
            with suppress(asyncio.CancelledError):
                await snapshots
        start = time.perf_counter()
        async with dwell.open(f"{folder}/store"):
            result.more["open_s"] = round(time.perf_counter() - start, 3)
    result.add("dwell", late_ms[-1])
    result.more["p50_ms"] = round(percentile(late_ms, 0.5), 2)
    result.more["p99_ms"] = round(percentile(late_ms, 0.99), 2)
    result.more["p9999_ms"] = round(percentile(late_ms, 0.9999), 2)
    result.more["lives_per_s"] = round(lived / seconds)
    result.more["snapshots"] = _made["snapshots"]


_made = {"snapshots": 0}


async def _snapshots(store: EmbeddedStore) -> None:
    """Make one snapshot after another."""
    _made["snapshots"] = 0
    while True:
        await store.compact()
        _made["snapshots"] += 1


async def _live(queue: dwell.Queue, rate: int, seconds: int, ids: str) -> int:
    """Put, take and ack so many messages a second; return how many that were."""
    loop = asyncio.get_running_loop()
    start, under_way, lived = loop.time(), set(), 0

    async def live(at: int) -> None:
        nonlocal lived
        own = own_ids(1 << 40 | at, _BATCH) if ids == "caller" else None
        await queue.put_many("live", [BODY] * _BATCH, ids=own)
        taken = await queue.take("live", _BATCH)
        await queue.ack(taken)
        lived += len(taken)

    at = 0
    while loop.time() < start + seconds:
        task = loop.create_task(live(at))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        at += _BATCH
        await asyncio.sleep(max(start + at / rate - loop.time(), 0))
    if under_way:
        await asyncio.wait(under_way)
    return lived


async def _measure_topics(result: Result, topics: int) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with dwell.open(f"{folder}/store") as queue:
            due_ms = queue.clock.now_ms() + 5_000 + topics // 2
            names = [f"user-{number}" for number in range(topics)]
            for start in range(0, topics, _TOPICS_AT_ONCE):
                part = names[start : start + _TOPICS_AT_ONCE]
                await asyncio.gather(*[queue.put(name, BODY, due=due_ms) for name in part])
            watch = Watch()
            assert queue.clock.now_ms() < due_ms, "it took too long to put the messages"
            await _until(lambda: queue.store.ready(names[-1]) == 1)
            await asyncio.sleep(0.5)
            late_ms = await watch.stop()
    result.more["topics_ms"] = round(late_ms[-1], 2)


async def _measure_large(
    result: Result, place: str, stops: Stops, messages: int, schedules: int
) -> None:
    """Measure a large topic, then many topics and schedules, in a folder or on a Redis."""
    places = (place, place) if "://" in place else (f"{place}/large", f"{place}/many")
    clear_s = await stops_of(places[0], stops, messages, 3 + messages / 100_000)
    await look_at_many(places[1], stops, schedules, schedules)
    result.more[f"{stops.prefix}large_ms"] = max(stops.found_ms.values())
    result.more[f"{stops.prefix}clear_s"] = round(clear_s, 3)
    result.more |= {f"{name}_ms": ms for name, ms in stops.found_ms.items()}


async def _until(reached: Callable[[], bool]) -> None:
    while not reached():
        await asyncio.sleep(0.01)
