"""Two lives of one store beside two models: neither knows what the other has handed out."""

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from dwell.clock import SimulatedClock
from dwell.errors import ForeignReceipt
from dwell.message import U64, Result
from dwell.store.base import Store
from dwell.store.embedded import EmbeddedStore
from dwell.testing.domains import a_topic, some_picks
from dwell.testing.faults import FaultyDisk
from dwell.testing.machine import StoreMachine
from dwell.testing.notices import Notices
from dwell.testing.receipts import Receipts
from dwell.testing.rig import encoded
from tests import RUNS

#: What of a machine belongs to one life.
_OF_A_LIFE = (
    *("store", "model", "receipts", "ids", "notices", "checked_events", "has_crashed"),
    *("disk", "folder"),
)


class LivesMachine(StoreMachine):
    """A store of which a backup or a copy is opened; both go on, and the machine is with one."""

    can_reopen = True

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.folder = Path("/stores/first")
        self.numbers = itertools.count()
        #: The other life, and how many receipts and made ids both have in common.
        self.other: dict[str, Any] = {}
        self.common = (0, 0)
        super().__init__()

    async def make_store(self, clock: SimulatedClock) -> Store:
        return EmbeddedStore(self.folder, clock=clock, disk=self.disk)

    async def reopen(self) -> Store:
        await self.store.close()
        return await self.make_store(self.clock)

    @precondition(lambda self: not self.other and self.clock.now_ms() >= self.latest_ms)
    @rule(by=st.sampled_from(("backup", "copy")))
    def begin_other(self, by: str) -> None:
        """Let another life begin from what there is, and go on with that one."""
        self.model.tick(self.clock.now_ms())
        if by == "backup":
            folder, disk = Path(f"/stores/backup-{next(self.numbers)}"), self.disk
            self.run(self.store.backup(folder))
        else:
            folder, disk = self.folder, self.disk.copied()
        self.other = {name: getattr(self, name) for name in _OF_A_LIFE}
        self.folder, self.disk = folder, disk
        self.model, self.ids = copy.deepcopy(self.model), copy.deepcopy(self.ids)
        # A backup has a number of its own, so that what was given before it is strange to it too.
        self.receipts = Receipts() if by == "backup" else copy.deepcopy(self.receipts)
        self.common = self.receipts.count, self.ids.count
        self.notices = Notices(self.model)
        self.has_crashed, self.has_only_moved, self.checked_events = True, False, 0
        self.store = self.run(self.make_store(self.clock))
        self._start()
        self.model.begin_life()
        self.notices.expect_nothing(self.model)

    @precondition(lambda self: self.other)
    @rule()
    def go_on_with_the_other(self) -> None:
        """Let the other life go on from here."""
        for name, value in list(self.other.items()):
            self.other[name] = getattr(self, name)
            setattr(self, name, value)
        # The clock may have gone since, for which a tick has to look first.
        now_ms = self.clock.now_ms()
        self.model.tick(now_ms)
        self.notices.promise(self.run(self.store.tick(now_ms)))

    def _move_clock(self, delta_ms: int) -> None:
        if self.other and delta_ms < 0:
            room_ms = max(self.clock.now_ms() - self.other["model"].forgotten_ms, 0)
            delta_ms = -min(-delta_ms, room_ms)
        super()._move_clock(delta_ms)

    # --- what the other life has handed out -------------------------------------------------------

    @precondition(lambda self: self.other)
    @rule(picks=some_picks, verb=st.sampled_from(("ack", "release", "touch", "bury")))
    def use_strange_receipts(self, picks: list[int], verb: str) -> None:
        """Use receipts that only the other life has given: none is good."""
        words = self.other["receipts"].newest(self.common[0])
        if words:
            chosen = np.array([words[pick % len(words)] for pick in picks], np.uint64)
            self._check_refused(verb, chosen)

    def _check_refused(self, verb: str, receipts: U64) -> None:
        rest: dict[str, Sequence[Any]] = {"ack": (), "release": (0, None), "touch": (0,)}
        named = {"counted": True} if verb == "release" else {}
        self.model.tick(self.clock.now_ms())
        self.has_only_moved = False
        try:
            call = getattr(self.store, verb)
            results = self.run(call(receipts, *rest.get(verb, (None,)), **named))
        except ForeignReceipt:
            return
        assert set(results.tolist()) == {Result.STALE}, "a receipt of another life is good"

    @precondition(lambda self: self.other)
    @rule(topic=a_topic, picks=some_picks)
    def use_strange_ids(self, topic: str, picks: list[int]) -> None:
        """Name messages by ids that only the other life has made: there are none."""
        made = self.other["ids"].newest(self.common[1])
        if made:
            ids = [made[pick % len(made)] for pick in picks]
            assert self.run(self.store.get(topic, encoded(ids))) == [None] * len(ids)
            self._do_each(
                lambda model: [Result.UNKNOWN] * len(ids),
                lambda store: store.cancel(topic, encoded(ids)),
            )

    def teardown(self) -> None:
        if self.other:
            self.run(self.other["store"].close())
        super().teardown()


@pytest.mark.campaign
def test_two_lives_are_like_their_models() -> None:
    run_state_machine_as_test(
        LivesMachine,
        settings=settings(max_examples=RUNS * 40, stateful_step_count=50, deadline=None),
    )
