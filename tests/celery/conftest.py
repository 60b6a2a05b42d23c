"""A server and a Redis for the tests of this folder, each started when the first test asks."""

from collections.abc import Iterator

import pytest

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
