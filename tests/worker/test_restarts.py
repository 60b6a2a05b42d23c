"""A worker that is stopped again and again: order by key, and attempts, stay as they were."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import defaultdict

import pytest

import dwell
from tests.server.process import ServerProcess

pytestmark = pytest.mark.campaign

#: How often the worker is told to end, in each place.
STOPS = int(os.environ.get("DWELL_SIGTERMS", "4"))
KEYS, AT_ONCE = 5, 4

PROGRAM = f"""
import asyncio, sys
from dwell.worker import Worker

worker = Worker(sys.argv[1], grace="10s")

@worker.on("t", concurrency={AT_ONCE}, by_key=True, lease="60s")
async def handle(message):
    await asyncio.sleep(0.002)
    print(message.key, message.id, message.attempt, flush=True)

worker.run()
"""


@contextlib.contextmanager
def no_server(folder):
    yield str(folder)


@contextlib.contextmanager
def server(folder):
    with ServerProcess(store=folder) as process:
        yield process.url("")


def lines_until_stopped(url, chance):
    """Run a worker, tell it to end after some messages, and return what it said."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), url], stdout=subprocess.PIPE, text=True
    ) as child:
        some = [child.stdout.readline() for _ in range(chance.randrange(1, 40))]
        child.send_signal(signal.SIGTERM)
        some += child.stdout.readlines()
    assert child.returncode == 0
    return [line.split() for line in some]


@pytest.mark.timeout(120 + 10 * STOPS)
@pytest.mark.parametrize("place", [no_server, server])
def test_order_and_attempts_outlive_stops_under_load(tmp_path, place):
    chance = random.Random(STOPS)
    seen = defaultdict(list)
    count = STOPS * 50
    with place(tmp_path / "queue") as url:
        with dwell.open(url) as queue:
            keys = [f"k{chance.randrange(KEYS)}" for _ in range(count)]
            for at in range(0, count, 1_000):
                part = range(at, min(at + 1_000, count))
                queue.put_many(
                    "t",
                    ["x"] * len(part),
                    ids=[str(n) for n in part],
                    key=keys[at : part.stop],
                    max_attempts=1,
                )
        for _ in range(STOPS):
            for key, id_, attempt in lines_until_stopped(url, chance):
                seen[key].append(int(id_))
                assert attempt == "1"
        for key, ids in seen.items():
            # None is left out, and none comes twice.
            assert ids == [n for n, of in enumerate(keys) if of == key][: len(ids)]
        with dwell.open(url) as queue:
            counts = queue.stats().topics["t"]
            done = sum(map(len, seen.values()))
            assert (counts.ready, counts.leased, counts.dead) == (count - done, 0, 0)
