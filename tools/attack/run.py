"""Running one attack: the server, the honest client beside it, and what came of them."""

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.attack.attack import Attack, GotThrough
from tools.attack.bystander import Seen, beside
from tools.attack.sockets import HOLD_S, ask
from tools.attack.target import HONEST, Target, asked
from tools.attack.warm import warm

#: By how much the server's memory may grow, and how long one call in a hundred may take.
MOST_MB = 64.0
MOST_MS = 100.0
#: How much memory a server has beyond what it has when it is idle, where that is limited.
SPARE_MB = 256
#: How long after an attack an honest client may be refused there.
_PATIENCE_S = 30.0
_OK = 200


async def _nothing(target: Target) -> str:
    """Keep a processor busy, as attackers on the same machine do, and leave the server alone."""
    end = time.monotonic() + HOLD_S
    while time.monotonic() < end:
        pass
    return "what this machine needs for honest calls while a processor is busy"


#: What nobody does: how long calls take then is the machine's doing.
NOTHING = Attack("no attack, but a busy processor", _nothing)


class Outcome(NamedTuple):
    """What came of an attack; ``wrong`` says why it got through, and is empty where it did not."""

    name: str
    grown_mb: float
    seen: Seen
    told: str
    wrong: str
    idle_bytes: int = 0

    @property
    def is_only_slow(self) -> bool:
        """Whether honest calls took too long, and nothing else was wrong."""
        return bool(re.fullmatch(r"p99 \d+ ms", self.wrong))


@contextlib.contextmanager
def _target(attack: Attack, store: str, limit_bytes: int = 0) -> Iterator[Target]:
    """Give a server of its own for an attack, which has a new folder without a store."""
    how: dict[str, Any] = {"has_tls": attack.has_tls, "files": attack.files, "store": store}
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        Target(Path(folder), *attack.args, **how, limit_bytes=limit_bytes) as target,
    ):
        asyncio.run(_prepare(attack, target))
        yield target


def run(attack: Attack, most_ms: float, store: str = "") -> Outcome:
    """Attack a server of its own; of an honest client's calls one in a hundred may take so long.

    ``store`` is the URL of an empty store; without one it is a new folder.
    """
    with _target(attack, store) as target:
        target.forget_most()
        idle_bytes = target.address_space_bytes
        before, told, wrong = target.memory_bytes, "", ""
        with beside(target) as found:
            try:
                told = asyncio.run(attack.run(target))
            except (GotThrough, AssertionError, OSError, asyncio.IncompleteReadError) as error:
                wrong = str(error) or type(error).__name__
        grown_mb = (target.most_memory_bytes - before) / 1e6
    reasons = [wrong, *_over(grown_mb, found.seen, most_ms)]
    said = "; ".join(filter(None, reasons))
    return Outcome(attack.name, grown_mb, found.seen, told, said, idle_bytes)


def outlive(attack: Attack, idle_bytes: int, store: str = "") -> str:
    """Attack a server that may have little memory; return what was wrong, nothing if it lives.

    Its address space ends SPARE_MB above what an idle one has. It may refuse what it has no memory
    for, honest clients too, as long as the attack lasts.
    """
    with _target(attack, store, idle_bytes + SPARE_MB * 1_000_000) as target:
        refused = GotThrough, AssertionError, OSError, EOFError, LookupError, ValueError
        with contextlib.suppress(*refused):
            asyncio.run(attack.run(target))
        if target.has_ended:
            return f"it ended with {target.server.process.returncode}: {target.server.other[-3:]}"
        return asyncio.run(_served(target))


async def _served(target: Target) -> str:
    """Put, take and ack as an honest client, as soon as that may be; tell what was wrong."""
    put = asked(HONEST, "POST", f"/v1/topics/{HONEST}.after/messages", {"body": "x"})
    take = asked(HONEST, "POST", "/v1/take", {"topics": f"{HONEST}.after"})
    status = 0
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while status != _OK:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    status = (await ask(target, put, target.context)).status
                await asyncio.sleep(0.1)
            taken = (await ask(target, take, target.context)).value["messages"]
    except TimeoutError:
        return f"an honest put was answered with {status} {_PATIENCE_S} s after the attack"
    return "" if len(taken) == 1 else f"an honest take was handed {taken}"


def _over(grown_mb: float, seen: Seen, most_ms: float) -> list[str]:
    """Return which bounds were passed, in words."""
    words = [seen.wrong and f"an honest client: {seen.wrong}"]
    if grown_mb > MOST_MB:
        words.append(f"{grown_mb:.0f} MB more memory")
    if seen.p99_ms > most_ms:
        words.append(f"p99 {seen.p99_ms:.0f} ms")
    return words


async def _prepare(attack: Attack, target: Target) -> None:
    await warm(target)
    if attack.prepare is not None:
        await attack.prepare(target)
