"""Streams and waits: what each keeps for as long as it lasts."""

import asyncio
from functools import partial

from tools.attack.attack import Attack, must
from tools.attack.sockets import HOLD_S, ask, many
from tools.attack.target import TENANT, Target, asked

_TOPIC = f"{TENANT}.none"
_SPACES = b" " * (8 * 1024 * 1024 - 100)


async def bodies(target: Target) -> str:
    """Begin sixty streams, each with a body of 8 MiB, of which nearly all says nothing."""
    asks = [("/v1/push", b'{"topics":"%b"' % _TOPIC.encode())] * 40
    asks += [("/v1/watch", b'{"overview":{}')] * 20
    loop = asyncio.get_running_loop()
    with many(target.http, len(asks)) as socks:
        for sock, (path, begin) in zip(socks, asks, strict=True):
            data = begin + _SPACES + b"}"
            request = asked(TENANT, "POST", path, data, content_type="application/json")
            await loop.sock_sendall(sock, request)
        await asyncio.sleep(HOLD_S)
    return f"{len(asks)} streams"


async def topics(count: int, target: Target) -> str:
    """Wait forty times, each on many topics of its own."""
    asks = [
        {"topics": [f"{TENANT}.{n}.{at}" for at in range(count)], "wait_ms": 60_000}
        for n in range(40)
    ]
    requests = [asked(TENANT, "POST", "/v1/take", one) for one in asks]
    with many(target.http, len(asks)) as socks:
        for sock, request in zip(socks, requests, strict=True):
            await asyncio.get_running_loop().sock_sendall(sock, request)
        await asyncio.sleep(HOLD_S)
    answer = await ask(target, asked(TENANT, "POST", "/v1/take", {"topics": _TOPIC}))
    must(answer.status in (200, 429), f"a take beside them: {answer.status}")
    return f"{len(asks)} waits on {count} topics each"


ATTACKS = (
    Attack("bodies of streams", bodies),
    Attack("waits on thousands of topics", partial(topics, 10_000)),
    Attack("waits on as many topics as may be", partial(topics, 1_000)),
)
