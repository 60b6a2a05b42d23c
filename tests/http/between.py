"""A wire between a client and a server, which a test can cut in every way that wires are cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Between:
    """Passes bytes on, as ``how`` says.

    ``pass``: all of them; ``mute``: requests only, and when an answer comes the connection is cut;
    ``part``: the same, but the beginning of the answer goes through; ``cut``: nothing, the
    connection is cut when a request comes; ``silent``: nothing at all, for ever; ``late``: the
    request is held back until ``let_go`` is set, whoever waits for its answer; ``held``: the answer
    is; ``slow``: the answer takes ``delay_s``; ``twice``: the request goes through twice, on two
    connections; ``error``: the answer is replaced by the bytes ``error``. ``left`` is how many
    requests that holds for, then it is ``pass`` again; None for all. Only requests that hold the
    bytes ``only`` are meant.
    """

    def __init__(self, url: str = "") -> None:
        self._to = urlsplit(url)
        self.how = "pass"
        self.left: int | None = None
        self.only = b""
        self.delay_s = 0.0
        self.error = b""
        self.let_go = asyncio.Event()
        self.connections = 0
        self.requests = 0
        self.faults = 0
        self._writers: set[asyncio.StreamWriter] = set()

    def break_(self, how: str, requests: int | None = None, only: bytes = b"") -> None:
        """Treat the next requests in another way."""
        self.how, self.left, self.only = how, requests, only

    def move(self, url: str) -> None:
        """Pass on to another server, for connections that begin from now on."""
        self._to = urlsplit(url)
        for writer in list(self._writers):
            writer.transport.abort()

    @property
    def url(self) -> str:
        scheme = self._to.scheme or "http"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    def _take_fault(self, data: bytes) -> str:
        self.requests += 1
        if self.only not in data:
            return "pass"
        how = self.how
        self.faults += how != "pass"
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.break_("pass")
        return how

    async def _connected(self, reader, writer) -> None:
        self.connections += 1
        self._writers.add(writer)
        other = None
        with contextlib.suppress(OSError):
            if self._to.hostname:
                from_server, other = await asyncio.open_connection(self._to.hostname, self._to.port)
                self._writers.add(other)
                await self._pass(reader, writer, from_server, other)
            else:
                await self._swallow(reader, writer)
        for end in (writer, other):
            if end is not None:
                self._writers.discard(end)
                end.close()

    async def _send_beside(self, data: bytes) -> None:
        """Send a request on a connection of its own, and wait for an answer that nobody gets."""
        reader, writer = await asyncio.open_connection(self._to.hostname, self._to.port)
        writer.write(data)
        await reader.read(65536)
        writer.close()

    async def _swallow(self, reader, writer) -> None:
        while data := await reader.read(65536):
            if self._take_fault(data) == "cut":
                return

    async def _pass(self, reader, writer, from_server, to_server) -> None:
        how = "pass"

        async def back() -> None:
            while data := await from_server.read(65536):
                if how == "part":
                    writer.write(data[: len(data) * 9 // 10])
                    await writer.drain()
                if how in ("mute", "part"):
                    return
                if how == "held":
                    await self.let_go.wait()
                if how == "slow":
                    await asyncio.sleep(self.delay_s)
                writer.write(self.error if how == "error" else data)

        answers = asyncio.ensure_future(back())
        asking = asyncio.ensure_future(reader.read(65536))
        try:
            while True:
                await asyncio.wait({answers, asking}, return_when=asyncio.FIRST_COMPLETED)
                if answers.done() or not (data := asking.result()):
                    return
                # One piece is one request, as small ones are.
                how = self._take_fault(data)
                if how == "cut":
                    return
                if how == "silent":
                    await asyncio.Event().wait()
                if how == "late":
                    await self.let_go.wait()
                if how == "twice":
                    await self._send_beside(data)
                to_server.write(data)
                asking = asyncio.ensure_future(reader.read(65536))
        except asyncio.CancelledError:
            # The test is over, whatever was held back.
            return
        finally:
            answers.cancel()
            asking.cancel()


@contextlib.asynccontextmanager
async def between(url: str = "") -> AsyncIterator[Between]:
    """Put a wire before a server, or before nothing."""
    wire = Between(url)
    await wire.start()
    try:
        yield wire
    finally:
        await wire.stop()
