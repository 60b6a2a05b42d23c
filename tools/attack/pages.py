"""Pages of the web, and what is hidden in requests: who speaks in the name of somebody else."""

import asyncio

from tools.attack.attack import Attack, must
from tools.attack.sockets import HOLD_S, ask, connected, hammer
from tools.attack.target import PUBLIC, TENANT, Target, asked

_TUBE = f"{PUBLIC}page"
_COMMANDS = f"use {_TUBE}\r\nput 0 0 60 4\r\nevil\r\n".encode()
_FIRST_LINES = (
    b"POST / HTTP/1.1\r\n",
    b"POST /" + b"x" * 300 + b" HTTP/1.1\r\n",
    b"POST /" + b"x" * 100_000 + b" HTTP/1.1\r\n",
    b"GET /put HTTP/1.1\r\n",
    b"put / HTTP/1.1\r\n",
    b"\r\n",
    b"\x16\x03\x01\x02\x00",
    b"EHLO localhost\r\n",
)
_HOSTS = ("evil.example", "evil.example:8410", "127.0.0.1.evil.example", "localhost.evil", "")


async def commands_in_a_body(target: Target) -> str:
    """Post a body of commands to the beanstalk port, behind first lines of many kinds."""
    for first in _FIRST_LINES:
        head = first + b"Host: localhost:11300\r\nContent-Type: text/plain\r\n\r\n"
        async with connected(target, port="beanstalk") as wire:
            await wire.send(head + _COMMANDS)
            await asyncio.wait([asyncio.ensure_future(wire.ended())], timeout=HOLD_S)
    async with connected(target, port="beanstalk") as wire:
        await wire.send(f"watch {_TUBE}\r\nreserve-with-timeout 0\r\n".encode())
        said = await wire.reader.readline() + await wire.reader.readline()
    must(b"RESERVED" not in said, f"a command in a body was done: {said!r}")
    return f"none of {len(_FIRST_LINES)} was done"


async def rebinding(target: Target) -> str:
    """Ask in the name of a page that gave its own name this address."""
    for path in ("/v1/stats", "/v1/store", "/docs", "/healthz", "/metrics"):
        for host in _HOSTS:
            answer = await ask(target, asked(TENANT, "GET", path, host=host))
            must(answer.status in (400, 403), f"{path} as {host!r}: {answer.status}")
        doubled = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n".encode()
        must((await ask(target, doubled)).status == 400, f"{path} with two hosts was answered")
    answers = await hammer(target, asked(TENANT, "GET", "/v1/stats", host=_HOSTS[0]))
    return f"{len(answers)} refused"


async def other_sites(target: Target) -> str:
    """Call from a page of another site, as a browser would."""
    put = f"/v1/topics/{TENANT}.t/messages"
    for headers in (
        {"origin": "http://example.org"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
    ):
        answer = await ask(target, asked(TENANT, "POST", put, {"body": "evil"}, **headers))
        must(answer.status == 403, f"{headers}: {answer.status}")
    return "all refused"


async def upgrade(target: Target) -> str:
    """Send a body that is a request, behind Upgrade."""
    inner = asked(TENANT, "GET", "/healthz")
    for kind in ("websocket", "h2c", "foo"):
        outer = asked(TENANT, "POST", "/v1/take", inner, connection="Upgrade", upgrade=kind)
        async with connected(target) as wire:
            await wire.send(outer)
            said = await wire.ended()
        must(b"HTTP/1.1 200" not in said, f"{kind}: the body was answered as a request")
        must(said.startswith(b"HTTP/1.1 400 ") or not said, f"{kind}: {said[:60]!r}")
    answers = await hammer(target, outer)
    return f"{len(answers)} refused"


ATTACKS = (
    Attack("a web page's commands on the beanstalk port", commands_in_a_body),
    Attack("DNS rebinding: foreign names in Host", rebinding),
    Attack("a web page of another site", other_sites),
    Attack("a request hidden behind Upgrade", upgrade),
)
