"""Connections: each request has one answer that arrives, and nothing of one outlives it."""

import asyncio
import gc
import os
import socket
import ssl
import threading

import pytest

from dwell.server import listening, tls
from dwell.server.http.call import Call
from dwell.server.http.port import HttpPort
from dwell.server.http.protocol import MOST_HEADERS, Protocol
from dwell.server.inflight import InFlight
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.disk import Disk
from tests.alive import newcomers
from tests.http.served import served
from tests.http.wire import Wire, ask, request
from tests.server.certificates import make_certificate
from tests.turns import MostInATurn
from tests.waiting import until_async

PUT = (
    b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
CHUNKED = PUT + b"transfer-encoding: chunked\r\n\r\n"
TAKE = request("POST", "/v1/take", {"topics": "t", "limit": 100, "lease_ms": 3_600_000})


class HeldDisk(Disk):
    """A disk whose syncs wait for the test."""

    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()

    def sync(self, fd):
        assert self.go_on.wait(60)
        super().sync(fd)


def opened():
    return served()


def chunks(data, size):
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


async def test_a_connection_that_ends_leaves_nothing_behind():
    async with opened() as server:
        gc.collect()
        alive = newcomers(Call, Protocol)
        gc.disable()
        try:
            for data in (
                PUT + b"content-length: 2000000\r\n\r\n" + b" " * 1_000_000,
                CHUNKED,
                b"GET ",
            ):
                wire = await Wire.open(server)
                await wire.send(data)
                await until_async(lambda: server.port.connections)
                wire.close()
                await until_async(lambda: not server.port.connections)
            await until_async(lambda: not alive())
        finally:
            gc.enable()
        assert server.service.in_flight.size_bytes == server.service.in_flight.requests == 0


@pytest.mark.parametrize("size", [1, 2, 1000, 70_000, 300_000])
@pytest.mark.parametrize("filling", [b"\n", b"\r\n", b"\r", b" "])
async def test_a_body_in_chunks_is_read_whatever_it_holds(size, filling):
    body = b'{"body":"x"%b}' % (filling * (3_000 if size < 1000 else 200_000))
    async with opened() as server, asyncio.timeout(30):
        wire = await Wire.open(server)
        for _ in range(2):
            assert (await wire.ask(CHUNKED + chunks(body, size))).status == 200
        wire.close()


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_messages_of_who_has_left_are_given_back_before_a_stop(tmp_path, way):
    disk = HeldDisk()
    async with served(EmbeddedStore(tmp_path / "store", disk=disk)) as server:
        await server.queue.put_many("t", ["x"] * 50)
        disk.go_on.clear()
        try:
            connections, wires = server.port.connections, []
            for _ in range(50):
                wires.append(await Wire.open(server))
                await wires[-1].send(request("POST", "/v1/take", {"topics": "t"}))
            await until_async(lambda: sum(one._answering is not None for one in connections) == 50)
            for wire in wires:
                getattr(wire, way)()
            gone = {"close": "is_ended", "reset": "is_lost"}[way]
            await until_async(lambda: all(getattr(one._delivery, gone) for one in connections))
            stopping = asyncio.create_task(server.port.stop())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not stopping.done()
        finally:
            disk.go_on.set()
        await stopping
        assert (await server.queue.stats()).topics["t"].leased == 0


async def test_the_next_request_waits_for_who_reads_the_answer_before():
    async with opened() as server:
        await server.queue.put_many("t", ["x" * 100_000] * 100)
        wire = await Wire.open(server, 4096)
        wire.reader._transport.pause_reading()
        await wire.send(TAKE + TAKE)
        (connection,) = server.port.connections
        await until_async(lambda: connection._is_paused and connection._answering is None)
        for _ in range(20):
            await asyncio.sleep(0)
        assert connection._held
        assert connection._answering is None
        wire.close()


async def test_an_answer_that_nobody_reads_is_given_back_when_a_stop_has_no_more_time():
    async with opened() as server:
        await server.queue.put_many("t", ["x" * 100_000] * 100)
        wire = await Wire.open(server, 4096)
        wire.reader._transport.pause_reading()
        await wire.send(TAKE)
        await until_async(lambda: any(one._is_paused for one in server.port.connections))
        stopping = asyncio.create_task(server.port.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        stopping.cancel()
        await asyncio.wait([stopping])
        assert (await server.queue.stats()).topics["t"].ready == 100
        wire.close()


@pytest.mark.parametrize("path", ["/nope", "/v1/topics/t/messages"])
async def test_a_refusal_arrives_although_its_body_is_still_sent(path):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\norigin: http://example.org\r\n"
    async with opened() as server, asyncio.timeout(30):
        for _ in range(5):
            wire = await Wire.open(server)
            await wire.send(f"{head}content-length: 20000000\r\n\r\n".encode())
            for _ in range(200):
                await wire.send(b" " * 100_000)
                await asyncio.sleep(0)
            assert (await wire.answer()).status in (403, 404)
            assert await wire.ended() == b""
            wire.close()


@pytest.mark.parametrize(
    "data",
    [
        b"POST /nope HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /nope HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: identity\r\n\r\n",
        PUT + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        PUT + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
        b'a\r\n{"body":1}\r\n0\r\n\r\n',
        PUT.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"zz\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * (MOST_HEADERS + 1) + b"\r\n",
        b"GET /healthz HTTP/1.1\r\n"
        + b"".join(b"a%d: b\r\n" % n for n in range(MOST_HEADERS + 1))
        + b"host: localhost\r\n\r\n",
    ],
)
async def test_one_answer_to_what_is_no_request(data):
    async with opened() as server:
        wire = await Wire.open(server)
        await wire.send(data)
        wire.writer.write_eof()
        said = await wire.ended()
        assert said.count(b"HTTP/1.1 ") == 1
        assert said.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 ", b"HTTP/1.1 403 "))
        wire.close()


async def test_white_space_around_a_header_says_nothing():
    async with opened() as server:
        assert (await ask(server, request("GET", "/healthz", host=" localhost \t"))).status == 200
        old = b"POST /v1/take HTTP/1.0\r\nhost: localhost\r\nexpect: 100-continue\r\n"
        old += b"content-type: application/json\r\ncontent-length: 14\r\n\r\n"
        wire = await Wire.open(server)
        await wire.send(old)
        await wire.send(b'{"topics":"t"}')
        assert (await wire.answer()).status == 200
        wire.close()


async def test_an_answer_over_tls_is_read_to_its_end_by_a_slow_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(listening, "_HANDSHAKE_S", 0.5)
    cert, key = make_certificate(tmp_path)
    os.chmod(key, 0o600)
    async with opened() as server, asyncio.timeout(50):
        port = HttpPort(server.service, "127.0.0.1", 0, ssl=tls.context(cert, key))
        await port.start()
        await server.queue.put_many("t", ["x" * 100_000] * 100)
        trusting = ssl.create_default_context(cafile=cert)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.connect(port.address)
        options = {"sock": sock, "ssl": trusting, "server_hostname": "localhost", "limit": 65536}
        reader, writer = await asyncio.open_connection(**options)
        writer.write(TAKE.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        size = 0
        while data := await reader.read(100_000):
            size += len(data)
            await asyncio.sleep(0.02)
        assert size > 10_000_000
        writer.transport.abort()
        await port.stop()


async def test_small_chunks_of_many_connections_share_a_turn(monkeypatch):
    count, body = 0, Protocol.on_body

    def on_body(self, part):
        nonlocal count
        count += 1
        body(self, part)

    monkeypatch.setattr(Protocol, "on_body", on_body)
    data = CHUNKED + chunks(b'{"body":"%b"}' % (b"x" * 8_000), 1)
    async with opened() as server:
        wires = [await Wire.open(server) for _ in range(8)]
        turns = MostInATurn(lambda: count)
        watching = asyncio.create_task(turns.watch())
        await asyncio.gather(*(wire.send(data) for wire in wires))
        for wire in wires:
            assert (await wire.answer()).status == 200
            wire.close()
        watching.cancel()
    # A part of one whose turn it is, and of another one that was read.
    assert 0 < turns.most <= 4_000


@pytest.mark.parametrize("way", ["refused", "empty lines", "chunks"])
async def test_what_is_refused_lets_others_have_their_turn(way, monkeypatch):
    count, fed = 0, Protocol._parse

    def parse(self):
        nonlocal count
        count += 1
        return fed(self)

    monkeypatch.setattr(Protocol, "_parse", parse)
    data = {
        "refused": request("GET", "/nope") * 500,
        "empty lines": b"\r\n" * 20_000,
        "chunks": CHUNKED + chunks(b'{"body":"x"' + b"\r\n\r\n" * 5_000 + b"}", 20_000),
    }[way]
    async with opened() as server:
        turns = MostInATurn(lambda: count)
        watching = asyncio.create_task(turns.watch())
        wire = await Wire.open(server)
        await wire.send(data + request("GET", "/healthz"))
        answer = await wire.answer()
        while way == "refused" and answer.status == 404:
            answer = await wire.answer()
        assert answer.status == 200
        watching.cancel()
        assert 0 < turns.most <= {"refused": 4, "empty lines": 4, "chunks": 70}[way]
        wire.close()


async def test_answers_that_are_not_read_are_counted():
    async with served(in_flight=InFlight(10_000, 8 << 20)) as server:
        await server.queue.put_many("t", ["x" * 1_000_000] * 10)
        ask_all = request("GET", "/v1/topics/t/messages?state=ready")
        wires = []
        for _ in range(2):
            wires.append(await Wire.open(server, 4096))
            wires[-1].reader._transport.pause_reading()
            await wires[-1].send(ask_all)
            waiting = [one for one in server.port.connections if one._is_paused]
            while len(waiting) < len(wires) and server.service.in_flight.size_bytes < 8 << 20:
                await asyncio.sleep(0.01)
                waiting = [one for one in server.port.connections if one._is_paused]
        size_bytes, answer = server.service.in_flight.size_bytes, await ask(server, ask_all)
        Wire.close_all()
        assert size_bytes > 8 << 20
        assert (answer.status, answer.value["error"]) == (429, "ServerBusy")
        await until_async(lambda: server.service.in_flight.requests == 0)
        assert server.service.in_flight.size_bytes == 0
        assert (await ask(server, request("GET", "/v1/stats"))).status == 200


async def test_a_request_without_messages_is_smaller():
    head = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {9 << 20}\r\n\r\n"
    async with opened() as server:
        answer = await ask(server, f"POST /v1/topics/t/get HTTP/1.1\r\n{head}".encode())
        assert (answer.status, answer.value["error"]) == (413, "BatchTooLarge")
        data = b'[{"body":"x"}' + b" " * (9 << 20) + b"]"
        assert (await ask(server, request("POST", "/v1/topics/t/messages", data))).status == 200


async def test_the_oldest_handshake_ends_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(listening, "_MOST_HANDSHAKES", 5)
    monkeypatch.setattr(listening, "_HANDSHAKE_S", 3600.0)
    cert, key = make_certificate(tmp_path)
    async with opened() as server, asyncio.timeout(50):
        port = HttpPort(server.service, "127.0.0.1", 0, ssl=tls.context(cert, key))
        await port.start()
        pairs = [await asyncio.open_connection(*port.address) for _ in range(20)]
        for reader, _ in pairs[:15]:
            assert await reader.read(1) == b""
        # Who makes a handshake as it should be is let in.
        trusting = ssl.create_default_context(cafile=cert)
        good = Wire(*await asyncio.open_connection(*port.address, ssl=trusting))
        assert (await good.ask(request("GET", "/healthz"))).status == 200
        for _, writer in pairs:
            writer.close()
        good.close()
        await port.stop()


@pytest.mark.uvloop
@pytest.mark.parametrize("has_tls", [False, True])
async def test_who_comes_as_the_port_stops_does_not_hold_it(tmp_path, has_tls):
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    ssl_context = tls.context(*make_certificate(tmp_path)) if has_tls else None
    async with opened() as server:
        for turns in range(8):
            port = HttpPort(server.service, "127.0.0.1", 0, ssl=ssl_context)
            await port.start()
            with socket.create_connection(port.address):
                for _ in range(turns):
                    await asyncio.sleep(0)
                await port.stop()
    assert complaints == []


@pytest.mark.uvloop
async def test_who_keeps_a_connection_over_tls_does_not_hold_a_stop(tmp_path):
    """A client that only keeps its connection does not answer a goodbye, which ten seconds wait."""
    cert, key = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=cert)

    def connected(address):
        plain = socket.create_connection(address)
        return trusting.wrap_socket(plain, server_hostname="localhost")

    async with opened() as server:
        port = HttpPort(server.service, "127.0.0.1", 0, ssl=tls.context(cert, key))
        await port.start()
        with await asyncio.to_thread(connected, port.address):
            await until_async(lambda: port.connections)
            async with asyncio.timeout(8) as patience:
                await port.stop()
            # What has no more time ends as well, and says nothing.
            assert not patience.expired()


@pytest.mark.uvloop
async def test_who_hangs_up_as_the_port_stops_breaks_nothing_off(tmp_path):
    cert, key = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=cert)
    async with opened() as server:
        for turns in range(6):
            port = HttpPort(server.service, "127.0.0.1", 0, ssl=tls.context(cert, key))
            await port.start()
            wires = [
                Wire(*await asyncio.open_connection(*port.address, ssl=trusting)) for _ in range(12)
            ]
            for wire in wires[:6]:
                wire.close()
            for _ in range(turns):
                await asyncio.sleep(0)
            await port.stop()


# --- what is not answered ---------------------------------------------------------------------

HEAD = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-filling: "
WAIT = request("POST", "/v1/take", {"topics": "t", "wait_ms": 60_000})


async def test_heads_that_do_not_end_are_bounded_for_all_connections_together():
    async with opened() as server:
        small = await Wire.open(server)
        await small.send(HEAD + b"x" * 4000)
        for _ in range(400):
            await (await Wire.open(server)).send(HEAD + b"x" * 60_000)
        await until_async(lambda: 200 < len(server.port.connections) < 280)
        assert 10_000_000 < server.service.unparsed.size_bytes < 17_000_000
        # Those that hold most end first.
        await small.send(b"\r\n\r\n")
        assert (await small.answer()).status == 200
        Wire.close_all()
        await until_async(lambda: not server.port.connections)
        assert server.service.unparsed.size_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"x" * 30_000 + b"\r\n\r\n",
        HEAD.replace(b"x-filling", b"accept") + b"x" * 30_000 + b"\r\n\r\n",
        PUT + b"authorization: " + b"x" * 30_000 + b"\r\ncontent-length: 2\r\n\r\n{}",
        request("GET", "/healthz") * 100,
    ],
)
async def test_what_is_answered_is_counted_no_more(data):
    async with opened() as server:
        wire = await Wire.open(server)
        half = len(data) // 2
        await wire.send(data[:half])
        if b"x" * 1000 in data:
            await until_async(lambda: server.service.unparsed.size_bytes > 10_000)
        await wire.send(data[half:])
        await wire.answer()
        await until_async(lambda: server.service.unparsed.size_bytes == 0)
        assert len(server.port.connections) == 1


@pytest.mark.parametrize(
    ("wait", "more", "counted_bytes"),
    [
        (
            WAIT.replace(b"\r\nhost", b"\r\nauthorization: " + b"x" * 30_000 + b"\r\nhost"),
            b"",
            30_000,
        ),
        (WAIT.replace(b"\r\nhost", b"\r\nx-some: " + b"x" * 30_000 + b"\r\nhost"), b"", 0),
        (WAIT, request("GET", "/healthz") * 500, 20_000),
    ],
)
async def test_what_a_request_keeps_as_it_waits_is_counted(wait, more, counted_bytes):
    async with opened() as server:
        wire = await Wire.open(server)
        await wire.send(wait + more)
        await until_async(lambda: len(server.port.waits))
        await until_async(
            lambda: counted_bytes <= server.service.unparsed.size_bytes <= counted_bytes * 2
        )
        await server.queue.put("t", "x")
        assert (await wire.answer()).status == 200
        await until_async(lambda: server.service.unparsed.size_bytes == 0)
