"""``dwell work`` in several processes, and one that is started again when files change."""

import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

import dwell
from bench.servers import free_port
from tests.spark.conftest import ServerProcess
from tests.waiting import until

PROGRAM = Path(sys.executable).with_name("dwell")
MODULE = """
import asyncio
import os
import sys
from dwell.worker import Worker

worker = Worker({url!r})

@worker.on("t", concurrency=1, timeout="1h")
async def handle(message):
    await worker.queue.put("{answers}", str(os.getpid()))
    if message.body == b"crashes":
        os._exit(7)
    if message.body == b"ends":
        sys.exit()
    if message.body == b"waits":
        await asyncio.sleep(5)
        await worker.queue.put("ended", b"")
"""


@pytest.fixture
def server(tmp_path):
    one = ServerProcess(tmp_path)
    yield one
    one.stop()


@contextlib.contextmanager
def working(folder, *words):
    """Run ``dwell work`` in a folder; end it as a terminal does."""
    process = subprocess.Popen([PROGRAM, "--quiet", "work", "jobs:worker", *words], cwd=folder)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("more", [[], ["--reload"]])
def test_several_processes_work_and_one_that_ends_is_started_again(tmp_path, server, more):
    (tmp_path / "jobs.py").write_text(MODULE.format(url=server.url, answers="pids"))
    with dwell.open(server.url) as queue, working(tmp_path, "--processes", "2", *more) as process:
        pids: set[int] = set()

        def have_worked(number):
            counts = queue.stats().topics.get("t")
            if not (counts and counts.ready):
                queue.put_many("t", ["x"] * 4)
            taken = queue.take("pids", 1_000)
            queue.ack(taken)
            pids.update(int(message.body) for message in taken)
            return len(pids) == number

        until(lambda: have_worked(2), seconds=60)
        assert process.pid not in pids
        for number, how in enumerate(("crashes", "ends"), 3):
            queue.put("t", how, max_attempts=1)
            until(partial(have_worked, number), seconds=60)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_is_started_again_when_a_file_changes(tmp_path, server, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    file = tmp_path / "jobs.py"
    file.write_text(MODULE.format(url=server.url, answers="old"))
    before = file.stat()
    with dwell.open(server.url) as queue, working(tmp_path, "--reload"):
        queue.put("t", "x")
        until(lambda: queue.stats().topics.get("old"))
        file.write_text(MODULE.format(url=server.url, answers="new"))
        # As if within one second.
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

        def is_new():
            queue.put("t", "x")
            return queue.stats().topics.get("new")

        until(is_new)


@pytest.mark.parametrize("when", ["works", "changes"])
def test_one_signal_lets_handlers_end_also_when_files_are_watched(tmp_path, server, when):
    file, http = tmp_path / "jobs.py", f"127.0.0.1:{free_port()}"
    file.write_text(MODULE.format(url=server.url, answers="begun"))
    with dwell.open(server.url) as queue:
        with working(tmp_path, "--reload", "--http", http):
            queue.put("t", "waits")
            until(lambda: queue.stats().topics.get("begun"))
            if when == "changes":
                file.write_text(MODULE.format(url=server.url, answers="new"))
                until(lambda: readiness(http) == "stopping")
        topics = queue.stats().topics
        assert topics["ended"].ready == 1
        assert not topics["t"].ready


def readiness(address):
    """Return what a worker answers at /readyz."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=60) as answer:
            return answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.read().decode().strip()


def test_a_burst_ends_with_status_zero(tmp_path, server):
    (tmp_path / "jobs.py").write_text(MODULE.format(url=server.url, answers="pids"))
    with dwell.open(server.url) as queue:
        queue.put_many("t", ["x"] * 50)
        words = ["--quiet", "work", "jobs:worker", "--burst", "--processes", "2", "--topics", "t"]
        assert subprocess.run([PROGRAM, *words], cwd=tmp_path, timeout=60).returncode == 0
        assert queue.stats().topics["pids"].ready == 50


def test_a_burst_whose_processes_only_fail_ends_with_status_one(tmp_path, server):
    (tmp_path / "jobs.py").write_text(MODULE.format(url=server.url, answers="pids"))
    with dwell.open(server.url) as queue:
        queue.put_many("t", ["crashes"] * 20, lease="1h")
        words = ["--quiet", "work", "jobs:worker", "--burst", "--processes", "2", "--topics", "t"]
        assert subprocess.run([PROGRAM, *words], cwd=tmp_path, timeout=60).returncode == 1
        assert queue.stats().topics["pids"].ready == 6


def test_a_burst_cannot_be_reloaded(tmp_path):
    words = ["work", "jobs:worker", "--burst", "--reload"]
    ended = subprocess.run([PROGRAM, *words], cwd=tmp_path, timeout=60, capture_output=True)
    assert ended.returncode == 2
    assert b"InvalidInput: burst: got it with --reload" in ended.stderr
