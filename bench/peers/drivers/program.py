"""What every driver in Python is: a loop that answers commands, callers that put, takers.

A message has a number, with which its body begins. What is seen of it is appended to a file, as
pairs of doubles, number and time in milliseconds: whoever reads that file needs no answer.
"""

import asyncio
import functools
import itertools
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, ClassVar

_SIZE_BYTES = 200
_MOST_THREADS = 200
#: How long a caller rests after an error.
_REST_S = 0.05


def now_ms() -> float:
    """Return the time of this machine, in milliseconds."""
    return time.time_ns() / 1_000_000


def body_of(number: int) -> bytes:
    """Return the body of a message."""
    return (b"%010d" % number).ljust(_SIZE_BYTES, b"x")


def number_of(body: bytes | str) -> int:
    """Return the number of the message with a body."""
    return int(body[:10])


def moments(
    numbers: range, due_ms: Sequence[int] | None
) -> Iterator[tuple[list[int], datetime | None]]:
    """Yield messages that fall due at the same time, and that time, for calls that take one."""
    if due_ms is None:
        yield [*numbers], None
        return
    pairs = zip(numbers, due_ms, strict=True)
    for due, group in itertools.groupby(pairs, key=lambda pair: pair[1]):
        yield [number for number, _ in group], datetime.fromtimestamp(due / 1000, UTC)


class Log:
    """A file of numbers and times, to which many processes may append."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, numbers: Sequence[int]) -> None:
        """Note that this was seen of some messages, now."""
        pairs = itertools.chain.from_iterable(zip(numbers, itertools.repeat(now_ms())))
        os.write(self._file, struct.pack(f"<{2 * len(numbers)}d", *pairs))


class Client:
    """A peer: ``open`` it, then ``put``, ``cancel`` and ``move`` by many callers, and ``take``."""

    #: What there is of ``put``, ``cancel`` and ``move``, with the most messages in one call.
    can: ClassVar[dict[str, int]] = {"put": 1}
    #: Whether a call blocks, so that each caller needs a thread.
    blocks = False

    async def open(self, address: str) -> dict[str, str]:
        """Make ready what the peer wants; return the versions of what is measured."""
        raise NotImplementedError

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        """Put some messages in one call, due at once without ``due_ms``.

        With ``keep`` their ids are needed later on.
        """
        raise NotImplementedError

    async def take(self, takers: int, limit: int, file: str) -> None:
        """Begin to take and ack, up to ``limit`` messages in one call, until the program ends."""
        taken = Log(file)
        self._takers = asyncio.ensure_future(self.all(takers, lambda: self._take(limit, taken)))

    async def taker(self, limit: int, taken: Log) -> None:
        """Take and ack: one of the takers."""
        raise NotImplementedError

    async def cancel(self, numbers: range) -> int:
        """Cancel some messages; return how many were."""
        raise NotImplementedError

    async def move(self, numbers: range, due_ms: Sequence[int]) -> int:
        """Give some messages another due; return how many have it."""
        raise NotImplementedError

    async def _take(self, limit: int, taken: Log) -> None:
        while True:
            try:
                await self.taker(limit, taken)
            except Exception as error:  # The server may have been killed; the taker goes on.
                print(f"taker: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(_REST_S)

    async def all(self, count: int, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run so many of the same, in threads where they block."""
        if self.blocks:
            work: Iterable[Awaitable[None]] = (
                asyncio.to_thread(lambda: asyncio.run(make())) for _ in range(count)
            )
        else:
            work = (make() for _ in range(count))
        await asyncio.gather(*work)


#: Where a worker of a framework finds the file, and the server.
_TAKEN, _ADDRESS = "BENCH_TAKEN", "BENCH_ADDRESS"


@functools.cache
def _taken() -> Log:
    return Log(os.environ[_TAKEN])


def address() -> str:
    """Return what the application of a worker connects to; empty in the driver."""
    return os.environ.get(_ADDRESS, "")


def handle(body: str) -> None:
    """Note a message: what the workers of frameworks call."""
    _taken()([number_of(body)])


class Framework(Client):
    """A peer whose users start workers, which are programs of its own."""

    async def open(self, address: str) -> dict[str, str]:
        self.address = address
        return await self.begin(address)

    async def begin(self, address: str) -> dict[str, str]:
        """Make ready what puts; return the versions."""
        raise NotImplementedError

    def workers(self, takers: int) -> Iterator[Sequence[str]]:
        """Yield the commands that start so many takers."""
        raise NotImplementedError

    async def take(self, takers: int, limit: int, file: str) -> None:
        environment = {**os.environ, _TAKEN: file, _ADDRESS: self.address}
        for command in self.workers(takers):
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


class Calls:
    """The calls of one command, which callers share: numbers in order, and what came of them."""

    def __init__(
        self, first: int, count: int, batch: int, start_ms: int | None = None, **more: Any
    ) -> None:
        self._numbers = iter(range(first, first + count, batch))
        self._end, self._batch, self._start_ms = first + count, batch, start_ms
        self._first = first
        self._rate = more.get("rate", 0)
        self._lead_ms: float = more.get("lead_ms", 0)
        self._until = time.monotonic() + more.get("seconds", 1e9)
        self._log = Log(more["file"]) if "file" in more else None
        self._lock = threading.Lock()
        self.done = self.errors = 0
        self.error = ""

    def __iter__(self) -> Iterator[range]:
        return self

    def __next__(self) -> range:
        with self._lock:
            if time.monotonic() > self._until:
                raise StopIteration
            at = next(self._numbers)
        return range(at, min(at + self._batch, self._end))

    def due_ms(self, numbers: range) -> list[int] | None:
        """Return when messages fall due: one after another at a rate, or all at one moment."""
        if self._start_ms is None:
            return None
        if not self._rate:
            return [self._start_ms] * len(numbers)
        return [self._start_ms + (n - self._first) * 1000 // self._rate for n in numbers]

    def rest_s(self, due_ms: list[int] | None) -> float:
        """Return how long a caller waits before it makes a call."""
        if not self._lead_ms or due_ms is None:
            return 0
        return max(due_ms[0] - self._lead_ms - now_ms(), 0) / 1000

    def went_well(self, numbers: range, count: int) -> None:
        """Note what a call did."""
        with self._lock:
            self.done += count
        if self._log:
            self._log(numbers)

    def went_wrong(self, error: Exception) -> None:
        """Note that a call raised an error."""
        with self._lock:
            self.errors += 1
            self.error = self.error or repr(error)[:300]


class Program:
    """Answers commands on standard input until that ends."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self) -> None:
        """Answer them one after another; takers work beside that."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_MOST_THREADS))
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            try:
                answer = await getattr(self, "_" + command.pop("do"))(**command)
            except Exception as error:
                answer = {"failed": repr(error)[:500]}
            print(json.dumps(answer), flush=True)

    async def _open(self, address: str) -> dict[str, Any]:
        return {"versions": await self._client.open(address), "can": self._client.can}

    async def _take(self, **more: Any) -> dict[str, Any]:
        await self._client.take(**more)
        return {}

    async def _put(self, keep: bool = False, **more: Any) -> dict[str, Any]:
        async def put(numbers: range, due_ms: list[int] | None) -> int:
            await self._client.put(numbers, due_ms, keep)
            return len(numbers)

        return await self._calls(put, **more)

    async def _cancel(self, **more: Any) -> dict[str, Any]:
        return await self._calls(lambda numbers, _: self._client.cancel(numbers), **more)

    async def _move(self, **more: Any) -> dict[str, Any]:
        return await self._calls(self._client.move, **more)

    async def _calls(self, call: Any, callers: int, **more: Any) -> dict[str, Any]:
        calls = Calls(**more)

        async def work() -> None:
            for numbers in calls:
                due_ms = calls.due_ms(numbers)
                await asyncio.sleep(calls.rest_s(due_ms))
                try:
                    calls.went_well(numbers, await call(numbers, due_ms))
                except Exception as error:
                    calls.went_wrong(error)
                    await asyncio.sleep(_REST_S)

        start = time.perf_counter()
        await self._client.all(callers, work)
        seconds = time.perf_counter() - start
        errors = {"errors": calls.errors, "error": calls.error}
        return {"count": calls.done, "seconds": seconds, **errors}


def main(client: Client) -> None:
    """Run the program of a peer, and end it whatever its threads do."""
    asyncio.run(Program(client).run())
    os._exit(0)
