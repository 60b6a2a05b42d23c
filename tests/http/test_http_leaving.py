"""Clients that leave: what an answer could not hand over is given back, and nothing else."""

import asyncio
import json
import socket
import struct

import pytest

from dwell.clock import RealClock
from dwell.message import Result
from dwell.server.http import takes
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from tests.http import wire
from tests.http.served import served
from tests.http.wire import request
from tests.waiting import until_async

pytestmark = pytest.mark.uvloop

TAKE = request("POST", "/v1/take", {"topics": "t", "limit": 10_000})
POP = request("POST", "/command", {"command": "pop", "topic": "t"})
WHERE = request("POST", "/v1/topics/t/take-where", {"where": "a", "limit": 10})
IDS = request("POST", "/v1/take", {"topics": "t", "ids": ["x"]})
PUSH = request("POST", "/v1/push", {"topics": "t", "credit": 100})


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore(RealClock())
    return EmbeddedStore(tmp_path / "store")


def states(server, *expected):
    """Return a condition: so many messages of the topic are ready, and so many leased."""

    async def condition():
        stats = (await server.queue.stats()).topics["t"]
        return (stats.ready, stats.leased) == expected

    return condition


async def gone(server):
    """Tell whether the server knows that nobody is there."""
    return not server.port.connections


async def waits(server):
    """Tell whether a take waits."""
    return bool(server.queue.waiting)


class Client:
    """A connection that can leave without a word."""

    def __init__(self, server, buffer_bytes=0):
        self.socket = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.connect(server.port.address)

    def ask(self, data):
        self.socket.sendall(data)

    async def read(self):
        """Read one answer, and return the messages in it."""
        return json.loads((await self.read_whole())[1])["messages"]

    async def read_until(self, mark):
        """Read until something stands in what came; return all that did."""
        self.socket.setblocking(False)
        loop, data = asyncio.get_running_loop(), b""
        while mark not in data:
            data += await loop.sock_recv(self.socket, 1 << 16)
        return data

    async def read_whole(self):
        loop, data = asyncio.get_running_loop(), await self.read_until(b"\r\n\r\n")
        head, _, body = data.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < size:
            body += await loop.sock_recv(self.socket, 1 << 16)
        return head, body

    def leave(self, *, reset):
        """Close, as a program does that ends, or with a reset, as one does that has not read."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
@pytest.mark.parametrize(
    "ask", [TAKE, IDS, WHERE, POP, PUSH], ids=["take", "ids", "where", "pop", "push"]
)
async def test_what_a_client_asked_for_and_did_not_wait_for_is_given_back(store, ask, reset):
    if not reset and isinstance(store, MemoryStore):
        pytest.skip("the answer is with the system before it says that the client has gone")
    async with served(store) as server:
        await server.queue.put("t", {"a": 1}, id="x", lease="1h")
        for _ in range(5):
            # All of it comes to the server in one turn of its loop: the request, and the end.
            client = Client(server)
            client.ask(ask)
            client.leave(reset=reset)
        # They were accepted before this one, which is answered.
        assert (await wire.ask(server, request("GET", "/healthz"))).status == 200
        await until_async(lambda: gone(server))
        await until_async(states(server, 1, 0))
        (message,) = await server.queue.take("t")
        assert message.attempt == 1


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
async def test_what_a_client_was_sent_stays_its_own(store, reset):
    async with served(store) as server:
        for _ in range(20):
            await server.queue.put("t", "x")
            client = Client(server)
            client.ask(TAKE)
            (message,) = await client.read()
            client.leave(reset=reset)
            await until_async(lambda: gone(server))
            assert (await server.queue.ack(message["receipt"])) is Result.ACKED


@pytest.mark.parametrize("ask", [TAKE, PUSH], ids=["take", "push"])
async def test_an_answer_of_which_the_system_has_a_part_only_is_given_back(store, ask):
    async with served(store) as server:
        # Longer than it waits here, as a lease that ends gives back too.
        await server.queue.configure("t", lease_ms=3_600_000)
        await server.queue.put_many("t", ["x" * 100_000] * 100)
        client = Client(server, buffer_bytes=4096)
        client.ask(ask)
        await client.read_until(b"xxx")
        await until_async(states(server, 0, 100))
        client.leave(reset=True)
        await until_async(states(server, 100, 0))


async def test_an_answer_that_is_read_slowly_stays_its_readers(store):
    async with served(store) as server:
        await server.queue.put_many("t", ["x" * 100_000] * 100)
        client = Client(server, buffer_bytes=4096)
        client.ask(TAKE)
        messages = await client.read()
        client.leave(reset=True)
        await until_async(lambda: gone(server))
        results = await server.queue.ack([message["receipt"] for message in messages])
        assert results.count(Result.ACKED) == 100


async def test_a_stream_gives_back_what_came_as_its_reader_left(store):
    async with served(store) as server:
        for _ in range(20):
            client = Client(server)
            client.ask(PUSH)
            client.socket.setblocking(False)
            head = await asyncio.get_running_loop().sock_recv(client.socket, 1 << 16)
            assert head.startswith(b"HTTP/1.1 200")
            await until_async(lambda: waits(server))
            client.leave(reset=True)
            await server.queue.put("t", "x", lease="1h")
            await until_async(lambda: gone(server))
            await until_async(states(server, 1, 0))
            assert (await server.queue.ack(await server.queue.take("t"))).count(Result.ACKED) == 1


async def test_an_answer_that_cannot_be_made_gives_back_what_it_would_hold(monkeypatch):
    def fail(batch, **how):
        raise MemoryError

    monkeypatch.setattr(takes, "message_rows", fail)
    async with served(MemoryStore(RealClock())) as server:
        await server.queue.put("t", "x", lease="1h")
        client = Client(server)
        client.ask(TAKE)
        head, _ = await client.read_whole()
        assert head.startswith(b"HTTP/1.1 503 ")
        await until_async(states(server, 1, 0))
        client.leave(reset=False)
