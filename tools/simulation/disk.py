"""The disk of a simulated machine, and the threads of a simulated process."""

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from dwell.store.embedded.thread import Gathering, Work
from dwell.testing.faults import FaultyDisk, FaultySystem
from dwell.testing.names import CachedFolder
from tools.simulation.loop import SimulatedLoop

T = TypeVar("T")


class SimulatedGathering(Gathering[T]):
    """A thread whose passes and their steps come at drawn times, as callbacks of the loop."""

    def __init__(self, work: Work[T], loop: SimulatedLoop) -> None:
        self._work = work
        self._loop = loop
        self._items: list[T] = []
        self._steps: Iterator[None] | None = None
        self._is_planned = self._is_over = False
        self.put = self._put

    def close(self) -> list[T]:
        """Make the last pass; return what is left after an error."""
        if not self._is_over:
            try:
                for _ in self._steps or ():
                    pass
                items, self._items = self._items, []
                for _ in self._work.steps(items, self._loop.time, True):
                    pass
            except Exception as error:
                self._work.fail(error)
            self._is_over = True
        return self._items

    def _put(self, item: T) -> None:
        self._items.append(item)
        self._plan(self._loop.drawn_s())

    def _plan(self, after_s: float) -> None:
        if not self._is_planned and self._steps is None and not self._is_over:
            self._is_planned = True
            self._loop.call_later(after_s, self._begin)

    def _begin(self) -> None:
        self._is_planned = False
        if self._is_over:
            return
        items, self._items = self._items, []
        self._steps = self._work.steps(items, self._loop.time, False)
        self._step()

    def _step(self) -> None:
        if self._is_over or self._steps is None:
            return
        try:
            next(self._steps)
        except StopIteration:
            self._steps = None
            self._wait()
        except Exception as error:
            self._is_over = True
            self._work.fail(error)
        else:
            self._loop.call_later(self._loop.drawn_s(), self._step)

    def _wait(self) -> None:
        if self._items:
            return self._plan(self._loop.drawn_s())
        patience_s = self._work.patience_s(self._loop.time())
        if patience_s is not None:
            self._plan(patience_s)
        return None


class SimulatedSystem(FaultySystem):
    """The system of a simulated machine; ``ended`` is called when its process ends."""

    loop: SimulatedLoop
    ended: Callable[[], None]

    def gathering(self, work: Work[T], name: str) -> Gathering[T]:
        """Return what runs as a thread would."""
        return SimulatedGathering(work, self.loop)

    def random_bits(self, count: int) -> int:
        """Return a number that is the same in every run of a seed."""
        return self.chance.getrandbits(count)

    def process_number(self) -> int:
        """Return the one process."""
        return 1

    def die(self, *, power: bool) -> None:
        """End the process."""
        if not self.dead:
            super().die(power=power)
            self.ended()


class SimulatedDisk(FaultyDisk):
    """The disk of a simulated machine."""

    system: SimulatedSystem

    def _system_on(
        self, root: CachedFolder, chance: random.Random, size_bytes: int
    ) -> SimulatedSystem:
        return SimulatedSystem(root, chance, size_bytes)

    def belong(self, loop: SimulatedLoop, ended: Callable[[], None]) -> "SimulatedDisk":
        """Let the threads on this disk run in a loop, and tell when its process ends."""
        self.system.loop, self.system.ended = loop, ended
        return self

    def _like(self, root: CachedFolder) -> "SimulatedDisk":
        seed = self.system.chance.getrandbits(32)
        return SimulatedDisk(seed=seed, size_bytes=self.system.size_bytes, root=root)
