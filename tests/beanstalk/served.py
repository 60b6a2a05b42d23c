"""A queue behind a beanstalk port in a thread of its own, and the real beanstalkd beside it."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from bench.servers import free_port
from dwell.clock import RealClock
from dwell.queue import Queue
from dwell.server.beanstalk import BeanstalkPort
from dwell.server.inflight import InFlight
from dwell.server.service import Service
from dwell.server.tokens import Tokens
from dwell.store.base import Store
from dwell.store.memory import MemoryStore
from tests.ports import accepts
from tests.waiting import until

T = TypeVar("T")

#: The largest body: what a server takes of its own accord.
MAX_JOB_BYTES = 1 << 20


def memory() -> Store:
    """Return a store that keeps nothing."""
    return MemoryStore(RealClock())


class Served:
    """A queue, its service and its port; what is asked of them is done in their own thread."""

    def __init__(
        self,
        store: Callable[[], Store] = memory,
        *,
        tokens: Tokens | None = None,
        in_flight: InFlight | None = None,
        ssl: Any = None,
        loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
        **limits: int,
    ) -> None:
        self._store = store
        self._given = (tokens or Tokens(), in_flight or InFlight(10_000, 1 << 28))
        self._limits = limits
        self._ssl = ssl
        self.loop = loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self.queue: Queue
        self.service: Service
        self.port: BeanstalkPort

    def __enter__(self) -> "Served":
        self._thread.start()
        self.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _start(self) -> None:
        self.queue = Queue(self._store())
        await self.queue.open()
        tokens, in_flight = self._given
        now_ms = self.queue.clock.now_ms()
        self.service = Service(self.queue, tokens, in_flight, now_ms, **self._limits)
        self.port = BeanstalkPort(self.service, "127.0.0.1", 0, ssl=self._ssl)
        await self.port.start()

    async def _stop(self) -> None:
        await self.port.stop()
        await self.queue.close()

    def call(self, work: Awaitable[T]) -> T:
        """Do something in the thread of the server."""

        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)

    @property
    def number(self) -> int:
        """The number of the port."""
        return self.port.address[1]


@contextlib.contextmanager
def beanstalkd(folder: Path | None = None, most_bytes: int = MAX_JOB_BYTES) -> Iterator[int]:
    """Run the real server, and yield the number of its port."""
    need("beanstalkd", "the Debian package beanstalkd")
    number = free_port()
    options = ["-b", str(folder)] if folder else []
    command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(number), "-z", str(most_bytes)]
    server = subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: accepts(number), f"nobody listens on {number}")
        yield number
    finally:
        server.terminate()
        server.wait()


def need(command: str, what: str) -> str:
    """Return where a command is; without it a test is skipped at home, and fails in CI."""
    found = shutil.which(command)
    if found is not None:
        return found
    if os.environ.get("CI") or os.environ.get("DWELL_REQUIRE"):
        pytest.fail(f"{command} is missing: install {what}")
    pytest.skip(f"{command} is missing: install {what}")


class Line:
    """A connection that sends what it is told, and reads one reply at a time."""

    def __init__(self, number: int, timeout: float = 60) -> None:
        self.socket = socket.create_connection(("127.0.0.1", number), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, data: bytes, replies: int = 1) -> bytes:
        """Send commands, and return their replies."""
        self.send(data)
        return b"".join(self.read() for _ in range(replies))

    def put(self, body: bytes = b"x", pri: int = 0, delay: int = 0, ttr: int = 60) -> int:
        """Put a job, and return its number."""
        word, number = self.ask(
            b"put %d %d %d %d\r\n%b\r\n" % (pri, delay, ttr, len(body), body)
        ).split()
        assert word == b"INSERTED"
        return int(number)

    def reserve(self, timeout: int = 0) -> tuple[int, bytes] | None:
        """Reserve a job, and return its number and body."""
        reply = self.ask(b"reserve-with-timeout %d\r\n" % timeout)
        if reply == b"TIMED_OUT\r\n":
            return None
        head, _, rest = reply.partition(b"\r\n")
        word, number, size = head.split()
        assert word == b"RESERVED", reply
        return int(number), rest[: int(size)]

    def stats(self, command: bytes) -> dict[str, str]:
        """Ask for a document, and return its values."""
        text = self.ask(command + b"\r\n").partition(b"---\n")[2].decode().strip()
        pairs = (line.split(": ", 1) for line in text.splitlines())
        return {name: value.strip('"') for name, value in pairs}

    def read(self) -> bytes:
        """Return the next reply, with the body that it has; empty at the end."""
        line = self._until(b"\r\n")
        word, *rest = line.split()
        if word not in (b"RESERVED", b"FOUND", b"OK"):
            return line
        return line + self._take(int(rest[-1]) + 2)

    def rest(self) -> bytes:
        """Return everything until the other end closes."""
        while data := self.socket.recv(1 << 16):
            self._buffer += data
        return self._buffer

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._more()
        return self._take(self._buffer.index(end) + len(end))

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(f"the server closed; {self._buffer!r:.200} is left")
        self._buffer += data
