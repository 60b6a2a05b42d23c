import os
import signal
import subprocess
import sys
import textwrap

import pytest

import dwell
from dwell import State

PROGRAM = """
import asyncio, sys, time
import dwell
from dwell.worker import Worker

worker = Worker(sys.argv[1], grace=sys.argv[2])

@worker.on("t", concurrency=2, by_key=True)
async def handle(message):
    print("begin", message.id, flush=True)
    await asyncio.sleep(float(message.body))
    print("end", message.id, flush=True)

@worker.on("plain", concurrency=1)
def plain(message):
    print("begin", message.id, flush=True)
    time.sleep(float(message.body))
    print("end", message.id, flush=True)

worker.run()
print("stopped", flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "queue")


def put(folder, *messages):
    """Put messages: topic, id, seconds that the handler sleeps, key."""
    with dwell.open(folder) as queue:
        for topic, id_, seconds, key in messages:
            queue.put(topic, str(seconds), id=id_, key=key)


def start(folder, grace):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), folder, grace],
        stdout=subprocess.PIPE,
        text=True,
    )


def states(folder, topic, *ids):
    with dwell.open(folder) as queue:
        found = [queue.get(topic, id_) for id_ in ids]
        return [(m.state, m.attempt) if m is not None else None for m in found]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_handlers_end_and_gives_the_rest_back(folder, number):
    put(folder, ("t", "a", 0.5, "k"), ("t", "b", 0.5, "k"), ("t", "c", 0, "k"))
    with start(folder, "60s") as child:
        assert child.stdout.readline() == "begin a\n"
        os.kill(child.pid, number)
        assert child.stdout.read() == "end a\nstopped\n"
    assert child.returncode == 0
    # What waited behind it in its lane has not lost an attempt.
    ready = (State.READY, 0)
    assert states(folder, "t", "a", "b", "c") == [None, ready, ready]


def test_what_does_not_end_within_the_grace_is_given_back(folder):
    put(folder, ("t", "a", 600, None), ("plain", "b", 600, None))
    with start(folder, "100ms") as child:
        assert {child.stdout.readline(), child.stdout.readline()} == {"begin a\n", "begin b\n"}
        child.terminate()
        assert child.stdout.read() == "stopped\n"
    assert child.returncode == 0
    assert states(folder, "t", "a") == states(folder, "plain", "b") == [(State.READY, 0)]


def test_a_second_signal_ends_the_grace(folder):
    put(folder, ("t", "a", 600, None))
    with start(folder, "10m") as child:
        assert child.stdout.readline() == "begin a\n"
        # Two of different kinds, since two of one kind may arrive as one.
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "stopped\n"
    assert child.returncode == 0
    assert states(folder, "t", "a") == [(State.READY, 0)]


def test_a_worker_without_work_stops_at_once(folder):
    put(folder, ("t", "a", 0, None))
    with start(folder, "10m") as child:
        assert child.stdout.readline() == "begin a\n"
        assert child.stdout.readline() == "end a\n"
        child.terminate()
        assert child.wait(60) == 0
    assert states(folder, "t", "a") == [None]
