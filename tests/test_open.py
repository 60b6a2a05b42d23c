import importlib.util
import subprocess
import sys

import pytest

import dwell
import dwell.errors
import dwell.worker


def test_exports_are_sorted_and_exist():
    for module in (dwell, dwell.worker):
        assert module.__all__ == sorted(module.__all__)
        for name in module.__all__:
            assert getattr(module, name).__doc__


def test_every_error_is_exported():
    errors = {
        name
        for name, value in vars(dwell.errors).items()
        if isinstance(value, type) and issubclass(value, dwell.DwellError)
    }
    assert errors <= set(dwell.__all__)


@pytest.mark.parametrize(
    "url",
    ["", "mysql://x", "memory:x", "file:", "file://", "\0", "MySQL:db"],
)
def test_urls_that_name_nothing(url):
    with pytest.raises(dwell.InvalidUrl, match='expected "memory:", a path'):
        dwell.open(url)


async def test_memory():
    async with dwell.open("memory:", clock=dwell.SimulatedClock(5)) as queue:
        assert (queue.is_open, queue.clock.now_ms()) == (True, 5)
    assert not queue.is_open


def test_an_option_that_does_not_exist():
    with pytest.raises(TypeError):
        dwell.open("memory:", sync="never")


def test_the_embedded_store_is_loaded_only_when_it_is_used():
    assert importlib.util.find_spec("dwell.store.embedded") is not None
    code = (
        "import dwell, sys; dwell.open('memory:'); sys.exit('dwell.store.embedded' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
