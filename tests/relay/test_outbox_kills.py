"""Relays and PostgreSQL that are killed at any moment: nothing is lost, invented or early."""

import contextlib
import json
import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

import dwell
from bench.postgres import Postgres, postgres_server
from tests.relay.kafka import RelayProcess
from tests.relay.outbox import Box
from tests.waiting import until

KILLS = int(os.environ.get("DWELL_KILLS", "3"))

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(120 + KILLS * 20)]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["postgres", "sqlite"])
def box(request: pytest.FixtureRequest, tmp_path) -> Iterator[Box]:
    name = f"t{uuid.uuid4().hex[:8]}"
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("server").url if is_postgres else f"sqlite:///{tmp_path}/shop.db"
    with Box.of(url, name) as box:
        box.do("CREATE TABLE orders_{table} (id TEXT PRIMARY KEY)")
        yield box


class Shop(threading.Thread):
    """Takes orders, each with a message in the same transaction; every fifth is taken back.

    What it was told nothing of may be there or not, but never one without the other.
    """

    def __init__(self, box: Box, topic: str) -> None:
        super().__init__(daemon=True)
        self._box, self._topic = box, topic
        self._random = random.Random(1)
        self._is_over = threading.Event()
        self.taken: set[str] = set()

    def run(self) -> None:
        at = 0
        orders = sa.table(f"orders_{self._box.outbox.table.name}", sa.column("id"))
        while not self._is_over.wait(0.002):
            at += 1
            due_ms = time.time_ns() // 1_000_000 + self._random.randrange(0, 1_500)
            with contextlib.suppress(sa.exc.OperationalError), self._box.engine.connect() as link:
                link.execute(orders.insert().values(id=str(at)))
                self._box.outbox.put(link, self._topic, [str(at), due_ms], id=str(at), due=due_ms)
                if at % 5 == 0:
                    link.rollback()
                else:
                    link.commit()
                    self.taken.add(str(at))

    def end(self) -> set[str]:
        """Return the orders that are there; those that it was told of are among them."""
        self._is_over.set()
        self.join()
        with self._box.engine.connect() as link:
            text = f"SELECT id FROM orders_{self._box.outbox.table.name}"
            found = set(link.scalars(sa.text(text)))
        assert found >= self.taken
        return found


class Worker(threading.Thread):
    """Takes what is due all the while and acks it."""

    def __init__(self, store: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._store, self._topic = store, topic
        self.is_over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.early = 0

    def run(self) -> None:
        with dwell.open(self._store) as queue:
            while not self.is_over.is_set():
                batch = queue.take(self._topic, 1_000, wait="200ms")
                now_ms = time.time_ns() // 1_000_000
                for message in batch:
                    id_, due_ms = json.loads(message.body)
                    self.counts[id_] += 1
                    self.early += now_ms < due_ms
                queue.ack(batch)


@contextlib.contextmanager
def judged(box: Box, store: str) -> Iterator[str]:
    """Run a shop and a worker during the block; each order has its message, once, and no other."""
    topic = f"t{uuid.uuid4().hex}"
    shop, worker = Shop(box, topic), Worker(store, topic)
    shop.start()
    worker.start()
    yield topic
    orders = shop.end()
    until(lambda: len(worker.counts) >= len(orders), "messages are lost")
    box.until_empty()
    worker.is_over.set()
    worker.join()
    assert set(worker.counts) == orders
    assert set(worker.counts.values()) == {1}
    assert worker.early == 0
    print(f"{len(orders)} orders")


def test_relays_are_killed_again_and_again(box, redis_url, tmp_path):
    chance = random.Random(7)
    options = ["--from", box.address, "--batch", "20"]

    def start(at: int) -> RelayProcess:
        return RelayProcess(redis_url, options, tmp_path / f"log{at}")

    relays = [start(0), start(1)]
    try:
        with judged(box, redis_url):
            for _ in range(KILLS):
                at = chance.randrange(2)
                time.sleep(chance.uniform(0.6, 2.0))
                assert relays[at].process.poll() is None, relays[at].log[-2000:]
                relays[at].end(signal.SIGKILL)
                relays[at] = start(at)
    finally:
        assert [relay.end() for relay in relays] == [0, 0], relays[0].log[-2000:]


def test_postgres_is_ended_and_started_again(server, redis_url, tmp_path):
    with Box.of(server.url, f"t{uuid.uuid4().hex[:8]}") as box:
        box.do("CREATE TABLE orders_{table} (id TEXT PRIMARY KEY)")
        relay = RelayProcess(redis_url, ["--from", box.address, "--batch", "20"], tmp_path / "log")
        try:
            with judged(box, redis_url):
                for number in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
                    time.sleep(1.5)
                    server.kill(number)
                    time.sleep(1)
                    server.start()
                time.sleep(1)
        finally:
            assert relay.end() == 0, relay.log[-2000:]
