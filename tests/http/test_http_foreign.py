"""What a token has no right to: it looks as if it were not there, and is not named."""

import contextlib

import pytest

from tests.http.grants import tokens_of
from tests.http.test_http_api import calling

RIGHTS = {
    "a": 'put = ["a."]\ntake = ["a."]\nadmin = ["a."]',
    "b": 'put = ["b."]\ntake = ["b."]\nadmin = ["b."]',
    "putter": 'put = ["a."]',
}


@contextlib.asynccontextmanager
async def tenants(folder):
    """Give a function that asks as somebody."""
    async with calling(tokens=tokens_of(folder, RIGHTS)) as caller:

        async def ask(who, path, **body):
            answer = await caller.post(path, body, authorization=f"Bearer {who}")
            assert who == "b" or b"b.jobs" not in caller.data, answer
            return caller.status, answer

        yield ask


async def command(ask, who, **words):
    """Do a command of the job protocol; return what it answers beside the id."""
    status, answer = await ask(who, "/command", **words)
    assert status == 200
    answer.pop("id", None)
    return answer


DONE = {"success": True}


@pytest.mark.parametrize("verb", ["finish", "delete"])
async def test_a_foreign_job_is_not_there(tmp_path, verb):
    async with tenants(tmp_path) as ask:
        await command(ask, "b", command="add", topic="b.jobs", id="1", body="x", TTR=60)
        if verb == "finish":
            await command(ask, "b", command="pop", topic="b.jobs")
        for topic in (None, "b.jobs"):
            foreign = await command(ask, "a", command=verb, id="1", topic=topic)
            none = await command(ask, "a", command=verb, id="2", topic=topic)
            assert foreign == none
            assert not foreign["success"]
        assert await command(ask, "b", command=verb, id="1") == DONE


async def test_a_job_of_the_same_id_hides_no_other(tmp_path):
    async with tenants(tmp_path) as ask:
        for who in "ba":
            topic = f"{who}.jobs"
            await command(ask, who, command="add", topic=topic, id="1", body=who, TTR=60)
            await command(ask, who, command="add", topic=topic, id="2", body=who, delay=60)
            assert (await command(ask, who, command="pop", topic=topic))["value"] == who
        assert await command(ask, "b", command="finish", id="1") == DONE
        assert await command(ask, "a", command="finish", id="1") == DONE
        assert await command(ask, "b", command="delete", id="2") == DONE
        assert await command(ask, "a", command="delete", id="2") == DONE
        assert not (await command(ask, "a", command="delete", id="2"))["success"]


async def test_who_has_the_right_on_no_topic_is_told_so(tmp_path):
    async with tenants(tmp_path) as ask:
        await command(ask, "b", command="add", topic="b.jobs", id="1", body="x", TTR=60)
        await command(ask, "b", command="pop", topic="b.jobs")
        answer = await command(ask, "putter", command="finish", id="1")
        assert not answer["success"]


async def test_a_receipt_of_a_foreign_topic_is_stale(tmp_path):
    async with tenants(tmp_path) as ask:
        await ask("b", "/v1/topics/b.jobs/messages", body="x")
        await ask("a", "/v1/topics/a.jobs/messages", body="x")
        receipts = []
        for who in "ab":
            _, found = await ask(who, "/v1/take", topics=f"{who}.jobs", lease="1h")
            receipts.append(found["messages"][0]["receipt"])
        none = receipts[0][:-8] + "0000ffff"
        told = await ask("a", "/v1/taken", receipts=[*receipts, none])
        assert told == (200, {"topics": ["a.jobs"], "each": ["a.jobs", None, None]})
        for verb in ("touch", "release", "bury", "ack"):
            answer = await ask("a", f"/v1/{verb}", receipts=[receipts[1], none])
            assert answer == (200, {"results": ["stale", "stale"]})
            assert await ask("a", f"/v1/{verb}", receipts=[receipts[1]]) == (
                200,
                {"results": ["stale"]},
            )
        status, answer = await ask("putter", "/v1/ack", receipts=receipts)
        assert (status, answer["detail"]) == (403, "token putter may not take from any topic")
        both = await ask("a", "/v1/ack", receipts=receipts)
        assert both == (200, {"results": ["acked", "stale"]})
        assert await ask("b", "/v1/ack", receipts=[receipts[1]]) == (200, {"results": ["acked"]})
