"""Handlers in processes of their own: what happens to one process happens to its message only."""

import contextlib
import logging
import multiprocessing
import os
import random
import signal
import threading
from types import SimpleNamespace

import pytest

import dwell
from dwell import State
from dwell.store.memory import MemoryStore
from dwell.worker import Worker, processes
from dwell.worker.processes import ProcessCall, ProcessPool
from tests.waiting import PATIENCE_S, until, until_async
from tests.worker.in_processes import (
    CLOSED,
    SIGNALLED,
    STUCK,
    ends,
    hangs,
    hides,
    sees_signals,
    works,
)
from tests.worker.serving import serving


@pytest.fixture
async def queue():
    async with dwell.Queue(MemoryStore(dwell.RealClock())) as queue:
        await queue.configure("t", retry_delays_ms=("1h",))
        yield queue


async def left(queue, id_):
    """Wait until an attempt has failed, and return the message."""

    async def is_back():
        return (await queue.get("t", id_)).state is State.DELAYED

    await until_async(is_back, lambda: f"{id_} did not come back")
    return await queue.get("t", id_)


async def is_gone(queue, id_):
    return await queue.get("t", id_) is None


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("0", "the process of the handler ended: exit code 0"),
        ("3", "the process of the handler ended: exit code 3"),
        ("-9", "the process of the handler ended: exit code -9 (SIGKILL)"),
        ("-11", "the process of the handler ended: exit code -11 (SIGSEGV)"),
        ("closes", "the process of the handler ended: exit code 1"),
        ("forks", "the process of the handler ended: exit code 4"),
        ("shells", "the process of the handler ended: exit code 5"),
        ("sly", "tests.worker.in_processes.Sly: sly"),
        ("slyer", "tests.worker.in_processes.Slyer: slyer"),
        ("long", "ValueError: xxxxxxxxxx"),
    ],
)
async def test_a_process_that_ends_fails_its_own_message_only(queue, how, told, monkeypatch):
    # A process that has closed its pipe takes longer to end on a busy machine.
    monkeypatch.setattr(processes, "_ENDS_S", PATIENCE_S)
    worker = Worker(queue)
    worker.on("t", concurrency=1, processes=True)(ends)
    await queue.put_many("t", ["", how, ""], ids=["before", "ends", "after"])
    async with serving(worker):
        found = await left(queue, "ends")
        assert told in found.last_error
        assert found.attempt == 1
        await until_async(lambda: is_gone(queue, "after"))
    assert worker._tally.calls == {("t", "done"): 2, ("t", "released"): 1}


async def test_what_has_not_run_is_a_failure(queue):
    worker, kinds = Worker(queue), ["coroutine", "generator", "both"]
    worker.on("t", concurrency=1, processes=True)(hides)
    await queue.put_many("t", kinds, ids=kinds)
    async with serving(worker):
        for kind in kinds:
            assert "of which nothing has run" in (await left(queue, kind)).last_error


async def test_processes_that_are_killed_at_any_moment_harm_nobody_else(queue):
    worker, drawn, killed = Worker(queue), random.Random(7), []
    worker.on("t", concurrency=3, processes=True, timeout="1m")(works)
    ids = [str(n) for n in range(1_500)]
    await queue.put_many("t", [b"x" * 1_000] * len(ids), ids=ids)

    def kill_one():
        children = multiprocessing.active_children()
        if children and len(killed) < 6 and drawn.random() < 0.1:
            # One that has ended is among the children until a thread has noted how.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid := drawn.choice(children).pid, signal.SIGKILL)
                killed.append(pid)

    async def is_over():
        counts = (await queue.stats()).topics["t"]
        kill_one()
        return not counts.ready + counts.leased

    async with serving(worker):
        await until_async(is_over, lambda: str(worker._tally.calls), pause_s=0.02)
        failed = [m async for page in queue.pages("t", State.DELAYED) for m in page]
    assert worker._tally.calls["t", "done"] + len(failed) == len(ids)
    assert len(failed) <= len(killed)
    for message in failed:
        assert message.attempt == 1
        assert "exit code -9 (SIGKILL)" in message.last_error


async def test_a_process_that_was_killed_while_it_had_nothing_to_do_is_replaced(queue):
    worker = Worker(queue)
    worker.on("t", concurrency=1, processes=True)(ends)
    async with serving(worker):
        await queue.put("t", "", id="1")
        await until_async(lambda: is_gone(queue, "1"))
        [child] = multiprocessing.active_children()
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        await queue.put("t", "", id="2")
        await until_async(lambda: is_gone(queue, "2"))
    assert worker._tally.calls == {("t", "done"): 2}


async def test_what_no_process_can_be_started_for_is_given_back_as_it_was(
    queue, tmp_path, monkeypatch, caplog
):
    closed, worker = tmp_path / "closed", Worker(queue)
    closed.touch()
    monkeypatch.setenv(CLOSED, str(closed))
    worker.on("t", concurrency=1, processes=True)(ends)
    await queue.put("t", "3", id="1", max_attempts=2)
    async with serving(worker):

        async def are_released():
            return (await queue.stats()).totals.get("release", 0) >= 3

        await until_async(are_released)
        closed.unlink()
        # None of these has been an attempt.
        assert (await left(queue, "1")).attempt == 1
    assert "given back as it was: a process for the handler ended at its start" in caplog.text
    assert "exit code 9" in caplog.text


async def test_a_process_that_hangs_at_its_start_is_ended(queue, tmp_path, monkeypatch, caplog):
    stuck, worker = tmp_path / "stuck", Worker(queue)
    stuck.touch()
    monkeypatch.setenv(STUCK, str(stuck))
    monkeypatch.setattr(processes, "_STARTS_S", 0.5)
    worker.on("t", concurrency=1, processes=True, timeout="1m")(ends)
    await queue.put("t", "3", id="1", max_attempts=2)
    async with serving(worker):

        async def is_released():
            return (await queue.stats()).totals.get("release", 0) >= 1

        await until_async(is_released)
        monkeypatch.setattr(processes, "_STARTS_S", PATIENCE_S)
        stuck.unlink()
        # That has not been an attempt.
        assert (await left(queue, "1")).attempt == 1
    assert (
        "given back as it was: a process for the handler has not begun after 0.5 s" in caplog.text
    )


async def test_a_burst_ends_when_no_process_can_be_started(queue, tmp_path, monkeypatch):
    closed, worker = tmp_path / "closed", Worker(queue)
    closed.touch()
    monkeypatch.setenv(CLOSED, str(closed))
    worker.on("t", concurrency=2, processes=True)(ends)
    await queue.put_many("t", ["", "", ""])
    with pytest.raises(dwell.DwellError, match="ended at its start: exit code 9"):
        await worker.serve(burst=True)
    counts = (await queue.stats()).topics["t"]
    assert (counts.ready, counts.leased) == (3, 0)
    closed.unlink()
    await worker.serve(burst=True)
    assert not (await queue.stats()).topics["t"].ready


async def test_a_signal_to_all_processes_is_the_workers(queue, monkeypatch):
    monkeypatch.setenv(SIGNALLED, "1")
    worker = Worker(queue)
    worker.on("t", concurrency=1, processes=True)(sees_signals)
    await queue.put("t", "", id="1")
    async with serving(worker):
        await until_async(lambda: is_gone(queue, "1"), lambda: str(worker._tally.calls))
    assert worker._tally.calls == {("t", "done"): 1}


def leave_one_that_hangs(file):
    """End a program while a handler of it runs in a process that nobody has ended."""
    pool = ProcessPool(hangs)
    call = ProcessCall(pool, SimpleNamespace(body=file.encode()), 0)
    threading.Thread(target=call, daemon=True).start()
    until(lambda: os.path.exists(file) and os.path.getsize(file))


def test_no_process_keeps_a_program_from_its_end(tmp_path):
    file = tmp_path / "pid"
    program = multiprocessing.get_context("spawn").Process(
        target=leave_one_that_hangs, args=(str(file),)
    )
    program.start()
    program.join(PATIENCE_S)
    try:
        assert program.exitcode == 0
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
    finally:
        program.kill()


async def test_the_end_of_the_grace_ends_the_process(queue, tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    worker, file = Worker(queue, grace="0s"), tmp_path / "pid"
    worker.on("t", concurrency=1, processes=True)(hangs)
    await queue.put("t", str(file), id="1")
    async with serving(worker):
        await until_async(lambda: file.exists() and file.read_text())
    pid = int(file.read_text())

    def is_gone():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await until_async(is_gone)
    found = await queue.get("t", "1")
    assert (found.state, found.attempt) == (State.READY, 0)
    await until_async(lambda: not multiprocessing.active_children())
