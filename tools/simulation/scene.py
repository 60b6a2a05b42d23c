"""The scene of one run: what its clients and its enemies act on."""

import asyncio
import hashlib
import random
from typing import Any

from dwell.errors import StoreError
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.limits import Limits
from dwell.testing.faults import FaultyDisk
from dwell.testing.views import view_of_model, view_of_store
from tools.simulation.clock import SteppedClock
from tools.simulation.disk import SimulatedDisk
from tools.simulation.history import Broken, History, SteppedModel
from tools.simulation.ledger import Ledger
from tools.simulation.loop import SimulatedLoop
from tools.simulation.network import Network
from tools.simulation.observed import ObservedStore, settle
from tools.simulation.plan import TOPICS, Plan
from tools.simulation.process import Process, store_on


class Scene:
    """A machine, a network, the books, and a trace of all that happens."""

    def __init__(self, plan: Plan, *, keeps_trace: bool = False) -> None:
        self.plan = plan
        self.loop = SimulatedLoop(random.Random(plan.seed ^ 0x5EED))
        self.clock = SteppedClock(self.loop)
        self.history = History(self.clock.now_ms(), TOPICS)
        self.ledger = Ledger()
        disk = SimulatedDisk(seed=plan.seed)
        self.process = Process(self.loop, disk, plan.settings, self._observed, self.fail)
        self.network = Network(self.loop, self.process)
        #: Ids by topic that clients have put, and events that one of them has read.
        self.known: dict[str, list[str]] = {}
        self.seen: dict[int, tuple[Any, ...]] = {}
        self.trace: list[str] | None = [] if keeps_trace else None
        self.hash = hashlib.blake2b(digest_size=8)
        self.ending: asyncio.Future[None] = self.loop.create_future()

    def _observed(self, disk: SimulatedDisk) -> ObservedStore:
        store = store_on(disk, self.clock, self.plan.settings, ObservedStore)
        store.history, store.on_broken = self.history, self.fail
        return store

    def note(self, words: str) -> None:
        """Add to the trace."""
        line = f"{self.loop.time():10.4f} {words}"
        self.hash.update(line.encode())
        if self.trace is not None:
            self.trace.append(line)

    async def check_backup(self, folder: str, model: SteppedModel, disk: FaultyDisk) -> None:
        """Open a backup on a disk that holds only what was synced; it is the store as it was."""
        store = EmbeddedStore(
            folder,
            clock=self.clock,
            disk=SimulatedDisk(root=disk.system.root).belong(self.loop, lambda: None),
            limits=Limits(**self.plan.settings.limits),
        )
        try:
            await store.open()
        except (StoreError, OSError) as error:
            raise Broken("backup", f"a backup does not open: {error}") from None
        for now_ms in await settle(store):
            model.tick(now_ms)
        expected = view_of_model(model, TOPICS)
        views = await view_of_store(store, TOPICS)
        await store.close()
        if views != expected:
            raise Broken("backup", f"a backup holds {views}, expected {expected}")

    def fail(self, broken: Broken) -> None:
        """End the run with what is broken."""
        if not self.ending.done():
            self.ending.set_exception(broken)
