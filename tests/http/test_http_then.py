"""Follow-ups over HTTP: with an ack, by whoever may put in their topic."""

import pytest

import dwell
from dwell import Result, Then
from dwell.errors import Forbidden, InvalidInput, ServerDraining, StoreFull, TopicFull
from tests.http.grants import tokens_of
from tests.http.served import served
from tests.http.test_http_results import asked, taken


async def test_client_acks_with_a_follow_up(server):
    async with dwell.open(server.url) as queue:
        held = await taken(queue, "1", "2")
        then = Then("u", {"a": 1}, id="next", key="k", delay="1h")
        assert await queue.ack(held["1"], result="r", then=then) is Result.ACKED
        found = await queue.get("u", "next")
        assert (found.json(), found.key) == ({"a": 1}, "k")
        assert (await queue.result("t", "1")).result == b"r"
        assert await queue.ack(held["1"], then=Then("u", "")) is Result.STALE
        await queue.configure("full", max_pending=1)
        await queue.put("full", b"")
        with pytest.raises(TopicFull):
            await queue.ack(held["2"], then=Then("full", b""))
        assert (await queue.result("t", "2")).state == "leased"


async def test_a_follow_up_needs_another_id_than_its_own_message(server):
    """The id exists until the ack, which would keep the follow-up out."""
    for url in ("memory:", server.url):
        async with dwell.open(url) as queue:
            await queue.put("t", "x", id="a")
            (message,) = await queue.take("t")
            for what in (message, message.receipt):
                with pytest.raises(InvalidInput, match=r"then\.id: got 'a', expected none of its"):
                    await queue.ack(what, then=Then("t", "x", id="a", delay="1h"))
            assert (await queue.result("t", "a")).state == "leased"
            assert await queue.ack(message, then=Then("u", "x", id="a")) is Result.ACKED
            (message,) = await queue.take("u")
            assert await queue.ack(message.receipt, then=Then("u", "x")) is Result.ACKED
            assert (await queue.stats()).topics["u"].ready == 1


async def test_plain_json(server):
    async with dwell.open(server.url) as queue:
        held = await taken(queue, "1")
        ack = {
            "receipts": [held["1"].receipt],
            "results": ["done"],
            "then": {"body": {"a": 1}, "id": "next", "delay": "1h", "headers": {"h": "v"}},
            "then_topic": "u",
        }
        assert await asked(server, "POST", "/v1/ack", json=ack) == (200, {"results": ["acked"]})
        assert await asked(server, "POST", "/v1/ack", json=ack) == (200, {"results": ["stale"]})
        found = await queue.get("u", "next")
        assert (found.json(), found.headers, found.state) == ({"a": 1}, {"h": "v"}, 1)


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({"then": {"body": "x"}}, "expected then and then_topic"),
        ({"then_topic": "u"}, "expected then and then_topic"),
        ({"then": {"body": "x"}, "then_topic": "u" * 201}, "then_topic"),
        ({"then": [{"body": "x"}] * 2, "then_topic": "u"}, "then: got 2 messages"),
        ({"then": {"body": "x", "delay": "soon"}, "then_topic": "u"}, "delay"),
        ({"then": {"id": "x"}, "then_topic": "u"}, "body"),
        ({"then": "x", "then_topic": "u"}, "Expected"),
        ({"then": {"body": "x", "id": "1"}, "then_topic": "t"}, "none of its own message"),
    ],
)
async def test_bad_follow_ups_leave_the_message(server, more, detail):
    async with dwell.open(server.url) as queue:
        held = await taken(queue, "1")
        status, problem = await asked(
            server, "POST", "/v1/ack", json={"receipts": [held["1"].receipt], **more}
        )
        assert status == 422 or status == 400
        assert detail in str(problem)
        assert (await queue.result("t", "1")).state == "leased"


async def test_follow_up_of_several_is_refused(server):
    async with dwell.open(server.url) as queue:
        held = await taken(queue, "1", "2")
        receipts = [message.receipt for message in held.values()]
        ack = {"receipts": receipts, "then": {"body": "x"}, "then_topic": "u"}
        status, problem = await asked(server, "POST", "/v1/ack", json=ack)
        assert "got 2 receipts" in str(problem)
        assert status in (400, 422)
        assert (await queue.result("t", "2")).state == "leased"


async def test_follow_up_needs_the_right_to_put_in_its_topic(tmp_path):
    grants = {
        "root": 'put = [""]\ntake = [""]\nread = [""]',
        "worker": 'take = ["t"]\nput = ["u"]',
        "other": 'take = ["x"]\nput = ["u"]',
    }
    async with (
        served(tokens=tokens_of(tmp_path, grants)) as server,
        dwell.open(server.url, token="root") as root,
        dwell.open(server.url, token="worker") as worker,
        dwell.open(server.url, token="other") as other,
    ):
        await root.put("t", b"", id="1")
        (message,) = await worker.take("t")
        with pytest.raises(Forbidden):
            await worker.ack(message, then=Then("v", "x"))
        # Who may not take in the topic of the message has no ack that counts.
        assert await other.ack(message, then=Then("u", "x")) is Result.STALE
        assert "u" not in (await root.stats()).topics
        assert await worker.ack(message, then=Then("u", "x")) is Result.ACKED
        assert (await root.stats()).topics["u"].ready == 1


async def test_follow_up_counts_in_the_quota(tmp_path):
    grant = 'put = [""]\ntake = [""]\nquota = { pending = 3 }'
    async with (
        served(tokens=tokens_of(tmp_path, {"a": grant})) as server,
        dwell.open(server.url, token="a") as queue,
    ):
        held = await taken(queue, "1", "2")
        await queue.put("t", b"")
        with pytest.raises(StoreFull):
            await queue.put("t", b"")
        # It takes the place of its message.
        assert await queue.ack(held["1"], then=Then("u", "")) is Result.ACKED
        assert await queue.ack(held["1"], then=Then("u", "")) is Result.STALE


async def test_follow_up_of_a_message_that_did_not_count_counts(tmp_path):
    grant = 'put = ["u"]\ntake = [""]\nquota = { pending = 1 }'
    async with (
        served(tokens=tokens_of(tmp_path, {"a": grant, "b": 'put = [""]'})) as server,
        dwell.open(server.url, token="a") as queue,
        dwell.open(server.url, token="b") as other,
    ):
        await other.put_many("t", [b""] * 2)
        first, second = await queue.take("t", 2)
        await queue.ack(first, then=Then("u", ""))
        with pytest.raises(StoreFull, match="quota pending of token a: got 2"):
            await queue.ack(second, then=Then("u", ""))
        assert await queue.ack(second) is Result.ACKED


async def test_server_that_drains_takes_follow_ups(server):
    """Otherwise a handler was run until the attempts of its message were used up."""
    async with dwell.open(server.url, retries=0) as queue:
        held = await taken(queue, "1")
        server.service.is_draining = True
        assert await queue.ack(held["1"], then=Then("u", "")) is Result.ACKED
        with pytest.raises(ServerDraining):
            await queue.put("u", "")
        assert (await queue.stats()).topics["u"].ready == 1
