"""What a worker tells those who watch it, while its server is away, and of what was not acked."""

import asyncio
import sys

import aiohttp

import dwell
from bench.servers import free_port
from dwell.store.memory import MemoryStore
from dwell.worker import Worker
from tests.spark.conftest import ServerProcess
from tests.waiting import until_async
from tests.worker.serving import serving


async def test_a_worker_whose_server_is_away_is_not_ready_and_counts_no_acks(tmp_path):
    server, address = ServerProcess(tmp_path), f"127.0.0.1:{free_port()}"
    worker, begun, ends = Worker(server.url), asyncio.Event(), asyncio.Event()

    @worker.on("t", concurrency=2, lease="10m")
    async def handle(message):
        begun.set()
        await ends.wait()

    async with aiohttp.ClientSession(f"http://{address}") as session:

        async def answer(path):
            async with session.get(path) as response:
                return response.status, await response.text()

        async def is_away():
            status, text = await answer("/readyz")
            return status == 503 and text.startswith("t: could not take: ")

        async def is_ready():
            return (await answer("/readyz")) == (200, "ready\n")

        async def counts():
            _, text = await answer("/metrics")
            return [line for line in text.splitlines() if line.startswith("dwell_worker_calls_")]

        try:
            async with serving(worker, http=address):
                async with dwell.open(server.url) as queue:
                    await queue.put("t", b"")
                await begun.wait()
                assert await is_ready()
                await asyncio.to_thread(server.kill)
                ends.set()
                await until_async(is_away, pause_s=0.1)
                assert await counts() == []
                await asyncio.to_thread(server.start)
                await until_async(is_ready, pause_s=0.1)
                done = ['dwell_worker_calls_total{result="done",topic="t"} 1.0']
                await until_async(lambda: _is(counts, done), pause_s=0.1)
        finally:
            server.stop()


async def _is(find, expected):
    return await find() == expected


async def test_a_call_whose_ack_comes_too_late_is_counted_as_lost():
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        worker = Worker(queue)

        @worker.on("t")
        async def handle(message):
            await queue.ack(message.receipt)

        await queue.put("t", b"")
        await worker.serve(burst=True)
        assert worker._tally.calls == {("t", "lost"): 1}


async def test_what_is_done_and_not_yet_said_is_not_given_back_at_the_end(monkeypatch):
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        worker, real, tries = Worker(queue, grace=0), queue.ack, []

        async def hangs_once(what, **how):
            tries.append(what)
            if len(tries) == 1:
                await asyncio.sleep(sys.maxsize)
            return await real(what, **how)

        monkeypatch.setattr(queue, "ack", hangs_once)
        worker.on("t", lease="10m")(lambda message: None)
        await queue.put("t", b"", id="1")
        async with serving(worker):
            await until_async(lambda: tries)
        assert await queue.get("t", "1") is None
