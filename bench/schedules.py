"""Schedules that fire while who fires them is killed: each moment once, and how late.

Over a Redis several processes fire, and one of them is killed now and then; over a folder it is
the server, which starts again on the same port.
"""

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dwell
from bench.process import cpu_seconds
from bench.redis_servers import redis_server
from bench.result import Result, percentile
from bench.servers import free_port

_ROOT = Path(__file__).parents[1]
_TOPIC = "fired"
_AT_ONCE = 500
#: How long before the first moment all is to be in place, and how long the last ones may take on
#: a busy machine: what is not there by then is lost.
_LEAD_S, _TAIL_S = 4.0, 120.0
#: How many are put in a second at least.
_PUTS_A_S = 1000


def run(
    *, store: str, schedules: int, rate: int, processes: int, seconds: int, kill_s: float
) -> Result:
    """Fire ``rate`` schedules a second of so many, for so long, with a kill each ``kill_s``."""
    params = {"store": store, "schedules": schedules, "rate": rate, "processes": processes}
    params |= {"seconds": seconds, "kill_s": kill_s}
    result = Result("schedules", params, "moments/s")
    with _stores(store, processes) as (url, crew):
        asyncio.run(_measure(result, url, crew, schedules, rate, seconds, kill_s))
    return result


class _Crew:
    """The processes that fire, of which one is killed and begun anew now and then."""

    def __init__(self, command: list[str], count: int) -> None:
        self._command = command
        self._all = [self._begin() for _ in range(count)]
        self.kills = 0

    def _begin(self) -> "subprocess.Popen[bytes]":
        nothing = subprocess.DEVNULL
        return subprocess.Popen(self._command, stdout=nothing, stderr=nothing, cwd=_ROOT)

    def kill_one(self) -> None:
        """End one of them with SIGKILL, and begin another in its place."""
        at = random.randrange(len(self._all))
        self._all[at].kill()
        self._all[at].wait()
        self._all[at] = self._begin()
        self.kills += 1

    def cpu_seconds(self) -> float:
        """Return how long they have had a core."""
        return sum(cpu_seconds(process.pid) for process in self._all)

    def end(self) -> None:
        """End all."""
        for process in self._all:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _stores(store: str, processes: int) -> Iterator[tuple[str, _Crew]]:
    with contextlib.ExitStack() as stack:
        if store == "redis":
            url = f"redis://127.0.0.1:{stack.enter_context(redis_server()).port}"
            crew = _Crew([sys.executable, "-m", "bench.schedules", url], processes)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="."))).absolute()
            address = f"127.0.0.1:{free_port()}"
            url, program = f"http://{address}", str(Path(sys.executable).with_name("dwell"))
            ports = [f"--http={address}", "--beanstalk=off"]
            crew = _Crew([program, "serve", f"{folder}/store", *ports], 1)
        stack.callback(crew.end)
        yield url, crew


async def _measure(
    result: Result, url: str, crew: _Crew, schedules: int, rate: int, seconds: int, kill_s: float
) -> None:
    every_ms = schedules * 1000 // rate
    async with await _reached(url) as queue:
        await queue.configure(_TOPIC, remember_ms=600_000)
        put_s = schedules / _PUTS_A_S + _LEAD_S
        first_ms = queue.clock.now_ms() + int(put_s * 1000)
        # Each has its place on the grid, so that they fire one after another.
        starts_ms = [first_ms + at * 1000 // rate for at in range(schedules)]
        last_ms = first_ms + seconds * 1000
        await _put_all(queue, starts_ms, every_ms, last_ms)
        # What is put later than planned fires late, whoever fires it.
        result.more["spare_s"] = (first_ms - queue.clock.now_ms()) / 1000
        await asyncio.sleep(max(first_ms - queue.clock.now_ms() - 2000, 0) / 1000)
        result.more["idle_percent"] = await _idle_percent(crew)
        await asyncio.sleep(max(first_ms - queue.clock.now_ms(), 0) / 1000)
        expected = sum(len(range(start, last_ms + 1, every_ms)) for start in starts_ms)
        every = max(int(rate * kill_s), 1)
        seen, first, late_ms = await _take_all(queue, crew, expected, last_ms, every)
    late_ms.sort()
    result.add("dwell", len(seen) / seconds)
    result.more |= {
        "lost": expected - len(seen),
        "doubled": sum(first.values()) - len(first),
        "early": sum(late < 0 for late in late_ms),
        "kills": crew.kills,
        **{f"p{part}_ms": round(percentile(late_ms, part / 100), 1) for part in (50, 99)},
        "worst_ms": late_ms[-1],
    }


async def _reached(url: str) -> dwell.Queue:
    """Return a queue, not opened before its server answers."""
    for _ in range(100):
        with contextlib.suppress(dwell.ServerUnreachable):
            async with dwell.open(url):
                break
        await asyncio.sleep(0.1)
    return dwell.Queue(dwell.handle.store_at(url, dwell.RealClock(), {}))


async def _put_all(queue: dwell.Queue, starts_ms: list[int], every_ms: int, last_ms: int) -> None:
    words: dict[str, Any] = {"every": f"{every_ms}ms", "misfire": "all", "end": last_ms}
    for first in range(0, len(starts_ms), _AT_ONCE):
        part = list(enumerate(starts_ms))[first : first + _AT_ONCE]
        await asyncio.gather(
            *(queue.schedules.put(f"s{at}", _TOPIC, b"x", start=ms, **words) for at, ms in part)
        )


async def _idle_percent(crew: _Crew) -> float:
    before, began = crew.cpu_seconds(), time.monotonic()
    await asyncio.sleep(1)
    return round(100 * (crew.cpu_seconds() - before) / (time.monotonic() - began), 2)


async def _take_all(
    queue: dwell.Queue, crew: _Crew, expected: int, last_ms: int, every: int
) -> tuple[set[str], "Counter[str]", list[int]]:
    """Take what comes until all have come, or no more is to come.

    Each time that ``every`` more have come, one who fires is killed: a slow machine sees as many
    kills as a quick one. Returns the ids, how often each was taken for the first time, and how
    late that was.
    """
    seen: set[str] = set()
    first: Counter[str] = Counter()
    late_ms: list[int] = []
    kill_at = every
    while len(seen) < expected and queue.clock.now_ms() < last_ms + _TAIL_S * 1000:
        if len(seen) >= kill_at:
            crew.kill_one()
            kill_at += every
        try:
            batch = await queue.take(
                _TOPIC, min(1000, kill_at - len(seen)), wait="250ms", lease="3s"
            )
            now_ms = queue.clock.now_ms()
            # What was taken as the server was killed comes back, and is no second message.
            is_first = batch.attempt == 1
            seen.update(batch.ids)
            first.update(id_ for id_, is_new in zip(batch.ids, is_first, strict=True) if is_new)
            late_ms += (now_ms - batch.due_ms[is_first]).tolist()
            await queue.ack(batch)
        except dwell.StoreError:
            await asyncio.sleep(0.05)
    return seen, first, late_ms


async def _fire(url: str) -> None:
    async with dwell.open(url) as queue:
        await queue.schedules.fire()


if __name__ == "__main__":
    asyncio.run(_fire(sys.argv[1]))
