"""The console over a full server: its first page in a Chromium, and what it costs to be looked at.

put -> take -> ack over HTTP in batches, alone and with browsers that watch the topics, in turn.
Beside the Chromium a browser is a stream that is read: what it draws is work of its own machine.
"""

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from playwright.sync_api import sync_playwright

import dwell
from bench.filled import dues
from bench.http import batches
from bench.lifecycle import BODY, dwell_batches
from bench.process import cpu_seconds
from bench.result import Result
from bench.servers import dwell_process

_BATCH = 1000
_WATCH = b'{"overview":{"limit":50}}'
_ROOT = Path(__file__).parents[1]
#: How often the first page is opened, each time by a browser that knows nothing of it.
_PAGES = 5
#: The moment that was noted, as soon as it is; a policy as strict as ours keeps tests from more.
_SHOWN_AT = """() => new Promise((done) => {
    const look = () => window.shownAt ? done(shownAt) : requestAnimationFrame(look);
    look();
})"""


def run(
    *, pending: int, topics: int, browsers: int, messages: int, seconds: int, rounds: int
) -> Result:
    """Fill a server, open the console, and measure with browsers and without."""
    params = {"pending": pending, "topics": topics, "browsers": browsers, "messages": messages}
    result = Result("console", params, "messages/s")
    with dwell_process() as (address, process):
        url = "http://{}:{}".format(*address)
        uvloop.run(_fill(url, pending, topics))
        pages_ms = _first_pages_ms(url)
        result.more["first_page_ms"] = round(statistics.median(pages_ms), 1)
        result.more["first_page_worst_ms"] = round(max(pages_ms), 1)
        quiet = _core_percent(url, process.pid, seconds)
        with _watching(address, browsers):
            watched_percent = _core_percent(url, process.pid, seconds) - quiet
        result.more["watched_core_percent"] = round(watched_percent, 2)
        lives = _Lives(url, process.pid, messages)
        watched: list[float] = []
        systems = {
            "alone": partial(lives.run, "alone"),
            "dwell": partial(_watched, address, browsers, partial(lives.run, "dwell"), watched),
        }
        result.in_turn(rounds, systems)
        result.more["events_a_second_each"] = round(statistics.median(watched), 2)
        result.more |= {f"server_us_{name}": us for name, us in lives.cpu_us().items()}
    lost = 1 - result.median("dwell") / result.median("alone")
    result.more["lost_percent"] = round(100 * lost, 1)
    return result


class _Lives:
    """Lets messages live over HTTP, and notes what each costs the server's cores.

    That tells what watching takes where other work makes the throughput a matter of luck.
    """

    def __init__(self, url: str, pid: int, messages: int) -> None:
        self._run = partial(batches, url, messages, _BATCH)
        self._pid, self._messages = pid, messages
        self._cpu_us: dict[str, list[float]] = {}

    def run(self, name: str) -> float:
        """Return how many messages a second live."""
        before = cpu_seconds(self._pid)
        speed = self._run()
        cost_us = 1_000_000 * (cpu_seconds(self._pid) - before) / self._messages
        self._cpu_us.setdefault(name, []).append(cost_us)
        return speed

    def cpu_us(self) -> dict[str, float]:
        """Return what a message cost the server, in microseconds of a core."""
        return {name: round(statistics.median(found), 3) for name, found in self._cpu_us.items()}


async def _fill(url: str, pending: int, topics: int) -> None:
    async with dwell.open(url) as queue:
        gate, each = asyncio.Semaphore(8), pending // topics

        async def put(at: int) -> None:
            async with gate:
                for start in range(0, each, 10_000):
                    count = min(10_000, each - start)
                    due = dues(count, at) + 3_600_000
                    await queue.put_many(f"topic.{at:04}", [BODY] * count, due=due)

        await asyncio.gather(*map(put, range(topics)))


def _core_percent(url: str, pid: int, seconds: int) -> float:
    """Return what part of a core the server uses while a few messages live, and much changes."""
    before, start = cpu_seconds(pid), time.perf_counter()
    uvloop.run(_trickle(url, seconds))
    return 100 * (cpu_seconds(pid) - before) / (time.perf_counter() - start)


async def _trickle(url: str, seconds: int) -> None:
    async with dwell.open(url) as queue:
        for _ in range(10 * seconds):
            await dwell_batches(queue, 100, 100, None)
            await asyncio.sleep(0.1)


# --- the first page -------------------------------------------------------------------------------


def _first_pages_ms(url: str) -> list[float]:
    """Return how long it took from asking for the page until its topics stood there."""
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not installed; make setup installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        # The first one of a browser waits for that to be there.
        found = [_first_page_ms(browser, url) for _ in range(_PAGES + 1)]
        browser.close()
    return found[1:]


def _first_page_ms(browser: Any, url: str) -> float:
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(
        """new MutationObserver((_, observer) => {
            if (document.querySelector("tbody tr")) {
                observer.disconnect();
                requestAnimationFrame(() => { window.shownAt = performance.now(); });
            }
        }).observe(document, {childList: true, subtree: true});"""
    )
    page.goto(f"{url}/console/")
    page.wait_for_selector("tbody tr")
    took_ms: float = page.evaluate(_SHOWN_AT)
    context.close()
    return took_ms


# --- browsers that watch --------------------------------------------------------------------------


def _watched(address: tuple[str, int], browsers: int, live: Any, watched: list[float]) -> float:
    """Return how fast messages live while browsers watch; note how often each was told."""
    with _watching(address, browsers) as process:
        start = time.perf_counter()
        speed: float = live()
        took_s = time.perf_counter() - start
        process.terminate()
        output, _ = process.communicate()
        watched.append(json.loads(output) / browsers / took_s)
    return speed


@contextmanager
def _watching(address: tuple[str, int], browsers: int) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "bench.console", *map(str, address), str(browsers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit("a console could not watch")
        yield process
    finally:
        process.kill()
        process.wait()


class _Watcher(asyncio.Protocol):
    """A browser that watches: it asks once, and reads what comes."""

    events = 0

    def __init__(self) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        head = b"POST /v1/watch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        transport.write(head + b"Content-Length: %d\r\n\r\n%s" % (len(_WATCH), _WATCH))

    def data_received(self, data: bytes) -> None:
        _Watcher.events += data.count(b"event: overview")
        if not self.begun.done():
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"{data!r:.300}")
            self.begun.set_result(None)


async def _watch(host: str, port: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    watchers = [(await loop.create_connection(_Watcher, host, port))[1] for _ in range(count)]
    await asyncio.gather(*[watcher.begun for watcher in watchers])
    print("ready", flush=True)
    ended = asyncio.Event()
    loop.add_signal_handler(15, ended.set)
    _Watcher.events = 0
    await ended.wait()
    print(_Watcher.events, flush=True)


if __name__ == "__main__":
    asyncio.run(_watch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
