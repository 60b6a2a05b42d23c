"""What a worker does around its handlers: middleware, bursts, health and numbers."""

import asyncio

import aiohttp
import pytest

import dwell
from bench.servers import free_port
from dwell.errors import InvalidInput, InvalidUrl
from dwell.store.memory import MemoryStore
from dwell.worker import Bury, Middleware, Worker
from tests.waiting import until_async
from tests.worker.serving import serving


class Noted(Middleware):
    """Notes what it is told; the methods are plain."""

    def __init__(self, name, notes):
        self._name, self._notes = name, notes

    def before(self, what):
        self._notes.append(f"{self._name} before {what.id}")

    def after(self, what):
        self._notes.append(f"{self._name} after {what.id}")

    def on_failure(self, what, error):
        self._notes.append(f"{self._name} failed {what.id}: {error}")


class Gate(Middleware):
    """Lets no message through whose body is ``closed``; the method is asynchronous."""

    async def before(self, what):
        if what.body == b"closed":
            raise Bury("closed")


class Broken(Middleware):
    """Fails when all is done."""

    def after(self, what):
        raise ValueError("too late")


async def test_middleware_is_called_around_each_handler():
    notes = []
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        around = [Noted("a", notes), Gate(), Noted("b", notes), Broken()]
        worker = Worker(queue, middleware=around)

        @worker.on("t", concurrency=1, retry="1h")
        def handle(message):
            notes.append(f"handler {message.id}")
            if message.body == b"fails":
                raise ValueError("no")

        await queue.put_many("t", ["fine", "fails", "closed"], ids=["1", "2", "3"])
        await worker.serve(burst=True)
        assert await queue.get("t", "1") is None
        assert (await queue.get("t", "2")).last_error == "ValueError: no"
        assert (await queue.get("t", "3")).last_error == "closed"
    first = ["a before 1", "b before 1", "handler 1", "b after 1", "a after 1"]
    second = ["a before 2", "b before 2", "handler 2", "b failed 2: no", "a failed 2: no"]
    third = ["a before 3", "b failed 3: closed", "a failed 3: closed"]
    assert notes == first + second + third


async def test_what_is_no_middleware_is_refused():
    with pytest.raises(InvalidInput, match="middleware: got type"):
        Worker("memory:", middleware=[Noted])


async def test_a_burst_ends_when_nothing_can_be_taken():
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        worker, seen = Worker(queue), []

        @worker.on("first")
        async def begin(message):
            # Its handler has had nothing to do so far.
            await queue.put("second", message.body)

        @worker.on("second", concurrency=1)
        def end(message):
            seen.append(message.body)
            if len(seen) < 20:
                worker.sync_queue.put("first", b"again")

        await queue.put("first", b"1")
        await queue.put("second", b"later", delay="1h")
        await worker.serve(burst=True)
        assert seen == [b"1"] + [b"again"] * 19
        assert (await queue.stats()).topics["second"].delayed == 1
        await worker.serve(burst=True)


async def test_a_burst_leaves_no_lease_keeper_behind():
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        worker = Worker(queue)
        worker.on("t")(lambda message: None)
        await queue.put("t", b"x")
        await worker.serve(burst=True)
        # What else there is sleeps for the queue.
        assert not [t for t in asyncio.all_tasks() if "LeaseKeeper" in repr(t.get_coro())]


async def test_only_the_handlers_of_some_topics_run():
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        worker = Worker(queue)
        worker.on("a")(lambda message: None)
        worker.on(["b", "c"])(lambda message: None)
        for topic in "abc":
            await queue.put(topic, b"")
        await worker.serve(burst=True, topics=["b"])
        left = {topic: counts.ready for topic, counts in (await queue.stats()).topics.items()}
        assert left == {"a": 1, "b": 0, "c": 1}
        with pytest.raises(InvalidInput, match="topics: got 'd', expected some of: a, b, c"):
            await worker.serve(topics=["a", "d"])


async def test_a_worker_answers_to_those_who_watch_it():
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        worker, address = Worker(queue), f"127.0.0.1:{free_port()}"
        worker.on("t")(lambda message: None)

        @worker.on("u", retry="1h")
        def fails(message):
            raise ValueError("no")

        await queue.put_many("t", [b""] * 3)
        await queue.put("u", b"")
        async with aiohttp.ClientSession(f"http://{address}") as session:

            async def answer(path):
                async with session.get(path) as response:
                    return response.status, await response.text()

            async with serving(worker, http=address):
                await until_async(lambda: sum(worker._tally.calls.values()) == 4)
                assert await answer("/healthz") == (200, "ok\n")
                assert await answer("/readyz") == (200, "ready\n")
                _, text = await answer("/metrics")
                assert 'dwell_worker_calls_total{result="done",topic="t"} 3.0' in text
                assert 'dwell_worker_calls_total{result="released",topic="u"} 1.0' in text
                assert "dwell_worker_seconds_count 4.0" in text
        with pytest.raises(InvalidUrl, match="--http: got 'here', expected HOST:PORT"):
            await worker.serve(http="here")
