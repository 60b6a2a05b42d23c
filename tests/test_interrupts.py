"""A caller that is interrupted, forked, or in another event loop leaves nothing half done."""

import asyncio
import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import dwell
from dwell import State
from dwell.threads.bridge import LoopThread


class Interrupted(BaseException):
    """What a signal raises in the main thread."""


@pytest.fixture
def interrupting():
    """Let SIGUSR1 raise in the main thread."""

    def interrupt(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


async def late(take, *args, **words):
    """Take, and let the interrupt come."""
    batch = await take(*args, **words)
    os.kill(os.getpid(), signal.SIGUSR1)
    return batch


ASKED = {"take": ("t",), "take_ids": ("t", ["1"]), "take_where": ("t", "a == `1`")}


@pytest.mark.parametrize("verb", ASKED)
def test_what_was_taken_for_a_caller_that_was_interrupted_is_given_back(
    interrupting, monkeypatch, verb
):
    """The interrupt comes when the answer is there already, as a user's Ctrl-C might."""
    with dwell.open("memory:") as queue:
        queue.put("t", {"a": 1}, id="1")
        store = queue._queue.store
        for name in ("take", "take_ids"):
            monkeypatch.setattr(store, name, functools.partial(late, getattr(store, name)))
        with pytest.raises(Interrupted):
            getattr(queue, verb)(*ASKED[verb], lease="10m")
        monkeypatch.undo()
        message = queue.get("t", "1")
        assert (message.state, message.attempt) == (State.READY, 0)


def test_interrupts_of_a_wait_lose_no_message(interrupting):
    """They come at any moment of a call, but for its way back to the caller, whose care that is."""
    chance, got, count, is_over = random.Random(7), 0, 60, threading.Event()

    def interrupt(number, frame):
        while frame is not None:
            if frame.f_code is LoopThread.hand.__code__:
                raise Interrupted
            frame = frame.f_back

    def send():
        while not is_over.wait(chance.random() * 0.004 + 0.0002):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send, daemon=True)
    with dwell.open("memory:") as queue:
        queue.put_many("t", ["x"] * count)
        sender.start()
        end = time.monotonic() + 20
        while got < count and time.monotonic() < end:
            with contextlib.suppress(Interrupted):
                got += len(queue.take("t", wait="1s", lease="10m"))
        is_over.set()
        sender.join()
        counts = queue.stats().topics["t"]
        assert (counts.leased, counts.ready) == (got, count - got)


@pytest.mark.timeout(60)
async def test_another_event_loop_is_refused_before_anything_is_done():
    async with dwell.open("memory:") as queue:
        await queue.put("t", "x", id="1")

        def elsewhere(call):
            async def run():
                with pytest.raises(RuntimeError, match="another event loop"):
                    await call()

            asyncio.run(run())

        for call in (
            lambda: queue.put("t", "x", id="2"),
            lambda: queue.put_many("t", ["x"], ids=["2"]),
            lambda: queue.take("t", wait="1h"),
            lambda: queue.take_where("t", "a"),
            lambda: queue.cancel("t", "1"),
            lambda: queue.get("t", "1"),
            lambda: queue.stats(),
            lambda: queue.configure("t", lease_ms=1),
        ):
            await asyncio.to_thread(elsewhere, call)
        assert await queue.get("t", "2") is None
        assert (await queue.get("t", "1")).state is State.READY


FORKED = """
import os, sys, time
import dwell

folder = sys.argv[1]
queue = dwell.open(folder).__enter__()
queue.put("t", "x", id="1")
ours, theirs = os.pipe()
pid = os.fork()
if pid == 0:
    # The child outlives its parent's queue, and closing its copy harms nobody.
    os.read(ours, 1)
    queue.close()
    os._exit(0)
queue.close()
with dwell.open(folder) as again:
    print(again.put("t", "y", id="2").result, flush=True)
    os.write(theirs, b"x")
    os.waitpid(pid, 0)
    print(again.put("t", "y", id="3").result, flush=True)
    try:
        dwell.open(folder).__enter__()
    except dwell.errors.StoreLocked:
        print("locked", flush=True)
"""


@pytest.mark.timeout(60)
async def test_a_queue_is_opened_once_and_closed_where_it_was_opened():
    async with dwell.open("memory:") as queue:
        with pytest.raises(RuntimeError, match="open already"):
            await queue.open()

        def elsewhere():
            with pytest.raises(RuntimeError, match="another event loop"):
                asyncio.run(queue.close())

        await asyncio.to_thread(elsewhere)
        assert (await queue.put("t", "x")).result is dwell.Result.CREATED


def test_a_forked_child_holds_no_lock(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), str(tmp_path / "queue")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("created\ncreated\nlocked\n", "")


def test_a_copy_of_the_lock_holds_nothing(tmp_path):
    """A child that was forked a moment ago has one, before it can let go of it."""
    folder = tmp_path / "queue"
    with dwell.open(folder):
        links = {fd: Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
        (number,) = [fd for fd, link in links.items() if _target(link) == folder / "lock"]
        copy = os.dup(int(number))
    try:
        with dwell.open(folder) as queue:
            assert queue.put("t", "x").result is dwell.Result.CREATED
    finally:
        os.close(copy)


def _target(link):
    try:
        return link.readlink()
    except OSError:
        return None
