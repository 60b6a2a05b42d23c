"""A token that ends: what it asks, waits for and watches ends with it."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from dwell.server.tokens import Tokens, hash_of
from tests.http.served import served
from tests.http.wire import Wire, request
from tests.waiting import until_async

#: In how long it ends: long enough to begin all that has to end then.
ENDS_S = 1.5


@contextlib.asynccontextmanager
async def ending(folder, ends_s=ENDS_S, **options):
    """Serve somebody whose token ends in a moment."""
    path = folder / "tokens.toml"
    ends = (datetime.now(UTC) + timedelta(seconds=ends_s)).isoformat()
    rights = 'put = [""]\ntake = [""]\nread = [""]\n'
    path.write_text(
        f'[[token]]\nname = "a"\nsha256 = "{hash_of("a")}"\nexpires = {ends}\n{rights}'
        f'[[token]]\nname = "b"\nsha256 = "{hash_of("b")}"\n{rights}'
    )
    path.chmod(0o600)
    async with (
        asyncio.timeout(60),
        served(tokens=Tokens.load(path), **options) as server,
        aiohttp.ClientSession() as session,
    ):
        yield server, session


def _asks(server, session, path, body, who="a"):
    head = {"authorization": f"Bearer {who}"}
    return session.post(server.url + path, json=body, headers=head)


async def test_a_wait_ends_with_its_token(tmp_path):
    async with ending(tmp_path) as (server, session):
        ask = {"topics": "t", "wait": "1m"}
        waits = [asyncio.ensure_future(_asks(server, session, "/v1/take", ask, n)) for n in "ab"]
        await until_async(lambda: len(server.port.waits) == 2)
        answer = await waits[0]
        assert answer.status == 401
        problem = await answer.json(content_type=None)
        assert (problem["error"], problem["detail"]) == ("Unauthorized", "the token has ended")
        # What falls due then is for others.
        await server.queue.put("t", "x")
        assert len((await (await waits[1]).json())["messages"]) == 1


@pytest.mark.parametrize(
    ("path", "ask"), [("/v1/push", {"topics": "t"}), ("/v1/watch", {"overview": {}})]
)
async def test_a_stream_ends_with_its_token(tmp_path, path, ask):
    async with ending(tmp_path) as (server, session), _asks(server, session, path, ask) as answer:
        assert answer.status == 200
        await answer.content.read()
        assert server.port.waits.streams == {}
        await server.queue.put("t", "x")
        assert (await server.queue.stats()).topics["t"].ready == 1


async def test_a_kept_connection_is_refused_from_then_on(tmp_path):
    async with ending(tmp_path) as (server, _session):
        wire = Wire(*await asyncio.open_connection(*server.port.address))
        ask = request("POST", "/v1/take", {"topics": "t"}, authorization="Bearer a")
        answer = await wire.ask(ask)
        assert answer.status == 200
        while answer.status == 200:
            answer = await wire.ask(ask)
        assert answer.status == 401
        assert b"the token has ended" in answer.data


async def test_a_body_that_comes_after_the_end_is_refused(tmp_path):
    async with ending(tmp_path) as (server, _session):
        wire = Wire(*await asyncio.open_connection(*server.port.address))
        whole = request("POST", "/v1/topics/t/messages", {"body": "x"}, authorization="Bearer a")
        await wire.send(whole[:-1])
        await until_async(lambda: server.service.in_flight.requests == 1)
        await until_async(lambda: server.service.tokens.next_end_ms is None)
        await wire.send(whole[-1:])
        assert (await wire.answer()).status == 401
        assert "t" not in (await server.queue.stats()).topics


async def test_a_later_end_is_heard_of_by_a_reload(tmp_path):
    async with ending(tmp_path, ends_s=3600) as (server, session):
        ask = {"topics": "t", "wait": "1m"}
        wait = asyncio.ensure_future(_asks(server, session, "/v1/take", ask))
        await until_async(lambda: len(server.port.waits) == 1)
        tokens = server.service.tokens
        soon = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
        lines = tokens.path.read_text().splitlines()
        lines = [f"expires = {soon}" if line.startswith("expires") else line for line in lines]
        tokens.path.write_text("\n".join(lines))
        tokens.reload()
        assert (await wait).status == 401
