"""Watchers: streams of the board, each of a view that no other stream shares."""

import asyncio
import socket
from typing import Any

from tools.attack.attack import Attack, must
from tools.attack.metrics import fill
from tools.attack.sockets import HOLD_S, ask, many
from tools.attack.target import TENANT, VICTIM, Target, asked

#: As many streams as one token may have.
_COUNT = 250


def _view(number: int) -> dict[str, Any]:
    if number % 2:
        return {"overview": {"offset": number, "limit": 200}}
    return {"load": {"start_ms": 1, "span_ms": 1000 + number, "count": 100}}


async def watched(target: Target) -> str:
    """Watch as often as one may, each time something else."""
    loop = asyncio.get_running_loop()

    async def drained(sock: socket.socket) -> None:
        while await loop.sock_recv(sock, 1 << 16):
            pass

    with many(target.http, _COUNT) as socks:
        for number, sock in enumerate(socks):
            await loop.sock_sendall(sock, asked(TENANT, "POST", "/v1/watch", _view(number)))
        readers = [asyncio.ensure_future(drained(sock)) for sock in socks]
        await asyncio.sleep(HOLD_S)
        answer = await ask(target, asked(VICTIM, "GET", "/v1/overview"))
        must(answer.status == 200, f"an overview of another: {answer.status}")
        await asyncio.sleep(HOLD_S)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return f"{_COUNT} streams"


ATTACKS = (Attack("streams of the board that share nothing", watched, prepare=fill),)
