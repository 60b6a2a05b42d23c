"""A producer and a taker, together or apart, in a process of their own that may be killed.

``python -m tools.survive.actor ROLES URL NAME [CLOCK]``: it works until its input ends, and stops
putting when it reads anything. What it does it says on its output (see :mod:`tools.survive.books`).
``CLOCK`` is the file that says how far the store's clock is ahead of this machine's.
"""

import asyncio
import itertools
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import dwell
from tools.survive.quiet import quiet

TOPICS = ("orders", "mail", "calls")
#: So long has a taker what it took: short, so that what a dead one held comes soon.
LEASE_MS = 1_500
WAIT_MS = 250
#: What every topic is told: a failure is no attempt, and an id that was put again is kept.
SETTINGS = {"max_attempts": 10_000, "remember_ms": 3_600_000, "retry_delays_ms": [0]}
_DELAYS_MS = (0, 0, 50, 200, 500, 1_000, 2_000)
#: While the clock is set: what is due at once over HTTP is due at once by the new clock, too.
_LATER_MS = (50, 50, 200, 500, 1_000, 2_000)
_encode = msgspec.json.Encoder().encode


def body_of(name: str) -> bytes:
    """Return what the message of an id holds."""
    return name.encode() * 12


class StoreTime:
    """The store's clock, as this machine knows it: its own, and what a file says beside."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    @property
    def is_set(self) -> bool:
        """Whether somebody sets it on the way."""
        return self._file is not None

    def _ahead_ms(self) -> int:
        return 0 if self._file is None else round(float(self._file.read_text()) * 1000)

    def now_ms(self) -> int:
        """Return the time."""
        return time.time_ns() // 1_000_000 + self._ahead_ms()

    def span(self) -> "Span":
        """Begin to watch a call."""
        return Span(self)


class Span:
    """The time of a call: not before its start, not after its end, also if the clock was set."""

    def __init__(self, clock: StoreTime) -> None:
        self._clock = clock
        self._from_s, self._first_ms = time.monotonic(), clock.now_ms()

    def end(self) -> tuple[int, int]:
        """Return the earliest and the latest time that the store can have had."""
        took_ms = (time.monotonic() - self._from_s) * 1000
        last_ms = self._clock.now_ms()
        latest_ms = max(last_ms, self._first_ms + int(took_ms) + 1)
        return min(self._first_ms, int(last_ms - took_ms)), latest_ms


class Actor:
    """Puts and takes until it is told to stop, or killed."""

    def __init__(self, url: str, name: str, clock: StoreTime, *, limit: int = 40) -> None:
        self._url, self._name, self._clock = url, name, clock
        self._limit = limit
        self._random = random.Random(name)
        self._count = itertools.count()
        self.draining = asyncio.Event()

    async def work(self, roles: list[str]) -> None:
        """Do what the roles say, until cancelled."""
        while True:
            try:
                async with dwell.open(self._url) as queue:
                    tasks = [getattr(self, f"_{role}")(queue) for role in roles]
                    await asyncio.gather(*tasks)
            except dwell.DwellError as error:
                # The store cannot be opened while what it stands on is down.
                self.say("error", type(error).__name__)
                await asyncio.sleep(0.02)

    def say(self, word: str, *values: Any) -> None:
        """Say what is done, at once and whole."""
        self.say_all([[word, *values]])

    def say_all(self, lines: list[list[Any]]) -> None:
        """Say several things."""
        at_s = time.monotonic()
        data = b"".join(_encode([at_s, *line]) + b"\n" for line in lines)
        while data:
            data = data[os.write(1, data) :]

    # --- put --------------------------------------------------------------------------------------

    async def _put(self, queue: dwell.Queue) -> None:
        delays_ms = _LATER_MS if self._clock.is_set else _DELAYS_MS
        while not self.draining.is_set():
            size = self._random.choice((1, 1, 3, 20))
            ids = [f"{self._name}-{next(self._count)}" for _ in range(size)]
            topic = self._random.choice(TOPICS)
            now_ms = self._clock.now_ms()
            due = [now_ms + self._random.choice(delays_ms) for _ in ids]
            expires = [at + self._life_ms() if self._random.random() < 0.1 else 0 for at in due]
            rows = zip(ids, due, expires, strict=True)
            self.say_all([["put", name, topic, at, ends] for name, at, ends in rows])
            await self._until_answered(queue, topic, ids, due, expires)
            await asyncio.sleep(self._random.random() * 0.04)
        await asyncio.Event().wait()

    def _life_ms(self) -> int:
        return self._random.choice((5, 100, 1_000))

    async def _until_answered(
        self, queue: dwell.Queue, topic: str, ids: list[str], due: list[int], expires: list[int]
    ) -> None:
        """Put some messages again and again, with the same ids, until the store answers."""
        while True:
            bodies = [body_of(name) for name in ids]
            ends = [at or None for at in expires]
            try:
                await queue.put_many(topic, bodies, ids=ids, due=due, expires=ends)
            except dwell.DwellError as error:
                self.say("error", f"put: {type(error).__name__}")
                await asyncio.sleep(0.02)
            else:
                self.say("answered", ids)
                return

    # --- take -------------------------------------------------------------------------------------

    async def _take(self, queue: dwell.Queue) -> None:
        while True:
            span = self._clock.span()
            size = self._random.choice((1, 10, self._limit))
            try:
                taken = await queue.take(
                    TOPICS, size, lease=LEASE_MS / 1000, wait=WAIT_MS / 1000, owner=self._name
                )
                if len(taken):
                    self._say_taken(taken, span.end())
                    await asyncio.sleep(self._random.random() * 0.1)
                    await self._answer(queue, taken)
            except dwell.DwellError as error:
                self.say("error", f"take: {type(error).__name__}")
                await asyncio.sleep(0.02)

    def _say_taken(self, taken: dwell.Batch, span_ms: tuple[int, int]) -> None:
        lines: list[list[Any]] = []
        for m in taken:
            lease_ms = (m.lease_until_ms - LEASE_MS, m.lease_until_ms)
            lines.append(["taken", m.id, m.attempt, m.due_ms, m.expires_ms, *lease_ms, *span_ms])
            if m.body != body_of(m.id):
                lines.append(["bad", m.id])
        self.say_all(lines)

    async def _answer(self, queue: dwell.Queue, taken: dwell.Batch) -> None:
        """Ack what was taken; give some of it back, and forget some."""
        fates = [self._random.choices("aro", (96, 2, 2))[0] for _ in taken]
        given = [m for m, fate in zip(taken, fates, strict=True) if fate == "r"]
        done = [m for m, fate in zip(taken, fates, strict=True) if fate == "a"]
        if given:
            self.say_all([["release", m.id, m.attempt] for m in given])
            await queue.release(given, delay=0)
        if done:
            self.say_all([["ack", m.id, m.attempt] for m in done])
            results = await queue.ack(done)
            pairs = zip(done, results, strict=True)
            self.say_all([["acked", m.id, m.attempt, str(result)] for m, result in pairs])


async def _listen(actor: Actor) -> None:
    """Return when the input ends; stop putting at the first byte."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1):
        actor.draining.set()


async def main() -> None:
    """Work as the command line says."""
    quiet()
    roles, url, name, *clock = sys.argv[1:]
    actor = Actor(url, name, StoreTime(Path(clock[0]) if clock else None))
    work = asyncio.create_task(actor.work(roles.split(",")))
    listen = asyncio.create_task(_listen(actor))
    await asyncio.wait([work, listen], return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    work.cancel()
    await asyncio.wait([work])


if __name__ == "__main__":
    asyncio.run(main())
