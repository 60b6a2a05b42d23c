"""Pipelines: many requests on one connection, whose answers are read or not."""

import asyncio
import contextlib

from tools.attack.attack import Attack, must
from tools.attack.sockets import HOLD_S, connected, many, pour
from tools.attack.target import TENANT, Target, asked

#: How much may be taken from a connection that is not answered: what the system holds, and 64 KiB.
_MOST_HELD_MB = 8.0


async def unread(target: Target) -> str:
    """Ask without end and without a token, and read no answer."""
    with many(target.http, 20, buffer_bytes=4096) as socks:
        taken = await pour(socks, asked(None, "GET", "/") * 2000)
    must(taken < len(socks) * _MOST_HELD_MB, f"{taken:.0f} MB were taken and not answered")
    return f"{taken:.0f} MB taken on {len(socks)} sockets"


async def read(target: Target) -> str:
    """Ask without end and without a token, and read the answers."""
    async with connected(target) as wire:
        answers = asyncio.create_task(_count(wire.reader))
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(HOLD_S):
                while True:
                    await wire.send(asked(None, "GET", "/") * 1000)
        answers.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answers
    return "answered one by one"


async def _count(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass


async def with_a_token(target: Target) -> str:
    """Ask for a large page without end, with a token, on many sockets that read nothing."""
    with many(target.http, 200, buffer_bytes=4096) as socks:
        taken = await pour(socks, asked(TENANT, "GET", "/openapi.json") * 200)
    must(taken < len(socks) * _MOST_HELD_MB, f"{taken:.0f} MB were taken and not answered")
    return f"{taken:.0f} MB taken on {len(socks)} sockets"


async def behind_a_wait(target: Target) -> str:
    """Send without end behind a take that waits."""
    wait = asked(TENANT, "POST", "/v1/take", {"topics": f"{TENANT}.none", "wait_ms": 60_000})
    put = asked(TENANT, "POST", f"/v1/topics/{TENANT}.t/messages", {"body": "x" * 1000})
    with many(target.http, 20, wait) as socks:
        taken = await pour(socks, put * 100)
    must(taken < len(socks) * _MOST_HELD_MB, f"{taken:.0f} MB were taken and not answered")
    return f"{taken:.0f} MB taken on {len(socks)} sockets"


async def of_commands(target: Target) -> str:
    """Send commands of beanstalk without end, and read no reply."""
    with many(target.beanstalk, 20, buffer_bytes=4096) as socks:
        taken = await pour(socks, b"stats\r\n" * 2000)
    must(taken < len(socks) * _MOST_HELD_MB, f"{taken:.0f} MB were taken and not answered")
    return f"{taken:.0f} MB taken on {len(socks)} sockets"


ATTACKS = (
    Attack("pipeline, no token, answers not read", unread),
    Attack("pipeline, no token, answers read", read),
    Attack("pipeline, a token, large answers not read", with_a_token),
    Attack("pipeline behind a take that waits", behind_a_wait),
    Attack("pipeline of beanstalk commands, replies not read", of_commands),
)
