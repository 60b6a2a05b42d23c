"""Whatever bytes come on sockets: a server with little memory lives, and answers everybody else.

It is ``dwell serve`` in a process of its own, whose address space ends a little above what it has
when it is idle (RLIMIT_AS). The bytes are drawn; a failure prints the seed that repeats it.
``DWELL_FUZZ`` says how many are drawn; with it they are other ones each time.
"""

import contextlib
import gzip
import os
import random
import socket
import struct
import time

import pyarrow as pa
import pytest

from tests.http.wire import request
from tests.server.process import COMMAND, ServerProcess
from tests.server.test_memory import address_space_bytes

FUZZ = int(os.environ.get("DWELL_FUZZ", "0"))
#: What the process may have beyond what it has when it is idle: two bodies as large as may be, in
#: every form that they have while they are read, and the segments of its journal.
_ROOM_BYTES = 448 << 20
_AT_ONCE = 8
#: How long an honest call may take while all of that comes.
_MOST_S = 20.0
_PUT = "/v1/topics/t/messages"
_JSON, _MSGPACK, _NDJSON = "application/json", "application/msgpack", "application/x-ndjson"
_ARROW = "application/vnd.apache.arrow.stream"


class Drawn:
    """Bytes that somebody sends, from one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._shapes = (self._pipeline, self._uncounted, self._chunks, self._bomb, self._headers)

    def sent(self) -> bytes:
        """Return what is sent on one connection: a shape as it is, cut, or with other bytes."""
        chance = self._chance
        data = chance.choice(self._shapes)()
        if chance.random() < 0.3:
            data = data[: chance.randrange(len(data) + 1)]
        if chance.random() < 0.3 and data:
            changed = bytearray(data)
            for _ in range(chance.randrange(1, 8)):
                # Most of what counts stands at the beginning.
                at = int(len(changed) * chance.random() ** 4)
                changed[at] = chance.randrange(256)
            data = bytes(changed)
        return data

    def _asked(self) -> bytes:
        chance = self._chance
        return chance.choice(
            (
                request("POST", _PUT, {"body": "x" * chance.randrange(2_000)}),
                request("POST", "/v1/take", {"topics": "t", "limit": 100, "lease": "1s"}),
                request("POST", "/v1/take", {"topics": "none", "wait_ms": 60_000}),
                request("GET", "/v1/topics/t/messages?state=ready"),
                request("GET", "/openapi.json"),
                request("POST", "/v1/topics/t/find", {"where": "@"}),
                request("GET", "/"),
            )
        )

    def _pipeline(self) -> bytes:
        return b"".join(self._asked() for _ in range(self._chance.randrange(1, 300)))

    def _uncounted(self) -> bytes:
        """Say a length, and send fewer bytes than that or more."""
        chance = self._chance
        length = chance.choice((0, 5, 10_000, 1 << 25, 1 << 40, 1 << 70))
        data = chance.randbytes(chance.choice((0, 1, 5, 70_000, 300_000)))
        return request("POST", _PUT, data, content_length=length) + self._asked()

    def _chunks(self) -> bytes:
        chance = self._chance
        head = f"POST {_PUT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {_JSON}\r\n"
        parts = [f"{head}transfer-encoding: chunked\r\n\r\n".encode()]
        size = chance.choice((1, 100, 100_000))
        for _ in range(chance.randrange(1, 400 if size < 1_000 else 40)):
            said = size if chance.random() < 0.99 else chance.choice((0, size + 1, 1 << 60))
            parts.append(b"%x;%b\r\n%b\r\n" % (said, b"e" * chance.randrange(50), b"{" * size))
        return b"".join(parts) + chance.choice((b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b""))

    def _bomb(self) -> bytes:
        chance = self._chance
        size = chance.choice((1_000, 100_000, 4_000_000))
        form, data, more = chance.choice(
            (
                (_JSON, b"[" + b"{}," * size + b"{}]", {}),
                (_JSON, b'{"body":' + b"[" * size + b"]" * size + b"}", {}),
                (_JSON, gzip.compress(bytes(size)), {"content_encoding": "gzip"}),
                (_NDJSON, b"{}\n" * size, {}),
                (_MSGPACK, b"\xdd" + struct.pack(">I", 1 << 31) + b"\x80" * size, {}),
                (_ARROW, _arrow(size), {}),
            )
        )
        return request("POST", _PUT, data, content_type=form, **more)

    def _headers(self) -> bytes:
        chance = self._chance
        line = b"x-%d: " % chance.randrange(9) + b"y" * chance.choice((1, 1_000, 70_000)) + b"\r\n"
        return b"GET / HTTP/1.1\r\nhost: localhost\r\n" + line * chance.randrange(1, 200)


def _arrow(size: int) -> bytes:
    batch = pa.record_batch([pa.nulls(size)], names=["body"])
    compressed = pa.ipc.IpcWriteOptions(compression="zstd")
    zeros = pa.record_batch([pa.array([0] * 1_000, pa.int64())], names=["body"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.new_stream(sink, zeros.schema, options=compressed) as writer:
        writer.write_batch(zeros)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def send_all(address: tuple[str, int], many: list[bytes]) -> None:
    """Send each on a connection of its own, side by side, and read of some what is answered."""
    with contextlib.ExitStack() as stack:
        left = []
        for data in many:
            sock = stack.enter_context(socket.create_connection(address, _MOST_S))
            sock.setblocking(False)
            left.append((sock, memoryview(data), len(left) % 2 == 0))
        ends_at = time.monotonic() + 2.0
        while left and time.monotonic() < ends_at:
            left = [(sock, _go_on(sock, data, reads), reads) for sock, data, reads in left]
            left = [each for each in left if each[1]]


def _go_on(sock: socket.socket, data: memoryview, reads: bool) -> memoryview:
    """Send what the other end takes; return the rest, nothing where it has hung up."""
    try:
        if reads:
            with contextlib.suppress(BlockingIOError):
                sock.recv(1 << 20)
        return data[sock.send(data[: 1 << 20]) :]
    except BlockingIOError:
        time.sleep(0.001)
        return data
    except OSError:
        return data[:0]


def check(server: ServerProcess, number: int) -> None:
    """Put, take and ack as an honest client; the queue's own bounds may ask it to come again."""
    topic = f"honest{number}"
    _answered(server, f"/v1/topics/{topic}/messages", {"body": f"{number}"})
    (message,) = _answered(server, "/v1/take", {"topics": topic, "wait_ms": 1_000})["messages"]
    assert message["body"] == f"{number}"
    done = _answered(server, "/v1/ack", {"receipts": [message["receipt"]]})
    assert done["results"] == ["acked"]


def _answered(server: ServerProcess, path: str, body: object) -> dict[str, list]:
    ends_at = time.monotonic() + _MOST_S
    while True:
        status, answer = server.ask("POST", path, body)
        if status == 200:
            return answer
        assert status in (429, 503, 507), (status, answer)
        assert time.monotonic() < ends_at, f"only refused: {status} {answer}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def limit_bytes(tmp_path_factory) -> int:
    with ServerProcess(store=tmp_path_factory.mktemp("idle") / "store") as server:
        server.ready()
        return address_space_bytes(server.process.pid) + _ROOM_BYTES


@pytest.mark.parametrize(
    "rounds", [6, pytest.param(max(FUZZ // 2_000, 150), marks=pytest.mark.campaign)]
)
def test_fuzz_of_sockets_of_a_server_with_little_memory(tmp_path, limit_bytes, rounds):
    first = random.randrange(1 << 32) if FUZZ else 0
    limited = ["sh", "-c", f'ulimit -v {limit_bytes // 1024}; exec "$@"', "sh", *COMMAND]
    given = ["serve", str(tmp_path / "store"), "--http", "127.0.0.1:0", "--beanstalk", "off"]
    with ServerProcess(command=[*limited, *given, "--log-format", "json"]) as server:
        host, _, port = server.ready()["http"].rpartition(":")
        for seed in range(first, first + rounds):
            drawn = Drawn(seed)
            send_all((host, int(port)), [drawn.sent() for _ in range(_AT_ONCE)])
            assert server.process.poll() is None, (seed, server.other[-20:])
            try:
                check(server, seed)
            except (AssertionError, OSError, ValueError) as error:
                raise AssertionError(f"seed {seed}: {error!r}; {server.other[-5:]}") from error
            assert address_space_bytes(server.process.pid) <= limit_bytes
        assert not server.other
