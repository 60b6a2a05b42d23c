"""A process with a full store, for the benchmarks of memory and of restarts.

``python -m bench.filled FOLDER PENDING IDS END``: open a store, put messages that fall due over the
next day, print the process's own memory in bytes, and end: ``close``, or ``kill`` itself.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time

import numpy as np

import dwell
from bench.lifecycle import BODY, own_ids
from bench.process import own_memory

_BATCH = 1000
_DAY_MS = 24 * 3_600_000


def fill(folder: str, pending: int, ids: str, end: str) -> int:
    """Run this module in a process of its own; return the memory it had, in bytes."""
    command = [sys.executable, "-m", "bench.filled", folder, str(pending), ids, end]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    expected = -signal.SIGKILL if end == "kill" else 0
    if done.returncode != expected:
        raise SystemExit(f"filling the store ended with status {done.returncode}")
    return int(done.stdout)


def dues(count: int, seed: int) -> np.ndarray:
    """Return due times over the next day, from a minute on, in no order."""
    start = time.time_ns() // 1_000_000 + 60_000
    return np.random.default_rng(seed).integers(start, start + _DAY_MS, count)


async def put_pending(queue: dwell.Queue, pending: int, ids: str, *, after_ms: int = 0) -> None:
    """Put so many messages, which fall due over a day that begins a minute and so much from now."""
    gate = asyncio.Semaphore(8)

    async def put(at: int) -> None:
        async with gate:
            own = own_ids(at, _BATCH) if ids == "caller" else None
            due = dues(_BATCH, at) + after_ms
            await queue.put_many("bench", [BODY] * _BATCH, ids=own, due=due)

    for start in range(0, pending, 100 * _BATCH):
        stop = min(start + 100 * _BATCH, pending)
        await asyncio.gather(*[put(at) for at in range(start, stop, _BATCH)])


async def _fill(folder: str, pending: int, ids: str, end: str) -> None:
    async with dwell.open(folder) as queue:
        await put_pending(queue, pending, ids)
        print(own_memory(), flush=True)
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(_fill(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
