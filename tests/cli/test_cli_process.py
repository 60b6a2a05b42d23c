"""The command line as a process: what only a real one can show."""

import json
import os
import signal
import subprocess
import sys

import pytest

import dwell

pytestmark = pytest.mark.campaign

COMMAND = [sys.executable, "-c", "from dwell.cli import main; main()"]

WORKER = """
from dwell.worker import Worker

worker = Worker("queue")


@worker.on("t")
def handle(message):
    print("handling", message.id, flush=True)
    input()
"""


def start(tmp_path, *args):
    return subprocess.Popen(
        [*COMMAND, *args],
        cwd=tmp_path,
        env={**os.environ, "DWELL_STORE": "queue"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_lines_are_put_from_a_pipe_and_read_by_one_that_stops_early(tmp_path):
    lines = "".join(
        json.dumps({"id": f"m{n}", "body": "x" * 50, "delay": "1h"}) + "\n" for n in range(5000)
    )
    child = start(tmp_path, "--json", "put", "t", "--many", "-")
    out, err = child.communicate(lines, 60)
    assert (child.returncode, err) == (0, "")
    assert json.loads(out) == {
        "topic": "t",
        "lines": 5000,
        "created": 5000,
        "kept": 0,
        "replaced": 0,
        "dropped": 0,
        "leased": 0,
    }
    for args in (["--json", "list", "t", "--all"], ["events", "--all"]):
        child = start(tmp_path, *args)
        assert child.stdout.readline()
        child.stdout.close()
        assert (child.stderr.read(), child.wait(60)) == ("", 0)
        child.stderr.close()
        child.stdin.close()


def test_a_store_that_another_process_holds(tmp_path):
    with dwell.open(tmp_path / "queue"):
        child = start(tmp_path, "stats")
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (3, "")
    assert err.startswith("StoreLocked: ")
    assert err.count("\n") == 1


def test_a_worker_lets_its_handler_end_after_sigterm(tmp_path):
    (tmp_path / "jobs.py").write_text(WORKER)
    with dwell.open(tmp_path / "queue") as queue:
        queue.put("t", b"", id="a")
        queue.put("t", b"", id="b", delay="1h")
    child = start(tmp_path, "work", "jobs:worker")
    assert child.stdout.readline() == "handling a\n"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate("\n", 60)
    serving = "serving t (8 at once) at queue; Ctrl-C or SIGTERM stops it\n"
    assert (child.returncode, out, err) == (0, "", serving)
    with dwell.open(tmp_path / "queue") as queue:
        assert [message is None for message in queue.get("t", ["a", "b"])] == [True, False]
