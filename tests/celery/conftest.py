"""Brokers for the tests of this folder, each started when the first test asks."""

from collections.abc import Iterator

import kombu
import pytest

from dwell.celery import link
from tests.celery.brokers import emptied
from tests.redis.servers import redis_server
from tests.spark.conftest import ServerProcess


@pytest.fixture(scope="session")
def server_url(tmp_path_factory) -> Iterator[str]:
    server = ServerProcess(tmp_path_factory.mktemp("served"))
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with redis_server() as server:
        yield server.url


@pytest.fixture(params=["memory", "server", "redis"])
def url(request):
    return f"dwell+{emptied(request)}"


@pytest.fixture
def connect(url):
    """Return a function that connects, each connection closed with the test."""
    opened = []

    def connected(**options):
        opened.append(kombu.Connection(url, transport_options=options))
        return opened[-1]

    yield connected
    for connection in opened:
        connection.release()


@pytest.fixture
def store(url):
    """Return a function that calls a verb of the store behind."""
    shared = link.acquire(url.removeprefix("dwell+"), {})
    yield lambda verb, *args, **words: shared.run(getattr(shared.queue, verb), *args, **words)
    link.release(shared)
