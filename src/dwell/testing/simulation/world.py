"""The world of one run: a machine, a network, clients and enemies, all from one plan."""

import asyncio
import hashlib
import random
import warnings
from typing import Any

from dwell.errors import StoreError
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.limits import Limits
from dwell.testing.faults import FaultyDisk
from dwell.testing.simulation.clients import Client
from dwell.testing.simulation.clock import SteppedClock
from dwell.testing.simulation.disk import SimulatedDisk
from dwell.testing.simulation.drain import Drain
from dwell.testing.simulation.history import Broken, History, SteppedModel
from dwell.testing.simulation.ledger import Ledger
from dwell.testing.simulation.loop import SimulatedLoop
from dwell.testing.simulation.network import Network
from dwell.testing.simulation.observed import settle
from dwell.testing.simulation.plan import TOPICS, Plan, Step
from dwell.testing.simulation.process import Process
from dwell.testing.views import view_of_model, view_of_store

#: How soon a taker that waits must have what it could be given.
_SOON_S = 1.0
_LOOK_S = 0.5


class World:
    """Runs a plan; what is broken ends it."""

    def __init__(self, plan: Plan, *, keeps_trace: bool = False) -> None:
        self.plan = plan
        self.loop = SimulatedLoop(random.Random(plan.seed ^ 0x5EED))
        self.clock = SteppedClock(self.loop)
        self.history = History(self.clock.now_ms(), TOPICS)
        self.ledger = Ledger()
        disk = SimulatedDisk(seed=plan.seed)
        self.process = Process(
            self.loop, self.clock, self.history, disk, plan.settings, self._break
        )
        self.network = Network(self.loop, self.process)
        #: Ids by topic that clients have put, and events that one of them has read.
        self.known: dict[str, list[str]] = {}
        self.seen: dict[int, tuple[Any, ...]] = {}
        self.trace: list[str] | None = [] if keeps_trace else None
        self._hash = hashlib.blake2b(digest_size=8)
        self._takeable_since: dict[tuple[str, str], float] = {}
        self._ending: asyncio.Future[None] = self.loop.create_future()

    def run(self) -> str:
        """Run the plan to its end; return the hash of all that happened. Raises Broken."""
        with warnings.catch_warnings():
            # What a process that is gone was about to await never is.
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                self.loop.run_until_complete(self._run())
                self.note(f"{self.process.disk.system.calls} calls, {self.process.starts} starts")
            finally:
                self._tear_down()
        return self._hash.hexdigest()

    def note(self, words: str) -> None:
        """Add to the trace."""
        line = f"{self.loop.time():10.4f} {words}"
        self._hash.update(line.encode())
        if self.trace is not None:
            self.trace.append(line)

    async def _run(self) -> None:
        self.process.start()
        looking = self.loop.create_task(self._look())
        working = self.loop.create_task(self._work())
        await asyncio.wait([self._ending, looking, working], return_when=asyncio.FIRST_COMPLETED)
        for done in (self._ending, looking, working):
            if done.done():
                done.result()

    async def _work(self) -> None:
        tasks = [
            self.loop.create_task(self._do(number, step))
            for number, step in enumerate(self.plan.steps)
        ]
        for task in tasks:
            await task
        await Drain(self).run()

    async def _do(self, number: int, step: Step) -> None:
        await asyncio.sleep(step.at_ms / 1000)
        self.note(f"#{number} {step.kind}")
        try:
            if step.kind in _ENEMIES:
                getattr(self, f"_{step.kind}")(**step.args)
                self.ledger.tally[_ENEMIES[step.kind]] += 1
            else:
                await Client(self, number, step).run()
        except Broken as broken:
            self._break(broken)
        except StoreError:
            pass

    def _break(self, broken: Broken) -> None:
        if not self._ending.done():
            self._ending.set_exception(broken)

    def _tear_down(self) -> None:
        self.process.disk.system.ended = lambda: None
        self.loop.end(self.process.life)
        self.process.disk.kill()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()

    # --- enemies ----------------------------------------------------------------------------------

    def _clock(self, delta_ms: int) -> None:
        self.clock.step(delta_ms)

    def _fault(self, fault: str, after: int) -> None:
        self.process.disk.arm(fault, after)

    def _kill(self, after: int, when: str, then: list[tuple[str, int]]) -> None:
        self._stop("kill", after, when, then)

    def _power(self, after: int, when: str, then: list[tuple[str, int]]) -> None:
        self._stop("power", after, when, then)

    def _stop(self, kind: str, after: int, when: str, then: list[tuple[str, int]]) -> None:
        # A machine that never syncs keeps its power.
        may_cut = self.plan.settings.sync == "always"
        self.process.next_faults = [(stop if may_cut else "kill", at, when) for stop, at in then]
        if after:
            self.process.disk.arm(kind, after, when)
        elif not self.process.disk.dead:
            self.process.disk.system.die(power=kind == "power")

    def _full(self, left_bytes: int) -> None:
        system = self.process.disk.system
        self.history.may_drop_events = self.history.is_tight = True
        system.size_bytes = system.used_bytes + left_bytes

    def _room(self) -> None:
        self.process.disk.system.size_bytes = 1 << 62
        self.history.is_tight = False

    def _slow(self) -> None:
        self.loop.slowness = 60.0

    def _fast(self) -> None:
        self.loop.slowness = 1.0

    def _restart(self) -> None:
        self.process.restart()

    def _cut_off(self) -> None:
        self.network.is_cut_off = True
        self.loop.call_later(3.0, self._connect)

    def _connect(self) -> None:
        self.network.is_cut_off = False

    # --- looking ----------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.process.look()
            self._look_at_takers()
            for unmet in self.loop.unmet:
                error = unmet.get("exception")
                if isinstance(error, Broken) or not isinstance(error, (StoreError, OSError)):
                    raise Broken("error", f"nobody met {error!r}: {unmet.get('message')}")
            self.loop.unmet.clear()

    def _look_at_takers(self) -> None:
        """Find takers that wait while there is something for them."""
        process, now_s = self.process, self.loop.time()
        if not process.is_up or process.queue is None or self.loop.slowness > 1:
            self._takeable_since.clear()
            return
        since: dict[tuple[str, str], float] = {}
        now_ms = self.clock.now_ms()
        for topic in process.queue.waiting:
            for item in self.history.model.takeable(topic, now_ms):
                name = (topic, item.put.id)
                since[name] = self._takeable_since.get(name, now_s)
                if now_s - since[name] > _SOON_S + _LOOK_S and process.up_since_s < now_s - _SOON_S:
                    raise Broken("hang", f"a taker waits on {topic} while {name[1]} is there")
        self._takeable_since = since

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


#: What goes wrong, and what it is called in a summary.
_ENEMIES = {
    "clock": "clock steps",
    "fault": "faults",
    "kill": "kills",
    "power": "power cuts",
    "full": "full disks",
    "room": "freed disks",
    "slow": "slow disks",
    "fast": "fast disks",
    "restart": "restarts",
    "cut_off": "partitions",
}
