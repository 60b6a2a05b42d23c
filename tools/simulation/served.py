"""A queue that is served in a simulated world, for runs that look at what works beside it.

A run has one store on one disk, clients that ask over a network, and harm: the process is killed,
loses its power, meets faults and a slow disk, and its clock is set. At the end all is calm.
"""

import asyncio
import contextlib
import hashlib
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from dwell.errors import StoreError
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from tools.simulation.clock import SteppedClock
from tools.simulation.disk import SimulatedDisk
from tools.simulation.history import Broken
from tools.simulation.loop import SimulatedLoop
from tools.simulation.network import Lost, Network
from tools.simulation.plan import Settings
from tools.simulation.process import Process, store_on

#: What goes wrong with the process, and what it is called in a summary.
HARM = {
    "kill": "kills",
    "power": "power cuts",
    "fault": "faults",
    "slow": "slow disks",
    "clock": "clock steps",
    "restart": "restarts",
}


class Served:
    """One run, drawn from a seed; ``_work`` is what it is about."""

    process_kind: ClassVar[type[Process]] = Process
    #: The longest step of the clock, in milliseconds.
    most_step_ms: ClassVar[int] = 20_000

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"{type(self).__name__.lower()} {seed}")
        self._loop = SimulatedLoop(random.Random(seed ^ 0x5EED))
        self._clock = SteppedClock(self._loop)
        limits = {"snapshot_rows": 7, "event_file_bytes": 4_000, "block_events": 10}
        settings = Settings("always", 8 * 1024, self._chance.random() < 0.5, limits, 1 << 30)
        self._broken: asyncio.Future[None] = self._loop.create_future()

        def made(disk: SimulatedDisk) -> EmbeddedStore:
            return store_on(disk, self._clock, settings, EmbeddedStore)

        disk = SimulatedDisk(seed=seed)
        self._process = self.process_kind(self._loop, disk, settings, made, self._fail)
        self._network = Network(self._loop, self._process)
        self.tally: Counter[str] = Counter()
        self._hash = hashlib.blake2b(digest_size=8)

    def run(self) -> str:
        """Run it to its end; return a hash of what came of it. Raises Broken."""
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
        await self._loop.until_one_ends(self._broken, working, looking)

    async def _work(self) -> None:
        raise NotImplementedError

    def _tear_down(self) -> None:
        self._process.tear_down()

    def _fail(self, broken: Broken) -> None:
        if not self._broken.done():
            self._broken.set_exception(broken)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._process.look()

    async def _ask(self, request: Callable[[Queue], Any], words: str, wait_s: float = 0.0) -> Any:
        """Ask until there is an answer."""
        while True:
            with contextlib.suppress(Lost, StoreError):
                return await self._network.call(request, self._chance, words, wait_s)
            await asyncio.sleep(0.3)

    async def _harm_process(self, kind: str) -> None:
        """Do one kind of harm to the process and its machine."""
        chance = self._chance
        self.tally[HARM[kind]] += 1
        if kind in ("kill", "power"):
            self._process.disk.arm(kind, chance.randrange(40), chance.choice(("before", "after")))
        elif kind == "fault":
            self._process.disk.arm(chance.choice(("write", "sync")), chance.randrange(5))
        elif kind == "slow":
            self._loop.slowness = 60.0
            await asyncio.sleep(5)
            self._loop.slowness = 1.0
        elif kind == "clock" and not self._clock.steps:
            self._clock.step(chance.choice((-1, 1)) * chance.choice((50, 1_000, self.most_step_ms)))
        else:
            self._process.restart()

    async def _calm(self) -> None:
        """Return when nothing goes wrong any more, and the process serves."""
        self._network.is_calm = True
        self._process.disk.free()
        for _ in range(200):
            await asyncio.sleep(0.1)
            self._process.disk.free()
            if self._process.is_up and self._loop.time() - self._process.up_since_s > 0.5:
                return
        raise Broken("hang", "the store does not come up again")
