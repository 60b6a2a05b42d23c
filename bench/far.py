"""Many messages that are due over months, in a folder with a budget of memory: bytes a message.

A process of its own puts messages with bodies of 100 bytes and callers' ids, due over 90 days, in
batches of 1,000, reschedules and cancels some by id, lists what is due in the next hour, and ends
by SIGKILL. Then the store is opened again here. Memory is all that the process has resident (RSS).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import dwell
from bench.lifecycle import own_ids
from bench.process import own_memory, resident_memory
from bench.result import Result
from bench.watch import Watch

BODY = b"x" * 100
_BATCH = 1000
_HOUR_MS = 3_600_000
_SPREAD_MS = 90 * 24 * _HOUR_MS
_MB = 1 << 20


def run(*, pending: int, memory_mb: int, named: int) -> Result:
    """Fill a store in another process that ends badly, and open it here."""
    params = {"pending": pending, "memory_mb": memory_mb, "named": named}
    result = Result("far", params, "bytes/message")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        command = [sys.executable, "-m", "bench.far", f"{folder}/store"]
        told = [str(pending), str(memory_mb), str(named)]
        done = subprocess.run([*command, *told], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != -signal.SIGKILL:
            raise SystemExit(f"filling the store ended with status {done.returncode}")
        result.more.update(json.loads(done.stdout))
        result.add("dwell", result.more["rss_mb"] * _MB / pending)
        result.more.update(asyncio.run(_open(f"{folder}/store", memory_mb, pending - named)))
    return result


def _opened(folder: str, memory_mb: int) -> dwell.Handle:
    return dwell.open(folder, memory_bytes=memory_mb * _MB)


async def _open(folder: str, memory_mb: int, left: int) -> dict[str, Any]:
    start = time.perf_counter()
    async with _opened(folder, memory_mb) as queue:
        seconds = time.perf_counter() - start
        found = (await queue.stats()).topics["bench"]
        assert found.delayed + found.ready == left, (found, left)
        own_mb, rss_mb = own_memory() // _MB, resident_memory() // _MB
        return {"start_s": round(seconds, 2), "start_rss_mb": rss_mb, "start_own_mb": own_mb}


async def _fill(folder: str, pending: int, memory_mb: int, named: int) -> None:
    handle = _opened(folder, memory_mb)
    async with handle as queue:
        watch = Watch()
        told = await _put(queue, pending)
        told["put_stop_ms"] = round((await watch.stop())[-1], 1)
        chosen = np.random.default_rng(1).choice(pending, 2 * named, replace=False).tolist()
        ids = [f"order-{number:010d}" for number in chosen]
        watch = Watch()
        told["reschedules"] = round(await _by_id(queue.reschedule, ids[:named], delay="30d"))
        told["cancels"] = round(await _by_id(queue.cancel, ids[named:]))
        told["by_id_stop_ms"] = round((await watch.stop())[-1], 1)
        watch, start = Watch(), time.perf_counter()
        page = await queue.scan("bench", "delayed", limit=_BATCH)
        told["list_s"] = round(time.perf_counter() - start, 3)
        assert len(page.messages) == min(_BATCH, pending - named)
        await asyncio.sleep(0.1)
        told["list_stop_ms"] = round((await watch.stop())[-1], 1)
        await queue.peek("bench", 1)
        told["rss_mb"] = resident_memory() // _MB
        told["own_mb"] = own_memory() // _MB
        files = {path: path.stat().st_blocks * 512 for path in Path(folder).iterdir()}
        told["disk_bytes"] = round(sum(files.values()) / pending, 1)
        for name in ("journal", "snapshot", "events"):
            part = sum(n for path, n in files.items() if path.name.startswith(name))
            told[f"{name}_bytes"] = round(part / pending, 1)
        told["condition"] = await handle.store.condition()
        print(json.dumps(told), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def _put(queue: dwell.Queue, pending: int) -> dict[str, Any]:
    gate, begun = asyncio.Semaphore(8), time.time_ns() // 1_000_000 + _HOUR_MS // 2

    async def put(at: int) -> None:
        async with gate:
            await queue.put_many(
                "bench", [BODY] * _BATCH, ids=own_ids(at, _BATCH), due=begun + _dues(_BATCH, at)
            )

    rates, peak = list[float](), 0
    tenth = max(pending // 10, _BATCH)
    for first in range(0, pending, tenth):
        start = time.perf_counter()
        for at in range(first, min(first + tenth, pending), 100 * _BATCH):
            stop = min(at + 100 * _BATCH, first + tenth, pending)
            await asyncio.gather(*[put(n) for n in range(at, stop, _BATCH)])
            peak = max(peak, resident_memory())
        rates.append(tenth / (time.perf_counter() - start))
        print(f"  {first + tenth:,} put, {rates[-1]:,.0f}/s, {peak // _MB} MB", file=sys.stderr)
    last = round(rates[-1] / rates[0], 2)
    return {"puts": [round(rate) for rate in rates], "last_tenth": last, "peak_mb": peak // _MB}


async def _by_id(verb: Any, ids: list[str], **words: Any) -> float:
    gate = asyncio.Semaphore(8)

    async def change(at: int) -> None:
        async with gate:
            answers = await verb("bench", ids[at : at + _BATCH], **words)
            assert set(answers) <= {dwell.Result.MOVED, dwell.Result.CANCELLED}

    start = time.perf_counter()
    await asyncio.gather(*[change(at) for at in range(0, len(ids), _BATCH)])
    return len(ids) / (time.perf_counter() - start)


def _dues(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, _SPREAD_MS, count)


if __name__ == "__main__":
    asyncio.run(_fill(sys.argv[1], *map(int, sys.argv[2:5])))
