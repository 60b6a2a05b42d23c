"""SIGKILL at random moments under load: what was answered is there, and nothing else comes back.

DWELL_KILLS sets how often (80; ``make crash``: 2,000), DWELL_SEED repeats a run that failed.
"""

import asyncio
import os
import random
import secrets
import time
from pathlib import Path

import pytest

import dwell
from dwell.store.embedded.check import check
from tests.crash.ledger import Ledger, books_balance, cleared, everything, listen
from tests.crash.victim import TOPICS, start

pytestmark = pytest.mark.campaign

KILLS = int(os.environ.get("DWELL_KILLS", "50"))
MOST_MESSAGES = 20_000
SEED = int(os.environ.get("DWELL_SEED", "0")) or secrets.randbits(32)
#: Small segments, so that many come and go.
OPTIONS = {"segment_bytes": 256 * 1024}


async def taken_in_order(folder: Path) -> int:
    """Take what is ready of each topic at one moment; it must come by priority, then due."""
    count = 0
    async with dwell.open(folder, **OPTIONS) as queue:
        for topic in TOPICS:
            keys = [(m.priority, m.due_ms) for m in await queue.take(topic, 10_000)]
            assert keys == sorted(keys)
            count += len(keys)
    return count


@pytest.mark.timeout(2 * 3600)
def test_kill(tmp_path: Path) -> None:
    print(f"DWELL_SEED={SEED}")
    chance, ledger, folder = random.Random(SEED), Ledger(), tmp_path / "store"
    for number in range(KILLS):
        pid, pipe = start(folder, number, chance.getrandbits(32), **OPTIONS)
        listen(pipe, ledger, chance.random() * 0.15, pid)
        if number % 10 == 9:
            found = asyncio.run(everything(folder, **OPTIONS))
            ledger.compare(found)
            # The last round leaves something, so that its order can be looked at below.
            if len(found) > MOST_MESSAGES and number < KILLS - 1:
                ledger.ended |= asyncio.run(cleared(folder, found, **OPTIONS))
    ledger.compare(asyncio.run(everything(folder, **OPTIONS)))
    report = check(folder)
    assert report.ok, report.findings
    asyncio.run(books_balance(folder, ledger, **OPTIONS))
    # By now every lease of the last victim has ended, so that there is something to take.
    time.sleep(0.4)
    assert asyncio.run(taken_in_order(folder)) > 0
    assert len(ledger.put) > KILLS
    assert ledger.takes > KILLS
