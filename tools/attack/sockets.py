"""Sockets of an attacker: many of them, which send what they like and need not read."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator

from tests.http.wire import Answer, Wire
from tools.attack.target import Target

#: So long goes an attack on that has no end of its own.
HOLD_S = 3.0
#: What an attacker does not wait for any longer.
_MOST_S = 30.0


@contextlib.contextmanager
def many(
    address: tuple[str, int], count: int, first: bytes = b"", buffer_bytes: int = 0
) -> Iterator[list[socket.socket]]:
    """Connect many times, say something on each, and read nothing; a small buffer fills sooner."""
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            if buffer_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            sock.settimeout(_MOST_S)
            sock.connect(address)
            # Who was refused is hung up on, and so learns it here or later.
            with contextlib.suppress(ConnectionError):
                sock.sendall(first)
            sock.setblocking(False)
            socks.append(sock)
        yield socks


async def pour(socks: Iterable[socket.socket], data: bytes, seconds: float = HOLD_S) -> float:
    """Send the same again and again on all of them for a while; return how many MB were taken."""
    sent = await asyncio.gather(*(_pour(sock, data, seconds) for sock in socks))
    return sum(sent) / 1e6


async def _pour(sock: socket.socket, data: bytes, seconds: float) -> int:
    loop, sent = asyncio.get_running_loop(), 0
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(seconds):
            while True:
                await loop.sock_sendall(sock, data)
                sent += len(data)
    return sent


@contextlib.asynccontextmanager
async def connected(
    target: Target, *, port: str = "http", context: ssl.SSLContext | None = None
) -> AsyncIterator[Wire]:
    """Connect once, to ask and to read what is answered."""
    address = getattr(target, port)
    wire = Wire(*await asyncio.open_connection(*address, ssl=context, limit=1 << 26))
    try:
        yield wire
    finally:
        wire.close()


async def ask(target: Target, data: bytes, context: ssl.SSLContext | None = None) -> Answer:
    """Send a request over a connection of its own."""
    async with connected(target, context=context) as wire, asyncio.timeout(_MOST_S):
        return await wire.ask(data)


async def hammer(
    target: Target, data: bytes, *, at_once: int = 4, seconds: float = HOLD_S
) -> list[Answer]:
    """Ask the same again and again, several at once, for a while; return the answers."""
    end = time.monotonic() + seconds

    async def one() -> list[Answer]:
        found = []
        while not found or time.monotonic() < end:
            found.append(await ask(target, data))
        return found

    rows = await asyncio.gather(*(one() for _ in range(at_once)))
    return [answer for row in rows for answer in row]
