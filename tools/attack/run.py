"""Running one attack: the server, the honest client beside it, and what came of them."""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tools.attack.attack import Attack, GotThrough
from tools.attack.bystander import Seen, beside
from tools.attack.sockets import HOLD_S
from tools.attack.target import Target
from tools.attack.warm import warm

#: By how much the server's memory may grow, and how long one call in a hundred may take.
MOST_MB = 64.0
MOST_MS = 100.0


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


def run(attack: Attack, most_ms: float, store: str = "") -> Outcome:
    """Attack a server of its own; of an honest client's calls one in a hundred may take so long.

    ``store`` is the URL of an empty store; without one it is a new folder.
    """
    how: dict[str, Any] = {"has_tls": attack.has_tls, "files": attack.files, "store": store}
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        Target(Path(folder), *attack.args, **how) as target,
    ):
        asyncio.run(_prepare(attack, target))
        target.forget_most()
        before, told, wrong = target.memory_bytes, "", ""
        with beside(target) as found:
            try:
                told = asyncio.run(attack.run(target))
            except (GotThrough, AssertionError, OSError, asyncio.IncompleteReadError) as error:
                wrong = str(error) or type(error).__name__
        grown_mb = (target.most_memory_bytes - before) / 1e6
    reasons = [wrong, *_over(grown_mb, found.seen, most_ms)]
    return Outcome(attack.name, grown_mb, found.seen, told, "; ".join(filter(None, reasons)))


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
