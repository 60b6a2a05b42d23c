"""The brokers and the database that the tests of a run share; topics and tables of a test's own."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.brokers import kafka_server, rabbitmq_server
from bench.postgres import postgres_server
from tests.redis.servers import redis_server
from tests.relay.kafka import Topics
from tests.relay.outbox import Box
from tests.relay.rabbitmq import Queues
from tests.relay.shared import shared

_numbers = itertools.count()


@pytest.fixture(scope="session")
def kafka_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared(_of_the_run(tmp_path_factory), "kafka", kafka_server) as hosts:
        yield hosts


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared(_of_the_run(tmp_path_factory), "postgres", postgres_server) as url:
        yield url


def _of_the_run(factory: pytest.TempPathFactory) -> Path:
    if brokers := os.environ.get("DWELL_BROKERS"):
        return Path(brokers)
    base = factory.getbasetemp()
    # Each process of a run has a folder of its own in that of the run.
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Box]:
    """An outbox of the test's own in PostgreSQL."""
    with Box.of(postgres_url, f"t{os.getpid()}n{next(_numbers)}") as box:
        yield box


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Box]:
    """An outbox in a file."""
    with Box.of(f"sqlite:///{tmp_path}/shop.db") as box:
        yield box


@pytest.fixture(params=["postgres", "sqlite"])
def box(request: pytest.FixtureRequest) -> Box:
    """Each of both in turn."""
    found: Box = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def topics(kafka_hosts: str) -> Callable[..., Topics]:
    """Make topics that no other test has."""

    def make(partitions: int = 2) -> Topics:
        return Topics(kafka_hosts, f"t{os.getpid()}n{next(_numbers)}", partitions)

    return make


@pytest.fixture(scope="session")
def rabbitmq_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared(folder, "rabbitmq", rabbitmq_server) as hosts:
        yield hosts


@pytest.fixture
def queues(rabbitmq_hosts: str) -> Callable[..., Queues]:
    """Make queues that no other test has."""

    def make(**arguments: Any) -> Queues:
        return Queues(rabbitmq_hosts, f"q{os.getpid()}n{next(_numbers)}", arguments)

    return make


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with redis_server() as server:
        yield server.url
