"""What a relay does while its broker or its queue stands still, and nothing is told too early."""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dwell
from bench.brokers import Kafka, kafka_server
from bench.servers import free_port
from tests.redis.servers import redis_server
from tests.relay.kafka import RelayProcess, Topics, numbers, relaying
from tests.relay.test_kafka import asked, committed
from tests.spark.conftest import ServerProcess
from tests.waiting import until

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(180)]

RECORDS = 200


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with kafka_server() as server:
        yield server


@pytest.fixture
def queue_server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    yield server
    with contextlib.suppress(ProcessLookupError):
        server.process.send_signal(signal.SIGCONT)
    server.kill()


@contextlib.contextmanager
def standing_still(*pids: int) -> Iterator[None]:
    """Let processes stand still, as a machine that swaps or a network that is cut does."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def say(mine: Topics, after_ms: int) -> None:
    """Send records that fall due at the same time."""
    due_ms = time.time_ns() // 1_000_000 + after_ms
    for at in range(RECORDS):
        mine.say(str(at).encode(), {"dwell-due-ms": str(due_ms)}, str(at % 5))
    mine.flush()


def let_fall_due(queue: dwell.SyncQueue) -> None:
    """Let all that waits be due now: a moment that no slow machine comes too late for."""
    for topic in queue.stats().topics:
        queue.reschedule_where(topic, dwell.select(state="delayed"), delay=0)


def leased(queue: dwell.SyncQueue) -> int:
    return sum(topic.leased for topic in queue.stats().topics.values())


def left(queue: dwell.SyncQueue) -> int:
    found = queue.stats().topics.values()
    return sum(topic.delayed + topic.ready + topic.leased + topic.dead for topic in found)


def test_nothing_is_committed_that_is_not_held(kafka, queue_server, tmp_path):
    mine = Topics(kafka.hosts, "uncommitted", 2)
    address = f"127.0.0.1:{free_port()}"
    options = ["--from", mine.source, "--to", mine.sink, "--http", address]
    with relaying(queue_server.url, options, tmp_path / "log") as relay:
        until(lambda: asked(address, "readyz")[0] == 200)
        queue_server.kill()
        say(mine, 1)
        until(lambda: metric(address, "read") > 0)
        # What it owes is committed as it ends.
        assert relay.end() == 0
        assert committed(mine) == 0
    queue_server.start()
    with relaying(queue_server.url, options, tmp_path / "log"):
        found = mine.read(mine.goes, RECORDS)
        until(lambda: committed(mine) == RECORDS)
    assert set(numbers(found)) == set(range(RECORDS))


@pytest.mark.parametrize("more", [[], ["--exactly-once"]], ids=["at-least-once", "exactly-once"])
def test_nothing_is_acked_that_the_broker_has_not(kafka, queue_server, tmp_path, more):
    mine = Topics(kafka.hosts, f"unacked{len(more)}", 2)
    options = ["--from", mine.source, "--to", mine.sink, "--lease", "4s", *more]
    assert kafka.process is not None
    with dwell.open(queue_server.url) as queue:
        with relaying(queue_server.url, options, tmp_path / "log") as relay:
            say(mine, 3_600_000)
            until(lambda: committed(mine) == RECORDS)
            with standing_still(kafka.process.pid):
                let_fall_due(queue)
                until(lambda: leased(queue))
                relay.end(signal.SIGKILL)
                assert left(queue) == RECORDS
        with relaying(queue_server.url, options, tmp_path / "log"):
            until(lambda: set(numbers(mine.read(mine.goes, 1))) == set(range(RECORDS)))
            until(lambda: left(queue) == 0)
    # What lay in the broker's socket when the first was killed counts, unless it is a transaction.
    if more:
        assert Counter(numbers(mine.read(mine.goes, RECORDS))).total() == RECORDS


def test_what_was_sent_and_not_acked_is_not_sent_again(kafka, queue_server, tmp_path):
    mine = Topics(kafka.hosts, "repeated", 1)
    address = f"127.0.0.1:{free_port()}"
    options = ["--from", mine.source, "--to", mine.sink, "--lease", "9s", "--exactly-once"]
    assert kafka.process is not None
    with dwell.open(queue_server.url) as queue:
        with relaying(queue_server.url, options, tmp_path / "log") as relay:
            # A record before the others, so that the lane is entered.
            mine.say(b"-1", {"dwell-delay": "1ms"}, "0")
            mine.flush()
            mine.read(mine.goes, 1)
            say(mine, 3_600_000)
            until(lambda: committed(mine) == RECORDS + 1)
            with standing_still(kafka.process.pid):
                let_fall_due(queue)
                until(lambda: leased(queue) == RECORDS)
                # The take was answered before these are.
                queue.cancel("other", [queue.put("other", b"").id])
                os.kill(queue_server.process.pid, signal.SIGSTOP)
            mine.read(mine.goes, 2)
            relay.end(signal.SIGKILL)
            sent = len(mine.read(mine.goes, 2)) - 1
        # What it had asked for last dies with the server.
        queue_server.kill()
        queue_server.start()
        assert leased(queue) == RECORDS
        with relaying(queue_server.url, [*options, "--http", address], tmp_path / "log"):
            until(lambda: left(queue) == 0)
            assert metric(address, "repeated") == sent
    assert sorted(numbers(mine.read(mine.goes, RECORDS + 1))) == [-1, *range(RECORDS)]


def test_what_was_sent_from_a_redis_that_had_come_back_empty_is_not_sent_again(kafka, tmp_path):
    """The relay outlives the store that it began with; the next knows only the one in its place."""
    mine = Topics(kafka.hosts, "emptied", 1)
    address = f"127.0.0.1:{free_port()}"
    options = ["--from", mine.source, "--to", mine.sink, "--lease", "9s", "--exactly-once"]
    assert kafka.process is not None
    config = {"appendonly": "yes", "appendfsync": "always"}
    with redis_server(**config) as engine, dwell.open(engine.url) as queue:
        with relaying(engine.url, options, tmp_path / "log") as relay:
            # A record before the others, so that the lane is entered for the store that is lost.
            mine.say(b"-1", {"dwell-delay": "1ms"}, "0")
            mine.flush()
            mine.read(mine.goes, 1)
            engine.ask("FLUSHALL")
            say(mine, 3_600_000)
            until(lambda: committed(mine) == RECORDS + 1)
            with standing_still(kafka.process.pid):
                let_fall_due(queue)
                until(lambda: leased(queue))
                engine.stop()
            mine.read(mine.goes, 2)
            relay.end(signal.SIGKILL)
            sent = len(mine.read(mine.goes, 2)) - 1
        # What the relay had asked for last dies with the engine.
        engine.kill()
        engine.start()
        assert left(queue) == RECORDS
        with relaying(engine.url, [*options, "--http", address], tmp_path / "log"):
            until(lambda: left(queue) == 0)
            assert metric(address, "repeated") == sent
    assert sorted(numbers(mine.read(mine.goes, RECORDS + 1))) == [-1, *range(RECORDS)]


def test_a_relay_stops_while_the_queue_is_away(kafka, queue_server, tmp_path):
    mine = Topics(kafka.hosts, "stops", 1)
    address = f"127.0.0.1:{free_port()}"
    options = ["--from", mine.source, "--to", mine.sink, "--http", address]
    with relaying(queue_server.url, options, tmp_path / "log") as relay:
        until(lambda: asked(address, "readyz")[0] == 200)
        queue_server.kill()
        say(mine, 1)
        until(lambda: asked(address, "readyz")[0] == 503)
        assert relay.end() == 0
    queue_server.start()
    with relaying(queue_server.url, options, tmp_path / "log"):
        assert set(numbers(mine.read(mine.goes, RECORDS))) == set(range(RECORDS))


def test_relays_that_come_and_go_keep_the_order_and_double_nothing(kafka, queue_server, tmp_path):
    mine = Topics(kafka.hosts, "comeandgo", 4)
    options = ["--from", mine.source, "--to", mine.sink, "--batch", "20"]
    count = 4_000
    for at in range(count):
        mine.say(str(at).encode(), {"dwell-due-ms": "1000000000000"}, f"k{at % 11}")
    mine.flush()
    relays = [RelayProcess(queue_server.url, options, tmp_path / "log0")]
    try:
        for at in (1, 2, 3):
            seen = len(mine.read(mine.goes, 1))
            relays.append(RelayProcess(queue_server.url, options, tmp_path / f"log{at}"))
            mine.read(mine.goes, min(seen + 200, count))
            assert relays[at - 1].end() == 0
        found = numbers(mine.read(mine.goes, count))
    finally:
        for relay in relays:
            relay.end(signal.SIGKILL)
    assert len(found) == count
    by_key = [[number for number in found if number % 11 == key] for key in range(11)]
    assert [sorted(values) for values in by_key] == by_key


def metric(address: str, name: str) -> float:
    start = f"dwell_relay_{name}_total "
    lines = asked(address, "metrics")[1].splitlines()
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))
