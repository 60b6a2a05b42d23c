"""SIGKILL while a process acks with follow-ups: each message that is done has its next, once."""

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import dwell
from dwell.store.embedded.check import check

pytestmark = pytest.mark.campaign

SEED = int(os.environ.get("DWELL_SEED", "0")) or secrets.randbits(32)
KILLS = 12
STEPS = 5
OPTIONS = {"segment_bytes": 256 * 1024}
#: Hands each message from step to step, with a follow-up whose id the queue makes.
VICTIM = """
import asyncio, sys, dwell
from dwell import Then
from tests.crash.test_then_kill import OPTIONS, STEPS

async def main(folder, life):
    async with dwell.open(folder, **OPTIONS) as queue:
        await queue.put_many("step-0", [f"{life}-{n}" for n in range(300)])
        print("put", flush=True)
        while True:
            for step in range(STEPS):
                batch = await queue.take(f"step-{step}", 20, lease="50ms")
                await asyncio.gather(*[
                    queue.ack(m, then=Then(f"step-{step + 1}", m.body, delay="5ms")) for m in batch
                ])
                print(len(batch), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


async def bodies(folder: Path) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    async with dwell.open(folder, **OPTIONS) as queue:
        for topic in (await queue.stats()).topics:
            for state in ("delayed", "ready", "leased", "dead"):
                async for batch in queue.pages(topic, state):
                    found.update(batch.bodies)
    return found


def test_kills_lose_and_double_no_follow_up(tmp_path: Path) -> None:
    print(f"DWELL_SEED={SEED}")
    chance, folder, put, moved = random.Random(SEED), tmp_path / "store", 0, 0
    for life in range(KILLS):
        command = [sys.executable, "-c", VICTIM, str(folder), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "put\n"
            put += 300
            for _ in range(chance.randrange(5, 60)):
                moved += int(victim.stdout.readline())
            victim.send_signal(signal.SIGKILL)
            victim.stdout.read()
        found = asyncio.run(bodies(folder))
        assert (len(found), found.total()) == (put, put), found.most_common(3)
    assert moved > 100 * KILLS
    report = check(folder)
    assert report.ok, report.findings
