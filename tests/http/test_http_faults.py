"""What a server meets: halves, lies, silence, garbage, crowds, and disks that are full."""

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import time
from collections import Counter

import pytest

import dwell
from dwell.message import Result
from dwell.server.http import framing, protocol, readers
from dwell.server.http.call import MAX_REQUEST_BYTES
from dwell.server.inflight import InFlight
from dwell.server.memory import KEPT_BYTES, KEPT_FROM_PUTS_BYTES, Memory
from dwell.server.tokens import Tokens, hash_of
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.limits import Limits
from dwell.store.memory import MemoryStore
from dwell.testing.faults import FaultyDisk
from tests.http.served import served
from tests.http.wire import Wire, ask, put_of, request
from tests.server.process import ServerProcess
from tests.waiting import PATIENCE_S, until_async

pytestmark = pytest.mark.uvloop

PUT = "/v1/topics/t/messages"
STATS = request("GET", "/v1/stats")


async def totals(server):
    return Counter((await server.queue.stats()).totals)


@contextlib.asynccontextmanager
async def others_work(server, most_s=10.0):
    """Put, take and ack over a connection of its own meanwhile; none of it may take long."""
    slowest, stop = 0.0, asyncio.Event()

    async def work():
        nonlocal slowest
        wire = await Wire.open(server)
        while not stop.is_set():
            start = time.monotonic()
            assert (await wire.ask(put_of(topic="others"))).status == 200
            taken = await wire.ask(request("POST", "/v1/take", {"topics": "others"}))
            receipts = [m["receipt"] for m in taken.value["messages"]]
            assert len(receipts) == 1
            answer = await wire.ask(request("POST", "/v1/ack", {"receipts": receipts}))
            assert answer.value["results"] == ["acked"]
            slowest = max(slowest, time.monotonic() - start)
            await asyncio.sleep(0.01)
        wire.close()

    task = asyncio.ensure_future(work())
    try:
        yield
    finally:
        stop.set()
        await task
    assert slowest < most_s


# --- halves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1, 10, -60, -13, -1])
async def test_what_was_half_sent_is_not_done(part, server):
    wire = await Wire.open(server)
    await wire.send(put_of("whole body")[:part])
    await asyncio.sleep(0.05)
    wire.close()
    await until_async(lambda: not server.port.connections)
    assert (await totals(server))["put"] == 0
    assert (server.service.in_flight.requests, server.service.in_flight.size_bytes) == (0, 0)


@pytest.mark.parametrize("part", [1, 10, -60, -1])
async def test_what_stays_half_sent_is_given_up(monkeypatch, part):
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT_S", 0.2)
    async with served() as server:
        wire = await Wire.open(server)
        start = time.monotonic()
        async with others_work(server):
            await wire.send(put_of("whole body")[:part])
            await wire.ended()
        assert 0.2 <= time.monotonic() - start < PATIENCE_S
        assert (await totals(server))["put"] == (await totals(server))["ack"]
        await until_async(lambda: server.service.in_flight.size_bytes == 0)


@pytest.mark.parametrize("sender", ["head", "body"])
async def test_a_byte_at_a_time(monkeypatch, sender):
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT_S", 0.3)
    async with served() as server:
        slow = [await Wire.open(server) for _ in range(50)]
        data = put_of("slow" * 100)
        head = data.index(b"\r\n\r\n") + 4 if sender == "body" else 0
        start = time.monotonic()
        async with others_work(server):
            for wire in slow:
                await wire.send(data[:head])
            done = await asyncio.gather(
                *(wire.trickle(data[head:], 0.02) for wire in slow), return_exceptions=True
            )
            assert {isinstance(error, ConnectionError) for error in done} == {True}, done
        assert time.monotonic() - start < PATIENCE_S
        topics = (await server.queue.stats()).topics
        assert "t" not in topics or topics["t"].ready == 0


async def test_a_slow_sender_that_is_quick_enough(server):
    wire = await Wire.open(server)
    await wire.trickle(put_of("slow"), 0.0005)
    assert (await wire.answer()).status == 200


async def test_a_connection_that_says_nothing_ends(monkeypatch):
    monkeypatch.setattr(protocol, "IDLE_TIMEOUT_S", 1.0)
    async with served() as server:
        silent, spoke = await Wire.open(server), await Wire.open(server)
        assert (await spoke.ask(STATS)).status == 200
        start = time.monotonic()
        assert await silent.ended() == await spoke.ended() == b""
        assert time.monotonic() - start < PATIENCE_S


def test_stopping_does_not_wait_for_halves(tmp_path):
    with ServerProcess("--grace-ms", "500", store=tmp_path / "store") as server:
        host, port = server.ready()["http"].split(":")
        sockets = []
        for part in (0, 5, -1):
            sockets.append(socket.create_connection((host, int(port))))
            sockets[-1].sendall(put_of()[: part or 0])
        time.sleep(0.1)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < PATIENCE_S
        for each in sockets:
            each.close()


# --- heads --------------------------------------------------------------------------------------

LARGE = 200 * 1024
HEADS = {
    "one header": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * LARGE,
    "many headers": b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * (LARGE // 6),
    "a path": b"GET /" + b"y" * LARGE,
    "a method": b"G" * LARGE,
    "nothing": b"\r\n" * (LARGE // 2),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("is_pipelined", [False, True])
async def test_a_head_over_the_limit(name, is_pipelined, server):
    wire = await Wire.open(server)
    if is_pipelined:
        await wire.send(request("POST", "/v1/take", {"topics": "t", "wait_ms": 20_000}))
        await until_async(lambda: server.queue.waiting)
    sent = 0
    with contextlib.suppress(ConnectionError):
        for at in range(0, LARGE, 1000):
            await wire.send(HEADS[name][at : at + 1000])
            sent = at
            await asyncio.sleep(0)
        if is_pipelined:
            # Nothing is parsed while another request is being answered.
            await server.queue.put("t", b"x")
        if name != "nothing":
            await wire.ended()
            raise ConnectionError
    assert sent <= LARGE
    wire.close()
    await until_async(lambda: not server.port.connections)
    await until_async(lambda: not server.queue.waiting)


async def test_a_head_within_the_limit(server):
    head = {f"x{n}": "y" * 1000 for n in range(50)}
    assert (await ask(server, request("GET", "/healthz", **head))).status == 200


# --- lengths ------------------------------------------------------------------------------------


async def test_a_length_that_is_too_short(server):
    wire = await Wire.open(server)
    await wire.send(request("POST", PUT, b'{"body": "x"}', content_length=5))
    said = await wire.ended()
    assert said.startswith(b"HTTP/1.1 400")
    assert (await totals(server))["put"] == 0


async def test_a_length_that_is_too_long(monkeypatch):
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT_S", 0.1)
    async with served() as server:
        wire = await Wire.open(server)
        await wire.send(request("POST", PUT, b'{"body": "x"}', content_length=14))
        assert b"200" not in await wire.ended()
        assert (await totals(server))["put"] == 0


@pytest.mark.parametrize(
    "lines",
    [
        b"content-length: -1",
        b"content-length: 0x10",
        b"content-length: 1e3",
        b"content-length: 99999999999999999999999999",
        b"content-length: 13\r\ncontent-length: 5",
        b"content-length: 13\r\ntransfer-encoding: chunked",
        b"transfer-encoding: gzip",
        b"transfer-encoding: chunked, identity",
        b"content-length : 13",
        b"content-length: 13\r\n x",
        b"bad header",
        b"x: \0",
    ],
)
async def test_heads_that_cannot_be_meant(lines, server):
    wire = await Wire.open(server)
    head = b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: localhost"
    head += b"\r\ncontent-type: application/json"
    await wire.send(head + b"\r\n" + lines + b'\r\n\r\n{"body": "x"}')
    answer = await wire.answer()
    assert (answer.status, (await totals(server))["put"]) == (400, 0)
    await wire.ended()


def chunked(*chunks):
    head = request("POST", PUT, content_type="application/json", transfer_encoding="chunked")
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


async def test_a_body_in_chunks(server):
    wire = await Wire.open(server)
    answer = await wire.ask(chunked(b'{"bo', b'dy"', b': "x"}', b""))
    assert (answer.status, (await totals(server))["put"]) == (200, 1)
    assert (await wire.ask(STATS)).status == 200


@pytest.mark.parametrize(
    "data",
    [
        chunked(b'{"body": "x"}'),
        chunked(b'{"bo') + b"zz\r\n",
        chunked(b'{"body": "x"}') + b"-1\r\n",
        chunked() + b"ffffffffffffffffff\r\n",
        chunked(b'{"body": "x"}') + b"5;" + b"e" * LARGE,
    ],
)
async def test_chunks_that_are_broken(monkeypatch, data):
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT_S", 0.2)
    async with served() as server:
        wire = await Wire.open(server)
        with contextlib.suppress(ConnectionError):
            await wire.send(data)
        said = await wire.ended()
        assert b"HTTP/1.1 200" not in said
        assert (await totals(server))["put"] == 0
        await until_async(lambda: server.service.in_flight.size_bytes == 0)


async def test_a_body_over_the_limit_is_refused_before_it_is_read(server):
    head = request("POST", PUT, content_type="application/json", content_length=1 << 40)
    for _ in range(20):
        wire = await Wire.open(server)
        answer = await wire.ask(head)
        assert (answer.status, answer.value["error"]) == (413, "BatchTooLarge")
        await wire.send(b" " * 100_000)
        wire.close()
    wire = await Wire.open(server)
    answer = await wire.ask(head[:-2] + b"expect: 100-continue\r\n\r\n")
    assert answer.status == 413


async def test_who_sends_a_large_body_whole_reads_why_it_is_refused(server):
    data = b" " * (MAX_REQUEST_BYTES + 1)
    for _ in range(5):
        wire = await Wire.open(server)
        with contextlib.suppress(ConnectionError):
            await wire.send(request("POST", PUT, data))
        assert (await wire.answer()).status == 413
        wire.close()
    await until_async(lambda: server.service.in_flight.size_bytes == 0)


async def test_chunks_over_the_limit(server):
    wire = await Wire.open(server)
    part = b" " * (1 << 20)
    with contextlib.suppress(ConnectionError):
        await wire.send(chunked(*[part] * 33))
    assert (await wire.answer()).status == 413
    await until_async(lambda: server.service.in_flight.size_bytes == 0)


async def test_one_that_is_larger_than_all_the_room_is_let_in_alone():
    async with served(in_flight=InFlight(10, 1000)) as server:
        data = put_of("x" * 5000)
        assert (await ask(server, data)).status == 200
        wire = await Wire.open(server)
        await wire.send(data[:-1])
        await until_async(lambda: server.service.in_flight.size_bytes > 5000)
        assert (await ask(server, data)).status == 429
        await wire.send(data[-1:])
        assert (await wire.answer()).status == 200
        assert server.service.in_flight.size_bytes == 0


async def test_health_is_told_when_nothing_else_is():
    async with served(in_flight=InFlight(1, 1000)) as server:
        server.service.in_flight.enter()
        assert (await ask(server, STATS)).status == 429
        for path in ("/healthz", "/readyz"):
            assert (await ask(server, request("GET", path))).status == 200
            assert (await ask(server, request("GET", path, accept="text/plain"))).status == 200
        server.service.in_flight.leave()


# --- garbage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100,
        os.urandom(10_000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 500,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"get /healthz http/1.1\r\n\r\n",
        b"GET\r\n\r\n",
        b"put 0 0 60 5\r\nhello\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        "GET /ä HTTP/1.1\r\nhost: localhost\r\n\r\n".encode(),
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET http://[:::1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET //// HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /%00%ff%zz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/topics/%2e%2e/peek?limit=%ff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"BREW /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"HEAD /v1/take HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET http://example.org/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nhost: localhost\r\n\r\n",
    ],
)
async def test_what_is_not_http_or_not_ours(data, caplog, server):
    wire = await Wire.open(server)
    async with others_work(server):
        await wire.send(data)
        wire.writer.write_eof()
        said = await wire.ended()
    assert not said or said.startswith(b"HTTP/1.1 4")
    assert "Traceback" not in caplog.text
    assert server.service.in_flight.requests == 0


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "foo"])
async def test_an_upgrade_is_refused_and_what_follows_is_no_request(upgrade, server):
    inner = put_of("x", id="inner")
    for body in (b"", inner):
        wire = await Wire.open(server)
        head = {"connection": "upgrade", "upgrade": upgrade, "content-length": len(inner)}
        await wire.send(request("POST", "/v1/topics/t/messages", **head))
        await wire.send(body)
        said = await wire.ended()
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"expected no Upgrade header" in said
    assert (await ask(server, STATS)).value["topics"] == {}


async def test_what_is_asked_behind_a_wait_is_neither_parsed_nor_read_without_bound(monkeypatch):
    begun = Counter()
    begin = protocol.Protocol.on_message_begin

    def counted(self):
        begun[self] += 1
        begin(self)

    monkeypatch.setattr(protocol.Protocol, "on_message_begin", counted)
    async with served() as server:
        wire = await Wire.open(server)
        await wire.send(request("POST", "/v1/take", {"topics": "t", "wait_ms": 60_000}))
        await until_async(lambda: server.queue.waiting)
        asked = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
        wire.writer.write(asked * 200_000)
        (connection,) = server.port.connections
        await until_async(lambda: connection._is_unread)
        assert len(connection._held) <= 2 * 64 * 1024
        assert begun[connection] == 1
        await server.queue.put("t", b"x")
        assert (await wire.answer()).status == 200
        for _ in range(1000):
            assert (await wire.answer()).status in (200, 307, 404)
        wire.close()


async def test_empty_lines_make_no_connection_less_idle(monkeypatch):
    monkeypatch.setattr(protocol, "IDLE_TIMEOUT_S", 0.5)
    async with served() as server:
        wire = await Wire.open(server)
        with contextlib.suppress(ConnectionError):
            while not wire.reader.at_eof():
                await wire.send(b"\r\n")
                await asyncio.sleep(0.05)


# --- pipelining ---------------------------------------------------------------------------------


async def test_answers_come_in_the_order_of_the_requests(server):
    wire = await Wire.open(server)
    await wire.send(b"".join(put_of(f"{n}", id=f"m{n}") for n in range(200)))
    ids = [(await wire.answer()).value["results"][0]["id"] for _ in range(200)]
    assert ids == [f"m{n}" for n in range(200)]
    taken = await wire.ask(request("POST", "/v1/take", {"topics": "t", "limit": 1000}))
    receipts = [m["receipt"] for m in taken.value["messages"]]
    await wire.send(b"".join(request("POST", "/v1/ack", {"receipts": [one]}) for one in receipts))
    answers = [(await wire.answer()).value["results"] for _ in range(200)]
    assert answers == [["acked"]] * 200


@pytest.mark.parametrize("piece", [7, 1000, 65_536, 100_001])
async def test_requests_cut_anywhere(piece, server):
    wire = await Wire.open(server)
    sizes = (0, 1, 100_000, 70_000, 10, 200_000, 65_536, 5) if piece > 7 else (0, 1, 100)
    data = b"".join(put_of("x" * size) for size in sizes) * 2

    async def send():
        for at in range(0, len(data), piece):
            await wire.send(data[at : at + piece])
            await asyncio.sleep(0.001)

    sending = asyncio.ensure_future(send())
    for _ in range(2 * len(sizes)):
        assert (await wire.answer()).status == 200
    await sending
    found = await server.queue.take("t", 1000)
    assert [len(body) for body in found.bodies] == [*sizes, *sizes]


async def test_a_stream_of_requests_is_not_a_slow_one(monkeypatch):
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT_S", 0.2)
    async with served() as server:
        wire = await Wire.open(server)
        data, count = put_of("x" * 100), 0
        end = time.monotonic() + 0.6
        await wire.send(data[:50])
        while time.monotonic() < end:
            # Each piece ends in the middle of a request.
            await wire.send(data[50:] + data[:50])
            assert (await wire.answer()).status == 200
            await asyncio.sleep(0.01)
            count += 1
        await wire.send(data[50:])
        assert (await wire.answer()).status == 200
        assert (await totals(server))["put"] == count + 1


async def test_what_comes_behind_a_wait_may_take_its_time(monkeypatch):
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT_S", 1.0)
    async with served() as server:
        wire = await Wire.open(server)
        wait = request("POST", "/v1/take", {"topics": "t", "wait_ms": 1500})
        data = put_of("x" * 300_000, topic="u")
        await wire.send(wait + data + data[:1000])
        assert (await wire.answer()).value == {"messages": []}
        assert (await wire.answer()).status == 200
        await wire.send(data[1000:])
        assert (await wire.answer()).status == 200


# --- crowds -------------------------------------------------------------------------------------


def rss_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("said", [b"", b"POST /v1/take HTTP/1.1\r\nHost: localh"])
def test_idle_connections_cost_little(many_files, said):
    count = int(os.environ.get("DWELL_IDLE", "2000"))
    if count > many_files - 500:
        pytest.skip(f"{count} connections need more files than {many_files}")
    with ServerProcess(store="memory:") as server:
        host, port = server.ready()["http"].split(":")
        server.put("t", "warm")
        before = rss_bytes(server.process.pid)
        idle = []
        for number in range(count):
            idle.append(socket.create_connection((host, int(port))))
            idle[-1].sendall(said)
            if number % 16 == 15:
                # Some have had an answer, and stay.
                idle[-1].close()
                idle[-1] = socket.create_connection((host, int(port)))
                idle[-1].sendall(request("GET", "/healthz"))
                assert idle[-1].recv(4096).startswith(b"HTTP/1.1 200")
        grown = rss_bytes(server.process.pid) - before
        assert grown / count < 6 * 1024
        with dwell.open(server.url("")) as queue:
            start = time.monotonic()
            for _ in range(100):
                queue.put("t", "x")
                queue.ack(queue.take("t"))
            assert time.monotonic() - start < PATIENCE_S
        for each in idle:
            each.close()
        assert server.stop() == 0


async def test_a_client_that_takes_and_vanishes(server):
    await server.queue.put("t", "x")
    wire = await Wire.open(server)
    await wire.send(request("POST", "/v1/take", {"topics": "t", "lease": "200ms"}))
    await until_async(lambda: sum(server.service.lateness.counts))
    wire.close()
    again = await ask(server, request("POST", "/v1/take", {"topics": "t", "wait_ms": 5000}))
    (message,) = again.value["messages"]
    assert (message["body"], message["attempt"]) == ("x", 2)


async def test_many_that_wait_and_vanish_as_messages_come(server):
    ask_take = request("POST", "/v1/take", {"topics": "t", "wait_ms": 9000, "lease": "300ms"})
    for number in range(50):
        wire = await Wire.open(server)
        await wire.send(ask_take)
        await asyncio.sleep(0.002)
        put = asyncio.ensure_future(server.queue.put("t", str(number)))
        await asyncio.sleep(0.0005 * (number % 7))
        wire.close()
        await put
    await until_async(lambda: not server.queue.waiting)
    seen = set()
    while len(seen) < 50:
        batch = await server.queue.take("t", 100, wait=5)
        assert len(batch)
        seen |= set(batch.bodies)
        await server.queue.ack(batch)
    assert (await totals(server))["ack"] == 50


def test_a_client_that_never_reads(tmp_path):
    with ServerProcess("--sync", "never", store=tmp_path / "store") as server:
        with dwell.open(server.url("")) as queue:
            queue.put_many("large", ["x" * 1000] * 5000, delay="1h")
            queue.scan("large", "delayed", limit=5000)
            before = rss_bytes(server.process.pid)
            host, port = server.ready()["http"].split(":")
            deaf = []
            for _ in range(4):
                deaf.append(socket.create_connection((host, int(port))))
                listing = request("GET", "/v1/topics/large/messages?limit=5000")
                deaf[-1].sendall(listing * 100)
            worst, end = 0, time.monotonic() + 2
            while time.monotonic() < end:
                start = time.monotonic()
                queue.put("t", "x")
                queue.ack(queue.take("t"))
                assert time.monotonic() - start < PATIENCE_S
                worst = max(worst, rss_bytes(server.process.pid))
                time.sleep(0.02)
            # Each answer is 6 MB: one for each connection, and room for making them.
            assert worst - before < 120 << 20
        for each in deaf:
            each.close()
        assert server.stop() == 0


@pytest.mark.parametrize("is_reading", [False, True])
async def test_who_does_not_read_is_given_up(monkeypatch, is_reading):
    monkeypatch.setattr(readers, "UNREAD_TIMEOUT_S", 1.5)
    async with served() as server:
        await server.queue.put_many("t", ["x" * 1000] * 10_000, delay="1h")
        wire = await Wire.open(server, buffer_bytes=32 * 1024)
        wire.writer.transport.pause_reading()
        await wire.send(request("GET", "/v1/topics/t/messages?limit=10000"))
        connections = server.port.connections
        async with others_work(server):
            if is_reading:
                # Less in the time than the system moves at once: nobody is given up for that.
                size = 0
                raw = wire.writer.get_extra_info("socket")
                end = None
                while end is None or time.monotonic() < end or size <= 500_000:
                    await asyncio.sleep(0.005)
                    with contextlib.suppress(BlockingIOError):
                        size += len(os.read(raw.fileno(), 2_000))
                        end = end or time.monotonic() + 3.5
                assert len(connections) == 2
                assert 500_000 < size < 12_000_000
            else:
                await until_async(lambda: len(connections) == 1, seconds=30)
        wire.close()


# --- disks --------------------------------------------------------------------------------------


async def test_a_full_disk(tmp_path):
    disk = FaultyDisk()
    store = EmbeddedStore(tmp_path / "store", disk=disk, segment_bytes=64 * 1024)
    async with served(store) as server:
        wire = await Wire.open(server)
        first = await wire.ask(put_of("first"))
        assert first.status == 200
        disk.arm("full", 0)
        answered, answer = 1, first
        while answer.status == 200:
            answer = await wire.ask(put_of("x" * 5000))
            answered += answer.status == 200
            assert answered < 1000
        assert (answer.status, answer.value["error"]) == (507, "DiskFull")
        assert (await ask(server, request("GET", "/healthz"))).status == 200
        taken = await wire.ask(request("POST", "/v1/take", {"topics": "t"}))
        (message,) = taken.value["messages"]
        acked = await wire.ask(request("POST", "/v1/ack", {"receipts": [message["receipt"]]}))
        assert acked.value["results"] == ["acked"]
        async with dwell.open(server.url) as queue:
            with pytest.raises(dwell.DiskFull):
                await queue.put("t", "x" * 5000)
            assert await queue.ack((await queue.take("t"))[0]) is Result.ACKED
        disk.free()
        assert (await wire.ask(put_of("x" * 5000))).status == 200
        stats = (await wire.ask(STATS)).value
        assert stats["topics"]["t"]["ready"] == answered - 1
        assert (await ask(server, request("GET", "/readyz"))).status == 200


async def test_a_disk_that_is_full_hinders_no_reads_and_is_told_of(caplog):
    disk = FaultyDisk(size_bytes=6 * 64 * 1024)
    limits = Limits(snapshot_rows=64, room_rows=64)
    store = EmbeddedStore("/stores/store", disk=disk, segment_bytes=64 * 1024, limits=limits)

    async def is_put(server):
        return (await ask(server, put_of("y"))).status == 200

    async with served(store) as server:
        wire = await Wire.open(server)
        assert (await wire.ask(request("GET", "/readyz"))).status == 200
        put = put_of("x" * 500, id="first")
        while (answer := await wire.ask(put)).status == 200:
            put = put_of("x" * 500)
        assert (answer.status, answer.value["error"]) == (507, "DiskFull")
        for method, path, what in (
            ("GET", "/v1/stats", None),
            ("POST", "/v1/topics/t/get", {"ids": ["first"]}),
            ("GET", "/v1/topics/t/messages?state=ready", None),
            ("GET", "/v1/topics/t/peek", None),
            ("GET", "/v1/events?position=0", None),
            ("GET", "/healthz", None),
        ):
            assert (await wire.ask(request(method, path, what))).status == 200, path
        ready = await wire.ask(request("GET", "/readyz"))
        assert (ready.status, ready.data.startswith(b"DiskFull: ")) == (503, True)
        health = (await wire.ask(request("GET", "/v1/health"))).value
        assert health["problem"].startswith("DiskFull: ")
        assert health["store"]["disk_free_bytes"] < health["store"]["journal_bytes"]
        metrics = (await wire.ask(request("GET", "/metrics"))).data.decode()
        assert "dwell_ready 0.0" in metrics
        assert "dwell_store_disk_free_bytes " in metrics
        disk.system.size_bytes *= 4
        assert (await wire.ask(request("GET", "/readyz"))).status == 200
        await until_async(lambda: is_put(server))
        assert (await wire.ask(request("GET", "/readyz"))).status == 200
        assert "dwell_ready 1.0" in (await wire.ask(request("GET", "/metrics"))).data.decode()
        while len(told := [r.getMessage() for r in caplog.records if "disk" in r.message]) < 2:
            # Another segment is made when the one before it is full.
            await wire.ask(put_of("x" * 500))
    assert [text.partition(": ")[2] for text in told] == [
        "the disk is full; messages can be acked, and none put",
        "the disk has room again",
    ]


@pytest.mark.parametrize("fault", ["sync", "write"])
async def test_a_disk_that_fails(tmp_path, fault):
    disk = FaultyDisk()
    store = EmbeddedStore(tmp_path / "store", disk=disk)
    with contextlib.suppress(dwell.StoreError):
        async with served(store) as server:
            wire = await Wire.open(server)
            assert (await wire.ask(put_of("safe"))).status == 200
            assert (await wire.ask(request("GET", "/readyz"))).status == 200
            wait = await Wire.open(server)
            await wait.send(request("POST", "/v1/take", {"topics": "u", "wait_ms": 20_000}))
            disk.arm(fault, 0)
            answers = await asyncio.gather(*(ask(server, put_of(str(n))) for n in range(5)))
            assert {(a.status, a.value["error"]) for a in answers} == {(503, "StoreFailed")}
            for verb in (put_of(), request("POST", "/v1/take", {"topics": "t"})):
                answer = await wire.ask(verb)
                assert (answer.status, answer.value["error"]) == (503, "StoreFailed")
            ready = await ask(server, request("GET", "/readyz"))
            assert (ready.status, ready.data.startswith(b"StoreFailed: ")) == (503, True)
            assert (await ask(server, request("GET", "/healthz"))).status == 200
            assert (await ask(server, request("GET", "/metrics"))).status == 200
            async with dwell.open(server.url) as queue:
                with pytest.raises(dwell.StoreFailed):
                    await queue.put("t", "x")
            wait.close()
    async with dwell.open(tmp_path / "store", disk=disk) as queue:
        bodies = set((await queue.take("t", 100)).bodies)
        assert b"safe" in bodies


# --- memory -------------------------------------------------------------------------------------


class Little(Memory):
    """Memory of which a test says how much is left."""

    left = 1 << 30

    def used_bytes(self):
        return self.limit_bytes - self.left


async def test_little_memory_stops_puts_first_and_is_told_of():
    memory = Little(1 << 40)
    async with served(in_flight=InFlight(100, 1 << 28, memory)) as server:
        wire = await Wire.open(server)
        assert (await wire.ask(put_of("x"))).status == 200
        taken = await wire.ask(request("POST", "/v1/take", {"topics": "t"}))
        receipts = [message["receipt"] for message in taken.value["messages"]]
        memory.left = KEPT_BYTES + KEPT_FROM_PUTS_BYTES // 2
        await until_async(lambda: memory.left_bytes == memory.left)
        refused = await wire.ask(put_of("x"))
        assert (refused.status, refused.value["error"]) == (507, "StoreFull")
        ready = await wire.ask(request("GET", "/readyz"))
        assert (ready.status, ready.data.startswith(b"StoreFull: memory: ")) == (503, True)
        assert (await wire.ask(request("GET", "/healthz"))).status == 200
        answer = await wire.ask(request("POST", "/v1/ack", {"receipts": receipts}))
        assert answer.value["results"] == ["acked"]
        memory.left = KEPT_BYTES - 1
        await until_async(lambda: memory.left_bytes == memory.left)
        assert (await wire.ask(STATS)).status == 507
        memory.left = 1 << 30
        await until_async(lambda: memory.left_bytes == memory.left)
        assert (await wire.ask(put_of("x"))).status == 200
        assert (await wire.ask(request("GET", "/readyz"))).status == 200


async def test_a_request_that_there_was_no_memory_to_read_is_no_bad_request(monkeypatch):
    def fail(self, body):
        raise MemoryError

    monkeypatch.setattr(protocol.Protocol, "on_body", fail)
    async with served() as server:
        assert (await ask(server, put_of("x"))).status == 503
        assert (await ask(server, b"GET / HTTP/9.9 x\r\n\r\n")).status == 400


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), 503),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 503),
        (RuntimeError("can't start new thread"), 503),
        (OSError(errno.EIO, "Input/output error"), 500),
        (RuntimeError("another"), 500),
    ],
    ids=repr,
)
async def test_a_lack_of_memory_is_told_whatever_it_was_for(monkeypatch, error, status):
    def fail(*given, **options):
        raise error

    async with served() as server:
        monkeypatch.setattr(MemoryStore, "peek", fail)
        answer = await ask(server, request("GET", "/v1/topics/t/peek"))
        assert answer.status == status


async def test_an_answer_that_there_is_no_memory_to_send_ends_the_connection(monkeypatch):
    def fail():
        raise MemoryError

    async with served() as server:
        wire = await Wire.open(server)
        assert (await wire.ask(STATS)).status == 200
        monkeypatch.setattr(framing, "_date", fail)
        await wire.send(STATS)
        assert await wire.ended() == b""


# --- tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer wrong", 401),
        ("Basic Z29vZA==", 401),
        ("good", 401),
        ("Bearer good, Bearer good", 401),
        ("Bearer good x", 401),
        ("Bearer \x80\xff", 401),
        ("Bearer " + "x" * 50_000, 401),
        ("Bearer good", 200),
        ("bearer   good  ", 200),
        ("Bearer limited", 403),
    ],
)
async def test_tokens_that_are_wrong(tmp_path, header, status):
    path = tmp_path / "tokens.toml"
    entry = '[[token]]\nname = "{0}"\nsha256 = "{1}"\nput = ["{2}"]\n'
    text = entry.format("good", hash_of("good"), "") + entry.format(
        "limited", hash_of("limited"), "orders."
    )
    path.write_text(text)
    path.chmod(0o600)
    async with served(tokens=Tokens.load(path)) as server:
        head = {} if header is None else {"authorization": header}
        data = request("POST", PUT, {"body": "x"}, **head)
        # As bytes, since a header may hold what is not ASCII.
        answer = await ask(server, data.decode().encode("latin-1"))
        assert answer.status == status
        assert (await totals(server))["put"] == (status == 200)
        if status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "good" not in json.dumps(answer.value)
        if header is None:
            assert "a token is needed to put to t:" in answer.value["detail"]


async def test_a_token_twice_is_refused(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[token]]\nname = "a"\nsha256 = "{hash_of("good")}"\nput = [""]\n')
    path.chmod(0o600)
    async with served(tokens=Tokens.load(path)) as server:
        data = request("POST", PUT, {"body": "x"}, authorization="Bearer wrong")
        data = data.replace(b"\r\n\r\n", b"\r\nauthorization: Bearer good\r\n\r\n")
        assert (await ask(server, data)).status == 400
