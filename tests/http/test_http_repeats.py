"""Requests whose answers are lost: repeated, done once, and told what was done."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import dwell
from dwell import Result
from dwell.client import connection
from dwell.server.tokens import Tokens, hash_of
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.wire.problems import problem_of
from tests.http.between import between
from tests.http.served import served
from tests.http.wire import Wire, request
from tests.server.process import ServerProcess
from tests.waiting import PATIENCE_S, until_async

CALLERS = 64
PUT = "/v1/topics/t/messages"


@pytest.fixture(params=["open", "with tokens"])
def tokens(request, tmp_path):
    if request.param == "open":
        return None
    path = tmp_path / "tokens.toml"
    rights = 'admin = [""]\nput = [""]\ntake = [""]\n'
    path.write_text(f'[[token]]\nname = "me"\nsha256 = "{hash_of("secret")}"\n{rights}')
    path.chmod(0o600)
    return Tokens(path)


async def test_no_caller_notices_that_the_server_was_killed_and_came_back(tmp_path: Path):
    store, done, kills = tmp_path / "store", Counter(), 3
    is_over = asyncio.Event()

    async def call(queue: dwell.Queue, name: int) -> None:
        for number in range(100_000):
            if is_over.is_set():
                return
            id_ = f"{name}-{number}"
            assert (await queue.put("made", "x")).result is Result.CREATED
            assert (await queue.put("own", "x", id=id_)).result is Result.CREATED
            assert await queue.reschedule("own", id_, delay="1h") is Result.MOVED
            assert await queue.cancel("own", id_) is Result.CANCELLED
            done["put"] += 1
            taken = await queue.take("made", lease="1h")
            if len(taken):
                assert await queue.ack(taken[0]) is Result.ACKED
                done["acked"] += 1

    server = ServerProcess(store=store)
    url = server.url("")
    port = url.rsplit(":", 1)[1]
    try:
        async with dwell.open(url, connections=CALLERS) as queue:
            callers = [asyncio.ensure_future(call(queue, name)) for name in range(CALLERS)]
            for _ in range(kills):
                seen = done["acked"]
                while done["acked"] < seen + 200:
                    assert not any(caller.done() for caller in callers)
                    await asyncio.sleep(0.02)
                server.__exit__()
                server = ServerProcess("--http", f"127.0.0.1:{port}", store=store)
                await asyncio.to_thread(server.ready)
            is_over.set()
            await asyncio.gather(*callers)
            counts = (await queue.stats()).topics["made"]
    finally:
        is_over.set()
        server.__exit__()
    # No message waits for the end of a lease whose answer was lost.
    assert (counts.ready, counts.leased) == (done["put"] - done["acked"], 0)


async def test_a_repeat_after_a_lost_answer_is_told_what_was_done(tmp_path, tokens):
    store = EmbeddedStore(tmp_path / "store")
    async with served(store, tokens=tokens) as server, between(server.url) as proxy:
        token = None if tokens is None else "secret"
        async with dwell.open(proxy.url, token=token) as queue:

            async def after_a_lost_answer(call):
                proxy.break_("mute", requests=1)
                return await call

            put = await after_a_lost_answer(queue.put_many("t", ["x"] * 3))
            assert [one.result for one in put] == [Result.CREATED] * 3
            own = await after_a_lost_answer(queue.put("t", "x", id="own"))
            assert own.result is Result.CREATED
            assert await after_a_lost_answer(queue.cancel("t", "own")) is Result.CANCELLED
            first, second, third = await queue.take("t", 10, lease="1h")
            then = dwell.Then("next", "x", result="r")
            assert await after_a_lost_answer(queue.ack(first, then=then)) is Result.ACKED
            assert (await queue.stats()).topics["next"].ready == 1
            assert (await queue.result("t", first.id)).result == b"r"
            assert await after_a_lost_answer(queue.release(second)) is Result.RELEASED
            assert await after_a_lost_answer(queue.bury(third)) is Result.BURIED
            assert await after_a_lost_answer(queue.kick("t", third.id)) is Result.KICKED
            counts = (await queue.stats()).topics["t"]
            assert (counts.ready, counts.leased, counts.dead) == (2, 0, 0)


@pytest.mark.parametrize("store", ["folder", "memory"])
async def test_a_take_that_is_late_is_repeated_if_the_store_can_undo_it(tmp_path, store):
    kept = (
        EmbeddedStore(tmp_path / "store") if store == "folder" else MemoryStore(dwell.RealClock())
    )
    async with (
        served(kept) as server,
        between(server.url) as proxy,
        dwell.open(proxy.url, timeout=0.2) as queue,
    ):
        await queue.put("t", "x")
        proxy.break_("silent", 1)
        before = proxy.requests
        if store == "folder":
            (message,) = await queue.take("t")
            assert (message.attempt, message.body) == (1, b"x")
            assert await queue.ack(message) is Result.ACKED
        else:
            with pytest.raises(dwell.ServerUnreachable):
                await queue.take("t")
            assert proxy.requests == before + 1


@pytest.mark.parametrize("wait", [0, "30s"])
async def test_a_take_whose_answer_was_lost_gives_its_messages(tmp_path, tokens, wait):
    store = EmbeddedStore(tmp_path / "store")
    async with served(store, tokens=tokens) as server, between(server.url) as proxy:
        token = None if tokens is None else "secret"
        async with dwell.open(proxy.url, token=token) as queue:
            await queue.put_many("t", ["x"] * 3)
            other = await queue.take("t", lease="1h")
            for _ in range(2):
                # The server believes that the answer has arrived.
                proxy.break_("mute", requests=1)
                batch = await queue.take("t", 10, lease="1h", wait=wait)
                assert batch.attempt.tolist() == [1, 1]
                assert await queue.release(batch, counted=False) == [Result.RELEASED] * 2
            assert await queue.ack(other) == [Result.ACKED]


async def test_nothing_is_repeated_that_the_server_may_have_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_KNOWN_S", 0.0)
    store = EmbeddedStore(tmp_path / "store")
    async with (
        served(store) as server,
        between(server.url) as proxy,
        dwell.open(proxy.url) as queue,
    ):
        proxy.break_("mute", requests=1)
        with pytest.raises(dwell.ServerUnreachable):
            await queue.put("t", "x")
        assert proxy.requests == 2
        await queue.put("t", "x")
        assert (await queue.stats()).topics["t"].ready == 2
        # A take that is made anew doubles nothing.
        proxy.break_("mute", requests=1)
        assert len(await queue.take("t", 10)) == 2


async def test_a_repeat_waits_no_longer_than_the_server_knows_it(tmp_path, monkeypatch):
    """It may be done when it arrives at last, which is too late then."""
    monkeypatch.setattr(connection, "_KNOWN_S", 0.5)
    store = EmbeddedStore(tmp_path / "store")
    async with (
        served(store) as server,
        between(server.url) as proxy,
        dwell.open(proxy.url, timeout=10 * PATIENCE_S) as queue,
    ):
        proxy.break_("mute", requests=1)
        putting = asyncio.ensure_future(queue.put("t", "x"))
        await until_async(lambda: proxy.faults)
        proxy.break_("silent")
        with pytest.raises(dwell.ServerUnreachable):
            await asyncio.wait_for(putting, PATIENCE_S)


@pytest.mark.parametrize("refused", [dwell.errors.ServerBusy, dwell.errors.Forbidden])
async def test_what_may_have_been_done_is_not_said_to_be_refused(tmp_path, refused):
    store = EmbeddedStore(tmp_path / "store")
    async with (
        served(store) as server,
        between(server.url) as proxy,
        dwell.open(proxy.url, retries=2) as queue,
    ):
        problem = problem_of(refused("no more"))
        body = msgspec.json.encode(problem)
        head = f"HTTP/1.1 {problem.status} no\r\ncontent-length: {len(body)}\r\n\r\n"
        proxy.error = head.encode() + body
        proxy.break_("mute", requests=1)
        putting = asyncio.ensure_future(queue.put("t", "x"))
        await until_async(lambda: proxy.faults)
        proxy.break_("error")
        with pytest.raises(dwell.ServerUnreachable, match="no more; it may have been done"):
            await putting
        with pytest.raises(refused):
            await queue.put("t", "x")


async def test_a_store_that_keeps_no_answers_refuses_repeats():
    """Its caller knows the store that was there before."""
    async with served(MemoryStore(dwell.RealClock())) as server:
        wire = await Wire.open(server)
        first = await wire.ask(request("POST", PUT, {"body": "x"}, dwell_call="1f00"))
        assert first.status == 200
        again = await wire.ask(request("POST", PUT, {"body": "x"}, dwell_call="1f00;again"))
        assert again.value["error"] == "ServerUnreachable"
        assert "may have been done" in again.value["detail"]
        assert (await server.queue.stats()).totals["put"] == 1


async def test_a_repeat_ends_the_wait_of_the_send_before(tmp_path):
    """The first send waits on a connection whose loss the server does not see."""
    async with served(EmbeddedStore(tmp_path / "store")) as server:
        first, second = await Wire.open(server), await Wire.open(server)
        ask = {"topics": "t", "lease": "1h", "wait": "300s", "poll": "p"}
        waiting = asyncio.ensure_future(
            first.ask(request("POST", "/v1/take", ask, dwell_call="1f00"))
        )
        await until_async(lambda: server.queue.waiting.get("t"))
        again = asyncio.ensure_future(
            second.ask(request("POST", "/v1/take", ask, dwell_call="1f01;again"))
        )
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).value["messages"] == []
        await until_async(lambda: server.queue.waiting.get("t"))
        await server.queue.put("t", "x")
        assert len((await again).value["messages"]) == 1


async def test_a_send_that_arrives_after_its_repeat_takes_nothing(tmp_path):
    async with served(EmbeddedStore(tmp_path / "store")) as server:
        wire = await Wire.open(server)
        await server.queue.put_many("t", ["x"] * 2)
        ask = {"topics": "t", "lease": "1h"}
        repeat = await wire.ask(request("POST", "/v1/take", ask, dwell_call="1f01;again"))
        assert len(repeat.value["messages"]) == 1
        late = await wire.ask(request("POST", "/v1/take", ask, dwell_call="1f00"))
        assert late.value["messages"] == []
        other = await wire.ask(request("POST", "/v1/take", ask, dwell_call="2f00"))
        assert len(other.value["messages"]) == 1


async def test_a_repeat_that_is_late_takes_nothing_from_a_later_one(tmp_path):
    async with served(EmbeddedStore(tmp_path / "store")) as server:
        wire = await Wire.open(server)
        await server.queue.put_many("t", ["x"] * 3)

        async def take(number):
            ask = {"topics": "t", "limit": 3, "lease": "1h"}
            told = await wire.ask(request("POST", "/v1/take", ask, dwell_call=number))
            return [one["receipt"] for one in told.value["messages"]]

        first = await take("1f00")
        second = await take("1f01;again")
        assert len(first) == len(second) == 3
        assert not {*first} & {*second}
        third = await take("1f02;again")
        # The second request came late and has undone only the first.
        assert await take("1f01;again") == []
        assert await server.queue.ack(third) == [Result.ACKED] * 3
        assert await server.queue.ack(second) == [Result.STALE] * 3
        assert await take("1f03;again") == []


async def test_a_repeat_is_told_what_was_done_by_a_server_that_drains(tmp_path):
    store = EmbeddedStore(tmp_path / "store")
    async with (
        served(store) as server,
        between(server.url) as proxy,
        dwell.open(proxy.url, retries=2) as queue,
    ):
        proxy.break_("mute", requests=1)
        putting = asyncio.ensure_future(queue.put("t", "x"))
        await until_async(lambda: proxy.faults)
        server.service.is_draining = True
        assert (await putting).result is Result.CREATED
        with pytest.raises(dwell.errors.ServerDraining):
            await queue.put("t", "y")


@pytest.mark.parametrize("ids", [("a", "b"), (None, None)])
async def test_a_repeat_brings_nothing_new_to_a_server_that_drains(ids, tmp_path):
    rows = [{"body": "x", **({"id": id_} if id_ else {})} for id_ in ids]
    async with served(EmbeddedStore(tmp_path / "store")) as server:
        wire = await Wire.open(server)
        first = await wire.ask(request("POST", PUT, rows[:1], dwell_call="1f"))
        both = await wire.ask(request("POST", PUT, rows, dwell_call="1f00"))
        server.service.is_draining = True
        again = await wire.ask(request("POST", PUT, rows[:1], dwell_call="1f;again"))
        assert (again.status, again.value) == (200, first.value)
        longer = await wire.ask(request("POST", PUT, rows, dwell_call="1f;again"))
        assert (longer.status, longer.value["error"]) == (503, "ServerDraining")
        if ids[0] is None:
            again = await wire.ask(request("POST", PUT, rows, dwell_call="1f00;again"))
            assert (again.status, again.value) == (200, both.value)
        assert (await server.queue.stats()).totals["put"] == (2 if ids[0] else 3)


@pytest.mark.parametrize("status", ["408 Request Timeout", "502 Bad Gateway", "504 Timeout"])
async def test_a_take_that_a_proxy_answers_with_an_error_leases_once(tmp_path, status):
    """The server has handed the messages over, and each repeat releases them."""
    async with (
        served(EmbeddedStore(tmp_path / "store")) as server,
        between(server.url) as proxy,
        dwell.open(proxy.url, retries=2) as queue,
    ):
        await queue.put_many("t", ["x"] * 100)
        proxy.error = f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode()
        proxy.break_("error", only=b"/v1/take")
        with pytest.raises(dwell.ServerUnreachable):
            await queue.take("t", 10, lease="1h")
        assert proxy.requests > 2
        proxy.break_("pass")
        assert (await queue.stats()).topics["t"].leased == 10


@pytest.mark.parametrize("said", ["", "xyz", "0", "-1", "4000000000000000", "1;Again", "1" * 17])
async def test_a_call_number_that_is_none_is_refused(said, tmp_path):
    async with served(EmbeddedStore(tmp_path / "store")) as server:
        wire = await Wire.open(server)
        answer = await wire.ask(request("POST", PUT, {"body": "x"}, dwell_call=said))
        assert (answer.status, answer.value["error"]) == (400, "InvalidInput")
        assert "dwell-call: got" in answer.value["detail"]
        assert (await server.queue.stats()).totals["put"] == 0


async def test_any_client_may_number_its_requests(tmp_path):
    async with served(EmbeddedStore(tmp_path / "store")) as server:
        wire = await Wire.open(server)
        first = await wire.ask(request("POST", PUT, {"body": "x"}, dwell_call="1f"))
        again = await wire.ask(request("POST", PUT, {"body": "x"}, dwell_call="1f;again"))
        assert again.value == first.value
        assert (await wire.ask(request("GET", "/v1/store"))).value["keeps_calls"] is True


async def test_a_number_is_not_inherited_by_the_request_behind_it(tmp_path):
    """Answers of one turn of the loop are sent in the context of the first one."""
    async with served(EmbeddedStore(tmp_path / "store")) as server:
        wires = [await Wire.open(server) for _ in range(2)]
        for number in range(1, 20):
            call = f"{number << 16:x}"
            await wires[0].ask(request("POST", PUT, {"body": "a"}, dwell_call=call))
            await wires[0].send(request("POST", PUT, b"{bad", dwell_call=f"{call};again"))
            await wires[1].send(request("GET", "/v1/store") + request("POST", PUT, {"body": "b"}))
            await wires[0].answer()
            await wires[1].answer()
            await wires[1].answer()
        assert (await server.queue.stats()).totals["put"] == 2 * 19
