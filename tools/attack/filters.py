"""Filters: headers that are much work to compare, and more of them than a message can have."""

import json

from dwell.message import MAX_HEADERS, MAX_HEADERS_BYTES
from tools.attack.attack import Attack, must
from tools.attack.sockets import ask, hammer
from tools.attack.target import TENANT, Target, asked

_TOPIC = f"/v1/topics/{TENANT}.headers"
_COUNT = 4_000
#: As many headers as a message may have, and as long.
_HEADERS = {f"{n:03}": "x" * (MAX_HEADERS_BYTES // MAX_HEADERS - 3) for n in range(MAX_HEADERS)}
#: What no message has, so that all are looked at.
_WANTED = {**_HEADERS, "000": "y"}
_TOO_MANY = 600_000


async def fill(target: Target) -> None:
    """Put messages with as many headers as they may have."""
    rows = [{"body": "x", "headers": _HEADERS}] * 500
    for _ in range(0, _COUNT, len(rows)):
        answer = await ask(target, asked(TENANT, "POST", f"{_TOPIC}/messages", rows))
        must(answer.status == 200, f"the store could not be filled: {answer.data[:200]!r}")


async def compared(target: Target) -> str:
    """Look for messages by headers, and by more of them than there can be."""
    statuses = {}
    many = {f"{n:x}": "" for n in range(_TOO_MANY)}
    for told, headers, seconds in (("all", _WANTED, 3.0), ("too many", many, 1.0)):
        ways = (("find", {"headers": headers}), ("cancel", {"filter": {"headers": headers}}))
        for verb, body in ways:
            data = json.dumps(body).encode()
            request = asked(TENANT, "POST", f"{_TOPIC}/{verb}", data, **_AS_JSON)
            answers = await hammer(target, request, at_once=2, seconds=seconds)
            statuses[told, verb] = {answer.status for answer in answers}
    must(statuses["all", "find"] <= {200, 429}, f"got {statuses}, expected answers")
    refused = statuses["too many", "find"] | statuses["too many", "cancel"]
    must(refused <= {400, 413, 429}, f"got {statuses}, expected refusals")
    return f"{_COUNT} messages at two verbs, and {_TOO_MANY} headers refused"


_AS_JSON = {"content_type": "application/json"}

ATTACKS = (Attack("headers in filters", compared, prepare=fill),)
