"""The stores that messages are exported from and imported into."""

import itertools

import pytest
import redis

import dwell
from tests.redis.servers import redis_server
from tests.spark.conftest import ServerProcess

KINDS = ("memory", "folder", "redis", "http")


@pytest.fixture(scope="session")
def engine():
    with redis_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    server = ServerProcess(tmp_path_factory.mktemp("served"))
    yield server.url
    server.stop()


class Stores:
    """Makes addresses of stores of each kind; that of a server is always the same store."""

    def __init__(self, folder, request):
        self._folder, self._request = folder, request
        self._numbers = itertools.count(1)

    def new(self, kind):
        """Return the address of a store without messages, which a server's may have."""
        if kind == "memory":
            return "memory:"
        if kind == "folder":
            return str(self._folder / f"store{next(self._numbers)}")
        if kind == "redis":
            url = self._request.getfixturevalue("engine")
            with redis.Redis.from_url(url) as client:
                client.flushall()
            return url
        return self._request.getfixturevalue("served")


@pytest.fixture
def stores(tmp_path, request):
    return Stores(tmp_path, request)


@pytest.fixture(params=KINDS)
def store(request, stores):
    """The address of a store of each kind, in turn."""
    return stores.new(request.param)


def everything(queue, topics):
    """Return all messages of some topics, by topic and id."""
    states = [state for state in dwell.State if state is not dwell.State.GONE]
    found = [m for topic in topics for page in queue.pages(topic, states) for m in page]
    assert len({(m.topic, m.id) for m in found}) == len(found)
    return {(m.topic, m.id): m for m in found}
