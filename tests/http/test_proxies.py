"""What stands before a server may answer in its place: that is nobody's word on a message."""

import asyncio
import contextlib

import msgspec
import pytest

import dwell
from dwell.errors import InvalidInput, InvalidTopic, ServerUnreachable, StoreError
from dwell.wire.columns import columns_of_batch
from dwell.worker import Worker

pytestmark = pytest.mark.campaign

_STORE = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\x81\xa6number\x01"


@contextlib.asynccontextmanager
async def answering(status, body=b"", asked=None, head=b""):
    """A server that knows its store, and answers all else with one status."""

    async def serve(reader, writer):
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                given = await reader.readuntil(b"\r\n\r\n")
                size = [
                    int(line.split(b":")[1])
                    for line in given.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                ]
                await reader.readexactly(size[0] if size else 0)
                if b"/v1/store" in given:
                    writer.write(_STORE)
                else:
                    if asked is not None:
                        asked.append(given)
                    said = b"HTTP/1.1 %d x\r\n%bContent-Length: %d\r\n\r\n%b"
                    writer.write(said % (status, head, len(body), body))
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("status", [404, 405, 408, 413, 425, 429, 500, 502, 503, 504])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'{"type":"about:blank","title":"","status":400,"detail":"no","error":"InvalidInput"}',
    ],
)
@pytest.mark.timeout(60)
async def test_a_worker_outlives_the_answers_of_a_proxy(status, body):
    asked = []
    async with answering(status, body, asked) as url, dwell.open(url, retries=1) as queue:
        with pytest.raises(StoreError, match=f"got status {status}") as raised:
            await queue.put("t", "x")
        assert not isinstance(raised.value, InvalidInput)
        may_pass = status >= 500 or status in (408, 425, 429)
        assert isinstance(raised.value, ServerUnreachable) is may_pass
        # The put may have been done, so only one that is safe to repeat is repeated.
        assert len(asked) == 1
        with contextlib.suppress(StoreError):
            await queue.get("t", "1")
        assert len(asked) == 2 + may_pass
        worker = Worker(queue)
        worker.on("t")(print)
        serving = asyncio.create_task(worker.serve())
        while len(asked) < 4 + may_pass and not serving.done():
            await asyncio.sleep(0.005)
        assert not serving.done()
        worker.stop()
        await serving


@pytest.mark.parametrize("topic", [".", ".."])
def test_names_that_are_ways_through_an_address_are_no_topics(topic):
    with dwell.open("memory:") as queue:
        with pytest.raises(InvalidTopic, match=r"and not \. or \.\."):
            queue.put(topic, "x")
        assert queue.put("...", "x").result is dwell.Result.CREATED


_DEEP = b"[" * 100_000
_ONE = dwell.Message(
    topic="t",
    id="1",
    body=b"x",
    due_ms=1,
    state=dwell.State.LEASED,
    priority=1,
    attempt=1,
    max_attempts=1,
    lease_ms=1,
    receipt="00000001" + 24 * "0",
)
_COLUMNS = columns_of_batch(dwell.Batch.of([_ONE, _ONE]))
JUNK = {
    "latin-1": (404, '{"type":"urn:dwell:error:X","title":"Köln"}'.encode("latin-1")),
    "deep JSON": (502, _DEEP),
    "deep MessagePack": (200, b"\x91" * 100_000),
    "nothing": (200, b""),
    "a number": (200, b"\x01"),
    "columns that do not fit": (
        200,
        msgspec.msgpack.encode({"topics": ["t"], "ids": b"\x01", "due_ms": b"123"}),
    ),
    "columns of fewer": (
        200,
        msgspec.msgpack.encode(msgspec.structs.replace(_COLUMNS, attempt=b"\x01\x00")),
    ),
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.timeout(60)
async def test_junk_ends_no_worker_and_is_nobodys_bad_input(junk):
    asked = []
    async with answering(*JUNK[junk], asked) as url, dwell.open(url, retries=0) as queue:
        for call in (
            lambda: queue.put("t", "x"),
            lambda: queue.get("t", "1"),
            lambda: queue.take("t"),
            lambda: queue.ack("00000001" + 24 * "0"),
            lambda: queue.cancel("t", ["1"]),
            lambda: queue.stats(),
            lambda: queue.events(),
            lambda: queue.scan("t", "ready"),
        ):
            with pytest.raises(StoreError):
                await call()
        before = len(asked)
        worker = Worker(queue)
        worker.on("t")(print)
        serving = asyncio.create_task(worker.serve())
        while len(asked) < before + 2:
            assert not serving.done()
            await asyncio.sleep(0.005)
        worker.stop()
        await serving


@pytest.mark.parametrize("digits", [20, 400, 5_000])
@pytest.mark.timeout(60)
async def test_a_time_of_many_digits_is_no_time(digits):
    head = b"dwell-now-ms: %b\r\n" % (b"9" * digits)
    async with answering(200, b"", head=head) as url, dwell.open(url, retries=0) as queue:
        with pytest.raises(StoreError):
            await queue.get("t", "1")
        assert queue.clock.now_ms() < 10**14
