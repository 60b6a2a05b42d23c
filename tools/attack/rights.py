"""Rights: what tokens try that may only look, or only see the metrics."""

import re
from typing import Any

from dwell.server.http.api import ENDPOINTS
from dwell.server.tokens import Right
from tests.http.wire import Answer
from tools.attack.attack import Attack, must
from tools.attack.sockets import ask, connected
from tools.attack.target import HONEST, READER, SCRAPER, VICTIM, Target, asked

_TOPIC = f"{VICTIM}.jobs"
_PARTS = {"topic": _TOPIC, "id": "dead", "name": "nightly", "poll": "p", "stream": "s"}
_ALL: dict[str, Any] = {"states": ["delayed", "ready", "dead"]}
#: What is tried at each endpoint that has a body.
_BODIES: tuple[Any, ...] = (
    {"topics": _TOPIC, "lease": "1h"},
    {"topics": [_TOPIC], "credit": 10},
    {"ids": ["dead", "one"]},
    {"ids": ["one"], "due_ms": 0},
    {"filter": _ALL},
    {"filter": _ALL, "delay": 0},
    {"paused": True},
    {"repair": True},
    {"topic": _TOPIC, "body": "evil", "every": "1s"},
    {"body": "evil"},
    {"command": "add", "topic": _TOPIC, "id": "evil", "body": "evil"},
    {"command": "pop", "topic": _TOPIC},
    {"command": "finish", "id": "leased"},
    {"command": "delete", "id": "one"},
    {},
)
_COMMANDS = (
    b"put 0 0 9 4\r\nevil",
    *(b"watch %b", b"reserve-with-timeout 0", b"reserve-job %d", b"delete %d", b"release %d 0 0"),
    *(b"bury %d 0", b"touch %d", b"kick 9", b"kick-job %d", b"pause-tube %b 9"),
)
_DENIED = (401, 403, 404, 405)


async def _fill(target: Target) -> None:
    """Put what there is to change: messages in each state, and a setting."""
    path = f"/v1/topics/{_TOPIC}"
    for body in ({"id": "leased"}, {"id": "dead"}, {"id": "one", "delay": "1h"}, {"id": "ready"}):
        row = {"body": "x", **body}
        must((await ask(target, asked(VICTIM, "POST", f"{path}/messages", row))).status == 200, row)
        if body["id"] in ("leased", "dead"):
            take = {"topics": _TOPIC, "lease": "1h"}
            found = await ask(target, asked(VICTIM, "POST", "/v1/take", take))
            (message,) = found.value["messages"]
            if body["id"] == "dead":
                bury = {"receipts": [message["receipt"]], "reason": "x"}
                await ask(target, asked(VICTIM, "POST", "/v1/bury", bury))


async def _seen(target: Target) -> list[Any]:
    """Return all that there is, as its owner sees it."""
    told = []
    for state in ("delayed", "ready", "leased", "dead"):
        where = f"/v1/topics/{_TOPIC}/messages?state={state}"
        answer = await ask(target, asked(VICTIM, "GET", where))
        told += answer.value["messages"]
    settings = await ask(target, asked(VICTIM, "GET", f"/v1/topics/{_TOPIC}/settings"))
    return [*told, settings.value]


async def _tried(target: Target, who: str) -> list[tuple[Any, Answer]]:
    """Ask every endpoint for everything; return what it answered."""
    told = []
    for endpoint in ENDPOINTS:
        if endpoint.name in ("push", "watch") and Right.READ in endpoint.rights and who == READER:
            continue
        path = re.sub(r"{(\w+)(?::path)?}", lambda found: _PARTS[found[1]], endpoint.path)
        bodies = _BODIES if endpoint.body is not None else (None,)
        requests = (asked(who, endpoint.method, path, body) for body in bodies)
        told += [(endpoint, await ask(target, request)) for request in requests]
    return told


async def _changing(target: Target) -> str:
    """Try every verb with a token that only looks, and by commands of beanstalk."""
    before = await _seen(target)
    must(len(before) == 5, f"there is something else to change: {before}")
    told = await _tried(target, READER)
    for endpoint, answer in told:
        is_open = Right.READ in endpoint.rights or not endpoint.rights or endpoint.name == "rights"
        must(is_open or answer.status in _DENIED, f"{endpoint.path} answered {answer.status}")
        must(b'"receipt":"' not in answer.data, f"{endpoint.path} gave a receipt")
    target.allow((HONEST, VICTIM), anonymous=f"{VICTIM}.", rights=("read",))
    target.reload()
    async with connected(target, port="beanstalk") as line:
        await line.send(b"use %b\r\n" % _TOPIC.encode())
        for command in _COMMANDS:
            word = command.replace(b"%d", b"1").replace(b"%b", _TOPIC.encode())
            await line.send(word + b"\r\n")
        await line.send(b"quit\r\n")
        await line.ended()
    must(await _seen(target) == before, "something has changed")
    return f"{len(told)} requests and {len(_COMMANDS)} commands changed nothing"


async def _looking(target: Target) -> str:
    """Try everything with a token for metrics only."""
    told = await _tried(target, SCRAPER)
    for endpoint, answer in told:
        is_open = Right.METRICS in endpoint.rights or not endpoint.rights
        must(
            (answer.status == 200) if is_open else answer.status in _DENIED,
            f"{endpoint.path} answered {answer.status}",
        )
    return f"{len(told)} requests, and only /metrics was answered"


ATTACKS = (
    Attack("changes by a token that only reads", _changing, prepare=_fill),
    Attack("looks by a token for metrics", _looking, prepare=_fill),
)
