"""Follow-ups at the queue: put in the same step as the ack of another message."""

import pickle

import pytest

import dwell
from dwell import Outcome, Result, Then
from dwell.clock import SimulatedClock
from dwell.errors import (
    ForeignReceipt,
    InvalidBody,
    InvalidInput,
    InvalidTime,
    InvalidTopic,
    TopicFull,
)
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore


@pytest.fixture(params=["memory", "folder"])
async def queue(request, tmp_path):
    clock = SimulatedClock()
    folder = tmp_path / "store"
    store = MemoryStore(clock) if request.param == "memory" else EmbeddedStore(folder, clock=clock)
    async with Queue(store) as opened:
        yield opened


async def one(queue):
    await queue.put("t", b"", id="1")
    (message,) = await queue.take("t")
    return message


async def test_follow_up_takes_what_a_put_takes(queue):
    message = await one(queue)
    then = Then("u", {"a": 1}, delay="1h", id="next", key="k", headers={"h": "v"}, priority=3)
    assert await queue.ack(message, result="r", then=then) is Result.ACKED
    found = await queue.get("u", "next")
    assert (found.json(), found.key, found.headers, found.priority) == (
        {"a": 1},
        "k",
        {"h": "v"},
        3,
    )
    assert found.due_ms == queue.clock.now_ms() + 3_600_000
    assert await queue.result("t", "1") == Outcome("done", b"r")
    assert await queue.ack(message, then=Then("u", "again")) is Result.STALE
    assert (await queue.stats()).topics["u"].ready == 0


async def test_delay_levels_are_those_of_the_other_topic(queue):
    await queue.configure("u", delay_levels_ms=(5_000, 7_000))
    await queue.ack(await one(queue), then=Then("u", "x", delay_level=2, id="next"))
    assert (await queue.get("u", "next")).due_ms == queue.clock.now_ms() + 7_000


async def test_result_may_be_given_with_the_follow_up(queue):
    await queue.ack(await one(queue), then=Then("u", "x", result=[1]))
    assert (await queue.result("t", "1")).json() == [1]


async def test_bad_input_does_neither(queue):
    message = await one(queue)
    await queue.configure("full", max_pending=1)
    await queue.put("full", b"")
    other = "f" * 32
    for error, match, call in (
        (InvalidTopic, "then.topic", lambda: queue.ack(message, then=Then("", "x"))),
        (InvalidBody, "then.body", lambda: queue.ack(message, then=Then("u", {1j}))),
        (InvalidTime, "then.delay", lambda: queue.ack(message, then=Then("u", "", delay="soon"))),
        (InvalidInput, "then: got str", lambda: queue.ack(message, then="u")),
        (InvalidInput, "then: got many", lambda: queue.ack([message], then=Then("u", ""))),
        (TopicFull, "full", lambda: queue.ack(message, result="r", then=Then("full", ""))),
        (ForeignReceipt, "receipt", lambda: queue.ack(other, then=Then("u", ""))),
    ):
        with pytest.raises(error, match=match):
            await call()
    assert await queue.result("t", "1") == Outcome("leased")
    assert "u" not in (await queue.stats()).topics or not (await queue.stats()).topics["u"].ready
    with pytest.raises(TypeError, match="until"):
        Then("u", "", until="soon")


async def test_chain_runs_to_its_end(queue):
    await queue.put("a", 0)
    for topic, following in (("a", "b"), ("b", "c"), ("c", "d")):
        (message,) = await queue.take(topic)
        await queue.ack(message, then=Then(following, message.json() + 1))
    (last,) = await queue.take("d")
    assert last.json() == 3


def test_follow_up_can_go_to_another_process():
    then = pickle.loads(pickle.dumps(Then("u", [1], delay="1h", result=2)))
    assert (then.topic, then.body, then.result, then.options) == ("u", [1], 2, {"delay": "1h"})


async def test_follow_up_and_ack_share_a_frame(tmp_path):
    """So that a torn write leaves both or neither."""
    from tests.store.test_format import frames_of

    async with dwell.open(tmp_path / "store") as queue:
        await queue.put("t", b"", id="1")
        (message,) = await queue.take("t")
        await queue.ack(message, result="r", then=Then("u", "x"))
    assert ["PUT", "DONE"] in [[kind.name for kind in f] for f in frames_of(tmp_path / "store")]
