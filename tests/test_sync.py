import inspect
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dwell
from dwell import Result
from tests.forking import check_fork_is_told

ROOT = Path(__file__).parents[1]


def test_a_whole_life():
    with dwell.open("memory:") as queue:
        assert queue.put("t", "x", id="a").result is Result.CREATED
        (message,) = queue.take("t", wait="1m")
        assert (message.id, message.body) == ("a", b"x")
        assert queue.ack(message) is Result.ACKED
        assert queue.stats().totals == {"put": 1, "take": 1, "ack": 1}


def test_every_public_coroutine_has_its_plain_twin():
    for name, function in inspect.getmembers(dwell.Queue, inspect.isfunction):
        if name.startswith("_") or name in ("open", "close"):
            continue
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            twin = getattr(dwell.SyncQueue, name)
            assert not inspect.iscoroutinefunction(twin)
            assert twin.__doc__ == function.__doc__ != ""
            assert inspect.signature(twin) == inspect.signature(function)


def test_the_stub_is_up_to_date():
    stubs = runpy.run_path(str(ROOT / "tools" / "stubs.py"))
    assert stubs["STUB"].read_text() == stubs["render"](), "run python -m tools.stubs"


def test_pages_is_an_iterator():
    with dwell.open("memory:") as queue:
        queue.put_many("t", [b""] * 5, delay="1h")
        assert [len(page) for page in queue.pages("t", limit=2)] == [2, 2, 1]
        first = next(iter(queue.pages("t", limit=2)))
        assert len(first) == 2


def test_errors_come_through():
    with dwell.open("memory:") as queue:
        with pytest.raises(dwell.InvalidTopic):
            queue.put("a b", b"")
        queue.put("t", b"", id="a")
        with pytest.raises(dwell.IdExists):
            queue.put("t", b"", id="a", on_conflict="error")


def test_many_threads():
    with dwell.open("memory:") as queue:

        def live():
            for _ in range(20):
                queue.put("t", b"x")
                assert queue.ack(queue.take("t", wait=60)) == [Result.ACKED]

        threads = [threading.Thread(target=live) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert queue.stats().totals["ack"] == 160


def test_close_ends_the_thread_and_says_so():
    before = threading.active_count()
    queue = dwell.open("memory:")
    with queue as opened:
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    opened.close()
    with pytest.raises(dwell.StoreClosed):
        opened.put("t", b"")


def test_closing_ends_a_wait_in_another_thread():
    errors = []
    with dwell.open("memory:") as queue:

        def wait():
            try:
                queue.take("t", wait="1h")
            except dwell.StoreClosed as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while not queue._queue._takers._parked:
            pass
    thread.join(60)
    assert len(errors) == 1


def test_a_forked_process_is_told():
    with dwell.open("memory:") as queue:
        check_fork_is_told(queue)


# A shell that runs the tests in the background has them, and their children, ignore SIGINT.
INTERRUPTED = """
import signal
import dwell
signal.signal(signal.SIGINT, signal.default_int_handler)
with dwell.open("memory:") as queue:
    try:
        print("waiting", flush=True)
        queue.take("t", wait="1h")
    except KeyboardInterrupt:
        queue.put("t", "still works")
        print(queue.take("t", wait="1m")[0].body.decode(), flush=True)
"""


def test_ctrl_c_ends_a_wait_and_loses_nothing():
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout as out:
        assert out.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        assert out.readline() == "still works\n"
    assert child.wait(60) == 0


def test_a_blocking_call_inside_its_own_loop_is_refused():
    with dwell.open("memory:") as queue:

        async def inside():
            queue._thread.run(queue._queue.stats)

        with pytest.raises(RuntimeError, match="event loop"):
            queue._thread.run(inside)


def test_a_call_beside_a_close_says_that_it_is_closed():
    told = []

    def call(queue):
        try:
            while True:
                queue.put("t", "x")
        except dwell.StoreClosed as error:
            told.append(str(error))

    for _ in range(30):
        queue = dwell.open("memory:").__enter__()
        threads = [threading.Thread(target=call, args=(queue,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        queue.close()
        for thread in threads:
            thread.join()
    assert len(told) == 60
