"""The pages on loading, on order by key and on retries: what they promise over kills and stops."""

import contextlib
import subprocess
import sys
from collections import defaultdict

import pytest

import dwell
from tests.howto.losing import AFTER, BEFORE, run
from tests.waiting import until

_LOAD = """
import sys
import dwell
from tests.howto.losing import Losing

when, batch = sys.argv[1], int(sys.argv[2])
with dwell.open("./queue") as queue:
    queue.configure("digests", remember_ms=86_400_000)
    for first in range(0, 1_000, 100):
        losing = Losing(queue, "put_many", when, kill=True) if first == batch else queue
        ids = [str(number) for number in range(first, first + 100)]
        losing.put_many("digests", [b"x"] * 100, ids=ids)
"""


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("batch", [0, 500])
def test_a_load_that_was_killed_is_made_again_and_loads_each_once(
    monkeypatch, tmp_path, when, batch
):
    monkeypatch.chdir(tmp_path)
    run(_LOAD, when, str(batch), exit_code=9)
    with dwell.open("./queue") as queue:
        # What was handled between the two is not handled once more.
        early = queue.take("digests", 50)
        queue.ack(early)
    run(_LOAD, when, "-1")
    with dwell.open("./queue") as queue:
        rest = queue.take("digests", 10_000)
    assert sorted([*early.ids, *rest.ids]) == sorted(map(str, range(1_000)))


_WORKER = """
import os, sys, time
from dwell.worker import Worker

worker = Worker("./queue")
left = int(sys.argv[1])

@worker.on("steps", concurrency=4, by_key=True, lease="1s", retry="20ms")
def handle(message):
    global left
    time.sleep(0.002)
    with open("done", "a") as file:
        file.write(f"{message.key} {message.body.decode()} {message.attempt}\\n")
    left -= 1
    if left == 0:
        os._exit(9)
    if message.body == b"bad":
        raise ValueError("it is bad")

worker.run()
"""


@contextlib.contextmanager
def worker():
    """Run the worker, and stop it gracefully at the end."""
    process = subprocess.Popen([sys.executable, "-c", _WORKER, "0"])
    yield
    process.terminate()
    assert process.wait(30) == 0


def until_done(tmp_path, many):
    until(lambda: len(lines(tmp_path)) >= many, "the worker does not go on")


def lines(tmp_path):
    return [line.split() for line in (tmp_path / "done").read_text().splitlines()]


def test_steps_of_a_key_keep_their_order_over_stops(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "done").touch()
    keys = [f"k{at % 5}" for at in range(100)]
    with dwell.open("./queue") as queue:
        queue.put_many("steps", [str(at) for at in range(100)], key=keys)
    for many in (1, 30, 100):
        with worker():
            until_done(tmp_path, many)
    steps = defaultdict(list)
    for key, step, _ in lines(tmp_path):
        steps[key].append(int(step))
    assert [steps[f"k{at}"] for at in range(5)] == [list(range(at, 100, 5)) for at in range(5)]


def test_what_kills_its_worker_is_dead_in_the_end_and_says_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with dwell.open("./queue") as queue:
        queue.put("steps", b"bad", id="bad", key="k", max_attempts=3)
    for _ in range(2):
        run(_WORKER, "1", exit_code=9)
    with worker():
        until_done(tmp_path, 3)
    assert [attempt for *_, attempt in lines(tmp_path)] == ["1", "2", "3"]
    with dwell.open("./queue") as queue:
        (dead,) = [message for page in queue.pages("steps", "dead") for message in page]
        assert (dead.id, dead.attempt, dead.last_error) == ("bad", 3, "ValueError: it is bad")
        assert dead.died_ms > 0
        assert queue.kick("steps", "bad") is dwell.Result.KICKED
