"""Connections: many of them that send nothing, half of something, or just enough to stay."""

import asyncio
import contextlib
import json
import socket
import time

from dwell.server.serve import _OTHER_FILES
from tools.attack.attack import Attack, must
from tools.attack.sockets import HOLD_S, ask, connected, many, pour
from tools.attack.target import PUBLIC, TENANT, Target, asked

_MANY = 3_000
#: What leaves each of two ports 40 connections.
_FEW_FILES = _OTHER_FILES + 80
#: A connection that asks nothing is closed after two minutes.
_IDLE_S = 125.0
_HALF_A_HEAD = b"POST /v1/take HTTP/1.1\r\nhost: localhost\r\nx-filling: " + b"x" * 1000
#: A body in chunks that goes on for as long as somebody sends it.
_CHUNKED = asked(TENANT, "POST", "/v1/topics/tenant.t/messages", transfer_encoding="chunked")
#: The record of a hello of which most is still to come.
_HALF_A_HANDSHAKE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100


async def silent(target: Target) -> str:
    """Connect, and say nothing."""
    with many(target.http, _MANY), many(target.beanstalk, _MANY):
        await asyncio.sleep(HOLD_S)
    return f"{_MANY} on each port"


async def half_a_head(target: Target) -> str:
    """Send the head of a request but for its end."""
    with many(target.http, _MANY, _HALF_A_HEAD):
        await asyncio.sleep(HOLD_S)
    return f"{_MANY} on the port"


async def most_of_a_head(target: Target) -> str:
    """Send as much of the head of a request as it may have, but for its end."""
    with many(target.http, _MANY, _HALF_A_HEAD + b"x" * 61_000):
        await asyncio.sleep(HOLD_S)
    return f"{_MANY} on the port"


async def late_heads(target: Target) -> str:
    """Connect first, and then send the same on all connections at once."""
    with many(target.http, _MANY) as socks:
        await asyncio.gather(*(_sent(sock, _HALF_A_HEAD + b"x" * 61_000) for sock in socks))
        await asyncio.sleep(HOLD_S)
    return f"{_MANY} on the port"


async def half_a_handshake(target: Target) -> str:
    """Begin a handshake, and do not go on; all have to be gone after its time."""
    with many(target.http, _MANY, _HALF_A_HANDSHAKE) as socks:
        start = time.monotonic()
        await _closed(socks, 20.0)
        took = time.monotonic() - start
    return f"{_MANY} on the port, all closed after {took:.0f} s"


async def all_files(target: Target) -> str:
    """Connect until no file is left, on both ports."""
    with many(target.http, 1500) as socks, many(target.beanstalk, 1500) as others:
        await asyncio.sleep(HOLD_S)
        left = sum(_is_open(sock) for sock in (*socks, *others))
    must(left <= 80, f"{left} of 3,000 connections are open, expected 80 or fewer")
    return f"{left} of 3,000 stayed"


async def empty_lines(target: Target) -> str:
    """Send empty lines, so as to look busy."""
    with many(target.http, 200) as socks:
        await pour(socks, b"\r\n" * 1000, HOLD_S)
        for _ in range(int(_IDLE_S)):
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.send(b"\r\n")
            await asyncio.sleep(1.0)
        await _closed(socks, 20.0)
    return f"all of {len(socks)} closed"


def _flood(name: str, port: str, data: bytes, first: bytes = b"") -> Attack:
    """Send what is no request, without end, on twenty connections."""

    async def run(target: Target) -> str:
        with many(getattr(target, port), 20, first) as socks:
            sent = await pour(socks, data)
        return f"{sent:.0f} MB sent on {len(socks)} sockets"

    return Attack(f"a flood of {name}", run)


async def all_places(target: Target) -> str:
    """Hold every connection of the port, and say nothing: a caller with a token gets in."""
    with many(target.http, 400):
        await asyncio.sleep(HOLD_S)
    return "400 on a port that has 300"


async def tubes(target: Target) -> str:
    """Watch as many tubes as one can, by names as long as they may be."""
    names = [f"{PUBLIC}{n:04}".ljust(200, "x") for n in range(1_100)]
    watched = "".join(f"watch {name}\r\n" for name in names).encode()
    with many(target.beanstalk, 100) as socks:
        await asyncio.gather(*(_sent(sock, watched) for sock in socks))
        await asyncio.sleep(HOLD_S)
    return f"1,100 tubes on each of {len(socks)}"


async def many_watched(target: Target) -> str:
    """Watch the same tubes on as many connections as there may be, and ask for one of others."""
    watched = "".join(f"watch {PUBLIC}{n:x}\r\n" for n in range(999)).encode()
    with many(target.beanstalk, _MANY, watched):
        async with connected(target, port="beanstalk") as wire:
            await wire.send(b"stats-tube foreign\r\n" * 100)
            async with asyncio.timeout(HOLD_S):
                for _ in range(100):
                    await wire.reader.readuntil(b"\r\n")
        await asyncio.sleep(HOLD_S)
    return f"999 tubes on each of {_MANY}"


async def many_held(target: Target) -> str:
    """Reserve as many jobs as one can, and ask for more again and again."""
    rows = json.dumps([{"body": "x", "lease": "1h"}] * 10_000).encode()
    put = asked(None, "POST", f"/v1/topics/{PUBLIC}held/messages", rows)
    for _ in range(30):
        must((await ask(target, put)).status == 200, "the store could not be filled")
    target.forget_most()
    reserve, count = b"reserve-with-timeout 0\r\n", 0
    async with connected(target, port="beanstalk") as wire:
        await wire.send(f"watch {PUBLIC}held\r\n".encode())
        await wire.reader.readuntil(b"\r\n")
        while count < 300_000:
            await wire.send(reserve * 1000)
            for _ in range(1000):
                if (await wire.reader.readuntil(b"\r\n")).startswith(b"RESERVED"):
                    await wire.reader.readuntil(b"\r\n")
            count += 1000
    return f"{count} jobs asked for"


async def _sent(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(HOLD_S):
            await asyncio.get_running_loop().sock_sendall(sock, data)


def _is_open(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def _closed(socks: list[socket.socket], seconds: float) -> None:
    """Wait until the other end has closed all; raises GotThrough after some seconds."""
    end = time.monotonic() + seconds
    while left := sum(map(_is_open, socks)):
        must(time.monotonic() < end, f"{left} of {len(socks)} are open after {seconds:.0f} s")
        await asyncio.sleep(0.2)


ATTACKS = (
    Attack("connections that send nothing", silent),
    Attack("connections with half a head", half_a_head),
    Attack("connections with most of a head", most_of_a_head),
    Attack("the same on connections that are there", late_heads),
    Attack("connections with half a TLS handshake", half_a_handshake, has_tls=True),
    Attack("connections until no file is left", all_files, files=_FEW_FILES),
    Attack("the same, TLS that never says hello", all_files, files=_FEW_FILES, has_tls=True),
    Attack("empty lines that keep connections alive", empty_lines),
    Attack("as many tubes as can be watched", tubes),
    Attack("tubes watched by thousands of connections", many_watched),
    Attack("jobs held by one connection", many_held),
    Attack("all connections of a port", all_places, args=("--max-connections", "300")),
    _flood("empty lines", "http", b"\r\n" * 30_000),
    _flood("chunks of a byte", "http", b"1\r\nx\r\n" * 10_000, _CHUNKED),
    _flood("refused puts", "beanstalk", b"put 0 0 1 1\r\nx\r\n" * 4_000, b"use a\r\n"),
    _flood("carriage returns", "beanstalk", b"\r" * 65_536, b"use a\r\n"),
    _flood("a line without end", "beanstalk", b"x" * 65_536, b"use a\r\n"),
)
