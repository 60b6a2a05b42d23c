"""Opening a store with many pending messages, after a clean stop and after SIGKILL: seconds."""

import asyncio
import tempfile
import time

import dwell
from bench.filled import fill
from bench.result import Result


def run(*, pending: int, rounds: int) -> Result:
    """Fill a store in another process that ends well or badly, and open it here."""
    result = Result("restart", {"pending": pending}, "s")
    for _ in range(rounds):
        for end in ("close", "kill"):
            with tempfile.TemporaryDirectory(dir=".") as folder:
                fill(f"{folder}/store", pending, "queue", end)
                result.add("dwell" if end == "kill" else "dwell_clean", _open(folder, pending))
    result.more["open_s"] = round(result.median("dwell"), 3)
    result.more["open_clean_s"] = round(result.median("dwell_clean"), 3)
    return result


def _open(folder: str, pending: int) -> float:
    async def opened() -> float:
        start = time.perf_counter()
        async with dwell.open(f"{folder}/store") as queue:
            seconds = time.perf_counter() - start
            found = (await queue.stats()).topics["bench"]
            assert found.delayed + found.ready == pending, found
            return seconds

    return asyncio.run(opened())
