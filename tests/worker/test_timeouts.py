"""Handlers that run longer than they may: each place is free again, and each message is judged."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import Any

import msgspec
import pytest

import dwell
from dwell import State
from dwell.errors import InvalidInput
from dwell.store.memory import MemoryStore
from dwell.worker import Bury, Retry, Worker
from tests.waiting import until_async
from tests.worker.serving import serving

TOLD = "timeout: the handler ran longer than 0.2 s"


class Order(msgspec.Struct):
    """What a handler in another process is given."""

    number: int


def in_process(message: Any) -> None:
    """Do in another process what the body says."""
    match message.body:
        case b"hangs":
            time.sleep(3600)
        case b"crashes":
            os._exit(3)
        case b"raises":
            raise ValueError("no")
        case b"retries":
            raise Retry("1h", "later")
        case b"buries":
            raise Bury("enough")
        case b"odd":
            raise type("Local", (Exception,), {})("odd")


def of_orders(message: Any) -> None:
    """Raise what the value of a message is."""
    raise Bury(f"number {message.value.number}")


async def hangs(message: Any) -> None:
    await asyncio.sleep(3600)


async def says_why(message: Any) -> None:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise Bury("was cancelled") from None


def spins(message: Any) -> None:
    while True:
        time.sleep(0.01)


@pytest.fixture
async def queue():
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        await queue.configure("t", retry_delays_ms=("1h",))
        yield queue


async def left(queue, id_, state):
    """Wait until a message is in a state, and return it."""
    await until_async(lambda: _is(queue, id_, state), seconds=20)
    return await queue.get("t", id_)


async def _is(queue, id_, state):
    found = await queue.get("t", id_)
    return found is not None and found.state is state


@pytest.mark.parametrize("handler", [hangs, spins])
async def test_a_handler_that_hangs_fails_and_the_attempt_counts(queue, handler):
    worker = Worker(queue)
    worker.on("t", concurrency=1, timeout=0.2)(handler)
    await queue.put_many("t", [b"1", b"2"], ids=["1", "2"])
    async with serving(worker):
        for id_ in ("1", "2"):
            found = await left(queue, id_, State.DELAYED)
            assert (found.last_error, found.attempt) == (TOLD, 1)
    assert worker._tally.timeouts["t"] == 2


@pytest.mark.parametrize("kind", ["task", "thread"])
async def test_a_handler_that_never_ends_is_left_alone(queue, kind):
    worker, free, seen, ended = Worker(queue), threading.Event(), [], []

    async def ignores(message):
        while not free.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                seen.append(message.id)
        ended.append(message.id)

    def blocks(message):
        seen.append(message.id)
        free.wait()
        ended.append(message.id)

    worker.on("t", concurrency=1, timeout=0.2)(ignores if kind == "task" else blocks)
    await queue.put_many("t", [b"1", b"2"], ids=["1", "2"])
    async with serving(worker):
        try:
            for id_ in ("1", "2"):
                assert (await left(queue, id_, State.DELAYED)).last_error == TOLD
        finally:
            free.set()
        # What ends later says nothing more of its message.
        await until_async(lambda: kind == "thread" or len(ended) == 2)
    assert seen[:2] == ["1", "2"]
    assert [(await queue.get("t", id_)).attempt for id_ in "12"] == [1, 1]
    assert worker._tally.calls == {("t", "released"): 2}


async def test_a_handler_may_say_itself_what_follows_when_it_is_cancelled(queue):
    worker = Worker(queue)
    worker.on("t", timeout=0.2)(says_why)
    await queue.put("t", b"", id="1")
    async with serving(worker):
        assert (await left(queue, "1", State.DEAD)).last_error == "was cancelled"


async def test_what_ends_in_time_is_done(queue):
    worker = Worker(queue)

    @worker.on("t", timeout="1m")
    async def quick(message):
        await asyncio.sleep(0)

    @worker.on("t", timeout="1m")
    def plain(message):
        time.sleep(0)

    await queue.put_many("t", [b""] * 200)
    async with serving(worker):
        await until_async(lambda: _is_empty(queue))
    assert worker._tally.calls == {("t", "done"): 200}


async def _is_empty(queue):
    counts = (await queue.stats()).topics["t"]
    return not counts.ready + counts.leased


async def test_a_handler_in_processes_is_ended_and_its_crash_is_a_failure(queue):
    worker = Worker(queue)
    worker.on("t", concurrency=2, timeout="2s", processes=True)(in_process)
    bodies = ["fine", "hangs", "crashes", "raises", "retries", "buries", "odd"]
    await queue.put_many("t", bodies, ids=bodies)
    async with serving(worker):
        told = {body: await left(queue, body, State.DELAYED) for body in ("hangs", "crashes")}
        told |= {body: await left(queue, body, State.DELAYED) for body in ("raises", "retries")}
        assert told["hangs"].last_error == "timeout: the handler ran longer than 2 s"
        assert "the process of the handler ended" in told["crashes"].last_error
        assert told["raises"].last_error == "ValueError: no"
        assert told["retries"].last_error == "later"
        assert "odd" in (await left(queue, "odd", State.DELAYED)).last_error
        assert (await left(queue, "buries", State.DEAD)).last_error == "enough"
        await until_async(lambda: _is_gone(queue, "fine"))


async def _is_gone(queue, id_):
    return await queue.get("t", id_) is None


async def test_a_handler_in_processes_is_given_values(queue):
    worker = Worker(queue)
    worker.on("t", processes=True, kind=Order)(of_orders)
    await queue.put_many("t", [b'{"number": 7}', b"no order"], ids=["1", "2"])
    async with serving(worker):
        assert (await left(queue, "1", State.DEAD)).last_error == "number 7"
        assert "body" in (await left(queue, "2", State.DEAD)).last_error


async def test_what_cannot_be_is_refused(queue):
    worker = Worker(queue)
    with pytest.raises(InvalidInput, match="expected a span above 0"):
        worker.on("t", timeout=0)
    with pytest.raises(InvalidInput, match="processes: got the asynchronous handler"):
        worker.on("t", processes=True)(hangs)
    worker.on("t", processes=True)(lambda message: None)
    with pytest.raises(InvalidInput, match="expected a function at the top of a module"):
        await worker.serve()


PROFILED = """
import sys, threading
from dwell.worker.calls import ThreadCall
found = []
thread = threading.Thread(target=lambda: found.append(ThreadCall(lambda what: 2 * what, 21)()))
thread.start()
thread.join()
sys.setprofile(lambda frame, event, argument: None)
(lambda: None)()
sys.setprofile(None)
print(found)
"""


def test_a_process_may_be_profiled_after_calls_that_could_have_been_ended():
    """In a process of its own, as one that may not be would not come to its end."""
    command = [sys.executable, "-c", PROFILED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[(42, None)]\n"
