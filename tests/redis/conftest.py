"""Servers that the tests of a run share, each started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from tests.redis.servers import redis_cluster, redis_server, valkey_binary


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
