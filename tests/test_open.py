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


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("memory:", "max_events"),
        ("./queue", "events_bytes, memory_bytes, segment_bytes, sync"),
        ("http://localhost:8410", "ca, cert, connections, key, retries, timeout, token"),
        (
            "redis://localhost",
            "ca, connections, home, max_events, min_replicas, prefix, shards, timeout",
        ),
    ],
)
def test_an_option_that_does_not_exist(url, known):
    with pytest.raises(dwell.InvalidUrl) as caught:
        dwell.open(url, tokn="x")
    assert str(caught.value) == f"option: got 'tokn', expected one of {known}"


def test_a_folder_that_is_held_says_what_to_do(tmp_path):
    with dwell.open(tmp_path) as queue:
        queue.put("t", b"")
        with pytest.raises(dwell.StoreLocked) as caught, dwell.open(tmp_path):
            pass
        assert "which is this one: use the queue that it has open" in str(caught.value)
        code = "import dwell, sys; dwell.open(sys.argv[1]).__enter__()"
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
        )
    assert "let a server (dwell serve) have it" in done.stderr.splitlines()[-1]


def test_a_word_that_a_verb_does_not_have(tmp_path):
    """It is refused at once, and does not wait for an answer that never comes."""
    with dwell.open(tmp_path) as queue:
        with pytest.raises(TypeError, match="got the keyword 'ids'"):
            queue.put("t", b"", ids="x")
        with pytest.raises(TypeError, match="unexpected keyword argument 'max'"):
            queue.take("t", max=3)
        assert queue.put("t", b"").result is dwell.Result.CREATED


def test_the_embedded_store_is_loaded_only_when_it_is_used():
    assert importlib.util.find_spec("dwell.store.embedded") is not None
    code = (
        "import dwell, sys; dwell.open('memory:'); sys.exit('dwell.store.embedded' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_handle_says_how_it_is_opened():
    """The first thing that one forgets is the ``with``."""
    with pytest.raises(AttributeError, match=r"with dwell\.open.* as queue', then queue\.put"):
        dwell.open("memory:").put("t", "x")
    with pytest.raises(AttributeError, match=r"not open yet$"):
        dwell.open("memory:").putt("t", "x")


@pytest.mark.parametrize("place", ["memory:", "folder"])
async def test_a_handle_is_open_once_at_a_time(tmp_path, place):
    """A second opening would close the store under the first."""
    handle = dwell.open(place if place == "memory:" else tmp_path / "q")
    async with handle as queue:
        with pytest.raises(RuntimeError, match=r"is open already; call dwell\.open again"):
            await handle.__aenter__()
        with pytest.raises(RuntimeError, match="is open already"):
            handle.__enter__()
        await queue.put("t", "x")
    async with handle as queue:
        assert queue.is_open
