"""What the tests of the HTTP port share: the loop they run in, and a server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from tests.http.served import Served, served
from tests.waiting import PATIENCE_S


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests that are marked so in the loop that ``dwell serve`` has."""
    if item.get_closest_marker("uvloop"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound them by a thread: uvloop swallows what the handler of a signal raises."""
    for item in items:
        if item.get_closest_marker("uvloop"):
            item.add_marker(pytest.mark.timeout(2 * PATIENCE_S, method="thread"))


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Served]:
    """Serve a store in memory."""
    async with served() as server:
        yield server
