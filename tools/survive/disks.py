"""Disks that fail: power cuts, failed syncs, EIO and a full disk, on the disk of the tests.

All of it is in one process and follows from a seed, but for the seconds that it takes. The store
is the real one; the disk is :class:`dwell.testing.faults.FaultyDisk`, which loses in a power cut
what was not synced, sector by sector and name by name.
"""

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import dwell
from dwell.clock import SimulatedClock
from dwell.errors import DiskFull
from dwell.message import State
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.limits import Limits
from dwell.testing.faults import FaultyDisk
from tools.survive.actor import LEASE_MS, SETTINGS, TOPICS, body_of
from tools.survive.books import Books, Row

_FOLDER = Path("/stores/store")
_SEGMENT_BYTES = 64 * 1024
_LIMITS = Limits(snapshot_rows=64, room_rows=64)
_ROUNDS = 60
#: Within how many of the calls that a fault can befall it comes.
_CALLS = {"power": 1_500, "torn": 300, "sync": 200, "write": 300, "short": 300, "open": 40}
_FEW_CALLS = 12
_FULL_BYTES = 7 * _SEGMENT_BYTES

#: Each fault by its name in the report: what the disk is told, and whether the power fails too.
FAULTS: dict[str, tuple[str, ...]] = {
    "power cut": ("power",),
    "power cut in the middle of a write": ("torn",),
    "failed sync": ("sync",),
    "failed sync, pages dropped": ("sync",),
    "EIO on a write": ("write", "short"),
    "EIO on opening or making a file": ("open", "create"),
    "full disk, and room made again": ("full",),
}


class Session:
    """One store on one disk: a fault, restarts after it, and the books."""

    def __init__(self, failure: str, seed: int) -> None:
        self.failure = failure
        self.books = Books()
        self.row = Row("embedded", "in process", failure)
        self._chance = random.Random(seed)
        self._clock = SimulatedClock()
        self._fault = self._chance.choice(FAULTS[failure])
        is_full = self._fault == "full"
        self._disk = FaultyDisk(seed=seed, size_bytes=_FULL_BYTES if is_full else 1 << 62)
        self._disk.system.drops = "dropped" in failure
        self._number = self._starts = 0
        self._failed_at: float | None = None
        self._queue: Queue

    # --- the store --------------------------------------------------------------------------------

    async def run(self) -> Row:
        """Work, fail once at some call, start again as often as it takes, and read the books."""
        if self._fault != "full":
            at = self._chance.randrange(_CALLS.get(self._fault, _FEW_CALLS))
            self._disk.arm(self._fault, at, self._chance.choice(("before", "during", "after")))
        await self._start()
        for number in range(_ROUNDS):
            await self._round(number)
        if self._fault == "full":
            # What was answered on the full disk must be there after a power cut, too.
            await self._restart(power=True)
        await self._drain()
        there = await self._everything()
        await self._queue.close()
        return self.books.settle(self.row, there)

    async def _start(self) -> None:
        """Open the store, again with a disk that does not fail if a fault comes at that."""
        while True:
            store = EmbeddedStore(
                _FOLDER,
                clock=self._clock,
                disk=self._disk,
                segment_bytes=_SEGMENT_BYTES,
                limits=_LIMITS,
            )
            self._queue = Queue(store)
            self._starts += 1
            try:
                await self._queue.open()
                for topic in TOPICS:
                    await self._queue.configure(topic, **SETTINGS)
                return
            except (dwell.DwellError, OSError) as error:
                self._note_failure()
                if isinstance(error, DiskFull):
                    self._disk.system.size_bytes *= 4
                await self._end(power=self._chance.random() < 0.5)

    def _note_failure(self) -> None:
        # A fault that no call was left for is no run.
        self.row.runs = 1
        if self._failed_at is None:
            self._failed_at = self.books.fail()
        self.books.die(self._name)

    @property
    def _name(self) -> str:
        return f"start{self._starts}"

    async def _end(self, *, power: bool) -> None:
        """End the process, and maybe the machine; the disk is there again and fails no more."""
        if power:
            self._disk.lose_power()
        self._disk.kill()
        with contextlib.suppress(dwell.DwellError, OSError):
            await self._queue.close()
        self._disk = self._disk.restarted()
        if self._chance.random() < 0.3 and self._starts < 3:
            # The next start, or what follows soon, is cut short as well.
            self._disk.arm(self._chance.choice(("kill", "power")), self._chance.randrange(60))

    async def _restart(self, *, power: bool) -> None:
        self._note_failure()
        await self._end(power=power)
        await self._start()

    # --- the work ---------------------------------------------------------------------------------

    async def _round(self, number: int) -> None:
        """Put and take some, and let time pass."""
        await self._put()
        self._clock.advance(self._chance.choice((0, 10, 100, 400)))
        await self._take()
        if number % 12 == 11:
            store = self._queue.store
            assert isinstance(store, EmbeddedStore)
            await self._survive(store.compact)

    async def _survive(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer to a call, None if it failed; what has failed is started again."""
        try:
            return await call()
        except DiskFull:
            await self._make_room()
        except (dwell.DwellError, OSError) as error:
            self.books.errors[type(error).__name__] += 1
            self._note_failure()
            await self._restart(power=self._chance.random() < 0.5)
        return None

    async def _make_room(self) -> None:
        """Acks go on without any room; then somebody makes some."""
        if self._failed_at is None:
            for _ in range(5):
                self._clock.advance(100)
                with contextlib.suppress(DiskFull):
                    await self._take_and_ack()
            self._failed_at, self.row.runs = time.monotonic(), 1
        self._disk.system.size_bytes *= 4

    async def _put(self) -> None:
        count = self._chance.choice((1, 3, 20))
        ids = [f"{self._number + n}" for n in range(count)]
        self._number += count
        topic, now_ms = self._chance.choice(TOPICS), self._clock.now_ms()
        due = [now_ms + self._chance.choice((0, 0, 50, 500, 2_000)) for _ in ids]
        ends = [
            at + self._chance.choice((5, 1_000)) if self._chance.random() < 0.1 else 0 for at in due
        ]
        rows = zip(ids, due, ends, strict=True)
        self._say([["put", name, topic, at, until] for name, at, until in rows])
        for _ in range(3):
            answer = await self._survive(
                lambda: self._queue.put_many(
                    topic,
                    [self._body(name) for name in ids],
                    ids=ids,
                    due=due,
                    expires=[until or None for until in ends],
                )
            )
            if answer is not None:
                self._say([["answered", ids]])
                return

    def _body(self, name: str) -> bytes:
        # A full disk is one that bodies fill.
        return body_of(name) * (20 if self._fault == "full" else 1)

    async def _take(self) -> None:
        await self._survive(self._take_and_ack)

    async def _take_and_ack(self) -> None:
        from_ms = self._clock.now_ms()
        taken = await self._queue.take(TOPICS, 12, lease=LEASE_MS / 1000, owner=self._name)
        span_ms = (from_ms, self._clock.now_ms())
        for m in taken:
            lease_ms = (m.lease_until_ms - LEASE_MS, m.lease_until_ms)
            self._say([["taken", m.id, m.attempt, m.due_ms, m.expires_ms, *lease_ms, *span_ms]])
            if m.body != self._body(m.id):
                self._say([["bad", m.id]])
        if len(taken) and self._failed_at is not None:
            self.row.seconds.append(time.monotonic() - self._failed_at)
            self._failed_at = None
        # Some are forgotten, and come again when their lease ends.
        done = [m for m in taken if self._chance.random() < 0.95]
        if done:
            self._say([["ack", m.id, m.attempt] for m in done])
            results = await self._queue.ack(done)
            pairs = zip(done, results, strict=True)
            self._say([["acked", m.id, m.attempt, str(result)] for m, result in pairs])

    def _say(self, lines: list[list[Any]]) -> None:
        at_s = time.monotonic()
        self.books.enter(self._name, [[at_s, *line] for line in lines])

    # --- the end ----------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Take and ack until all is done."""
        for _ in range(2_000):
            if not self.books.pending():
                return
            self._clock.advance(200)
            await self._take()

    async def _everything(self) -> set[str]:
        found: set[str] = set()
        for topic in TOPICS:
            for state in (State.LEASED, State.DELAYED, State.READY, State.DEAD):
                async for batch in self._queue.pages(topic, state):
                    found.update(batch.ids)
        return found


def run(failure: str, runs: int, seed: int) -> Row:
    """Let a disk fail so often, each time another one."""
    row = Row("embedded", "in process", failure)
    for number in range(runs):
        row.add(asyncio.run(Session(failure, seed + number).run()))
        # The files of a disk are descriptors, which errors hold on to in circles.
        gc.collect()
    return row
