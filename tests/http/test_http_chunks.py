"""Bodies in chunks, and requests behind them: all are answered, wherever the bytes are cut."""

import asyncio
import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dwell.message import MAX_BODY_BYTES
from dwell.server.turns import BUFFER
from tests.http.served import served
from tests.http.wire import Wire, request
from tests.waiting import until_async

_PUT = "/v1/topics/t/messages"
_BEHIND = 3
#: How much of a body in chunks the server hands over at a time; what is near to its multiples is
#: where an end may be cut.
_PIECE_BYTES = 8192
_BEGIN, _END = b'{"body":"', b'"}'

_near = st.builds(
    lambda times, off: times * _PIECE_BYTES + off, st.integers(1, 3), st.integers(-24, 24)
)


class Client:
    """One loop, in which a server stands and each connection is fed what a test cuts."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._stack = contextlib.AsyncExitStack()
        self.server = self._run(self._stack.enter_async_context(served()))

    def _run(self, work):
        return self._loop.run_until_complete(asyncio.wait_for(work, 60))

    def close(self):
        self._run(self._stack.aclose())
        self._loop.close()

    def answers(self, data, cuts):
        """Return the answers to some requests, of which one packet after the other comes."""
        return self._run(self._answers(data, cuts))

    async def _answers(self, data, cuts):
        before = set(self.server.port.connections)
        wire = await Wire.open(self.server)
        await until_async(lambda: set(self.server.port.connections) - before)
        (protocol,) = set(self.server.port.connections) - before
        ends = sorted({*(cut for cut in cuts if cut < len(data)), len(data)})
        for begin, end in zip([0, *ends], ends, strict=False):
            # What the system would hand over when the server reads.
            await until_async(lambda: not protocol._is_unread)
            BUFFER[: end - begin] = data[begin:end]
            protocol.buffer_updated(end - begin)
            if begin % 2:
                await asyncio.sleep(0)
        found = [await wire.answer() for _ in range(1 + _BEHIND)]
        wire.close()
        await until_async(lambda: protocol not in self.server.port.connections)
        return found


@pytest.fixture(scope="module")
def client():
    client = Client()
    yield client
    client.close()


def chunked(size, chunks, extension=b"", trailer=b""):
    """Return a put with a body of so many bytes in about so many chunks, and what is behind."""
    text = _BEGIN + b"x" * (size - len(_BEGIN) - len(_END)) + _END
    step = -(-size // chunks)
    parts = [text[at : at + step] for at in range(0, size, step)]
    head = (
        f"POST {_PUT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        "transfer-encoding: chunked\r\n\r\n"
    ).encode()
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    behind = b"".join(request("GET", f"/v1/topics/behind{n}/settings") for n in range(_BEHIND - 1))
    return head + body + b"0\r\n" + trailer + b"\r\n" + behind + request("GET", "/nowhere")


def check(client, data, cuts):
    put, *behind = client.answers(data, cuts)
    assert put.status == 200, put
    assert put.value["results"][0]["result"] == "created"
    assert [answer.status for answer in behind] == [200] * (_BEHIND - 1) + [404]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("chunks", [1, 2, 300])
def test_each_size_near_a_piece_in_one_packet(client, times, chunks):
    for off in range(-40, 41):
        check(client, chunked(times * _PIECE_BYTES + off, chunks), [])


@settings(
    max_examples=400,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    size=_near,
    chunks=st.integers(1, 20),
    extension=st.sampled_from([b"", b";a=b"]),
    trailer=st.sampled_from([b"", b"x: y\r\n"]),
    cuts=st.lists(st.integers(1, 4 * _PIECE_BYTES), max_size=8),
    end_cuts=st.lists(st.integers(-240, 0), max_size=4),
)
def test_any_size_however_it_is_cut(client, size, chunks, extension, trailer, cuts, end_cuts):
    assert size < MAX_BODY_BYTES
    data = chunked(size, chunks, extension, trailer)
    near_the_end = [len(data) + at for at in end_cuts]
    near_pieces = [cut + data.index(b"\r\n\r\n") for cut in cuts]
    check(client, data, [*cuts, *near_the_end, *near_pieces])


@pytest.mark.parametrize("size", [8193, 8194, 8195, 16385, 16386, 16387])
def test_an_end_that_is_cut_anywhere(client, size):
    data = chunked(size, 1)
    end = data.index(b"0\r\n\r\nGET")
    for first in range(end - 3, end + 9):
        for second in range(first, end + 9):
            check(client, data, [first, second])
