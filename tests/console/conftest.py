"""One Chromium for the tests of a module, a tab of its own for each of them."""

from functools import partial

import pytest
import pytest_asyncio

from tests.console.browser import chromium, console_of


def pytest_collection_modifyitems(items):
    """Let the tests here run in the loop in which their browser lives."""
    for item in items:
        if item.path.parent.name == "console":
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    """A Chromium."""
    async with chromium() as found:
        yield found


@pytest.fixture
def consoled(browser):
    """What gives the console of a server over a store in memory."""
    return partial(console_of, browser)
