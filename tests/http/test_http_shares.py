"""How much of a server one token may have under way: not all of it, whatever it asks for."""

import asyncio
import contextlib

import pytest

import dwell
from dwell.server.inflight import InFlight
from dwell.server.shares import Share
from dwell.server.tokens import Tokens, hash_of
from dwell.store.memory import MemoryStore
from tests.beanstalk.served import Line
from tests.beanstalk.served import Served as BeanstalkServed
from tests.http.test_http_api import NDJSON, Caller, calling
from tests.waiting import until, until_async

GRANTS = 'put = [""]\ntake = [""]\nadmin = [""]\n'


def tokens_in(folder):
    """Return the tokens a and b, and somebody without one, who may all do everything."""
    path = folder / "tokens.toml"
    entries = (f'[[token]]\nname = "{n}"\nsha256 = "{hash_of(n)}"\n{GRANTS}' for n in "ab")
    path.write_text(f"[anonymous]\n{GRANTS}" + "".join(entries))
    path.chmod(0o600)
    return Tokens.load(path)


@contextlib.asynccontextmanager
async def tenants(folder, in_flight=None):
    """Give a function that asks as somebody, of a server of which each may have a half."""
    given = {} if in_flight is None else {"in_flight": in_flight}
    async with calling(tokens=tokens_in(folder), **given) as caller:
        service = caller.server.service
        service.token_percent, service.most_waiting = 50, 4

        async def ask(who, path, body, **more):
            one = Caller(caller.server, caller.session)
            head = {"authorization": f"Bearer {who}"} if who else {}
            answer = await one.post(path, body, **head, **more)
            return one.status, answer

        yield ask, service


@pytest.mark.parametrize("who", ["a", ""])
async def test_the_takes_of_one_token_do_not_keep_others_from_waiting(tmp_path, who):
    async with tenants(tmp_path) as (ask, service):
        long = {"topics": "t", "wait_ms": 60_000, "poll": ""}
        waits = [asyncio.ensure_future(ask(who, "/v1/take", {**long, "poll": n})) for n in "xy"]
        await until_async(lambda: service.share_of(who).waiting == 2)
        status, problem = await ask(who, "/v1/take", long)
        assert (status, problem["error"]) == (429, "ServerBusy")
        whose = "token a: " if who else "callers without a token: "
        assert problem["detail"] == f"{whose}2 takers wait, at most 2 may"
        # What does not wait is still answered, and others may wait.
        assert (await ask(who, "/v1/take", {"topics": "t"}))[0] == 200
        assert (await ask("b", "/v1/take", {"topics": "t", "wait_ms": 1}))[0] == 200
        for name in "xy":
            await ask(who, f"/v1/polls/{name}/end", {})
        assert [status for status, _ in await asyncio.gather(*waits)] == [200, 200]
        assert service.share_of(who).waiting == 0
        assert (await ask(who, "/v1/take", {"topics": "t", "wait_ms": 1}))[0] == 200


@pytest.mark.parametrize(("topics", "at_once"), [(1, 12), (100, 12), (101, 8)])
async def test_takes_of_many_topics_come_few_at_a_time(tmp_path, monkeypatch, topics, at_once):
    take, under_way = MemoryStore.take, 0
    seen = []

    async def slow(*asked, **more):
        nonlocal under_way
        under_way += 1
        seen.append(under_way)
        await asyncio.sleep(0.05)
        under_way -= 1
        return await take(*asked, **more)

    monkeypatch.setattr(MemoryStore, "take", slow)
    async with tenants(tmp_path) as (ask, _):
        names = [[f"{at}.{n}" for n in range(topics)] for at in range(12)]
        asked = [ask("a", "/v1/take", {"topics": some}) for some in names]
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}
        assert (len(seen), max(seen)) == (12, at_once)


async def test_streams_count_as_takes_that_wait(tmp_path):
    async with calling(tokens=tokens_in(tmp_path)) as caller:
        service = caller.server.service
        service.token_percent, service.most_waiting = 50, 4
        url, ask = caller.server.url + "/v1/push", {"topics": "t"}
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                head = {"authorization": "Bearer a"}
                stream = caller.session.post(url, json=ask, headers=head)
                assert (await stack.enter_async_context(stream)).status == 200
            await until_async(lambda: service.share_of("a").waiting == 2)
            await caller.post("/v1/push", ask, authorization="Bearer a")
            assert caller.status == 429
        await until_async(lambda: service.share_of("a").waiting == 0)


async def _slowly(begun):
    yield b"x" * 700_000
    begun.set()
    await asyncio.sleep(60)


async def test_the_bytes_and_requests_of_one_token_leave_room_for_others(tmp_path):
    in_flight = InFlight(4, 2 << 20)
    async with tenants(tmp_path, in_flight) as (ask, service):
        path = "/v1/topics/t/messages"
        begun = asyncio.Event()
        slow = asyncio.ensure_future(ask("a", path, _slowly(begun), content=NDJSON))
        await begun.wait()
        await until_async(lambda: in_flight.size_bytes >= 700_000)
        status, problem = await ask("a", path, {"body": "x" * 500_000})
        assert (status, problem["error"]) == (429, "ServerBusy")
        assert problem["detail"].startswith("token a: 2 requests of ")
        assert (await ask("b", path, {"body": "x" * 500_000}))[0] == 200
        other = asyncio.ensure_future(ask("a", path, _slowly(asyncio.Event()), content=NDJSON))
        await until_async(lambda: service.share_of("a").requests >= 1)
        slow.cancel()
        other.cancel()
        await asyncio.gather(slow, other, return_exceptions=True)
        await until_async(lambda: in_flight.requests == 0)
        share = service.share_of("a")
        assert (share.requests, share.size_bytes, in_flight.size_bytes) == (0, 0, 0)
        assert (await ask("a", path, {"body": "x"}))[0] == 200


def test_a_share_counts_at_the_server_too():
    in_flight = InFlight(4, 1000)
    share = Share("token a: ", in_flight, 10, 50)
    share.enter(300)
    in_flight.enter()
    share.join()
    assert (share.requests, in_flight.requests, in_flight.size_bytes) == (2, 2, 300)
    with pytest.raises(dwell.DwellError, match="token a: 2 requests of 300 bytes"):
        share.enter()
    with share.left():
        assert (share.requests, in_flight.requests, share.waiting) == (1, 1, 1)
    share.leave()
    share.leave(300)
    assert (share.requests, share.size_bytes) == (0, 0)
    assert (in_flight.requests, in_flight.size_bytes) == (0, 0)
    # What the server refuses is not counted here.
    in_flight.enter(900)
    with pytest.raises(dwell.DwellError, match="1 requests of 900 bytes"):
        share.enter(200)
    assert (share.requests, share.size_bytes) == (0, 0)


def test_what_comes_by_beanstalk_is_a_share_too(tmp_path):
    in_flight = InFlight(100, 2 << 20)
    with BeanstalkServed(tokens=tokens_in(tmp_path), in_flight=in_flight) as served:
        share = served.service.share_of("")
        with Line(served.number) as line:
            line.put()
            assert (share.requests, share.size_bytes, in_flight.requests) == (0, 0, 0)
            line.send(b"put 0 0 60 1000\r\n" + b"x" * 500)
            until(lambda: 0 < share.size_bytes == in_flight.size_bytes)
            assert share.requests == 1
        until(lambda: (share.requests, share.size_bytes, in_flight.requests) == (0, 0, 0))
