import asyncio
import contextlib
import functools
import logging
import threading

import pytest

import dwell
from dwell import State
from dwell.store.memory import MemoryStore
from dwell.worker import Bury, Retry, Worker
from tests.waiting import until_async
from tests.worker.serving import serving


@contextlib.asynccontextmanager
async def working(queue, register, **options):
    """Run a worker whose handlers ``register`` made, and stop it at the end."""
    worker = Worker(queue, **options)
    register(worker)
    async with serving(worker):
        yield worker


@contextlib.asynccontextmanager
async def beside(register, clock=None, **options):
    """Give a queue in memory, with a worker beside the test."""
    store = MemoryStore(clock or dwell.RealClock())
    async with (
        dwell.Queue(store) as queue,
        working(queue, register(queue), **options),
        asyncio.timeout(60),
    ):
        yield queue


async def totals(queue, **expected):
    """Wait until the queue counted these events, and no more of them."""

    async def counted():
        counts = (await queue.stats()).totals
        return all(counts.get(name, 0) >= count for name, count in expected.items())

    await until_async(counted)
    counts = (await queue.stats()).totals
    assert {name: counts.get(name, 0) for name in expected} == expected


def handling(handler, *args, **kwargs):
    """Return what registers one handler."""
    return lambda queue: lambda worker: worker.on(*args, **kwargs)(handler)


# --- what a handler says ----------------------------------------------------------------------


async def test_returning_acks():
    seen = []

    async def handle(message):
        seen.append(message.body)

    async with beside(handling(handle, "t")) as queue:
        await queue.put_many("t", [str(n) for n in range(100)])
        await totals(queue, ack=100)
        assert sorted(map(int, seen)) == list(range(100))


async def test_plain_functions_run_in_threads_of_their_own():
    threads = set()
    together = threading.Barrier(3)

    def handle(message):
        together.wait(60)
        threads.add(threading.current_thread().name)

    async with beside(handling(handle, "t", concurrency=3)) as queue:
        await queue.put_many("t", [b""] * 9)
        await totals(queue, ack=9)
        assert len(threads) == 3
        assert threading.main_thread().name not in threads


@pytest.mark.parametrize(
    "hide", [lambda f: lambda m: f("x", m), lambda f: functools.partial(f, "x")]
)
async def test_a_function_that_hides_a_coroutine_is_awaited(hide):
    seen = []

    async def handle(word, message):
        await asyncio.sleep(0)
        seen.append(word)

    async with beside(handling(hide(handle), "t")) as queue:
        await queue.put("t", b"")
        await totals(queue, ack=1)
        assert seen == ["x"]


async def test_no_more_run_at_once_than_said():
    running, most = 0, 0

    async def handle(message):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    async with beside(handling(handle, "t", concurrency=4)) as queue:
        await queue.put_many("t", [b""] * 40)
        await totals(queue, ack=40)
        assert most == 4


async def test_retry_with_its_own_delay_and_reason():
    clock = dwell.SimulatedClock()

    async def handle(message):
        if message.attempt == 1:
            raise Retry("5m", "not yet")

    async with beside(handling(handle, "t"), clock) as queue:
        await queue.put("t", b"", id="x")
        await totals(queue, release=1)
        message = await queue.get("t", "x")
        assert (message.due_ms, message.last_error) == (clock.now_ms() + 300_000, "not yet")
        clock.advance(300_000)
        await totals(queue, ack=1, take=2)


@pytest.mark.parametrize(
    ("retry", "delays_ms"),
    [(None, [7_000, 8_000, 8_000]), (["1s", "2s"], [1_000, 2_000, 2_000]), (3, [3_000] * 3)],
)
async def test_retry_delays_are_the_topics_or_the_handlers_own(retry, delays_ms):
    clock = dwell.SimulatedClock()

    async def handle(message):
        if message.attempt % 2:
            raise Retry
        raise RuntimeError("failed")

    async with beside(handling(handle, "t", retry=retry, jitter=0), clock) as queue:
        await queue.configure("t", retry_delays_ms=[7_000, 8_000])
        await queue.put("t", b"", id="x")
        for attempt, delay_ms in enumerate(delays_ms, 1):
            await totals(queue, release=attempt)
            assert (await queue.get("t", "x")).due_ms == clock.now_ms() + delay_ms
            clock.advance(delay_ms)


async def test_an_exception_is_logged_kept_and_in_the_end_buried(caplog):
    def handle(message):
        raise ValueError(f"no {message.body.decode()}")

    with caplog.at_level(logging.WARNING):
        async with beside(handling(handle, "t")) as queue:
            await queue.configure("t", retry_delays_ms=[0], max_attempts=3)
            await queue.put("t", b"luck", id="x")
            await totals(queue, exhaust=1, take=3)
            message = await queue.get("t", "x")
            assert (message.state, message.last_error) == (State.DEAD, "ValueError: no luck")
    assert "attempt 3 failed" in caplog.text
    assert caplog.text.count("t/x: dead: its attempts are used up") == 1
    assert "in handle" in caplog.text


async def test_bury(caplog):
    async def handle(message):
        raise Bury("nonsense")

    async with beside(handling(handle, "t")) as queue:
        await queue.put("t", b"", id="x")
        await totals(queue, bury=1)
        assert (await queue.get("t", "x")).last_error == "nonsense"
    assert "t/x: dead: nonsense" in caplog.text


async def test_a_handler_that_cancels_itself_failed():
    async def handle(message):
        if message.attempt == 1:
            raise asyncio.CancelledError

    async with beside(handling(handle, "t")) as queue:
        await queue.configure("t", retry_delays_ms=[0])
        await queue.put("t", b"")
        await totals(queue, release=1, ack=1)


# --- batches and topics -----------------------------------------------------------------------


async def test_a_batch_handler_gets_batches():
    sizes = []

    async def handle(batch):
        assert isinstance(batch, dwell.Batch)
        sizes.append(len(batch))

    async with beside(handling(handle, "t", batch=10)) as queue:
        await queue.put_many("t", [b""] * 25)
        await totals(queue, ack=25)
        assert sorted(sizes) == [5, 10, 10]


async def test_a_batch_is_retried_and_buried_as_a_whole():
    async def handle(batch):
        if max(batch.attempt) == 1:
            raise Retry(0)
        raise Bury("all of it")

    async with beside(handling(handle, "t", batch=4)) as queue:
        await queue.put_many("t", [b""] * 4)
        await totals(queue, release=4, bury=4)
        dead = (await queue.scan("t", "dead")).messages
        assert {message.last_error for message in dead} == {"all of it"}


async def test_several_handlers_and_topics():
    seen = {"one": [], "two": []}

    def register(queue):
        def handlers(worker):
            @worker.on("a")
            async def one(message):
                seen["one"].append(message.topic)

            @worker.on(["b", "c"])
            def two(message):
                seen["two"].append(message.topic)

        return handlers

    async with beside(register) as queue:
        for topic in "abc":
            await queue.put(topic, b"")
        await totals(queue, ack=3)
        assert (seen["one"], sorted(seen["two"])) == (["a"], ["b", "c"])


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (dwell.InvalidTopic, {"topics": ""}),
        (dwell.InvalidLimit, {"topics": "t", "concurrency": 0}),
        (dwell.InvalidLimit, {"topics": "t", "batch": "many"}),
        (dwell.InvalidTime, {"topics": "t", "lease": 0}),
        (dwell.InvalidTime, {"topics": "t", "retry": ["1s", "soon"]}),
        (dwell.InvalidInput, {"topics": "t", "by_key": True, "batch": 2}),
    ],
)
def test_bad_options(error, options):
    with pytest.raises(error):
        Worker("memory:").on(**options)
    with pytest.raises(dwell.InvalidTime):
        Worker("memory:", grace=-1)


async def test_a_store_that_fails_ends_the_worker():
    class Failing(MemoryStore):
        async def take(self, topics, limit, lease_ms, owner):
            raise dwell.StoreFailed("fsync failed")

    async with dwell.Queue(Failing(dwell.RealClock())) as queue:
        worker = Worker(queue)
        worker.on("t")(lambda message: None)
        with pytest.raises(dwell.StoreFailed):
            await worker.serve()


async def test_a_store_that_is_full_for_a_while_is_asked_again(caplog):
    class Full(MemoryStore):
        refusals = 2

        async def take(self, topics, limit, lease_ms, owner):
            if self.refusals and "t" in topics:
                self.refusals -= 1
                raise dwell.DiskFull("no room")
            return await super().take(topics, limit, lease_ms, owner)

    clock = dwell.SimulatedClock()

    async with dwell.Queue(Full(clock)) as queue:
        await queue.put("t", b"")
        async with working(queue, lambda worker: worker.on("t")(lambda message: None)):

            async def acked():
                clock.advance(100)
                return "ack" in (await queue.stats()).totals

            await until_async(acked)
    assert caplog.text.count("t: could not take: no room\n") == 2
    assert "Traceback" not in caplog.text
