"""Quotas and ends: what a tenant tries to have more than its token allows, or for longer."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.http.wire import Answer, Wire
from tools.attack.attack import Attack, must
from tools.attack.sockets import HOLD_S, ask, connected, hammer
from tools.attack.target import BOUNDED, HONEST, MOST_PENDING, TENANT, VICTIM, Target, asked

#: What a stream ends with, on a connection that is kept.
_LAST = b"0\r\n\r\n"
_MOST_TOPICS, _MOST_BYTES, _MOST_STREAMS = 20, 1_000_000, 3


async def passing(target: Target) -> str:
    """Put in every way at once, into as many topics as may be, and more."""
    tried = 0
    for turn in range(6):
        puts = [asked(BOUNDED, *one) for at in range(40) for one in _puts(f"{turn}-{at}")]
        answers = await asyncio.gather(*(ask(target, put) for put in puts))
        tried += len(answers)
        strange = {answer.status for answer in answers} - {200, 429, 507}
        must(not strange, f"puts were answered {strange}")
    flood = asked(BOUNDED, "POST", f"/v1/topics/{BOUNDED}.0/messages", [{"body": "x"}] * 50)
    tried += len(await hammer(target, flood))
    found = await ask(target, asked(BOUNDED, "GET", "/v1/stats"))
    topics = {n: sum(of.values()) for n, of in found.value["topics"].items() if n[:6] != "dwell:"}
    there = sum(topics.values())
    must(0 < there <= MOST_PENDING, f"{there} messages got in")
    must(sum(map(bool, topics.values())) <= _MOST_TOPICS, f"{len(topics)} topics were made")
    return f"{tried} requests, and {there} messages in {len(topics)} topics"


def _puts(name: str) -> list[tuple[str, str, Any]]:
    """Return the ways to put a few messages into a topic."""
    topic = f"{BOUNDED}.{name}"
    where = f"/v1/topics/{topic}/messages"
    job = {"command": "add", "topic": topic, "id": name, "body": "x", "TTR": 9}
    return [
        ("POST", where, [{"body": "x"}] * 7),
        ("POST", f"{where}?on_conflict=replace", [{"body": "x" * 999, "id": name}]),
        ("POST", "/command", job),
        ("PATCH", f"/v1/topics/{topic}/settings", {"max_attempts": 9}),
        ("PUT", f"/v1/schedules/{name}", {"topic": topic, "body": "x", "every": "1h"}),
    ]


async def filling(target: Target) -> str:
    """Store more bytes than one may: in bodies, headers and keys."""
    large = [
        {"body": "x" * 90_000},
        {"body": "x", "headers": {str(n): "x" * 1000 for n in range(15)}},
        {"body": "x", "key": "k" * 256},
    ]
    where = f"/v1/topics/{BOUNDED}.large/messages"
    puts = [asked(BOUNDED, "POST", where, row) for row in large] * 60
    answers = await asyncio.gather(*(ask(target, put) for put in puts))
    found = await ask(target, asked(BOUNDED, "GET", f"{where}?state=ready&limit=1000"))
    rows = found.value["messages"]
    stored = sum(len(row["body"]) + len(json.dumps(row["headers"])) for row in rows)
    must(0 < stored <= _MOST_BYTES * 1.05, f"{stored} bytes got in")
    return f"{len(answers)} requests, and {stored} bytes"


async def streaming(target: Target) -> str:
    """Open more streams than one may, all at once."""
    push = asked(BOUNDED, "POST", "/v1/push", {"topics": f"{BOUNDED}.none"})
    watch = asked(BOUNDED, "POST", "/v1/watch", {"overview": {}})
    async with asyncio.TaskGroup() as group:
        told = [group.create_task(_events(target, request)) for request in (push, watch) * 10]
    count = sum(task.result() for task in told)
    must(0 < count <= _MOST_STREAMS, f"{count} streams ran")
    return f"{count} streams of {len(told)} ran"


async def _events(target: Target, request: bytes) -> bool:
    """Tell whether a stream has any event."""
    async with connected(target) as wire:
        await wire.send(request)
        return b"event: " in await _said(wire)


async def _said(wire: Wire) -> bytes:
    """Return what a stream says until it ends, or for a while."""
    said = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2 * HOLD_S):
            while _LAST not in said and (data := await wire.reader.read(65536)):
                said += data
    return said


async def outliving(target: Target) -> str:
    """Begin all that lasts with a token that ends, and go on with it."""
    topic = f"{TENANT}.jobs"
    ends = (datetime.now(UTC) + timedelta(seconds=3 * HOLD_S)).isoformat()
    target.allow((VICTIM, HONEST, TENANT), ends={TENANT: ends})
    target.reload()
    wait = {"topics": topic, "wait_ms": 60_000}
    async with connected(target) as kept, connected(target) as taker, connected(target) as stream:
        first = await kept.ask(asked(TENANT, "GET", f"/v1/topics/{topic}/settings"))
        must(first.status == 200, f"it ended too soon: {first.status}")
        await taker.send(asked(TENANT, "POST", "/v1/take", wait))
        await stream.send(asked(TENANT, "POST", "/v1/push", {"topics": topic, "credit": 5}))
        answer: Answer = await taker.answer()
        must(answer.status == 401, f"a take that waited ended with {answer.status}")
        must(b"ended" in answer.data, f"it was told {answer.data[:200]!r}")
        said = await _said(stream)
        must(said.endswith(_LAST), f"a stream went on: {said[:200]!r}")
        answer = await kept.ask(asked(TENANT, "GET", f"/v1/topics/{topic}/settings"))
        must(answer.status == 401, f"a kept connection was answered {answer.status}")
    return "a wait, a stream and a kept connection ended"


async def naming(target: Target) -> str:
    """End the waits of others by their names, and take these over."""
    wait = {"topics": f"{VICTIM}.none", "wait_ms": 60_000, "poll": "worker-1"}
    async with connected(target) as victim, connected(target) as tenant:
        await victim.send(asked(VICTIM, "POST", "/v1/take", wait))
        await tenant.send(asked(TENANT, "POST", "/v1/take", {**wait, "topics": f"{TENANT}.none"}))
        end = "/v1/polls/worker-1/end"
        while not (await ask(target, asked(TENANT, "POST", end, {}))).value["ended"]:
            await asyncio.sleep(0.05)
        await tenant.answer()
        await asyncio.sleep(HOLD_S / 2)
        again = await ask(target, asked(TENANT, "POST", end, {}))
        must(not again.value["ended"], "a tenant ended a wait of the victim's")
        own = await ask(target, asked(VICTIM, "POST", end, {}))
        must(own.value["ended"], "the victim's wait had ended, or its name was taken")
        must((await victim.answer()).status == 200, "the victim's wait came to nothing")
    return "each ended its own"


ATTACKS = (
    Attack("messages beyond a quota", passing),
    Attack("bytes beyond a quota", filling, needs_folder=True),
    Attack("streams beyond a quota", streaming),
    Attack("waits that outlive their token", outliving),
    Attack("waits of others by their names", naming),
)
