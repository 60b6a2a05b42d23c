"""Schedules in a simulated world: each moment is put once, however often who fires them dies.

A run puts some schedules; then the process that fires them is killed, loses its power, meets faults
and a slow disk, and its clock is set. When all is calm again, the log of events says what was put.
"""

import asyncio
import contextlib
import hashlib
import random
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from dwell.batch.batch import Batch
from dwell.errors import InvalidSchedule, StoreError
from dwell.message import Kind
from dwell.queue import Queue
from dwell.queue.schedules import TOPIC, Firer, firer
from dwell.queue.schedules.reckoning import Reckoning
from dwell.queue.schedules.schedule import moment_text
from dwell.store.embedded import EmbeddedStore
from dwell.testing.views import events_from
from tools.simulation.clock import SteppedClock
from tools.simulation.disk import SimulatedDisk
from tools.simulation.history import Broken
from tools.simulation.loop import SimulatedLoop
from tools.simulation.network import Lost, Network
from tools.simulation.plan import Settings
from tools.simulation.process import Process, store_on

_FIRED = "fired"
_LONGEST_S = 30
#: Far below the setback from which on schedules fire again what they have fired.
_MOST_STEP_MS = 20_000


#: What goes wrong, and what it is called in a summary.
_TALLIED = {
    "kill": "kills",
    "power": "power cuts",
    "fault": "faults",
    "slow": "slow disks",
    "clock": "clock steps",
    "restart": "restarts",
}


class SimulatedReckoning(Reckoning):
    """A reckoning whose thread runs at a drawn time."""

    def _start(self) -> None:
        loop: Any = self._loop
        loop.call_later(loop.drawn_s(), self._run)

    def end(self) -> None:
        """End it: as it takes no time, it has ended."""


class SimulatedFirer(Firer):
    """The firer, with such reckonings."""

    reckoning = SimulatedReckoning


class FiringProcess(Process):
    """A process that fires schedules, as a server does."""

    firers = 1

    def _begin(self, queue: Queue) -> None:
        # What one process knew of its firers, the next does not.
        firer._firings.clear()
        for _ in range(self.firers):
            self._in_life(SimulatedFirer(queue).run())


class Timetable:
    """One run, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"timetable {seed}")
        self._loop = SimulatedLoop(random.Random(seed ^ 0x5EED))
        self._clock = SteppedClock(self._loop)
        limits = {"snapshot_rows": 7, "event_file_bytes": 4_000, "block_events": 10}
        settings = Settings("always", 8 * 1024, self._chance.random() < 0.5, limits, 1 << 30)
        self._broken: asyncio.Future[None] = self._loop.create_future()

        def made(disk: SimulatedDisk) -> EmbeddedStore:
            return store_on(disk, self._clock, settings, EmbeddedStore)

        disk = SimulatedDisk(seed=seed)
        self._process = FiringProcess(self._loop, disk, settings, made, self._fail)
        self._process.firers = self._chance.choice((1, 1, 2))
        self._network = Network(self._loop, self._process)
        #: The ids of the messages that have to be put, and of those that may be.
        self._expected: set[str] = set()
        self._possible: set[str] = set()
        self.tally: Counter[str] = Counter()
        self._hash = hashlib.blake2b(digest_size=8)

    def run(self) -> str:
        """Run it to its end; return a hash of what was put, and when. Raises Broken."""
        with warnings.catch_warnings():
            # What a process that is gone was about to await never is.
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                self._loop.run_until_complete(self._run())
            finally:
                self._tear_down()
        return self._hash.hexdigest()

    async def _run(self) -> None:
        self._process.start()
        working = self._loop.create_task(self._work())
        looking = self._loop.create_task(self._look())
        await asyncio.wait([self._broken, working, looking], return_when=asyncio.FIRST_COMPLETED)
        for done in (self._broken, working, looking):
            if done.done():
                done.result()

    async def _work(self) -> None:
        count = self._chance.choice((1, 3, 8))
        puts = [self._loop.create_task(self._put(f"s{at}")) for at in range(count)]
        ends = [self._loop.create_task(self._harm()) for _ in range(self._chance.choice((1, 3, 6)))]
        taking = self._loop.create_task(self._take())
        for task in (*puts, *ends):
            await task
        await self._calm()
        await self._end_all()
        taking.cancel()
        await self._check()

    def _tear_down(self) -> None:
        self._process.disk.system.ended = lambda: None
        self._loop.end(self._process.life)
        self._process.disk.kill()
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._loop.close()

    def _fail(self, broken: Broken) -> None:
        if not self._broken.done():
            self._broken.set_exception(broken)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._process.look()

    # --- clients ----------------------------------------------------------------------------------

    async def _ask(self, request: Callable[[Queue], Any], words: str, wait_s: float = 0.0) -> Any:
        """Ask until there is an answer."""
        while True:
            with contextlib.suppress(Lost, StoreError):
                return await self._network.call(request, self._chance, words, wait_s)
            await asyncio.sleep(0.3)

    async def _put(self, name: str) -> None:
        """Put a schedule, whose first moment is not near; each of its moments is to be one put."""
        chance = self._chance
        await asyncio.sleep(chance.random() * 2)
        every_ms = chance.choice((100, 250, 1_000, 7_000))
        start_ms = (self._clock.now_ms() // 1000 + chance.choice((2, 6, 20))) * 1000
        end_ms = start_ms + chance.choice((0, 3_000, _LONGEST_S * 1000))
        moments = range(start_ms, end_ms + 1, every_ms)
        ids = {f"{name}@{moment_text(ms)}" for ms in moments}
        self._possible |= ids
        times: dict[str, Any] = {"start": start_ms, "end": end_ms, "every": f"{every_ms}ms"}

        async def request(queue: Queue) -> str:
            return str(await queue.schedules.put(name, _FIRED, b"x", misfire="all", **times))

        try:
            await self._ask(request, f"put {name}")
        except InvalidSchedule:
            # It came so late that nothing is left of it.
            return
        if self._clock.now_ms() < start_ms:
            # Of one that was put late, what has passed by then is not put.
            self._expected |= ids
            self.tally["moments"] += len(ids)

    async def _take(self) -> None:
        while True:
            batch = await self._ask(
                lambda queue: queue.take(_FIRED, 100, lease=2.0, wait=1.0), "take", 1.0
            )
            if len(batch) and self._chance.random() < 0.9:
                await self._ask(partial(_ack, batch), "ack")

    # --- enemies ----------------------------------------------------------------------------------

    async def _harm(self) -> None:
        chance = self._chance
        await asyncio.sleep(chance.random() * (_LONGEST_S + 5))
        kind = chance.choice(("kill", "kill", "power", "fault", "slow", "clock", "restart"))
        self.tally[_TALLIED[kind]] += 1
        if kind in ("kill", "power"):
            self._process.disk.arm(kind, chance.randrange(40), chance.choice(("before", "after")))
        elif kind == "fault":
            self._process.disk.arm(chance.choice(("write", "sync")), chance.randrange(5))
        elif kind == "slow":
            self._loop.slowness = 60.0
            await asyncio.sleep(5)
            self._loop.slowness = 1.0
        elif kind == "clock" and not self._clock.steps:
            self._clock.step(chance.choice((-1, 1)) * chance.choice((50, 1_000, _MOST_STEP_MS)))
        else:
            self._process.restart()

    async def _calm(self) -> None:
        self._network.is_calm = True
        self._process.disk.free()
        for _ in range(200):
            await asyncio.sleep(0.1)
            self._process.disk.free()
            if self._process.is_up and self._loop.time() - self._process.up_since_s > 0.5:
                return
        raise Broken("hang", "the store does not come up again")

    async def _end_all(self) -> None:
        """Wait until all schedules have ended; each is gone then."""
        for _ in range(2 * _LONGEST_S):
            await asyncio.sleep(2)
            counts = (await self._ask(lambda queue: queue.stats(), "stats")).topics.get(TOPIC)
            if counts is None or not counts.delayed + counts.ready + counts.leased:
                return
        raise Broken("hang", f"schedules have not ended: {counts}")

    async def _check(self) -> None:
        async def read(queue: Queue) -> list[Any]:
            return await events_from(queue.store, 0)

        events = await self._ask(read, "events", 20)
        puts = [e for e in events if e.topic == _FIRED and e.kind is Kind.PUT]
        came = Counter(event.id for event in puts)
        self._hash.update(f"{[(e.time_ms, e.id) for e in puts]}".encode())
        if lost := sorted(self._expected - set(came)):
            raise Broken("lost", f"{len(lost)} moments were never put: {lost[:5]}")
        if doubled := sorted(id_ for id_, count in came.items() if count > 1):
            raise Broken("doubled", f"{len(doubled)} moments were put twice: {doubled[:5]}")
        if strange := sorted(set(came) - self._possible):
            raise Broken("strange", f"{len(strange)} moments are none: {strange[:5]}")
        if early := [e.id for e in puts if not e.id.endswith(f"@{moment_text(e.due_ms)}")]:
            raise Broken("early", f"{len(early)} are not due at their moments: {early[:5]}")


async def _ack(batch: Batch, queue: Queue) -> None:
    await queue.ack(batch)
