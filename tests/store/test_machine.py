"""The machine itself: it follows a store over crashes, and finds one that breaks a promise."""

import copy
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from dwell.batch.batch import Batch
from dwell.batch.puts import PutAnswer, Puts
from dwell.clock import SimulatedClock
from dwell.errors import StoreFailed
from dwell.message import U8, U64, Result, TopicSettings
from dwell.store.allowances import Allowances
from dwell.store.base import Store
from dwell.store.fairness import FairTurns
from dwell.store.memory import MemoryStore
from dwell.store.memory.rows import Row, Topic
from dwell.testing.machine import StoreMachine
from tests import RUNS

pytestmark = pytest.mark.campaign

VERBS = (
    *("put", "take", "held", "ack", "release", "touch", "bury", "kick", "cancel", "reschedule"),
    *("get", "scan", "events", "stats", "configure", "tick"),
)


class FlakyStore(MemoryStore):
    """Fails once when it is told to, before or after a verb has done its work."""

    fails: str | None = None

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(clock)
        for verb in VERBS:
            setattr(self, verb, self._flaky(getattr(self, verb)))

    def _draw(self) -> None:
        # It stands for a store that is there after a crash, with the receipts of before.
        if not hasattr(self, "number"):
            super()._draw()

    def _flaky(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            fails, self.fails = self.fails, None
            if fails == "before":
                raise StoreFailed("before")
            answer = await call(*args, **kwargs)
            if fails == "after":
                raise StoreFailed("after")
            return answer

        return run


class FlakyMachine(StoreMachine):
    can_reopen = True

    async def make_store(self, clock: SimulatedClock) -> FlakyStore:
        return FlakyStore(clock)

    async def reopen(self) -> Store:
        return self.store

    @precondition(lambda self: self.store.fails is None)
    @rule(fails=st.sampled_from(("before", "after")))
    def arm(self, fails: str) -> None:
        self.store.fails = fails
        # As with a clock that only moved: the failure is for a verb, not for the comparison.
        self.has_only_moved = True


TestFlakyMachine = FlakyMachine.TestCase
TestFlakyMachine.settings = settings(max_examples=RUNS * 30, stateful_step_count=40, deadline=None)


# --- stores that break a promise --------------------------------------------------------------


class LosesPart(FlakyStore):
    """A put that fails leaves a part of its batch."""

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        if len(puts) < 2 or puts.ids is None or self.fails is not None:
            return await super().put(puts, on_conflict)
        columns = {
            name: getattr(puts, name)[:1]
            for name in ("bodies", "due_ms", "priority", "lease_ms", "max_attempts", "expires_ms")
        }
        part = dataclasses.replace(puts, **columns, ids=puts.ids[:1], extras=None)
        await super().put(part, on_conflict)
        raise StoreFailed("in the middle")


class IsEarly(MemoryStore):
    """Lives a moment ahead of the clock."""

    def _enter(self) -> int:
        now_ms = super()._enter()
        self._settle(now_ms + 1_000)
        return now_ms


class NeverPlans(MemoryStore):
    """Tells nobody that a deadline came nearer."""

    def _announce(self) -> None:
        self._is_nearer = False
        super()._announce()


class AcksWithoutForgetting(MemoryStore):
    """Says that a message is done, and keeps it."""

    async def ack(self, receipts: U64, *how: Any, **words: Any) -> U8:
        results = await self.release(receipts, 0, None, counted=True)
        results[results == Result.RELEASED] = Result.ACKED
        return results


class TakesBackwards(MemoryStore):
    """Gives the topics in another order than they were asked for."""

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        return await super().take(list(topics)[::-1], limit, lease_ms, owner)


class ForgetsAtOnce(MemoryStore):
    """Remembers no id."""

    def _settle(self, now_ms: int) -> None:
        super()._settle(now_ms)
        for topic in self.topics.values():
            topic.remembered.clear()


class HasNoEvents(MemoryStore):
    """Loses the events of bury."""

    def _bury(self, row: Any, kind: Any, now_ms: int) -> None:
        log = copy.copy(self._log)
        log._events, log.totals = log._events[:], log.totals.copy()
        super()._bury(row, kind, now_ms)
        self._log = log


class OneTurn(FairTurns[Any]):
    """All messages have the same turn."""

    def next(self, keys: Sequence[Any], numbers: Sequence[int]) -> list[int]:
        return [0] * len(keys)


class IsUnfair(MemoryStore):
    """Gives the messages of a fair topic as they have come."""

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        settings = await super().configure(topic, changes)
        # A topic without settings and messages is gone.
        lanes = self.topics[topic].lanes if topic in self.topics else None
        if lanes is not None and lanes.are_fair:
            lanes._turns = OneTurn()
        return settings


class HasNoRate(MemoryStore):
    """Gives as many messages as there are, whatever a topic's rate is."""

    def _allowed(self, topic: Topic, wanted: int, now_ms: int) -> int:
        self._allowances = Allowances()
        return super()._allowed(topic, wanted, now_ms)


class GivesLessThanItsRate(MemoryStore):
    """Counts each message that is taken twice."""

    def _lease(self, row: Row, lease_ms: int, owner: str, now_ms: int) -> None:
        if row.topic.settings.rate:
            self._allowances.spend(row.topic.name, row.topic.settings.rate, 1, now_ms)
        super()._lease(row, lease_ms, owner, now_ms)


@pytest.mark.parametrize(
    "broken",
    [
        IsUnfair,
        HasNoRate,
        GivesLessThanItsRate,
        LosesPart,
        IsEarly,
        NeverPlans,
        AcksWithoutForgetting,
        TakesBackwards,
        ForgetsAtOnce,
        HasNoEvents,
    ],
)
def test_machine_finds_a_store_that_breaks_a_promise(
    broken: Callable[[SimulatedClock], Store],
) -> None:
    class Machine(StoreMachine):
        can_reopen = broken is LosesPart

        async def make_store(self, clock: SimulatedClock) -> Store:
            return broken(clock)

        async def reopen(self) -> Store:
            return self.store

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=1_000,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )


def test_machine_does_not_reopen_what_cannot_be() -> None:
    class Machine(StoreMachine):
        async def make_store(self, clock: SimulatedClock) -> Store:
            return FlakyStore(clock)

    machine = Machine()
    machine.store.fails = "before"
    with pytest.raises(AssertionError, match="the store failed"):
        machine.take_all()
    machine.teardown()
