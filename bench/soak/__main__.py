"""Run a soak: ``python -m bench.soak --minutes 10 --connections 200``."""

import argparse
import asyncio
import contextlib
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

import dwell
from bench.servers import free_port, running
from bench.soak.actors import Actor, ClientActor, JsonActor
from bench.soak.books import audit
from bench.soak.jobs import JobActor
from bench.soak.tally import TOPICS, Tally
from dwell.batch.stats import Stats
from dwell.queue import Queue

_HOST = "127.0.0.1"
_REMEMBER_MS = 10_000

#: Runs that are shorter say nothing of how memory grows.
_SHORTEST_JUDGED_S = 120.0
_MOST_GROWTH = 1.10


class _Served(NamedTuple):
    """A server: its process, and its ports; that of the beanstalk protocol may be missing."""

    pid: int
    http: int
    beanstalk: int | None


@contextlib.contextmanager
def _server() -> Iterator[_Served]:
    http, beanstalk = free_port(), None
    with contextlib.suppress(ImportError):
        importlib.import_module("dwell.server.beanstalk.port")
        beanstalk = free_port()
    program = str(Path(sys.executable).with_name("dwell"))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        options = ["--http", f"{_HOST}:{http}", "--events-bytes", str(1 << 36)]
        options += ["--beanstalk", f"{_HOST}:{beanstalk}" if beanstalk else "off"]
        with running([program, "serve", f"{folder}/store", *options], http) as process:
            yield _Served(process.pid, http, beanstalk)


def _actors(served: _Served, tally: Tally, connections: int, seed: int) -> list[Actor]:
    """Return the connections: of ten, five speak JSON, three are clients, two speak of jobs."""
    made: list[Actor] = []
    for number in range(connections):
        name, own = f"c{number}", seed * 1_000_000 + number
        place = number % 10
        if place < 5 or (place >= 8 and served.beanstalk is None):
            made.append(JsonActor(name, tally, own, _HOST, served.http))
        elif place < 8:
            made.append(ClientActor(name, tally, own, f"http://{_HOST}:{served.http}"))
        else:
            assert served.beanstalk is not None
            made.append(JobActor(name, tally, own, _HOST, served.beanstalk))
    return made


async def _watch(
    queue: Queue, pid: int, tally: Tally, every_s: float, stop: asyncio.Event
) -> list[float]:
    """Print a line every so often; return how much memory the server had, in megabytes."""
    sizes: list[float] = []
    start = next_at = time.monotonic()
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), min(1.0, every_s))
        stats = await queue.stats()
        topics = stats.topics.values()
        tally.pending = sum(topic.delayed + topic.ready + topic.leased for topic in topics)
        if time.monotonic() < next_at + every_s and not stop.is_set():
            continue
        next_at += every_s
        own_mb, all_mb = _memory_mb(pid)
        sizes.append(own_mb)
        line = f"{time.monotonic() - start:6.0f} s  memory {own_mb:.1f} MB, with files {all_mb:.1f}"
        print(f"{line}  {_counts(stats, tally)}", flush=True)
    return sizes


def _counts(stats: Stats, tally: Tally) -> str:
    dead = sum(topic.dead for topic in stats.topics.values())
    names = {"put": "accepted", "ack": "acked", "cancel": "cancelled"}
    texts = [f"{text} {stats.totals[kind]:,}" for kind, text in names.items()]
    texts += [f"dead {dead:,}", f"pending {tally.pending:,}"]
    return "  ".join([*texts, f"steps {tally.steps:,}", f"errors {tally.errors}"])


def _memory_mb(pid: int) -> tuple[float, float]:
    """Return how much memory a process has of its own, and with the files that it has mapped.

    The journal is mapped: its pages are the system's to keep or to drop, so they are not judged.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {name: int(value.split()[0]) for name, _, value in (s.partition(":") for s in lines)
             if name in ("RssAnon", "VmRSS")}  # fmt: skip
    return found["RssAnon"] / 1000, found["VmRSS"] / 1000


def _flatness(sizes: list[float], seconds: float) -> str:
    """Say how memory grew after the first fifth, in which it comes to its height."""
    part = max(len(sizes) // 5, 1)
    before = statistics.median(sizes[part : 2 * part] or sizes)
    after = statistics.median(sizes[-part:])
    text = f"memory after warm-up {before:.1f} MB, at the end {after:.1f} MB"
    if seconds < _SHORTEST_JUDGED_S:
        return f"ok    {text} (too short to be judged)"
    return f"{'ok   ' if after <= before * _MOST_GROWTH else 'WRONG'} {text}"


async def _soak(served: _Served, options: argparse.Namespace) -> list[str]:
    seconds, tally, stop = options.minutes * 60, Tally(), asyncio.Event()
    pace_s = options.connections / options.rate
    async with dwell.open(f"http://{_HOST}:{served.http}") as queue:
        for topic in TOPICS:
            await queue.configure(topic, remember_ms=_REMEMBER_MS)
        actors = _actors(served, tally, options.connections, options.seed)
        watching = asyncio.ensure_future(_watch(queue, served.pid, tally, options.every, stop))
        working = [asyncio.ensure_future(actor.run(pace_s, stop)) for actor in actors]
        await asyncio.sleep(seconds)
        stop.set()
        await asyncio.gather(*working)
        sizes = await watching
        lines = [_flatness(sizes, seconds), *await audit(queue, tally)]
    lines += [f"WRONG {text}" for text in tally.texts]
    return lines


def main() -> int:
    """Run what the command line asks for; return how the process should end."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1500, help="steps a second, all together")
    parser.add_argument("--every", type=float, default=10, help="seconds from line to line")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with _server() as served:
        lines = uvloop.run(_soak(served, options))
    print("\n".join(lines))
    return int(any(line.startswith("WRONG") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
