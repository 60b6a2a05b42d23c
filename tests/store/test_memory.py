"""The store in memory, by the suite and beside the model."""

from hypothesis import settings

from dwell.clock import Clock
from dwell.store.memory import MemoryStore
from dwell.testing.machine import StoreMachine


class MemoryMachine(StoreMachine):
    async def make_store(self, clock: Clock) -> MemoryStore:
        return MemoryStore(clock)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
