"""The process that is killed: it works on a store as hard as it can, and says what it was answered.

Each line on its pipe is a letter and words. A capital says that an answer came: ``P id due`` put,
``T id due now priority`` taken, ``A id`` acked, ``C id`` cancelled, ``M id due`` moved. A small
letter says that it is about to be asked for, since that may have happened when the process died.
"""

import asyncio
import itertools
import os
import random
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import dwell
from dwell import Result

TOPICS = ("a", "b")


class Victim:
    """Works on the store of a folder or a URL until it is killed."""

    def __init__(
        self, place: Path | str, pipe: int, round_number: int, seed: int, options: dict[str, Any]
    ) -> None:
        self._place = place
        self._options = options
        self._pipe = pipe
        self._round = round_number
        self._random = random.Random(seed)
        self._count = itertools.count()
        self._known: list[tuple[str, str]] = []

    async def work(self) -> None:
        """Put, take, ack, cancel and move, all at once."""
        async with dwell.open(self._place, **self._options) as queue:
            self._say(["O"])
            puts = [self._put(queue) for _ in range(3)]
            takes = [self._take(queue, topic) for topic in TOPICS]
            await asyncio.gather(*puts, *takes, self._cancel(queue), self._move(queue))

    def _say(self, lines: list[str]) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        while data:
            data = data[os.write(self._pipe, data) :]

    async def _put(self, queue: dwell.Queue) -> None:
        while True:
            size = self._random.choice((1, 3, 20, 100))
            ids = [f"{self._round}-{next(self._count)}" for _ in range(size)]
            topic = self._random.choice(TOPICS)
            delays = np.array([self._random.choice((0, 0, 5, 30, 60_000)) for _ in ids])
            due = queue.clock.now_ms() + delays
            priority = [self._random.choice((1, 1024)) for _ in ids]
            bodies = [f"{topic} {name}".encode() * 10 for name in ids]
            asked = [f"{topic}/{name} {at}" for name, at in zip(ids, due.tolist(), strict=True)]
            self._say([f"p {line}" for line in asked])
            await queue.put_many(topic, bodies, ids=ids, due=due, priority=priority)
            self._say([f"P {line}" for line in asked])
            self._known += [(topic, name) for name in ids]

    async def _take(self, queue: dwell.Queue, topic: str) -> None:
        while True:
            taken = await queue.take(topic, self._random.choice((1, 10, 50)), wait=1, lease="300ms")
            now_ms = queue.clock.now_ms()
            self._say([f"T {topic}/{m.id} {m.due_ms} {now_ms} {m.priority}" for m in taken])
            for message in taken:
                assert message.body.startswith(f"{topic} {message.id}".encode())
            if self._random.random() < 0.2:
                await queue.release(taken, delay=self._random.choice((0, 0.02)))
            elif self._random.random() < 0.9:
                self._say([f"a {topic}/{message.id}" for message in taken])
                results = await queue.ack(taken)
                pairs = zip(taken, results, strict=True)
                self._say([f"A {topic}/{m.id}" for m, result in pairs if result is Result.ACKED])

    async def _cancel(self, queue: dwell.Queue) -> None:
        while True:
            await asyncio.sleep(0.003)
            for topic, name in self._some(5):
                self._say([f"c {topic}/{name}"])
                if await queue.cancel(topic, name) is Result.CANCELLED:
                    self._say([f"C {topic}/{name}"])

    async def _move(self, queue: dwell.Queue) -> None:
        while True:
            await asyncio.sleep(0.003)
            for topic, name in self._some(5):
                due_ms = queue.clock.now_ms() + self._random.choice((0, 10, 90_000))
                self._say([f"m {topic}/{name} {due_ms}"])
                if await queue.reschedule(topic, name, due=due_ms) is Result.MOVED:
                    self._say([f"M {topic}/{name} {due_ms}"])

    def _some(self, size: int) -> list[tuple[str, str]]:
        return self._random.sample(self._known, min(size, len(self._known)))


def start(place: Path | str, round_number: int, seed: int, **options: Any) -> tuple[int, int]:
    """Start a victim in a process of its own; return its id, and the pipe it speaks on."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    try:
        os.close(ours)
        asyncio.run(Victim(place, theirs, round_number, seed, options).work())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
