"""A server with many pending messages and waiting takers: the share of one core that it uses."""

import asyncio
import os
import time
from pathlib import Path

import dwell
from bench.filled import put_pending
from bench.process import cpu_seconds
from bench.result import Result
from bench.servers import dwell_process

_TAKE = b'{"topics":"idle","wait_ms":300000}'


def run(*, pending: int, takers: int, seconds: int) -> Result:
    """Fill a server, let takers wait, and look at its CPU time while nothing happens."""
    params = {"pending": pending, "takers": takers, "seconds": seconds}
    result = Result("idle", params, "% of a core")
    with dwell_process() as (address, process):
        asyncio.run(_measure(address, process.pid, params, result))
    return result


async def _measure(
    address: tuple[str, int], pid: int, params: dict[str, int], result: Result
) -> None:
    async with dwell.open("http://{}:{}".format(*address)) as queue:
        await put_pending(queue, params["pending"], "queue", after_ms=3_600_000)
    waiting = [await _taker(address) for _ in range(params["takers"])]
    # What the load left to do (events to write, a snapshot) is over by then.
    await asyncio.sleep(5)
    before = cpu_seconds(pid)
    start = time.perf_counter()
    await asyncio.sleep(params["seconds"])
    result.add("dwell", 100 * (cpu_seconds(pid) - before) / (time.perf_counter() - start))
    result.more["memory_bytes"] = _memory_bytes(pid)
    for writer in waiting:
        writer.close()


async def _taker(address: tuple[str, int]) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection(*address)
    head = b"POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(head + b"Content-Length: %d\r\n\r\n%s" % (len(_TAKE), _TAKE))
    await writer.drain()
    return writer


def _memory_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
