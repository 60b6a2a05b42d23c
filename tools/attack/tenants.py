"""Tenants: what somebody with a token tries at others who have one."""

import asyncio
import secrets

from tests.http.wire import Answer, Wire
from tools.attack.attack import Attack, must
from tools.attack.sockets import HOLD_S, ask, connected, hammer
from tools.attack.target import HONEST, PUBLIC, TENANT, VICTIM, Target, asked

_WAITING = 200


async def _put(target: Target, who: str, topic: str, body: str = "x", **more: object) -> None:
    path = f"/v1/topics/{topic}/messages"
    answer = await ask(target, asked(who, "POST", path, {"body": body, **more}))
    must(answer.status == 200, f"{who} could not put: {answer.data[:200]!r}")


async def _take(target: Target, who: str, topic: str) -> str:
    body = {"topics": topic, "lease": "1h"}
    answer = await ask(target, asked(who, "POST", "/v1/take", body))
    (message,) = answer.value["messages"]
    receipt: str = message["receipt"]
    return receipt


async def foretold(target: Target) -> str:
    """Make receipts up from one's own, and try each verb with them while the victim works."""
    topics = {who: f"{who}.jobs" for who in (TENANT, VICTIM)}
    held = []
    for who in (TENANT, VICTIM, TENANT):
        await _put(target, who, topics[who])
        held.append(await _take(target, who, topics[who]))
    own, real = int(held[0], 16), held[1]
    near = [own + (row << 64) + turn for row in range(-40, 40) for turn in range(-40, 40)]
    guesses = [f"{guess % (1 << 128):032x}" for guess in near if guess != own]
    guesses += [real[:-8] + secrets.token_hex(4) for _ in range(1000)]
    for verb in ("touch", "release", "bury", "ack"):
        for at in range(0, len(guesses), 5_000):
            body = {"receipts": guesses[at : at + 5_000]}
            answer = await ask(target, asked(TENANT, "POST", f"/v1/{verb}", body))
            must(set(answer.value["results"]) == {"stale"}, f"{verb} did {answer.data[:200]!r}")
        body = {"receipts": [real]}
        answer = await ask(target, asked(TENANT, "POST", f"/v1/{verb}", body))
        must(answer.value["results"] == ["stale"], f"{verb} by a foreign receipt: {answer.value}")
    answers = await hammer(target, asked(TENANT, "POST", "/v1/ack", {"receipts": guesses[:5_000]}))
    done = await ask(target, asked(VICTIM, "POST", "/v1/ack", {"receipts": [real]}))
    must(done.value["results"] == ["acked"], f"the victim's ack: {done.value}")
    return f"{len(guesses)} guesses, and {len(answers)} times 5,000, all stale"


async def foreign(target: Target) -> str:
    """Ask for what is a victim's, and for what nobody has: both must look alike."""
    topic = f"{VICTIM}.secret"
    await _put(target, VICTIM, topic, id="order-1", delay="1h")
    for path, body in _looks(topic):
        told = [
            await ask(target, asked(TENANT, "POST" if sent else "GET", where, sent or None))
            for where, sent in ((path, body), _other(path, body))
        ]
        must(_told(told[0]) == _told(told[1]), f"{path} {body} tells: {told[0].data[:200]!r}")
        must(topic.encode() not in told[0].data or topic in f"{path}{body}", f"{path} names it")
    return "nothing differs"


def _looks(topic: str) -> list[tuple[str, dict[str, object]]]:
    """Return paths and bodies that ask for a message of a topic."""
    jobs = [{"command": verb, "id": "order-1"} for verb in ("finish", "delete")]
    return [
        (f"/v1/topics/{topic}/messages/order-1", {}),
        (f"/v1/topics/{topic}/messages?state=delayed", {}),
        (f"/v1/topics/{topic}/peek", {}),
        (f"/v1/topics/{topic}/settings", {}),
        (f"/v1/topics/{topic}/get", {"ids": ["order-1"]}),
        (f"/v1/topics/{topic}/cancel", {"ids": ["order-1"]}),
        (f"/v1/topics/{topic}/find", {"where": "@"}),
        ("/v1/take", {"topics": topic}),
        *(("/command", job) for job in jobs),
        *(("/command", {**job, "topic": topic}) for job in jobs),
    ]


def _other(path: str, body: dict[str, object]) -> tuple[str, dict[str, object]]:
    """Return the same for a message that nobody has, of as foreign a topic."""
    words = {"order-1": "order-2", f"{VICTIM}.secret": f"{VICTIM}.sacred"}
    for word, other in words.items():
        path = path.replace(word, other)
    body = {k: words.get(v, v) if isinstance(v, str) else v for k, v in body.items()}
    return path, {**body, **({"ids": ["order-2"]} if "ids" in body else {})}


def _told(answer: Answer) -> tuple[int, bytes]:
    data = answer.data.replace(b"sacred", b"secret").replace(b"order-2", b"order-1")
    return answer.status, data


async def revoked(target: Target) -> str:
    """Wait with a right, and go on waiting when it is taken away."""
    jobs = f"{TENANT}.jobs"
    wait = {"topics": jobs, "wait_ms": 60_000}
    async with (
        connected(target) as taker,
        connected(target) as stream,
        connected(target, port="beanstalk") as line,
    ):
        await taker.send(asked(TENANT, "POST", "/v1/take", wait))
        await stream.send(asked(TENANT, "POST", "/v1/push", {"topics": jobs, "credit": 5}))
        await line.send(f"watch {PUBLIC}q\r\nignore default\r\nreserve\r\n".encode())
        await asyncio.sleep(HOLD_S / 2)
        target.allow((VICTIM, HONEST), anonymous="none.")
        target.reload()
        waits = [asyncio.ensure_future(one.ended()) for one in (stream, line)]
        answer = await taker.answer()
        must(answer.status == 401, f"a take that waited ended with {answer.status}")
        # It has a right again on what comes, but the waits that were there may not have it.
        target.allow((VICTIM, HONEST, TENANT))
        target.server.signal(1)
        await _until_allowed(target, jobs)
        await asyncio.sleep(HOLD_S / 2)
        said = b"".join(_said(one) for one in (stream, line))
        for one in waits:
            one.cancel()
    must(b"evil" not in said, f"a wait without a right got {said!r:.200}")
    return "every wait ended"


async def _until_allowed(target: Target, topic: str) -> None:
    put = asked(TENANT, "POST", f"/v1/topics/{topic}/messages", {"body": "evil"})
    while (await ask(target, put)).status != 200:
        await asyncio.sleep(0.05)


def _said(wire: Wire) -> bytes:
    """Return what came and was not read."""
    return bytes(wire.reader._buffer)  # type: ignore[attr-defined]


async def crowding(target: Target) -> str:
    """Wait as often as one can, so that nobody else may."""
    topic = f"{TENANT}.none"
    wait = asked(TENANT, "POST", "/v1/take", {"topics": topic, "wait_ms": 60_000})
    wires = []
    for _ in range(2 * _WAITING):
        wires.append(Wire(*await asyncio.open_connection(*target.http)))
        await wires[-1].send(wait)
    await asyncio.sleep(HOLD_S)
    mine = asked(VICTIM, "POST", "/v1/take", {"topics": f"{VICTIM}.none", "wait_ms": 100})
    answer = await ask(target, mine)
    for wire in wires:
        wire.close()
    must(answer.status == 200, f"another could not wait: {answer.status} {answer.data[:200]!r}")
    return f"of {2 * _WAITING} waits others had their half"


ATTACKS = (
    Attack("receipts that are foretold", foretold),
    Attack("what is said of foreign topics", foreign),
    Attack("waits whose rights were revoked", revoked),
    Attack("waits that crowd out others", crowding, args=("--max-waiting", str(_WAITING))),
)
