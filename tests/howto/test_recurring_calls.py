"""The page on recurring calls: one chain, whatever is deployed, killed, late or lost."""

import subprocess
import sys
import time

import pytest

import dwell
from tests.howto.losing import AFTER, BEFORE, Losing, run
from tests.waiting import until

HOUR_MS = 3_600_000


@pytest.fixture
def clock():
    return dwell.SimulatedClock(time.time_ns() // 1_000_000)


@pytest.fixture
def chain(code, monkeypatch, clock):
    chain = code("recurring-calls", "chain")
    monkeypatch.setattr(chain.time, "time_ns", lambda: clock.now_ms() * 1_000_000)
    return chain


def waiting(queue):
    with_topic = queue.stats().topics.get("tidy")
    return 0 if with_topic is None else with_topic.delayed + with_topic.ready


def test_many_deploys_are_one_chain(chain, clock):
    with dwell.open("memory:", clock=clock) as queue:
        for _ in range(10):
            chain.plan(queue)
            clock.advance(HOUR_MS // 3)
            for message in queue.take("tidy", 10):
                chain.plan(queue)  # a deploy while it runs
                chain.plan(queue, message.due_ms)
                queue.ack(message)
            assert waiting(queue) == 1


def test_a_downtime_is_made_up_for_once(chain, clock):
    with dwell.open("memory:", clock=clock) as queue:
        chain.plan(queue)
        clock.advance(50 * HOUR_MS)
        chain.plan(queue)
        batch = queue.take("tidy", 100)
        assert len(batch) == 1
        assert chain.plan(queue, batch[0].due_ms).result is dwell.Result.KEPT
        queue.ack(batch)
        assert waiting(queue) == 1


def test_a_clock_that_is_behind_plans_what_follows(chain, clock, monkeypatch):
    with dwell.open("memory:", clock=clock) as queue:
        chain.plan(queue)
        clock.advance(HOUR_MS)
        (message,) = queue.take("tidy")
        behind_ns = (message.due_ms - 1) * 1_000_000
        monkeypatch.setattr(chain.time, "time_ns", lambda: behind_ns)
        assert chain.plan(queue, message.due_ms).result is dwell.Result.CREATED
        queue.ack(message)
        assert waiting(queue) == 1


def test_a_run_that_always_fails_ends_no_chain(chain, clock):
    with dwell.open("memory:", clock=clock) as queue:
        queue.configure("tidy", max_attempts=2)
        chain.plan(queue)
        for _ in range(20):
            clock.advance(HOUR_MS)
            for message in queue.take("tidy", 10):
                chain.plan(queue, message.due_ms)
                queue.release(message, retry=True, error="it failed")
        stats = queue.stats().topics["tidy"]
        assert (stats.dead > 5, stats.delayed >= 1) == (True, True)
        ids = [m.id for batch in queue.pages("tidy", "delayed") for m in batch]
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("verb", ["put", "ack"])
def test_a_lost_answer_leaves_one_chain(chain, clock, verb, when):
    with dwell.open("memory:", clock=clock) as queue:
        chain.plan(queue)
        losing = Losing(queue, verb, when)
        for _ in range(3):
            clock.advance(HOUR_MS)
            for message in queue.take("tidy", 10):
                try:
                    chain.plan(losing, message.due_ms)
                    losing.ack(message)
                except dwell.ServerUnreachable:
                    clock.advance(120_000)  # the lease ends, and another worker has it
        assert losing.is_lost
        for message in queue.take("tidy", 10):
            chain.plan(queue, message.due_ms)
            queue.ack(message)
        assert waiting(queue) == 1


_KILLED = """
import sys
import dwell, chain
from tests.howto.losing import Losing

verb, when = sys.argv[1:]
with dwell.open("./queue") as queue:
    queue.put("tidy", b"", id="first")
    for message in queue.take("tidy", lease="1s"):
        losing = Losing(queue, verb, when, kill=True)
        chain.plan(losing, message.due_ms)
        losing.ack(message)
"""


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("verb", ["put", "ack"])
def test_a_kill_leaves_one_chain(code, verb, when):
    chain = code("recurring-calls", "chain")
    run(_KILLED, verb, when, exit_code=9)
    with dwell.open("./queue") as queue:
        if (verb, when) != ("ack", AFTER):
            (message,) = queue.take("tidy", wait="20s")
            chain.plan(queue, message.due_ms)
            queue.ack(message)
        chain.plan(queue)
        # More than one only if the hour was full meanwhile.
        assert 1 <= waiting(queue) <= 2


def test_the_worker_of_the_page_plans_and_runs(code, tmp_path):
    code("recurring-calls", "chain")
    with dwell.open("./dwell-data") as queue:
        queue.put("tidy", b"", id="overdue")
    with (tmp_path / "out").open("w") as out:
        worker = subprocess.Popen([sys.executable, "tidying.py"], stdout=out)
    until(lambda: (tmp_path / "out").read_text(), "the worker ran nothing")
    worker.terminate()
    assert worker.wait(30) == 0
    assert (tmp_path / "out").read_text() == "tidy up\n"
    with dwell.open("./dwell-data") as queue:
        assert 1 <= waiting(queue) <= 2
