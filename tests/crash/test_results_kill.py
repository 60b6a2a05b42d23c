"""SIGKILL while a process acks with results: an answered ack has its result, whole and its own."""

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dwell
from dwell.store.embedded.check import check

pytestmark = pytest.mark.campaign

SEED = int(os.environ.get("DWELL_SEED", "0")) or secrets.randbits(32)
KILLS = 12
OPTIONS = {"segment_bytes": 256 * 1024}
#: Puts, takes and acks with results of all sizes, and says each ack once it is answered.
VICTIM = """
import asyncio, sys, dwell
from tests.crash.test_results_kill import OPTIONS, result_of

async def main(folder, life):
    async with dwell.open(folder, **OPTIONS) as queue:
        for turn in range(10_000):
            ids = [f"{life}-{turn}-{n}" for n in range(7)]
            await queue.put_many("t", [b"x" * 100] * 7, ids=ids)
            batch = await queue.take("t", 100, lease="1h")
            given = [result_of(id_) for id_ in batch.ids]
            await queue.ack(batch, results=given)
            print("\\n".join(batch.ids), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def result_of(id_: str) -> bytes | None:
    """Return the result that the message of an id gets: every seventh none."""
    number = int(id_.rsplit("-", 1)[1])
    return None if number == 6 else id_.encode() * (1 + number * number * 20)


async def look(folder: Path, acked: list[str]) -> None:
    async with dwell.open(folder, **OPTIONS) as queue:
        for id_ in acked:
            assert await queue.result("t", id_) == dwell.Outcome("done", result_of(id_)), id_
        # What was acked without an answer has its own result, or was not acked.
        async for batch in queue.pages("t", "leased"):
            for message in batch:
                assert (await queue.result("t", message.id)).result is None


def test_kills_lose_no_answered_result(tmp_path: Path) -> None:
    print(f"DWELL_SEED={SEED}")
    chance, folder, acked = random.Random(SEED), tmp_path / "store", []
    for life in range(KILLS):
        command = [sys.executable, "-c", VICTIM, str(folder), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            for _ in range(chance.randrange(20, 400)):
                line = victim.stdout.readline()
                if not line:
                    break
                acked.append(line.strip())
            victim.send_signal(signal.SIGKILL)
            # A line that was cut was not said.
            rest = victim.stdout.read()
            acked += rest[: rest.rfind("\n") + 1].split()
        asyncio.run(look(folder, acked))
    assert len(acked) > 20 * KILLS
    report = check(folder)
    assert report.ok, report.findings
