"""HTTP as bytes, for what no well-behaved client would send."""

import asyncio
import contextlib
import json
import socket
import struct
from typing import Any, ClassVar, NamedTuple

JSON = "application/json"


class Answer(NamedTuple):
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.data)


def request(method: str, path: str, body: Any = None, **headers: Any) -> bytes:
    """Return the bytes of a request; a body that is not bytes goes as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {
        "host": "localhost",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    if body is not None:
        given = {"content-type": JSON, "content-length": len(data), **given}
    lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in given.items()), "", ""]
    return "\r\n".join(lines).encode() + data


def put_of(body: str = "x", topic: str = "t", **more: Any) -> bytes:
    """Return the bytes of a put of one message."""
    return request("POST", f"/v1/topics/{topic}/messages", {"body": body, **more})


class Wire:
    """One connection; those that a test has left open end with ``served``."""

    _open: ClassVar[set["Wire"]] = set()

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._open.add(self)

    @classmethod
    async def open(cls, server: Any, buffer_bytes: int = 0) -> "Wire":
        """Connect; the system's own buffer may be made small."""
        sock = socket.socket()
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, server.port.address)
        return cls(*await asyncio.open_connection(sock=sock, limit=1 << 26))

    async def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():
            raise ConnectionResetError("the other end has closed")
        self.writer.write(data)
        await self.writer.drain()

    async def trickle(self, data: bytes, seconds: float) -> None:
        """Send byte after byte, until the other end has enough of it."""
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(seconds)

    async def answer(self) -> Answer:
        """Return the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}
        size = int(headers.get("content-length", 0))
        return Answer(int(first.split()[1]), headers, await self.reader.readexactly(size))

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def ended(self, seconds: float = 20) -> bytes:
        """Wait for the other end to close, and return what it still said."""
        said = b""
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                while data := await self.reader.read(65536):
                    said += data
        return said

    def reset(self) -> None:
        """Break the connection off, so that the other end cannot write to it either."""
        self.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.writer.transport.abort()

    def close(self) -> None:
        self._open.discard(self)
        self.writer.transport.abort()

    @classmethod
    def close_all(cls) -> None:
        for wire in list(cls._open):
            wire.close()


async def ask(server: Any, data: bytes) -> Answer:
    """Send one request over a connection of its own."""
    wire = await Wire.open(server)
    try:
        return await wire.ask(data)
    finally:
        wire.close()
