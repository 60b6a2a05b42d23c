"""Databases that tests of copies read, and a Redis that jobs leave."""

import itertools
import os

import psycopg
import pytest

from tests.redis.servers import redis_server
from tests.relay.conftest import postgres_url as postgres_url

_numbers = itertools.count()


@pytest.fixture
def postgres(postgres_url):
    """A database of the test's own in PostgreSQL."""
    name = f"takeover{os.getpid()}n{next(_numbers)}"
    with psycopg.connect(postgres_url, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}")
        link.execute(f"ALTER DATABASE {name} SET timezone TO 'Asia/Tokyo'")
    return f"{postgres_url.rpartition('/')[0]}/{name}"


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request, tmp_path):
    """Each kind in turn, as the address of an empty database."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres")
    return f"sqlite:///{tmp_path}/site.db"


@pytest.fixture(scope="module")
def engine():
    with redis_server() as server:
        yield server


@pytest.fixture
def url(engine):
    engine.ask("FLUSHALL")
    return engine.url
