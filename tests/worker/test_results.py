"""What a handler returns is the result of its message, where the worker is told so."""

import math
import threading

import pytest

import dwell
from dwell import Outcome
from dwell.errors import InvalidInput
from dwell.worker import Bury, Worker
from dwell.worker.outcome import CountsFailures
from tests.http.served import served
from tests.waiting import PATIENCE_S
from tests.worker.serving import handled, serving


def double(message):
    """A handler that other processes can import."""
    return {"twice": 2 * message.json()}


@pytest.mark.parametrize("how", ["async", "thread", "process"])
async def test_returned_values_are_kept_as_json(tmp_path, how):
    async with dwell.open(tmp_path / "store") as queue:
        worker = Worker(queue)
        handled(worker, "t", double, how, results=True)
        async with serving(worker):
            await queue.put("t", 21, id="1")
            found = await queue.result("t", "1", wait=PATIENCE_S)
        assert found.json() == {"twice": 42}


@pytest.mark.parametrize(
    ("value", "result"), [(b"\xff", b"\xff"), ("text", b'"text"'), (None, b"null"), ([1], b"[1]")]
)
async def test_bytes_stay_and_the_rest_is_json(value, result):
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)

        @worker.on("t", results=True)
        async def give(message):
            return value

        async with serving(worker):
            await queue.put("t", b"", id="1")
            assert await queue.result("t", "1", wait=PATIENCE_S) == Outcome("done", result)


@pytest.mark.parametrize("value", [object(), math.nan, "x" * (1024 * 1024)])
@pytest.mark.parametrize("is_async", [True, False])
async def test_value_that_is_no_result_is_a_failure(value, is_async):
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)

        async def in_loop(message):
            return value

        worker.on("t", results=True)(in_loop if is_async else lambda message: value)
        async with serving(worker):
            await queue.put("t", b"", id="1", max_attempts=1)
            found = await queue.result("t", "1", wait=PATIENCE_S)
        assert found.state == "dead"
        assert found.error.startswith("dwell.errors.InvalidBody: result: got")


async def test_values_are_not_kept_unless_asked_for():
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)

        @worker.on("t")
        async def give(message):
            return object()

        async with serving(worker):
            await queue.put("t", b"", id="1")
            assert await queue.result("t", "1", wait=PATIENCE_S) == Outcome("done")


def test_batches_have_no_results():
    with pytest.raises(InvalidInput, match="results: got batch=10"):
        Worker("memory:").on("t", batch=10, results=True)
    with pytest.raises(InvalidInput, match="results: got str 'yes'"):
        Worker("memory:").on("t", results="yes")


class Counting(CountsFailures):
    """A handler whose result is too large for its server, and which says so itself."""

    def __call__(self, message):
        return b"x" * 100

    def failure_of(self, message, error):
        is_main = threading.current_thread() is threading.main_thread()
        return Bury(f"{type(error).__name__}, {'in' if is_main else 'outside'} the loop")


async def test_a_refused_result_is_told_to_its_handler_outside_the_loop():
    """It may send signals, whose receivers may block."""
    async with served() as server, dwell.open(server.url) as queue:
        server.service.most_body_bytes = 50
        worker = Worker(queue)
        worker.on("t", results=True)(Counting())
        async with serving(worker):
            await queue.put("t", b"", id="1")
            found = await queue.result("t", "1", wait=PATIENCE_S)
        assert (found.state, found.error) == ("dead", "InvalidBody, outside the loop")
