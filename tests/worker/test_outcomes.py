"""Whatever a handler raises or returns is an outcome, of its own messages and no others."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time

import pytest

import dwell
from dwell import State
from dwell.errors import InvalidInput, ServerUnreachable
from dwell.message import Result
from dwell.store.memory import MemoryStore
from dwell.worker import Bury, Retry, Worker
from tests.http.served import served
from tests.waiting import until_async
from tests.worker.serving import serving


class Odd(BaseException):
    """An exception that is no Exception."""


class Unprintable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self):
        raise KeyboardInterrupt


def noted():
    error = ValueError("real")
    error.add_note("a note")
    return error


RAISED = {
    "StopIteration: 3": lambda: StopIteration(3),
    "GeneratorExit": GeneratorExit,
    f"{__name__}.Odd: x": lambda: Odd("x"),
    "BaseExceptionGroup: two (1 sub-exception)": lambda: BaseExceptionGroup("two", [Odd()]),
    "asyncio.exceptions.CancelledError: mine": lambda: asyncio.CancelledError("mine"),
    "ValueError: real": noted,
    "ValueError: a \\udce9": lambda: ValueError("a \udce9"),
    f"{__name__}.Unprintable: <exception str() failed>": Unprintable,
}


@pytest.fixture(autouse=True)
def unlogged(caplog):
    """Keep texts that are no UTF-8 out of what the test programs tell each other."""
    with caplog.at_level(logging.CRITICAL, "dwell.worker"):
        yield


@contextlib.asynccontextmanager
async def opened(**options):
    store = MemoryStore(dwell.RealClock(), **options)
    async with dwell.Queue(store) as queue, asyncio.timeout(60):
        yield queue


def registered(worker, handler, is_async, **options):
    """Register a handler as it is, or as a coroutine function."""

    async def asynchronous(message):
        return handler(message)

    worker.on("t", **options)(asynchronous if is_async else handler)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("told", RAISED)
async def test_whatever_is_raised_counts_and_frees_its_slot(told, is_async):
    def handle(message):
        if message.id == "bad":
            raise RAISED[told]()

    async with opened() as queue:
        worker = Worker(queue)
        registered(worker, handle, is_async, concurrency=1, by_key=True, retry="10m")
        await queue.put_many("t", ["x"] * 3, ids=["bad", "good", "other"], key="k")
        async with serving(worker):

            async def is_settled():
                return (await queue.stats()).totals.get("ack", 0) == 2

            await until_async(is_settled)
            bad = await queue.get("t", "bad")
            assert (bad.state, bad.attempt) == (State.DELAYED, 1)
            # Python makes another error of a StopIteration that leaves a coroutine.
            if not (is_async and told.startswith("StopIteration")):
                assert bad.last_error == told


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_ends_a_program_ends_the_worker_gracefully(tmp_path, error, is_async):
    folder, neighbour_begun, handled = str(tmp_path / "queue"), [], []

    async def handle(message):
        if message.id == "bad":
            await until_async(lambda: neighbour_begun)
            raise error
        neighbour_begun.append(message.id)
        await asyncio.sleep(0.05)
        handled.append(message.id)

    def plain(message):
        asyncio.run(handle(message))

    with dwell.open(folder) as queue:
        queue.put_many("t", ["x"] * 2, ids=["bad", "good"])
    worker = Worker(folder)
    worker.on("t", concurrency=2, retry="10m")(handle if is_async else plain)
    with pytest.raises(type(error)) as raised:
        worker.run()
    if isinstance(error, SystemExit):
        assert raised.value.code == 3
    with dwell.open(folder) as queue:
        bad = queue.get("t", "bad")
        assert (bad.state, bad.attempt) == (State.DELAYED, 1)
        assert bad.last_error.startswith(type(error).__name__)
        assert handled == ["good"]
        assert queue.get("t", "good") is None


def generator(message):
    yield message


async def asynchronous_generator(message):
    yield message


class Generating:
    def __call__(self, message):
        yield message


@pytest.mark.parametrize("handler", [generator, asynchronous_generator, Generating()])
def test_a_generator_is_no_handler(handler):
    with pytest.raises(InvalidInput, match="a call runs nothing"):
        Worker("memory:").on("t")(handler)


def test_what_cannot_be_called_is_no_handler():
    with pytest.raises(dwell.InvalidInput, match="handler: got int 3, expected a function"):
        Worker("memory:").on("t")(3)


async def test_a_hidden_generator_is_a_failure_and_a_hidden_coroutine_runs():
    ran = []

    async def hidden(message):
        ran.append(message.id)

    async with opened() as queue:
        worker = Worker(queue)
        worker.on("t", retry="10m")(lambda message: generator(message))
        worker.on("u")(lambda message: hidden(message))
        await queue.put("t", "x", id="1")
        await queue.put("u", "x", id="2")
        async with serving(worker):

            async def is_settled():
                message = await queue.get("t", "1")
                return ran and message.state is State.DELAYED and not await queue.get("u", "2")

            await until_async(is_settled)
            assert "of which nothing has run" in (await queue.get("t", "1")).last_error


async def test_a_child_that_a_handler_forks_does_not_become_a_second_worker(tmp_path):
    parent, pids, ends = os.getpid(), tmp_path / "pids", []

    def handle(message):
        if pid := os.fork():
            end = time.monotonic() + 20
            while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < end:
                time.sleep(0.01)
            if not ended[0]:
                os.kill(pid, signal.SIGKILL)
                ended = os.waitpid(pid, 0)
            ends.append(ended[1])
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")

    async with opened() as queue:
        worker = Worker(queue)
        worker.on("t")(handle)
        await queue.put("t", "x", id="1")
        async with serving(worker):

            async def is_done():
                return await queue.get("t", "1") is None

            await until_async(is_done)
    # The child came back from the handler too, and ended there.
    assert (len(pids.read_text().split()), ends) == (2, [0])
    assert os.getpid() == parent


async def test_a_handler_that_cancels_itself_has_failed():
    attempts = []

    async def handle(message):
        attempts.append(message.attempt)
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async with opened() as queue:
        worker = Worker(queue)
        worker.on("t", retry="10m")(handle)
        await queue.put("t", "x", id="1")
        async with serving(worker):

            async def is_back():
                return (await queue.get("t", "1")).state is State.DELAYED

            await until_async(is_back)
            assert attempts == [1]


@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_the_end_of_the_loop_gives_back_what_runs_as_it_was(tmp_path, cancels):
    folder = str(tmp_path / "queue")

    async def begin():
        async with dwell.open(folder) as queue:
            await queue.put_many("t", ["x"] * 3, ids=["a", "b", "c"], key="k", max_attempts=1)
        begun = asyncio.Event()
        worker = Worker(folder)

        @worker.on("t", by_key=True)
        async def handle(message):
            begun.set()
            await asyncio.sleep(600)

        serving = asyncio.create_task(worker.serve())
        await begun.wait()
        # With the last one the loop itself cancels all that is left, as asyncio.run does.
        for _ in range(cancels - 1):
            serving.cancel()
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(begin(), 60))
    with dwell.open(folder) as queue:
        found = queue.get("t", ["a", "b", "c"])
        assert [(m.state, m.attempt, m.last_error) for m in found] == [(State.READY, 0, None)] * 3


def test_the_end_of_the_loop_leaves_nothing_leased_at_any_moment(tmp_path):
    async def begin(folder, turns):
        async with dwell.open(folder) as queue:
            await queue.put_many("t", ["x"] * 4, ids=list("abcd"), max_attempts=1)
        worker = Worker(folder)

        @worker.on("t", concurrency=2)
        async def handle(message):
            await asyncio.sleep(600)

        serving = asyncio.create_task(worker.serve())
        for _ in range(turns):
            await asyncio.sleep(0)
        return serving

    for turns in range(0, 40, 3):
        folder = str(tmp_path / str(turns))
        asyncio.run(asyncio.wait_for(begin(folder, turns), 60))
        with dwell.open(folder) as queue:
            found = queue.get("t", list("abcd"))
            assert [(m.state, m.attempt) for m in found] == [(State.READY, 0)] * 4, turns


async def test_the_order_of_a_key_outlives_a_graceful_stop():
    done = []

    def make(queue, stop_after):
        worker = Worker(queue)

        @worker.on("t", concurrency=4, by_key=True)
        async def handle(message):
            done.append((int(message.body), message.attempt))
            await asyncio.sleep(0.001)
            if len(done) >= stop_after:
                worker.stop()

        return worker

    async with opened() as queue:
        await queue.put_many("t", [str(n) for n in range(60)], key="A")
        for stop_after in (5, 17, 18, 60):
            await make(queue, stop_after).serve()
        assert done == [(n, 1) for n in range(60)]


async def test_nobody_gets_what_waits_behind_a_handler_that_ends_in_the_grace():
    async with opened() as queue:
        gate, begun = asyncio.Event(), asyncio.Event()
        worker = Worker(queue)

        @worker.on("t", concurrency=2, by_key=True)
        async def handle(message):
            begun.set()
            await gate.wait()

        await queue.put_many("t", ["x"] * 4, ids=["a1", "a2", "a3", "b1"], key=["A", "A", "A", "B"])
        serving = asyncio.create_task(worker.serve())
        await begun.wait()
        worker.stop()
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(await queue.take("t", 9)) == 0
        gate.set()
        await serving
        assert (await queue.take("t", 9)).ids == ["a2", "a3"]


@pytest.mark.timeout(60)
async def test_touches_follow_the_lease_that_was_given():
    clock = dwell.SimulatedClock()

    async with dwell.Queue(MemoryStore(clock)) as queue:
        gate, attempts = asyncio.Event(), []
        worker = Worker(queue)

        @worker.on("t")
        async def handle(message):
            attempts.append(message.attempt)
            await gate.wait()

        await queue.configure("t", lease_ms=6_000)
        await queue.put("t", "x", id="1")
        async with serving(worker):
            while not attempts:
                await asyncio.sleep(0)
            await queue.configure("t", lease_ms=1_000)
            for _ in range(20):
                clock.advance(1_000)
                for _ in range(30):
                    await asyncio.sleep(0)
            assert attempts == [1]
            gate.set()
        assert await queue.get("t", "1") is None


class Flaky(MemoryStore):
    """A store that cannot be reached for some of its acks."""

    failures = 0

    async def ack(self, receipts):
        if self.failures:
            self.failures -= 1
            raise ServerUnreachable("gone for a moment")
        return await super().ack(receipts)


@pytest.mark.timeout(60)
async def test_an_ack_is_tried_while_its_lease_runs():
    store = Flaky(dwell.RealClock())
    async with dwell.Queue(store) as queue:
        handled = []
        worker = Worker(queue)
        worker.on("t", lease="30s")(handled.append)
        store.failures = 2
        await queue.put("t", "x", id="1")
        async with serving(worker):

            async def is_gone():
                return await queue.get("t", "1") is None

            await until_async(is_gone)
        assert len(handled) == 1


@pytest.mark.timeout(60)
async def test_what_was_done_is_said_once_more_at_the_end_of_the_grace():
    """A handler that has ended is not given back because its ack could not be said yet."""

    store = Flaky(dwell.RealClock())
    async with dwell.Queue(store) as queue:
        worker = Worker(queue, grace=0)
        tried = asyncio.Event()

        @worker.on("t", lease="30s")
        def handle(message):
            pass

        store.failures = 1
        await queue.put("t", "x", id="1")
        async with serving(worker):
            await until_async(lambda: not store.failures)
            tried.set()
        assert await queue.get("t", "1") is None


def test_what_was_done_is_said_once_more_at_the_end_of_the_loop():
    """Whoever cancels all tasks of a loop does not undo what a handler has done."""
    store = Flaky(dwell.RealClock())

    async def begin():
        queue = dwell.Queue(store)
        await queue.open()
        worker = Worker(queue)

        @worker.on("t", lease="30s")
        def handle(message):
            pass

        store.failures = 1
        await queue.put("t", "x", id="1")
        task = asyncio.create_task(worker.serve())
        await until_async(lambda: not store.failures)
        return task

    asyncio.run(asyncio.wait_for(begin(), 60))
    assert asyncio.run(store.get("t", [b"1"])) == [None]


async def test_nobody_hears_that_a_worker_has_ended_before_its_handlers_have():
    async with opened() as queue:
        begun, ended = asyncio.Event(), asyncio.Event()
        # The second time that it is cancelled ends the grace.
        worker = Worker(queue, grace=600)

        @worker.on("t")
        async def handle(message):
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.05)
                ended.set()

        await queue.put("t", "x")
        task = asyncio.create_task(worker.serve())
        await begun.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)
        assert ended.is_set()


def test_a_stop_before_the_start_and_after_the_end():
    worker = Worker("memory:")
    worker.on("t")(print)
    worker.stop()
    worker.run()
    worker.stop()


def test_a_worker_without_handlers():
    with pytest.raises(InvalidInput, match="got no handler"):
        Worker("memory:").run()


async def test_a_worker_that_runs_already():
    async with opened() as queue:
        worker = Worker(queue)
        worker.on("t")(print)
        async with serving(worker):
            await asyncio.sleep(0)
            with pytest.raises(InvalidInput, match="runs already"):
                await worker.serve()
            with pytest.raises(InvalidInput, match="expected handlers before"):
                worker.on("u")


def test_one_handler_for_a_topic_by_key():
    worker = Worker("memory:")
    worker.on(["t", "u"], by_key=True)(print)
    with pytest.raises(InvalidInput, match="u has a handler already"):
        worker.on("u")(print)


async def test_a_release_that_neither_counts_nor_delays_leaves_the_place():
    async with opened() as queue:
        await queue.put_many("t", ["x"] * 3, ids=["a", "b", "c"])
        taken = await queue.take("t", 2)
        assert await queue.release(taken, counted=False) == [Result.RELEASED] * 2
        assert (await queue.take("t", 3)).ids == ["a", "b", "c"]


class Bare(Retry):
    """A child that does not call its parent."""

    def __init__(self):
        pass


class BareBury(Bury):
    """A child that does not call its parent."""

    def __init__(self):
        pass


class Lying(Exception):
    """An exception that says of its class what is not so, and raises when it is looked at."""

    @property
    def __class__(self):
        raise ValueError("do not look")


def odd_syntax():
    error = SyntaxError("odd")
    error.lineno = error.offset = object()
    return error


def rubbish():
    error = Retry()
    error.delay_ms, error.reason = "soon", 5
    return error


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("make", [Bare, BareBury, Lying, odd_syntax, rubbish])
async def test_what_cannot_be_looked_at_is_a_failure_like_any_other(make, is_async):
    def handle(message):
        raise make()

    async with opened() as queue:
        worker = Worker(queue)
        registered(worker, handle, is_async, retry="10m")
        await queue.put("t", "x", id="1", max_attempts=2)
        async with serving(worker):

            async def is_settled():
                return (await queue.get("t", "1")).state in (State.DELAYED, State.DEAD)

            await until_async(is_settled)
            message = await queue.get("t", "1")
            assert message.attempt == 1
            assert message.state is (State.DEAD if make is BareBury else State.DELAYED)


@pytest.mark.timeout(60)
async def test_a_batch_is_touched_with_each_lease_of_its_own():
    clock = dwell.SimulatedClock()

    async with dwell.Queue(MemoryStore(clock)) as queue:
        gate, begun = asyncio.Event(), asyncio.Event()
        worker = Worker(queue)

        @worker.on("t", batch=2)
        async def handle(batch):
            begun.set()
            await gate.wait()

        await queue.put("t", "x", id="short", lease="2s")
        await queue.put("t", "x", id="long", lease="60s")
        async with serving(worker):
            await begun.wait()
            for _ in range(10):
                clock.advance(500)
                for _ in range(30):
                    await asyncio.sleep(0)
            short, long = await queue.get("t", ["short", "long"])
            assert short.state is long.state is State.LEASED
            assert long.lease_until_ms - clock.now_ms() > 55_000
            gate.set()


@pytest.mark.parametrize("step_ms", [5_000, -3_600_000])
@pytest.mark.timeout(60)
async def test_a_step_of_the_wall_clock_takes_no_lease_from_a_handler(step_ms):
    """One over its end does, as leases end by that clock."""

    class Stepped(dwell.RealClock):
        off_ms = 0

        def now_ms(self):
            return super().now_ms() + self.off_ms

    clock, attempts = Stepped(), []
    async with dwell.Queue(MemoryStore(clock)) as queue:
        worker = Worker(queue)

        @worker.on("t", lease="6s", concurrency=2)
        async def handle(message):
            attempts.append(message.attempt)
            await asyncio.sleep(0.3)
            clock.off_ms += step_ms
            await asyncio.sleep(3)

        await queue.put("t", "x", id="1")
        async with serving(worker):

            async def is_gone():
                return await queue.get("t", "1") is None

            await until_async(is_gone)
            assert attempts == [1]


async def test_who_cancels_others_takes_no_attempt_of_theirs():
    async with opened() as queue:
        attempts, done = [], []
        worker = Worker(queue)

        @worker.on("t", concurrency=3, lease="5s")
        async def handle(message):
            attempts.append((message.id, message.attempt))
            if message.id == "bad":
                await until_async(lambda: len(attempts) >= 3)
                me = asyncio.current_task()
                for task in asyncio.all_tasks():
                    if type(task) is type(me) and task is not me:
                        task.cancel()
            elif len(attempts) <= 3:
                await asyncio.sleep(600)
            done.append(message.id)

        await queue.put_many("t", ["x"] * 3, ids=["bad", "n1", "n2"], max_attempts=1)
        async with serving(worker):

            async def are_gone():
                return (await queue.stats()).totals.get("ack", 0) == 3

            await until_async(are_gone)
            assert all(attempt == 1 for _, attempt in attempts)
            assert sorted(done) == ["bad", "n1", "n2"]


@pytest.mark.campaign
@pytest.mark.parametrize("when", ["open", "idle", "run"])
@pytest.mark.timeout(100)
async def test_a_stop_ends_when_the_server_hangs(when):
    """A server that accepts and never answers keeps nobody longer than a few seconds."""

    hangs, served_tasks = asyncio.Event(), []
    if when == "open":
        hangs.set()

    async def pipe(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if hangs.is_set():
                    await asyncio.sleep(600)
                writer.write(data)

    async def serve(reader, writer):
        served_tasks.append(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(asyncio.CancelledError):
            away, back = await asyncio.open_connection("127.0.0.1", int(real.rpartition(":")[2]))
            with contextlib.closing(back):
                await asyncio.gather(pipe(reader, back), pipe(away, writer))

    async with served() as behind:
        real = behind.url
        async with dwell.open(real) as queue:
            await queue.put_many("t", ["x"] * 2, ids=["a", "b"])
        proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
        worker = Worker(f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}", grace="100ms")
        begun = asyncio.Event()

        @worker.on("t" if when == "run" else "other", concurrency=2)
        async def handle(message):
            begun.set()
            await asyncio.sleep(600)

        serving = asyncio.create_task(worker.serve())
        if when == "run":
            await begun.wait()
        else:
            await asyncio.sleep(0.5)
        hangs.set()
        worker.stop()
        # The limits of its parts add up to less than the half of this.
        await asyncio.wait_for(serving, 40)
        proxy.close()
        for task in served_tasks:
            task.cancel()
        await asyncio.gather(*served_tasks, return_exceptions=True)


async def test_a_thread_that_cannot_be_started_takes_no_slot_and_nothing_runs_behind_its_end(
    monkeypatch,
):
    start, fails, handled = threading.Thread.start, [True], []

    def refuse(thread):
        if thread.name.startswith("dwell-handler") and fails:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    async with opened() as queue:
        worker = Worker(queue)
        worker.on("t", concurrency=2, retry="1ms")(lambda m: handled.append((m.id, m.attempt)))
        await queue.put_many("t", ["x"] * 2, ids=["a", "b"])
        async with serving(worker):

            async def has_failed():
                return (await queue.stats()).totals.get("release", 0) >= 2

            await until_async(has_failed)
            assert not handled
            fails.clear()

            async def are_gone():
                return (await queue.stats()).totals.get("ack", 0) == 2

            await until_async(are_gone)
            # Each was handled once, and what could not be begun was no attempt.
            assert sorted(handled) == [("a", 1), ("b", 1)]


@pytest.mark.campaign
@pytest.mark.timeout(60)
async def test_a_coroutine_under_a_plain_function_is_told_that_its_lease_is_lost():
    clock = dwell.SimulatedClock()

    async with dwell.Queue(MemoryStore(clock)) as queue:
        begun, told = asyncio.Event(), asyncio.Event()

        async def work(message):
            begun.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                told.set()
                raise

        worker = Worker(queue)
        worker.on("t", lease="30s")(lambda message: work(message))
        await queue.put("t", "x", id="1")
        async with serving(worker):
            await begun.wait()
            clock.advance(31_000)
            await told.wait()
