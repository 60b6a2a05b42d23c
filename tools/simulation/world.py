"""The world of one run: a machine, a network, clients and enemies, all from one plan."""

import asyncio
import warnings

from dwell.errors import StoreError
from tools.simulation.clients import Client
from tools.simulation.drain import Drain
from tools.simulation.history import Broken
from tools.simulation.plan import Plan, Step
from tools.simulation.scene import Scene

#: How soon a taker that waits must have what it could be given.
_SOON_S = 1.0
_LOOK_S = 0.5


class World(Scene):
    """Runs a plan; what is broken ends it."""

    def __init__(self, plan: Plan, *, keeps_trace: bool = False) -> None:
        super().__init__(plan, keeps_trace=keeps_trace)
        self._takeable_since: dict[tuple[str, str], float] = {}

    def run(self) -> str:
        """Run the plan to its end; return the hash of all that happened. Raises Broken."""
        with warnings.catch_warnings():
            # What a process that is gone was about to await never is.
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                self.loop.run_until_complete(self._run())
                self.note(f"{self.process.disk.system.calls} calls, {self.process.starts} starts")
            finally:
                self.process.tear_down()
        return self.hash.hexdigest()

    async def _run(self) -> None:
        self.process.start()
        looking = self.loop.create_task(self._look())
        working = self.loop.create_task(self._work())
        await self.loop.until_one_ends(self.ending, looking, working)

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
            self.fail(broken)
        except StoreError:
            pass

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
