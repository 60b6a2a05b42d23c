"""Results over HTTP: with an ack in, and by id out, waiting at the server."""

import asyncio
import base64
import io
import json

import aiohttp
import pytest

import dwell
from dwell import Outcome, Result
from dwell.client.store import HttpStore
from dwell.clock import RealClock
from dwell.errors import Forbidden, StoreDamaged, StoreError, StoreFull
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.wire.callnumber import AGAIN_MARK, CALL_HEADER
from tests.http.grants import tokens_of
from tests.http.served import Served, served
from tests.waiting import PATIENCE_S, until_async

LONG = PATIENCE_S


async def taken(queue, *ids):
    await queue.put_many("t", [b""] * len(ids), ids=list(ids))
    return {message.id: message for message in await queue.take("t", len(ids))}


def watched(server):
    """How many waits for results are on at the server."""
    return sum(map(len, server.queue._watchers.topics.values()))


async def asked(server, method, path, **how):
    """Return status and answer of a request."""
    if "json" in how:
        headers = {"content-type": "application/json"}
        how = {"data": io.BytesIO(json.dumps(how["json"]).encode()), "headers": headers}
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.request(method, path, **how) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def test_client_acks_with_results_and_reads_them(server):
    async with dwell.open(server.url) as queue:
        held = await taken(queue, "1", "2", "3", "4/5 ü")
        assert await queue.ack(held["1"], result={"sum": 6}) is Result.ACKED
        three = [held["2"], held["3"], held["4/5 ü"]]
        assert set(await queue.ack(three, results=[b"\xff", None, ""])) == {Result.ACKED}
        assert (await queue.result("t", "1")).json() == {"sum": 6}
        assert await queue.result("t", "2") == Outcome("done", b"\xff")
        assert await queue.result("t", "3") == Outcome("done")
        assert await queue.result("t", "4/5 ü") == Outcome("done", b"")
        assert await queue.result("t", "5") == Outcome("unknown")
        assert await queue.ack(held["1"], result="again") is Result.STALE


async def test_client_waits_at_the_server(server):
    async with dwell.open(server.url) as queue, dwell.open(server.url) as other:
        held = await taken(queue, "1", "2", "3")
        waits = [asyncio.create_task(other.result("t", id_, wait=LONG)) for id_ in held]
        await until_async(lambda: watched(server) == 3)
        await queue.ack(held["1"], result="one")
        await queue.bury(held["2"], "because")
        await queue.release(held["3"])
        await queue.cancel("t", "3")
        assert await asyncio.wait_for(asyncio.gather(*waits), LONG) == [
            Outcome("done", b"one"),
            Outcome("dead", error="because"),
            Outcome("gone"),
        ]


async def test_wait_ends_in_time_and_with_its_caller(server):
    async with dwell.open(server.url) as queue:
        await taken(queue, "1")
        assert await queue.result("t", "1", wait="50ms") == Outcome("leased")
        wait = asyncio.create_task(queue.result("t", "1", wait="1h"))
        await until_async(lambda: watched(server) > 0)
        wait.cancel()
        await until_async(lambda: not watched(server))


async def test_wait_ends_with_the_server():
    server = Served(MemoryStore(RealClock()))
    await server.start()
    try:
        async with dwell.open(server.url, retries=0) as queue:
            await taken(queue, "1")
            wait = asyncio.create_task(queue.result("t", "1", wait="1h"))
            await until_async(lambda: watched(server) > 0)
            await server.stop()
            with pytest.raises(StoreError):
                await asyncio.wait_for(wait, LONG)
    finally:
        if server.queue.is_open:
            await server.stop()


async def test_plain_json(server):
    async with dwell.open(server.url) as queue:
        held = await taken(queue, "1", "2", "3", "4")
        receipts = [message.receipt for message in held.values()]
        ack = {"receipts": receipts[:3], "results": ["text", None, {"a": 1}]}
        assert await asked(server, "POST", "/v1/ack", json=ack) == (200, {"results": ["acked"] * 3})
        data = base64.b64encode(b"\xff\0").decode()
        ack = {"receipts": receipts[3:], "results_base64": [data]}
        assert (await asked(server, "POST", "/v1/ack", json=ack))[1] == {"results": ["acked"]}
    found = [(await asked(server, "GET", f"/v1/topics/t/results/{n}?wait=1s"))[1] for n in "12345"]
    assert found == [
        {"state": "done", "result": "text"},
        {"state": "done"},
        {"state": "done", "result": '{"a": 1}'},
        {"state": "done", "result_base64": data},
        {"state": "unknown"},
    ]


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({"results": ["x", "y"]}, "results: got 2 values, expected 1"),
        ({"results": []}, "results: got 0 values"),
        ({"results": "x"}, "results"),
        ({"results": ["x"], "results_base64": ["eA=="]}, "got results and results_base64"),
        ({"results_base64": ["?"]}, "results_base64[0]: got"),
        ({"results": ["x" * (1024 * 1024 + 1)]}, "results[0]"),
        ({"result": "x"}, "result"),
    ],
)
async def test_bad_results_leave_the_message(server, more, detail):
    async with dwell.open(server.url) as queue:
        held = await taken(queue, "1")
        ack = {"receipts": [held["1"].receipt], **more}
        status, problem = await asked(server, "POST", "/v1/ack", json=ack)
        assert status in (400, 413, 422)
        assert detail in str(problem)
        assert (await queue.result("t", "1")).state == "leased"


@pytest.mark.parametrize(
    "query", ["wait=soon", "wait=6m", "wait_ms=300001", "wait_ms=-1", "wait=1s&wait_ms=1", "x=1"]
)
async def test_bad_waits_are_refused(server, query):
    status, _ = await asked(server, "GET", f"/v1/topics/t/results/1?{query}")
    assert status == 400 or status == 422


async def test_ids_of_dots_have_results(server):
    """In a path they would mean another."""
    ids = [".", "..", "a/../b", "%2e", "1"]
    async with dwell.open(server.url) as queue:
        await queue.put_many("t", ["x"] * len(ids), ids=ids)
        found = await asyncio.gather(*(queue.result("t", id_) for id_ in ids))
        assert [one.state for one in found] == ["ready"] * len(ids)
        assert (await queue.result("t", "..", wait="50ms")).state == "ready"
        assert await asyncio.to_thread(states_of, server.url, ids) == ["ready"] * len(ids)


def states_of(url, ids):
    with dwell.open(url) as queue:
        return [queue.result("t", id_).state for id_ in ids]


async def test_an_error_of_one_result_is_that_callers_alone(server, monkeypatch):
    async with dwell.open(server.url) as queue:
        await queue.put("t", "x", id="good")
        result = HttpStore._result

        async def asked(store, topic, id_, wait_ms):
            if id_ == b"bad":
                raise dwell.errors.StoreError("a proxy")
            return await result(store, topic, id_, wait_ms)

        monkeypatch.setattr(HttpStore, "_result", asked)
        calls = (queue.result("t", id_) for id_ in ("good", "bad", "good"))
        good, bad, again = await asyncio.gather(*calls, return_exceptions=True)
        assert (good.state, str(bad), again.state) == ("ready", "a proxy", "ready")


async def test_results_need_a_right_on_the_topic(tmp_path):
    grants = {
        "worker": 'take = ["t"]',
        "producer": 'put = ["t"]',
        "stranger": 'put = ["u"]\ntake = ["u"]\nread = ["u"]\nadmin = ["u"]',
    }
    async with (
        served(tokens=tokens_of(tmp_path, grants)) as server,
        dwell.open(server.url, token="producer") as producer,
    ):
        await producer.put("t", b"", id="1")
        async with dwell.open(server.url, token="worker") as worker:
            (message,) = await worker.take("t")
            async with dwell.open(server.url, token="stranger") as stranger:
                assert await stranger.ack(message, result="no") is Result.STALE
                with pytest.raises(Forbidden):
                    await stranger.result("t", "1", wait=LONG)
            assert await worker.ack(message, result="yes") is Result.ACKED
            with pytest.raises(Forbidden):
                await worker.result("t", "1")
        assert await producer.result("t", "1", wait=LONG) == Outcome("done", b"yes")


async def test_results_count_in_the_quota(tmp_path):
    grant = 'put = ["t"]\ntake = ["t"]\nquota = { stored_bytes = 5000 }'
    async with (
        served(tokens=tokens_of(tmp_path, {"a": grant})) as server,
        dwell.open(server.url, token="a") as queue,
    ):
        held = await taken(queue, "1", "2", "3")
        with pytest.raises(StoreFull):
            await queue.ack(held["1"], result=bytes(6_000))
        assert await queue.ack(held["1"], result=bytes(4_000)) is Result.ACKED
        with pytest.raises(StoreFull):
            await queue.ack(held["2"], result=bytes(4_000))
        assert await queue.ack(held["2"]) is Result.ACKED
        assert await queue.ack(held["3"], result=b"small") is Result.ACKED


async def test_results_count_in_the_quota_when_no_message_is_left(tmp_path):
    grant = 'put = ["t"]\ntake = ["t"]\nquota = { stored_bytes = 5000 }'
    async with (
        served(tokens=tokens_of(tmp_path, {"a": grant})) as server,
        dwell.open(server.url, token="a") as queue,
    ):
        held = await taken(queue, "1")
        assert await queue.ack(held["1"], result=bytes(4_000)) is Result.ACKED
        # A new look finds no message in the topic.
        server.service.quotas._looks._good_until_s = 0.0
        held = await taken(queue, "2")
        with pytest.raises(StoreFull, match="stored_bytes"):
            await queue.ack(held["2"], result=bytes(4_000))


@pytest.mark.parametrize(
    "more",
    [{"results": ["x" * 6_000]}, {"then": {"body": "x" * 6_000}, "then_topic": "t"}],
    ids=["result", "follow-up"],
)
async def test_a_repeat_of_what_was_never_done_passes_no_quota(tmp_path, more):
    grant = 'put = ["t"]\ntake = ["t"]\nquota = { stored_bytes = 5000 }'
    async with (
        served(
            EmbeddedStore(tmp_path / "store"), tokens=tokens_of(tmp_path, {"a": grant})
        ) as server,
        dwell.open(server.url, token="a") as queue,
        aiohttp.ClientSession(server.url) as session,
    ):
        held = await taken(queue, "1")
        head = {"authorization": "Bearer a", CALL_HEADER: f"{11:x}{AGAIN_MARK}"}
        ask = {"receipts": [held["1"].receipt], **more}
        async with session.post("/v1/ack", json=ask, headers=head) as answer:
            assert answer.status == 507
        assert (await queue.result("t", "1")).state == "leased"


async def test_a_damaged_result_is_an_error_of_its_own(server, monkeypatch):
    async with dwell.open(server.url) as queue:
        held = await taken(queue, *"abc")
        await queue.ack(list(held.values()), results=["1", "2", "3"])
        look = server.service.queue.result

        async def result(topic, id_, **words):
            if id_ == "b":
                raise StoreDamaged("cannot be read")
            return await look(topic, id_, **words)

        monkeypatch.setattr(server.service.queue, "result", result)
        looks = (queue.result("t", id_) for id_ in "abc")
        a, b, c = await asyncio.gather(*looks, return_exceptions=True)
    assert (a.result, c.result) == (b"1", b"3")
    assert isinstance(b, StoreDamaged)


async def test_server_without_results_is_told_of(server):
    """An older server would drop them without a word."""
    async with dwell.open(server.url) as queue:
        held = await taken(queue, "1")
        queue.store._keeps_results = False
        with pytest.raises(StoreError, match="keeps none"):
            await queue.ack(held["1"], result="x")
        assert await queue.ack(held["1"]) is Result.ACKED
