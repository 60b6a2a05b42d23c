import asyncio
import contextlib
import threading
import time

import pytest

import dwell
from dwell.store.memory import MemoryStore
from dwell.worker import Middleware, Worker
from dwell.worker.job import Job
from dwell.worker.leases import LeaseKeeper
from tests.waiting import until_async


async def settle():
    for _ in range(30):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def opened(clock):
    async with dwell.Queue(MemoryStore(clock)) as queue, asyncio.timeout(60):
        yield queue


async def test_a_lease_is_kept_alive_on_the_real_clock():
    attempts = []

    def slow(message):
        attempts.append(message.attempt)
        time.sleep(4)

    async with opened(dwell.RealClock()) as queue:
        worker = Worker(queue)
        worker.on("t", lease="3s")(slow)
        await queue.put("t", b"")
        serving = asyncio.create_task(worker.serve())
        while not (await queue.stats()).totals.get("ack"):
            await asyncio.sleep(0.01)
        worker.stop()
        await serving
        assert attempts == [1]
        assert "lapse" not in (await queue.stats()).totals


@contextlib.asynccontextmanager
async def handled(queue, **options):
    """Hold three messages under leases of 30 s; yield what has begun, and what lets it end."""
    gate, begun = asyncio.Event(), []

    async def handle(what):
        begun.append(what)
        await gate.wait()

    worker = Worker(queue)
    worker.on("t", lease="30s", **options)(handle)
    await queue.put_many("t", [b""] * 3)
    serving = asyncio.create_task(worker.serve())
    await until_async(lambda: len(begun) == 3 // options["batch"])
    yield begun, gate
    worker.stop()
    await serving


@pytest.mark.parametrize("batch", [1, 3])
async def test_leases_are_touched_at_a_third(batch):
    clock = dwell.SimulatedClock()

    async with opened(clock) as queue, handled(queue, batch=batch) as (_, gate):
        for _ in range(20):
            clock.advance(10_000)
            await settle()
        totals = (await queue.stats()).totals
        assert (totals["take"], totals.get("lapse", 0)) == (3, 0)
        gate.set()
        await settle()
        assert (await queue.stats()).totals["ack"] == 3


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_lease_longer_than_the_topics_stays_so_long(batch):
    clock = dwell.SimulatedClock()

    async with opened(clock) as queue:
        await queue.configure("t", lease_ms=3_000)
        async with handled(queue, batch=batch, concurrency=6) as (begun, gate):
            for _ in range(20):
                clock.advance(5_000)
                await settle()
            assert len(begun) == 3 // batch
            assert "lapse" not in (await queue.stats()).totals
            gate.set()


async def test_messages_that_wait_in_a_lane_are_touched_too():
    clock = dwell.SimulatedClock()
    gate, seen = asyncio.Event(), []

    async def handle(message):
        seen.append(message.attempt)
        await gate.wait()

    async with opened(clock) as queue:
        worker = Worker(queue)
        worker.on("t", lease="30s", by_key=True)(handle)
        await queue.put_many("t", [b""] * 3, key="k")
        serving = asyncio.create_task(worker.serve())
        await until_async(lambda: seen)
        for _ in range(20):
            clock.advance(10_000)
            await settle()
        assert seen == [1]
        gate.set()
        await until_async(lambda: len(seen) == 3)
        assert seen == [1, 1, 1]
        worker.stop()
        await serving
        assert "lapse" not in (await queue.stats()).totals


async def test_a_lost_lease_cancels_an_asynchronous_handler(caplog):
    clock = dwell.SimulatedClock()
    said = []

    async def handle(message):
        said.append(f"begin {message.attempt}")
        if message.attempt > 1:
            return
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    async with opened(clock) as queue:
        worker = Worker(queue)
        worker.on("t", lease="30s")(handle)
        await queue.put("t", b"")
        serving = asyncio.create_task(worker.serve())
        await until_async(lambda: said)
        # The process stood still for longer than the lease.
        clock.advance(31_000)
        await until_async(lambda: "cancelled" in said and "begin 2" in said)
        await settle()
        totals = (await queue.stats()).totals
        assert (totals["lapse"], totals["ack"], totals.get("release", 0)) == (1, 1, 0)
        worker.stop()
        await serving
    assert "the lease has ended" in caplog.text


async def test_a_message_whose_lease_ended_in_a_lane_does_not_run(caplog):
    clock = dwell.SimulatedClock()
    gate, seen = asyncio.Event(), []

    async def handle(message):
        seen.append((message.id, message.attempt))
        await gate.wait()

    async with opened(clock) as queue:
        worker = Worker(queue)
        worker.on("t", lease="30s", by_key=True)(handle)
        await queue.put_many("t", [b""] * 2, ids=["a", "b"], key="k")
        serving = asyncio.create_task(worker.serve())
        await until_async(lambda: seen)
        clock.advance(31_000)
        await until_async(lambda: caplog.text.count("the lease has ended") == 2)
        gate.set()
        while (await queue.stats()).totals.get("ack", 0) < 2:
            await settle()
        worker.stop()
        await serving
        assert seen == [("a", 1), ("a", 2), ("b", 2)]


async def test_a_message_whose_lease_ended_before_its_handler_began_does_not_run(caplog):
    """Middleware may wait before a handler, and has to learn that nothing came of it."""
    clock = dwell.SimulatedClock()
    gate, said = asyncio.Event(), []

    class Waits(Middleware):
        async def before(self, message):
            said.append(f"before {message.attempt}")
            if message.attempt == 1:
                await gate.wait()

        def after(self, message):
            said.append(f"after {message.attempt}")

        def on_failure(self, message, error):
            said.append(f"failed {message.attempt}: {error}")

    async with opened(clock) as queue:
        worker = Worker(queue, middleware=[Waits()])
        worker.on("t", lease="30s", concurrency=1)(lambda message: said.append("handled"))
        await queue.put("t", b"")
        serving = asyncio.create_task(worker.serve())
        await until_async(lambda: said)
        clock.advance(31_000)
        await until_async(lambda: "the lease has ended" in caplog.text)
        gate.set()
        await until_async(lambda: "after 2" in said)
        worker.stop()
        await serving
    told = "failed 1: the lease has ended before the handler began"
    assert said == ["before 1", told, "before 2", "handled", "after 2"]


async def test_a_lost_lease_of_a_thread_is_logged_and_not_acked(caplog):
    clock = dwell.SimulatedClock()
    gate, begun = threading.Event(), []

    def handle(message):
        begun.append(message.attempt)
        if message.attempt == 1:
            gate.wait(60)

    async with opened(clock) as queue:
        worker = Worker(queue)
        worker.on("t", lease="30s", concurrency=2)(handle)
        await queue.put("t", b"")
        serving = asyncio.create_task(worker.serve())
        await until_async(lambda: begun)
        clock.advance(31_000)
        await until_async(lambda: begun == [1, 2] and "the lease has ended" in caplog.text)
        gate.set()
        worker.stop()
        await serving
        totals = (await queue.stats()).totals
        assert (totals["lapse"], totals["ack"], totals.get("release", 0)) == (1, 1, 0)


@pytest.mark.parametrize("foreign", [[0], [6], [0, 3, 6]])
async def test_a_lease_of_another_store_is_lost_and_leaves_its_neighbours(foreign):
    clock, lost = dwell.SimulatedClock(), []

    async with opened(clock) as queue, dwell.Queue(MemoryStore(clock)) as other:
        keeper = LeaseKeeper(queue, lost.append)
        jobs = []
        for at in range(7):
            source = other if at in foreign else queue
            await source.put("t", b"")
            (message,) = await source.take("t", 1, lease="30s")
            jobs.append(Job(message, clock.now_ms()))
            keeper.add(jobs[-1])
        keeper.start()
        for _ in range(8):
            clock.advance(10_000)
            await settle()
        assert set(lost) == {jobs[at] for at in foreign}
        assert len(lost) == len(foreign)
        assert "lapse" not in (await queue.stats()).totals
        await keeper.stop()
