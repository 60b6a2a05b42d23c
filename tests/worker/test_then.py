"""A handler may return what comes next, which is put in the same step as the ack."""

import pytest

import dwell
from dwell import Outcome, Then
from dwell.clock import RealClock
from dwell.testing.faults import FaultyDisk
from dwell.worker import Worker
from tests.store.test_limits import SEGMENT_BYTES, queue_on
from tests.store.test_room import until_full
from tests.waiting import PATIENCE_S, until_async
from tests.worker.serving import handled, serving


def forward(message):
    """A handler that other processes can import."""
    return Then("second", message.json() + 1, id="next", result="handed on")


@pytest.mark.parametrize("how", ["async", "thread", "process"])
async def test_chain_of_two_handlers(tmp_path, how):
    async with dwell.open(tmp_path / "store") as queue:
        worker = Worker(queue)
        handled(worker, "first", forward, how, results=True)

        @worker.on("second", results=True)
        async def double(message):
            return message.json() * 2

        async with serving(worker):
            await queue.put("first", 20, id="1")
            assert (await queue.result("first", "1", wait=PATIENCE_S)).json() == "handed on"
            assert (await queue.result("second", "next", wait=PATIENCE_S)).json() == 42


async def test_follow_up_needs_no_results():
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)
        worker.on("first")(forward)
        async with serving(worker):
            await queue.put("first", 20, id="1")
            assert await queue.result("first", "1", wait=PATIENCE_S) == Outcome(
                "done", b'"handed on"'
            )
            assert (await queue.get("second", "next")).json() == 21


@pytest.mark.parametrize(
    ("then", "error"),
    [
        (lambda: Then("", "x"), "then.topic"),
        (lambda: Then("t", object()), "then.body"),
        (lambda: Then("t", "x", delay="soon"), "then.delay"),
    ],
)
async def test_bad_follow_up_is_a_failure(then, error):
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)
        worker.on("first")(lambda message: then())
        async with serving(worker):
            await queue.put("first", 20, id="1", max_attempts=1)
            found = await queue.result("first", "1", wait=PATIENCE_S)
        assert found.state == "dead"
        assert error in found.error


async def test_follow_up_with_the_id_of_its_own_message_is_a_failure():
    """It would be kept out by the message that is acked, and nothing would be left."""
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)
        worker.on("poll")(lambda message: Then("poll", message.body, id=message.id, delay="1h"))
        async with serving(worker):
            await queue.put("poll", "x", id="1", max_attempts=1)
            found = await queue.result("poll", "1", wait=PATIENCE_S)
        assert found.state == "dead"
        assert "none of its own message" in found.error


async def test_follow_up_without_room_is_tried_again_and_then_is_the_error(caplog):
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)
        worker.on("first")(lambda message: Then("full", "x"))
        await queue.configure("full", max_pending=1)
        await queue.put("full", "there")
        async with serving(worker):
            await queue.put("first", 20, id="1", max_attempts=1, lease="2s")
            await until_async(lambda: "could not be settled yet" in caplog.text)
            found = await queue.result("first", "1", wait=PATIENCE_S)
            assert found.state == "dead"
            assert "TopicFull: topic 'full'" in found.error
            await queue.put("first", 20, id="2", lease="1h")
            (there,) = await queue.take("full")
            await queue.ack(there)
            assert (await queue.result("first", "2", wait=PATIENCE_S)).state == "done"


async def test_follow_up_that_a_full_disk_has_no_room_for_is_the_error():
    async with queue_on(FaultyDisk(size_bytes=12 * SEGMENT_BYTES), RealClock()) as queue:
        await queue.put("first", 20, id="1", max_attempts=1, lease="2s")
        await until_full(lambda: queue.put("filler", b"x" * 1_000))
        worker = Worker(queue)
        worker.on("first")(lambda message: Then("second", b"x" * 50_000))
        async with serving(worker):
            found = await queue.result("first", "1", wait=PATIENCE_S)
        assert found.state == "dead"
        assert "DiskFull" in found.error


def several(message):
    """A handler that other processes can import."""
    return [Then("second", "x"), Then("third", "y")]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("how", ["async", "thread", "process"])
async def test_several_follow_ups_are_a_failure(tmp_path, how, keeps):
    """An ack puts one, and the others would be lost without a word."""
    async with dwell.open(tmp_path / "store") as queue:
        worker = Worker(queue)
        handled(worker, "first", several, how, results=keeps)
        async with serving(worker):
            await queue.put("first", 20, id="1", max_attempts=1)
            found = await queue.result("first", "1", wait=PATIENCE_S)
        assert "then: got 2 in a list, expected one Then" in found.error
        assert (await queue.stats()).topics.keys() == {"first"}


async def test_handler_of_batches_has_no_follow_up():
    async with dwell.open("memory:") as queue:
        worker = Worker(queue)
        worker.on("first", batch=10)(lambda batch: Then("second", "x"))
        worker.on("many", batch=10)(lambda batch: [Then("second", one.body) for one in batch])
        async with serving(worker):
            for topic, told in (("first", "handler of batches"), ("many", "got 1 in a list")):
                await queue.put(topic, 20, id="1", max_attempts=1)
                found = await queue.result(topic, "1", wait=PATIENCE_S)
                assert told in found.error
