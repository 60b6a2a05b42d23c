import asyncio
import random
from collections import defaultdict

import pytest

import dwell
from dwell.message import Message
from dwell.store.memory import MemoryStore
from dwell.worker import Retry, Worker
from dwell.worker.job import Job
from dwell.worker.lanes import Lanes


def make_job(number, key):
    return Job(
        Message(
            topic="t",
            id=str(number),
            body=b"",
            due_ms=0,
            state=dwell.State.LEASED,
            priority=0,
            attempt=1,
            max_attempts=0,
            lease_ms=0,
            lease_until_ms=60_000,
            key=key,
            receipt="0" * 32,
        ),
        0,
    )


def test_one_of_a_key_at_a_time_in_order_and_everything_else_at_once():
    rng = random.Random(4)
    lanes, running, order = Lanes(by_key=True), [], defaultdict(list)
    waiting = [make_job(n, rng.choice(["a", "b", "c", None])) for n in range(200)]
    count = len(waiting)
    while waiting or running:
        if waiting and rng.random() < 0.6:
            lanes.add(waiting.pop(0))
        while (job := lanes.next()) is not None:
            running.append(job)
        keys = [job.lane for job in running if job.lane is not None]
        assert len(keys) == len(set(keys))
        if running:
            job = running.pop(rng.randrange(len(running)))
            order[job.lane].append(int(job.what.id))
            lanes.done(job)
    assert sum(map(len, order.values())) == count
    assert all(order[lane] == sorted(order[lane]) for lane in order if lane is not None)
    assert lanes._lanes == {}


def test_without_by_key_a_key_means_nothing():
    lanes = Lanes(by_key=False)
    jobs = [make_job(n, "a") for n in range(3)]
    for job in jobs:
        lanes.add(job)
    assert [lanes.next() for _ in range(4)] == [*jobs, None]


@pytest.mark.timeout(60)
async def test_a_worker_keeps_the_order_of_each_key():
    seen, running = defaultdict(list), set()
    most = 0

    async def handle(message):
        nonlocal most
        assert message.key not in running
        running.add(message.key)
        most = max(most, len(running))
        await asyncio.sleep(random.random() / 500)
        seen[message.key].append(int(message.body))
        running.discard(message.key)

    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        worker = Worker(queue)
        worker.on("t", by_key=True, concurrency=4)(handle)
        bodies = [str(n) for n in range(200)]
        await queue.put_many("t", bodies, key=[f"k{n % 5}" for n in range(200)])
        serving = asyncio.create_task(worker.serve())
        while (await queue.stats()).totals.get("ack", 0) < 200:
            await asyncio.sleep(0.005)
        worker.stop()
        await serving
    assert {key: len(numbers) for key, numbers in seen.items()} == {f"k{n}": 40 for n in range(5)}
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert most > 1


@pytest.mark.timeout(60)
async def test_a_failure_does_not_block_its_lane():
    seen = []

    async def handle(message):
        seen.append((message.body, message.attempt))
        if message.body == b"1" and message.attempt == 1:
            raise Retry("50ms")

    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        worker = Worker(queue)
        worker.on("t", by_key=True)(handle)
        await queue.put_many("t", ["1", "2", "3"], key="k")
        serving = asyncio.create_task(worker.serve())
        while (await queue.stats()).totals.get("ack", 0) < 3:
            await asyncio.sleep(0.005)
        worker.stop()
        await serving
    assert seen == [(b"1", 1), (b"2", 1), (b"3", 1), (b"1", 2)]
