"""A server of the beanstalk protocol, and a connection to it."""

from collections.abc import Iterator

import pytest

from tests.beanstalk.served import Line, Served


@pytest.fixture
def served() -> Iterator[Served]:
    """Serve a store in memory, in a thread of its own."""
    with Served() as server:
        yield server


@pytest.fixture
def line(served: Served) -> Iterator[Line]:
    """Connect to it."""
    with Line(served.number) as connection:
        yield connection
