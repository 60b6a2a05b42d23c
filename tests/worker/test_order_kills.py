"""Four workers on an ordered topic, killed again and again: each key goes on in its order."""

import contextlib
import os
import random
import subprocess
import sys
from collections import defaultdict

import pytest

import dwell
from dwell.batch.stats import TopicStats
from tests.redis.servers import redis_server
from tests.server.process import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.campaign

#: How many workers are killed, in each place.
KILLS = int(os.environ.get("DWELL_WORKER_KILLS", "6"))
WORKERS, KEYS = 4, 25
MESSAGES = 400 + 200 * KILLS
#: A killed worker's keys wait for so long.
LEASE_S = 3

PROGRAM = f"""
import asyncio, os, sys
from dwell.worker import Worker

url, path = sys.argv[1:]
log = os.open(path, os.O_WRONLY | os.O_APPEND)
worker = Worker(url)

@worker.on("t", concurrency=8, lease="{LEASE_S}s")
async def handle(message):
    os.write(log, f"begin {{message.key}} {{message.id}}\\n".encode())
    await asyncio.sleep(0.005)
    os.write(log, f"end {{message.key}} {{message.id}}\\n".encode())

worker.run()
"""


@contextlib.contextmanager
def server(folder):
    with ServerProcess(store=folder) as process:
        yield process.url("")


@contextlib.contextmanager
def redis(_):
    with redis_server() as engine:
        yield engine.url


class Workers:
    """So many processes, each with another in its place when it is killed."""

    def __init__(self, url, path, ended):
        self._command = [sys.executable, "-c", PROGRAM, url, str(path)]
        self._running = [self._start(ended) for _ in range(WORKERS)]
        self._ended = ended

    def _start(self, ended):
        process = subprocess.Popen(self._command)
        ended.callback(process.wait)
        ended.callback(process.kill)
        return process

    def kill(self, number):
        self._running[number].kill()
        self._running[number] = self._start(self._ended)


def check_order(lines, keys):
    """Check that of each key one begins only when the one before it has ended."""
    seen, ended = defaultdict(list), set()
    for word, key, id_ in map(str.split, lines):
        if word == "end":
            ended.add(id_)
        elif seen[key][-1:] != [id_]:
            assert not seen[key] or seen[key][-1] in ended, f"{key}: {id_} began too early"
            seen[key].append(id_)
    for key in set(keys):
        assert seen[key] == [str(n) for n, of in enumerate(keys) if of == key], key


@pytest.mark.timeout(180 + 20 * KILLS)
@pytest.mark.parametrize("place", [server, redis])
def test_order_outlives_kills_of_workers(tmp_path, place):
    chance = random.Random(KILLS)
    keys = [f"k{chance.randrange(KEYS)}" for _ in range(MESSAGES)]
    path = tmp_path / "said"
    path.touch()
    with place(tmp_path / "queue") as url, contextlib.ExitStack() as ended:
        with dwell.open(url) as queue:
            queue.configure("t", ordered=True, max_attempts=1_000)
            queue.put_many("t", ["x"] * MESSAGES, ids=[str(n) for n in range(MESSAGES)], key=keys)
            workers = Workers(url, path, ended)

            def done():
                # The words of what is done stand there for good.
                return path.read_text().count("end ")

            for number in range(1, KILLS + 1):
                until(lambda at=number: done() >= MESSAGES * at // (KILLS + 1))
                workers.kill(chance.randrange(WORKERS))
            until(lambda: queue.stats().topics["t"] == TopicStats(), queue.stats)
        check_order(path.read_text().splitlines(), keys)
