"""A takeover that is killed again and again loses nothing, doubles nothing and is never early."""

import random
import subprocess
import sys
import time
from pathlib import Path

import greenstalk
import pytest

import dwell
from dwell.message import State
from tests.beanstalk.served import beanstalkd
from tests.spark.conftest import ServerProcess

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(300)]

JOBS = 10_000
MESSAGES = 60_000
KILLS = 4


@pytest.fixture
def server(tmp_path):
    server = ServerProcess(tmp_path)
    yield server
    server.stop()


def killed_again_and_again(old, new, total, is_lent=None):
    """Run takeovers that are killed at random moments, and one to the end; return how many.

    A moment is when so many messages of the total have come, as machines differ in speed, and
    then, where that can be seen, when the next are lent and have hardly come yet.
    """
    program = Path(sys.executable).with_name("dwell")
    chance, runs = random.Random(5), 0
    with dwell.open(new) as queue:
        while True:
            runs += 1
            many = total * (runs - chance.random()) / KILLS
            process = subprocess.Popen([program, "--store", new, "--quiet", "takeover", old])
            while process.poll() is None and (came(queue) < many or runs > KILLS):
                time.sleep(0.005)
            time.sleep(chance.random() / 50)
            while is_lent is not None and process.poll() is None and not is_lent():
                pass
            if process.poll() is not None:
                assert process.returncode == 0
                return runs
            process.kill()
            process.wait()


def came(queue):
    counts = queue.stats().topics.get("orders")
    return counts.delayed + counts.ready if counts else 0


def all_of(queue):
    found = [page for s in (State.DELAYED, State.READY) for page in queue.pages("orders", s)]
    return [message for page in found for message in page]


def test_from_beanstalkd(server, tmp_path):
    (tmp_path / "log").mkdir()
    ends = {}
    with (
        beanstalkd(tmp_path / "log") as number,
        greenstalk.Client(("127.0.0.1", number), encoding=None, use="orders") as client,
    ):
        for at in range(JOBS):
            # None falls due while it is counted by its state, or it would be counted twice.
            delay = 0 if at % 2 else 600 + at % 3_600
            client.put(b"%d" % at, delay=delay)
            ends[at] = time.time_ns() // 1_000_000 + delay * 1000
        runs = killed_again_and_again(
            f"beanstalk://127.0.0.1:{number}",
            server.url,
            JOBS,
            lambda: client.stats()["current-jobs-reserved"],
        )
        # No job there became ready before its time because a takeover died.
        assert client.stats_tube("orders")["current-jobs-ready"] == 0
    assert runs > 3
    with dwell.open(server.url) as queue:
        found = all_of(queue)
    assert sorted(int(m.body) for m in found) == list(range(JOBS))
    # The server tells whole seconds, and its clock may be a little behind this one.
    early = [m for m in found if int(m.body) % 2 == 0 and m.due_ms < ends[int(m.body)] - 1_500]
    assert early == []


def test_from_another_store(server, tmp_path):
    (tmp_path / "other").mkdir()
    other = ServerProcess(tmp_path / "other")
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    try:
        with dwell.open(other.url) as queue:
            for first in range(0, MESSAGES, 1_000):
                at = range(first, first + 1_000)
                dues = [due_ms + i if i % 2 else i for i in at]
                queue.put_many("orders", [b"%d" % i for i in at], due=dues)
        runs = killed_again_and_again(other.url, server.url, MESSAGES)
        with dwell.open(other.url) as queue:
            counts = queue.stats().topics.get("orders")
            assert counts is None or counts.ready + counts.delayed == 0
            leased = counts.leased if counts else 0
    finally:
        other.stop()
    assert runs > 3
    assert leased == 0
    with dwell.open(server.url) as queue:
        found = all_of(queue)
    assert sorted(int(m.body) for m in found) == list(range(MESSAGES))
    for message in found:
        at = int(message.body)
        assert message.due_ms == (due_ms + at if at % 2 else at)
