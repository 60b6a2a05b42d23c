"""Relays killed at any moment, brokers that end and come back: nothing is lost or early."""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from bench.brokers import Kafka, kafka_server
from tests.relay.kafka import RelayProcess, Topics, read_all
from tests.waiting import until

KILLS = int(os.environ.get("DWELL_KILLS", "3"))

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(120 + KILLS * 20)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    # What the broker wrote last is not there after a kill: it is synced now and then only.
    with kafka_server() as server:
        yield server


class Stream(threading.Thread):
    """Sends records all the while, each due soon, until it is told to end."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(daemon=True)
        self._topics = topics
        self._random = random.Random(1)
        self._is_over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            for _ in range(10):
                due_ms = time.time_ns() // 1_000_000 + self._random.randrange(0, 2_000)
                body = json.dumps([self.sent, due_ms]).encode()
                key = str(self.sent % 17)
                self._topics.say(body, {"dwell-due-ms": str(due_ms)}, key)
                self.sent += 1

    def end(self) -> int:
        self._is_over.set()
        self.join()
        self._topics.flush()
        return self.sent


def judged(topics: Topics, sent: int) -> Counter[int]:
    """Wait for all that was sent; return how often each came."""
    counts: Counter[int] = Counter()

    def are_all_there() -> bool:
        counts.clear()
        for one in read_all(topics.hosts, topics.goes, topics.partitions):
            number, due_ms = json.loads(one.value())
            assert one.timestamp()[1] >= due_ms, f"{number} is early"
            counts[number] += 1
        return len(counts) >= sent

    until(are_all_there, "some are lost", 120)
    assert set(counts) == set(range(sent))
    return counts


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("once", [False, True], ids=["at-least-once", "exactly-once"])
def test_a_relay_is_killed_again_and_again(kafka, tmp_path, once, protocol):
    topics = Topics(kafka.hosts, f"kills-{protocol}-{once}", 2)
    options = ["--from", topics.source_in(protocol), "--to", topics.sink]
    options += ["--lease", "3s", "--batch", "200"]
    options += ["--exactly-once"] if once else []
    chance, stream = random.Random(2), Stream(topics)
    stream.start()
    for _ in range(KILLS):
        relay = RelayProcess(tmp_path / "store", options, tmp_path / "log")
        time.sleep(chance.uniform(0.8, 3.0))
        assert relay.process.poll() is None, relay.log[-2000:]
        relay.end(signal.SIGKILL)
    relay = RelayProcess(tmp_path / "store", options, tmp_path / "log")
    try:
        counts = judged(topics, stream.end())
    finally:
        assert relay.end() == 0, relay.log[-2000:]
    doubled = sum(count > 1 for count in counts.values())
    if once:
        assert not doubled
    print(f"{len(counts)} records, {KILLS} kills, {doubled} doubled")


@pytest.mark.parametrize("once", [False, True], ids=["at-least-once", "exactly-once"])
def test_the_broker_is_ended_and_started_again(tmp_path, once):
    with kafka_server() as kafka:
        topics = Topics(kafka.hosts, "restarts", 2)
        options = ["--from", topics.source, "--to", topics.sink, "--lease", "5s"]
        options += ["--exactly-once"] if once else []
        relay = RelayProcess(tmp_path / "store", options, tmp_path / "log")
        stream = Stream(topics)
        stream.start()
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                time.sleep(3)
                kafka.kill(number)
                time.sleep(3)
                kafka.start()
            counts = judged(topics, stream.end())
        finally:
            assert relay.end() == 0, relay.log[-2000:]
        if once:
            assert max(counts.values()) == 1
