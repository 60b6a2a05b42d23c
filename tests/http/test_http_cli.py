"""The command line and workers over a server: their own tests, and what only a server has."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

import dwell
from dwell.clock import RealClock
from dwell.queue import Queue
from dwell.store.embedded.check import check
from dwell.store.memory import MemoryStore
from dwell.threads.bridge import LoopThread
from dwell.worker import Bury, Retry, Worker
from tests.cli.conftest import Cli
from tests.cli.test_cli_look import TestLooking, messages  # noqa: F401 - run here, too
from tests.cli.test_cli_put import *  # noqa: F403 - run here, too
from tests.cli.test_cli_queries import TestQueries, orders  # noqa: F401 - run here, too
from tests.cli.test_cli_receipts import *  # noqa: F403 - run here, too
from tests.http.served import Served, served
from tests.server.process import COMMAND, ServerProcess
from tests.waiting import until_async

# Over a server a delay may end a round trip later than this machine's clock would have it.
del test_delays  # noqa: F821

DUE_MS = 4_000_000_000_000


@pytest.fixture(scope="module")
def port():
    """One server for all tests, each of which serves a queue of its own."""
    thread = LoopThread()
    server = Served(MemoryStore(RealClock()))
    thread.run(server.start)
    yield thread, server
    thread.run(server.stop)
    thread.close()


@pytest.fixture
def cli(port):
    thread, server = port
    old, server.service.queue = server.service.queue, Queue(MemoryStore(RealClock()))
    thread.run(server.service.queue.open)
    yield Cli(server.url)
    thread.run(server.service.queue.close)
    server.service.queue = old


# --- every command --------------------------------------------------------------------------------


def test_every_command_by_id(cli):
    lines = "".join(json.dumps({"id": id_, "body": "x", "due_ms": DUE_MS}) + "\n" for id_ in "abc")
    (counts,) = cli.json("put", "t", "--many", "-", stdin=lines)
    assert counts["created"] == 3
    cli.run("put", "t", "x", "--id", "d")
    receipt = cli.json("take", "t")[0]["receipt"]
    cli.run("bury", receipt, "--reason", "why")
    found = cli.json("get", "t", "a", "d", "no", code=1)
    assert [one.get("state", "unknown") for one in found] == ["delayed", "dead", "unknown"]
    assert found[1]["last_error"] == "why"
    assert cli.out("reschedule", "t", "a", "--delay", "0s") == ["moved  a"]
    assert cli.out("reschedule", "t", "d", "--delay", "0s", code=1) == ["unknown  d"]
    assert cli.out("kick", "t", "--limit", "5") == ["1 kicked"]
    assert len(cli.json("take", "t", "--limit", "9", "--wait", "5s")) == 2
    results = [one["result"] for one in cli.json("cancel", "t", "a", "b", "no", code=1)]
    assert results == ["leased", "cancelled", "unknown"]


def test_settings(cli):
    assert cli.out("settings", "t", "lease_ms=5m", "max_attempts=3")
    (found,) = cli.json("settings", "t")
    assert (found["lease_ms"], found["max_attempts"]) == (300_000, 3)
    assert cli.error("settings", "t", "colour=1").startswith("InvalidSettings: ")


def test_a_server_that_is_not_there_ends_with_three(cli):
    error = cli.error("--store", "http://127.0.0.1:1", "stats", code=3)
    assert error.startswith("ServerUnreachable: http://127.0.0.1:1: ")


def test_an_address_that_is_wrong_ends_with_two(cli):
    assert cli.error("--store", "http://localhost/path", "stats").startswith("InvalidUrl: url: ")


def test_what_needs_a_folder_says_so(cli):
    assert cli.error("check").startswith("InvalidUrl: url: ")


def test_backup(tmp_path):
    with ServerProcess(store=tmp_path / "store") as server:
        cli = Cli(server.url(""))
        cli.run("put", "t", "waits", "--id", "a", "--delay", "1h")
        cli.run("put", "t", "leased", "--id", "b")
        (taken,) = cli.json("take", "t", "--lease", "1h")
        copy = tmp_path / "copy"
        assert cli.out("backup", str(copy)) == [f"copied to {copy}"]
        cli.run("put", "t", "later")
        error = cli.error("backup", str(copy))
        assert error.startswith(f"InvalidInput: backup: {copy} is there already")
        assert server.stop() == 0
    assert check(copy).ok
    found = Cli(copy)
    assert [(m["id"], m["state"]) for m in found.json("list", "t")] == [
        ("b", "leased"),
        ("a", "delayed"),
    ]
    assert "made by another store" in found.error("ack", taken["receipt"])


# --- workers --------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
async def test_a_worker_acks_retries_and_buries():
    async with served() as server:
        worker = Worker(server.url, grace="5s")
        seen = []

        @worker.on("jobs", concurrency=4, retry="20ms")
        async def handle(message):
            seen.append((message.id, message.attempt))
            if message.id == "retry" and message.attempt < 3:
                raise Retry
            if message.id == "fails" and message.attempt < 2:
                raise ValueError("not yet")
            if message.id == "bad":
                raise Bury("why")

        @worker.on("plain", batch=10)
        def plain(batch):
            seen.extend((message.id, message.attempt) for message in batch)

        serving = asyncio.ensure_future(worker.serve())
        async with dwell.open(server.url) as queue:
            for id_ in ("good", "retry", "fails", "bad"):
                await queue.put("jobs", "x", id=id_)
            await queue.put_many("plain", ["x"] * 5, ids=[f"p{n}" for n in range(5)])
            while (await server.queue.stats()).totals["ack"] < 8:
                await asyncio.sleep(0.01)
            worker.stop()
            await serving
            assert sorted(seen) == sorted(
                [("good", 1), ("bad", 1), ("fails", 1), ("fails", 2)]
                + [("retry", n) for n in (1, 2, 3)]
                + [(f"p{n}", 1) for n in range(5)]
            )
            stats = await queue.stats()
            assert stats.topics["jobs"] == dwell.TopicStats(dead=1)
            assert (await queue.get("jobs", "bad")).last_error == "why"
        assert not server.queue.waiting


@pytest.mark.timeout(60)
async def test_a_worker_keeps_the_leases_of_what_it_handles():
    async with served() as server:
        worker = Worker(server.url)
        attempts = []

        @worker.on("jobs", lease="3s")
        async def handle(message):
            attempts.append(message.attempt)
            await asyncio.sleep(4)
            worker.stop()

        await server.queue.put("jobs", "x")
        await worker.serve()
        assert attempts == [1]
        assert (await server.queue.stats()).totals["ack"] == 1


@pytest.mark.timeout(60)
async def test_a_worker_outlives_its_server(tmp_path):
    with ServerProcess(store=tmp_path / "store") as first:
        url = await asyncio.to_thread(first.url, "")
        worker, seen = Worker(url), []

        @worker.on("jobs")
        async def handle(message):
            seen.append(message.body)

        serving = asyncio.ensure_future(worker.serve())
        await asyncio.to_thread(first.put, "jobs", "before")
        await until_async(lambda: seen)
        first.process.kill()
        first.process.wait()
    address = url.removeprefix("http://")
    with ServerProcess("--http", address, store=tmp_path / "store") as second:
        await asyncio.to_thread(second.put, "jobs", "after")
        await until_async(lambda: b"after" in seen)
        worker.stop()
        await serving
        assert second.stop() == 0


JOBS = """
import time
from dwell.worker import Worker

worker = Worker({url!r}, grace={grace!r})

@worker.on("t", concurrency=1, by_key=True)
def handle(message):
    print("begin", message.id, flush=True)
    time.sleep(float(message.body))
    print("end", message.id, flush=True)
"""


@pytest.mark.parametrize(
    ("grace", "said", "left"), [("1m", "end a\n", ["b"]), ("100ms", "", ["a", "b"])]
)
def test_work_gives_back_what_it_has_not_done(cli, tmp_path, grace, said, left):
    (tmp_path / "jobs.py").write_text(textwrap.dedent(JOBS.format(url=cli.folder, grace=grace)))
    seconds = 1 if said else 600
    with cli.queue() as queue:
        queue.put("t", str(seconds), id="a", key="k")
        queue.put("t", "0", id="b", key="k")
        command = [*COMMAND, "work", "jobs:worker"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "begin a\n"
            os.kill(child.pid, signal.SIGTERM)
            assert child.stdout.read() == said
        assert child.returncode == 0
        assert (queue.get("t", "a") is None) is bool(said)
        for message in queue.get("t", left):
            assert (message.state, message.attempt) == (dwell.State.READY, 0)


def test_work_waits_for_its_server(tmp_path):
    """A worker that is started first says so in a line, and serves when the server is there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "jobs.py").write_text(JOBS.format(url=f"http://127.0.0.1:{port}", grace="1s"))
    worker = subprocess.Popen(
        [sys.executable, *COMMAND[1:], "work", "jobs:worker"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        first, second, third = (worker.stderr.readline() for _ in range(3))
        assert first.startswith("serving ")
        assert first.endswith(f"at http://127.0.0.1:{port}; Ctrl-C or SIGTERM stops it\n")
        assert second.endswith("waiting for the store to open\n")
        assert f"waiting for the server: http://127.0.0.1:{port}: " in third
        with ServerProcess("--http", f"127.0.0.1:{port}", store=tmp_path / "queue") as server:
            assert server.put("t", "0")[0] == 200
            assert worker.stdout.readline().startswith("begin ")
            assert worker.stdout.readline().startswith("end ")
            worker.send_signal(signal.SIGTERM)
            _, rest = worker.communicate(timeout=30)
        assert worker.returncode == 0
        assert "Traceback" not in rest
    finally:
        worker.kill()
        worker.wait()
