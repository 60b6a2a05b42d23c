"""Answers: as large as somebody can have them, read slowly or not at all."""

import asyncio
import contextlib
import json
import time
from functools import partial

from dwell.message import MAX_BATCH_BYTES, MAX_BODY_BYTES
from tools.attack.attack import Attack, must
from tools.attack.sockets import HOLD_S, ask, hammer, many
from tools.attack.target import TENANT, Target, asked

_TOPIC = f"/v1/topics/{TENANT}.large"
_COUNT = 120
#: An answer may go over a batch by a message.
_MOST_BYTES = MAX_BATCH_BYTES + MAX_BODY_BYTES + 64 * 1024
_BODY = json.dumps({"text": "x" * (MAX_BODY_BYTES - 100)})
_IDS = [f"m{n}" for n in range(_COUNT)]

_LIST = asked(TENANT, "GET", f"{_TOPIC}/messages?state=ready&limit=10000")
_GET = asked(TENANT, "POST", f"{_TOPIC}/get", {"ids": _IDS * 80})
_FIND = asked(TENANT, "POST", f"{_TOPIC}/find", {"where": "text", "limit": 1000})
_TAKE = asked(
    TENANT, "POST", f"{_TOPIC}/take-where", {"where": "text", "limit": 1000, "lease": "1s"}
)
_PEEK = asked(TENANT, "GET", f"{_TOPIC}/peek?limit=10000")


async def fill(target: Target) -> None:
    """Put more than many answers hold."""
    for at in range(0, _COUNT, 10):
        rows = [{"body": _BODY, "id": id_} for id_ in _IDS[at : at + 10]]
        answer = await ask(target, asked(TENANT, "POST", f"{_TOPIC}/messages", rows))
        must(answer.status == 200, f"the store could not be filled: {answer.data[:200]!r}")


async def _large(request: bytes, target: Target) -> str:
    answers = await hammer(target, request, at_once=1)
    longest = max(len(answer.data) for answer in answers)
    must(longest <= _MOST_BYTES, f"an answer had {longest / 1e6:.0f} MB")
    good = sum(answer.status == 200 for answer in answers)
    must(good, f"no answer was a good one: {answers[0].data[:200]!r}")
    return f"{good} answers, the longest of {longest / 1e6:.1f} MB"


async def _slow(request: bytes, target: Target) -> str:
    """Ask on one connection after another, and read a few bytes of each answer."""
    loop, end = asyncio.get_running_loop(), time.monotonic() + 2 * HOLD_S
    with contextlib.ExitStack() as stack:
        socks = []
        while time.monotonic() < end:
            (sock,) = stack.enter_context(many(target.http, 1, request, buffer_bytes=4096))
            socks.append(sock)
            for one in socks:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    await asyncio.wait_for(loop.sock_recv(one, 12), 0.2 if one is sock else 0.01)
    return f"{len(socks)} slow readers"


async def unread(target: Target) -> str:
    """Ask 25 times for a page that is six times as large in JSON, and read none of it."""
    path = f"/v1/topics/{TENANT}.signs/messages"
    for _ in range(4):
        rows = b"[" + b",".join([b'{"body":"%b"}' % (rb"\u0001" * 1_000_000)] * 5) + b"]"
        put = asked(TENANT, "POST", path, rows, content_type="application/json")
        must((await ask(target, put)).status == 200, "the store could not be filled")
    target.forget_most()
    with many(target.http, 25, asked(TENANT, "GET", f"{path}?state=ready&limit=100"), 4096):
        await asyncio.sleep(HOLD_S)
    return "25 answers asked for"


def _attack(name: str, request: bytes) -> Attack:
    return Attack(name, partial(_large, request), prepare=fill)


#: What a token may have under way is a half of it.
_LITTLE = ("--max-requests-bytes", "48MiB")


ATTACKS = (
    _attack("large answers to lists", _LIST),
    _attack("large answers to get", _GET),
    _attack("large answers to find", _FIND),
    _attack("large answers to take-where", _TAKE),
    _attack("large answers to peek", _PEEK),
    Attack("large answers that nobody reads", unread),
    Attack("slow readers of large answers", partial(_slow, _GET), args=_LITTLE, prepare=fill),
)
