"""put -> take -> ack over HTTP, client and server as two processes, a second."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import uvloop

import dwell
from bench.lifecycle import BODY, dwell_batches, redis_batches
from bench.profiled import profiled_server
from bench.redis_servers import redis_server
from bench.result import Result, percentile
from bench.servers import dwell_server, floor_server

#: How many messages one client has under way.
_UNDER_WAY = 64_000
#: How many messages live under a profile, which is several times as slow.
_PROFILED = 10_000


def run(*, batch: int, messages: int, connections: int, rounds: int, profile: bool) -> Result:
    """Measure batches by Dwell's client against Redis, or single verbs against bare HTTP.

    Without a number of ``messages`` there are enough for some seconds. ``profile`` shows where the
    server's time goes, of single verbs, and measures nothing else.
    """
    messages = messages or (50_000 if batch == 1 else 2_000 * batch)
    params = {"batch": batch, "messages": messages, "connections": connections}
    if profile:
        return _profiled(connections)
    if batch == 1:
        result = Result("http", params, "verbs/s")
        with dwell_server() as address, floor_server() as floor:
            systems = {
                "dwell": partial(_singles, address[1], messages, connections),
                "floor": partial(_singles, floor, messages, connections),
            }
            result.in_turn(rounds, systems)
            rate = result.median("dwell") / 2
            late = uvloop.run(_paced(address[1], messages, connections, rate))
        for part in (50, 99):
            result.more[f"half_load_p{part}_ms"] = round(percentile(late, part / 100) * 1000, 3)
        return result
    result = Result("http", params, "messages/s")
    with redis_server() as server, dwell_server() as address:
        url = "http://{}:{}".format(*address)
        systems = {
            "dwell": partial(batches, url, messages, batch),
            "redis": partial(redis_batches, server.port, messages // 4, batch, "queue"),
        }
        result.in_turn(rounds, systems)
    return result


def _profiled(connections: int) -> Result:
    result = Result("http", {"batch": 1, "connections": connections}, "verbs/s under a profile")
    with profiled_server("http", 3 * _PROFILED, result.table) as port:
        result.add("dwell", _singles(port, _PROFILED, connections))
    return result


def batches(url: str, messages: int, batch: int) -> float:
    """Return how many messages a second live over HTTP, in batches."""
    return uvloop.run(_batches_async(url, messages, batch))


async def _batches_async(url: str, messages: int, batch: int) -> float:
    at_once = max(min(_UNDER_WAY, messages) // batch, 1)
    async with dwell.open(url) as queue:
        jobs = [dwell_batches(queue, messages // at_once, batch, None) for _ in range(at_once)]
        start = time.perf_counter()
        done = sum(await asyncio.gather(*jobs))
        return done / (time.perf_counter() - start)


# --- single verbs ---------------------------------------------------------------------------------


def _singles(port: int, messages: int, connections: int) -> float:
    return uvloop.run(_singles_async(port, messages, connections))


async def _singles_async(port: int, messages: int, connections: int) -> float:
    """Drive connections that each do one verb after another, with as little work as can be."""
    share = messages // connections
    drivers = await connected(port, [partial(_LifeDriver, share)] * connections)
    start = time.perf_counter()
    for driver in drivers:
        driver.start()
    await asyncio.gather(*[driver.done for driver in drivers])
    return 3 * share * connections / (time.perf_counter() - start)


async def _paced(port: int, messages: int, connections: int, rate: float) -> list[float]:
    """Return how long each verb took, in seconds from its time in a stream of ``rate`` a second.

    The times of the verbs are given before, so that one that is late makes those behind it late.
    """
    step = connections / rate
    paces = [(step, number / rate) for number in range(connections)]
    makers = [partial(_PacedDriver, messages // connections, *pace) for pace in paces]
    drivers = await connected(port, makers)
    for driver in drivers:
        driver.start()
    await asyncio.gather(*[driver.done for driver in drivers])
    return sorted(late for driver in drivers for late in driver.late)


async def connected(port: int, makers: "Sequence[Callable[[], D]]") -> "list[D]":
    """Return drivers of connections to a port of this machine, in order."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(maker, "127.0.0.1", port))[1] for maker in makers]


def request(path: bytes, body: bytes) -> bytes:
    """Return a request whose body is JSON."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % path
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


PUT = request(b"/v1/topics/single/messages", json.dumps({"body": BODY.decode()}).encode())
_TAKE = request(b"/v1/take", b'{"topics":"single","wait_ms":10000}')


class Driver(asyncio.Protocol):
    """One connection; each answer is the signal for the next request."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer = b""
        self._requests = self.requests()

    def requests(self) -> Iterator[bytes]:
        """Yield one request after another; ``answer`` is that of the one before."""
        raise NotImplementedError

    def connection_made(self, transport: Any) -> None:
        """Note where requests go."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End, with an error unless all was answered."""
        if not self.done.done():
            self.done.set_exception(RuntimeError("the server closed the connection"))

    def start(self) -> None:
        """Send the first request."""
        self.send_next()

    def data_received(self, data: bytes) -> None:
        """Send the next request when the answer is whole."""
        self.answer += data
        if not self._is_whole() or self.done.done():
            return
        if self.answer.startswith(b"HTTP/1.1 200"):
            self.send_next()
        else:
            self.done.set_exception(RuntimeError(f"{self.answer!r:.500}"))

    def _is_whole(self) -> bool:
        head = self.answer.find(b"\r\n\r\n")
        if head < 0:
            return False
        at = self.answer.find(b"content-length: ") + 16
        size = int(self.answer[at : self.answer.find(b"\r\n", at)])
        return len(self.answer) >= head + 4 + size

    def send_next(self) -> None:
        """Send the next request, or end where there is none."""
        data = next(self._requests, None)
        if data is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self.answer = b""
        self._transport.write(data)


class _LifeDriver(Driver):
    """A connection that puts, takes and acks single messages."""

    def __init__(self, messages: int) -> None:
        super().__init__()
        self._messages = messages

    def requests(self) -> Iterator[bytes]:
        for _ in range(self._messages):
            yield PUT
            yield _TAKE
            at = self.answer.find(b'"receipt":"') + 11
            yield request(b"/v1/ack", b'{"receipts":["%s"]}' % self.answer[at : at + 32])


class _PacedDriver(_LifeDriver):
    """One connection whose verbs have times: ``step`` seconds apart, from ``first`` on."""

    def __init__(self, messages: int, step: float, first: float) -> None:
        super().__init__(messages)
        self.late: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._step, self._at = step, self._loop.time() + first

    def start(self) -> None:
        self._loop.call_at(self._at, super().send_next)

    def send_next(self) -> None:
        self.late.append(self._loop.time() - self._at)
        self._at += self._step
        self._loop.call_at(self._at, super().send_next)


D = TypeVar("D", bound=Driver)
