import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from dwell.clock import SimulatedClock
from dwell.errors import StoreError
from dwell.store.base import Store
from dwell.store.embedded import EmbeddedStore
from dwell.testing.faults import FaultyDisk
from dwell.testing.machine import StoreMachine
from dwell.testing.suite import StoreSuite

SEGMENT_BYTES = 1024 * 1024


class TestEmbeddedStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "store"

    async def make_store(self, clock: SimulatedClock) -> Store:
        return EmbeddedStore(self.folder, clock=clock, segment_bytes=8 * SEGMENT_BYTES)


class EmbeddedMachine(StoreMachine):
    """The store on a disk that fails, against the model; after a fault it is opened again."""

    can_reopen = True

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.disk = FaultyDisk()
        super().__init__()

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.seed = seed

    async def make_store(self, clock: SimulatedClock) -> Store:
        return EmbeddedStore(
            self.root / "store", clock=clock, disk=self.disk, segment_bytes=SEGMENT_BYTES
        )

    async def reopen(self) -> Store:
        self.disk.dead = True
        with contextlib.suppress(StoreError, OSError):
            await self.store.close()
        self.disk.lose_power()
        self.disk = FaultyDisk(seed=self.seed)
        return await self.make_store(self.clock)

    @rule(
        fault=st.sampled_from(("torn", "full", "write", "sync")),
        at=st.integers(0, 6),
    )
    def arm(self, fault: str, at: int) -> None:
        self.disk.arm(fault, at)

    @precondition(lambda self: self.clock.now_ms() >= self.latest_ms)
    @rule()
    def crash(self) -> None:
        self._crash()

    def teardown(self) -> None:
        self.disk.arm("", -1)
        super().teardown()
        shutil.rmtree(self.root)


TestEmbeddedMachine = EmbeddedMachine.TestCase
TestEmbeddedMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)


def test_a_clean_stop_and_start_change_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        clock = SimulatedClock()
        for opened in range(3):
            store = EmbeddedStore(tmp_path / "store", clock=clock)
            await store.open()
            assert (await store.stats()).topics == {}, opened
            await store.close()

    asyncio.run(main())
