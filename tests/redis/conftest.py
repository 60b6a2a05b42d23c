"""Servers that the tests of a run share, each started when the first test asks for it."""

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.redis.servers import redis_cluster, redis_server, valkey_binary

# redis-py lets go of a connection without closing it when its node died, and when it was opened
# just as the time to open it was over or whoever asked was cancelled, as happens on a busy machine.
# asyncio closes it when it is collected as garbage, and warns of that.
_LET_GO = pytest.mark.filterwarnings(
    *(
        f"ignore:Exception ignored in. <{what}:pytest.PytestUnraisableExceptionWarning"
        for what in (
            "socket.socket",
            "function StreamWriter.__del__",
            "function _SelectorTransport.__del__",
            "function AbstractConnection.__del__",
            "function ClusterNode.__del__",
        )
    )
)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if item.path.parent == folder:
            item.add_marker(_LET_GO)


@pytest.fixture(scope="module", autouse=True)
def garbage() -> Iterator[None]:
    """Let what was let go of be warned of here, and not in the tests of another folder."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with redis_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    with redis_server(valkey_binary()) as server:
        yield server.url


@pytest.fixture(scope="session")
def cluster_url() -> Iterator[str]:
    with redis_cluster() as cluster:
        yield cluster.url
