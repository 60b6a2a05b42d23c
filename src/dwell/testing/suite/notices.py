"""The calls of a store to the queue: ``wake`` for waiting takers, ``plan`` for its sleep."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import LATER_MS

Step = Callable[[], Awaitable[object]]


async def _must_plan(rig: Rig, step: Step) -> None:
    """Put the queue to sleep, and check that a step wakes it."""
    await rig.tick()
    rig.hush()
    await step()
    assert rig.plans, "a nearer deadline, and nobody was told"


async def _put(rig: Rig) -> None:
    rig.hush()
    await rig.put("x", "y")


async def _put_made(rig: Rig) -> None:
    rig.hush()
    await rig.put_made(2)


async def _replace(rig: Rig) -> None:
    await rig.put("x", "y", delay_ms=LATER_MS)
    rig.hush()
    await rig.put("x", "y", on_conflict="replace")


async def _tick(rig: Rig) -> None:
    await rig.put("x", "y", delay_ms=LATER_MS)
    rig.hush()
    rig.advance(LATER_MS)
    await rig.tick()


async def _other_verb(rig: Rig) -> None:
    await rig.put("x", "y", delay_ms=LATER_MS)
    rig.hush()
    rig.advance(LATER_MS)
    await rig.cancel("none", topic="u")


async def _release(rig: Rig) -> None:
    await rig.put("x", "y")
    receipts = receipts_of(await rig.take())
    rig.hush()
    await rig.release(receipts)


async def _lapse(rig: Rig) -> None:
    await rig.put("x", "y")
    await rig.take(lease_ms=60_000)
    rig.hush()
    rig.advance(60_000)
    await rig.tick()


async def _kick(rig: Rig) -> None:
    await rig.put("x", "y")
    await rig.bury(receipts_of(await rig.take()))
    rig.hush()
    await rig.kick("x", "y")


async def _reschedule(rig: Rig) -> None:
    await rig.put("x", "y", delay_ms=LATER_MS)
    rig.hush()
    await rig.reschedule("x", "y")


async def _go_on(rig: Rig) -> None:
    await rig.configure(paused=True)
    await rig.put("x")
    await rig.put("y", delay_ms=LATER_MS)
    rig.advance(LATER_MS)
    await rig.tick()
    rig.hush()
    await rig.configure(paused=False)


#: Every way to make the two messages of the topic ``t`` available.
WAYS: list[Callable[[Rig], Awaitable[None]]] = [
    _put,
    _put_made,
    _replace,
    _tick,
    _other_verb,
    _release,
    _lapse,
    _kick,
    _reschedule,
    _go_on,
]


class Notices(Suite):
    """The calls of ``wake`` and ``plan``."""

    @pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__).strip("_"))
    @scenario
    async def test_wake(self, rig: Rig, way: Any) -> None:
        """Takers of the topic are told how many more messages there are for them."""
        await way(rig)
        assert rig.woken == Counter(t=2)
        assert len(await rig.take_ids()) == 2

    @scenario
    async def test_wake_counts_by_topic(self, rig: Rig) -> None:
        """Each topic is woken for its own messages."""
        await rig.put("a", "b", topic="t", delay_ms=5)
        await rig.put("c", topic="u", delay_ms=5)
        assert rig.woken == Counter()
        rig.advance(5)
        await rig.tick()
        assert rig.woken == Counter(t=2, u=1)

    @scenario
    async def test_wake_nobody(self, rig: Rig) -> None:
        """Messages that are delayed, expired, kept, taken, buried or gone wake no taker."""
        await rig.put("delayed", delay_ms=LATER_MS)
        await rig.put("x", "y", "z")
        rig.hush()
        await rig.put("x")
        receipts = receipts_of(await rig.take())
        await rig.ack(receipts[:1])
        await rig.bury(receipts[1:2])
        await rig.release(receipts[2:], LATER_MS)
        await rig.kick("y", delay_ms=LATER_MS)
        await rig.cancel("y")
        await rig.put("late", delay_ms=5, expires_in_ms=2)
        rig.advance(5)
        await rig.tick()
        assert rig.woken == Counter()

    @scenario
    async def test_wake_nobody_while_paused(self, rig: Rig) -> None:
        """A paused topic wakes its takers only when it resumes."""
        await rig.configure(paused=True)
        await rig.put("x")
        await rig.put("y", delay_ms=5)
        rig.advance(5)
        await rig.tick()
        assert rig.woken == Counter()

    @scenario
    async def test_plan_when_a_deadline_comes_nearer(self, rig: Rig) -> None:
        """The queue sleeps until the last deadline it got; a nearer one must wake it."""
        await _must_plan(rig, lambda: rig.put("far", delay_ms=1_000_000))
        steps: list[Step] = [
            lambda: rig.put("due", delay_ms=900_000),
            lambda: rig.put("expiring", delay_ms=999_999, expires_in_ms=800_000),
            lambda: rig.reschedule("due", delay_ms=700_000),
            lambda: rig.put("due", delay_ms=600_000, on_conflict="replace"),
        ]
        for step in steps:
            await _must_plan(rig, step)

    @scenario
    async def test_plan_when_a_lease_begins(self, rig: Rig) -> None:
        """The end of a lease is a deadline, and so is its new end, and the due after it."""
        await rig.put("x")
        await _must_plan(rig, lambda: rig.take(lease_ms=900_000))
        receipts = receipts_of(await rig.store.held("me"))
        await _must_plan(rig, lambda: rig.touch(receipts, 800_000))
        await _must_plan(rig, lambda: rig.release(receipts, 700_000))

    @scenario
    async def test_plan_when_a_message_is_kicked(self, rig: Rig) -> None:
        """A kick with a delay makes a deadline."""
        await rig.put("x")
        await rig.bury(receipts_of(await rig.take()))
        await _must_plan(rig, lambda: rig.kick("x", delay_ms=LATER_MS))
