"""The arrows of the state machine, each tested once, and the pairs of verb and state without one.

The cases are made from :data:`dwell.message.TRANSITIONS`: a new arrow fails here until a test for
it is defined.
"""

import itertools
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from dwell.message import TRANSITIONS, U64, Result, State, Transition
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.shards import skip_over_shards
from dwell.testing.views import STATES

LATER_MS = 10_000
EXPIRY_MS = 5_000
LEASE_MS = 60_000
NO_RECEIPT: U64 = np.zeros((0, 2), np.uint64)

Act = Callable[[Rig, U64], Awaitable[list[str]]]


def name_of(arrow: Transition) -> str:
    """Return a test's name."""
    parts = (arrow.verb, arrow.before.name, arrow.after.name, arrow.note)
    return " ".join(part for part in parts if part).replace("on_conflict=", "")


async def reach(rig: Rig, state: State, expires_in_ms: int | None = None) -> U64:
    """Bring the message ``x`` into a state; return the receipt of its last take."""
    if state is State.GONE:
        return NO_RECEIPT
    delay_ms = LATER_MS if state is State.DELAYED else 0
    assert await rig.put("x", delay_ms=delay_ms, expires_in_ms=expires_in_ms) == ["created"]
    if state in (State.DELAYED, State.READY):
        return NO_RECEIPT
    receipts = receipts_of(await rig.take(lease_ms=LEASE_MS))
    if state is State.DEAD:
        assert await rig.bury(receipts) == ["buried"]
    return receipts


async def prepare(rig: Rig, arrow: Transition) -> U64:
    """Bring ``x`` to the start of an arrow, with the condition in its note."""
    if arrow.note == "attempts used":
        await rig.configure(max_attempts=1)
    if arrow.result is Result.DROPPED:
        await rig.configure(max_pending=1, on_full="drop")
        await rig.put("y")
    if arrow.before is State.GONE and arrow.result is Result.KEPT:
        receipts = await reach(rig, State.LEASED)
        assert await rig.ack(receipts) == ["acked"]
        return NO_RECEIPT
    return await reach(rig, arrow.before, EXPIRY_MS if arrow.verb == "expires" else None)


async def wait(rig: Rig, delta_ms: int) -> list[str]:
    """Move the clock forward."""
    rig.advance(delta_ms)
    await rig.tick()
    return []


async def take(rig: Rig) -> list[str]:
    """Take the ready messages."""
    assert await rig.take_ids() == ["x"]
    return []


#: The call of each verb; the receipt is from the last take.
ACTS: dict[str, Act] = {
    "put": lambda rig, _: rig.put("x", delay_ms=LATER_MS),
    "replace": lambda rig, _: rig.put("x", delay_ms=LATER_MS, on_conflict="replace"),
    "due comes": lambda rig, _: wait(rig, LATER_MS),
    "take": lambda rig, _: take(rig),
    "ack": lambda rig, receipts: rig.ack(receipts),
    "touch": lambda rig, receipts: rig.touch(receipts),
    "release": lambda rig, receipts: rig.release(receipts, LATER_MS),
    "bury": lambda rig, receipts: rig.bury(receipts),
    "lease ends": lambda rig, _: wait(rig, LEASE_MS),
    "expires": lambda rig, _: wait(rig, EXPIRY_MS),
    "kick": lambda rig, _: rig.kick("x", delay_ms=LATER_MS),
    "cancel": lambda rig, _: rig.cancel("x"),
    "reschedule": lambda rig, _: rig.reschedule("x", delay_ms=LATER_MS),
}

BY_RECEIPT = ("ack", "release", "touch", "bury")
BY_ID = ("kick", "cancel", "reschedule")
ARROWS = {(arrow.verb, arrow.before) for arrow in TRANSITIONS}
NO_ARROWS = [pair for pair in itertools.product(BY_ID, State) if pair not in ARROWS]


def act_of(arrow: Transition) -> Act:
    """Return the call for an arrow."""
    return ACTS["replace" if "replace" in arrow.note else arrow.verb]


async def spend_receipt(rig: Rig, state: State) -> U64:
    """Take ``x``, and bring it into a state that makes the receipt stale."""
    await rig.put("x")
    receipts = receipts_of(await rig.take())
    if state is State.GONE:
        await rig.ack(receipts)
    elif state is State.DEAD:
        await rig.bury(receipts)
    else:
        await rig.release(receipts, LATER_MS if state is State.DELAYED else 0)
    if state is State.LEASED:
        await rig.take()
    return receipts


class Arrows(Suite):
    """Each arrow, and each pair of verb and state without one."""

    @pytest.mark.parametrize("arrow", TRANSITIONS, ids=name_of)
    @scenario
    async def test_arrow(self, rig: Rig, arrow: Transition) -> None:
        """The verb answers, moves and reports according to the table."""
        if arrow.result is Result.DROPPED:
            skip_over_shards(self)
        receipts = await prepare(rig, arrow)
        assert await rig.state("x") is arrow.before
        start = len(await rig.events())
        answer = await act_of(arrow)(rig, receipts)
        assert answer == ([] if arrow.result is None else [str(arrow.result)])
        assert await rig.state("x") is arrow.after
        assert await rig.happened(start) == ([] if arrow.event is None else [f"{arrow.event} x"])

    @pytest.mark.parametrize("arrow", TRANSITIONS, ids=name_of)
    @scenario
    async def test_arrow_in_counts_and_scans(self, rig: Rig, arrow: Transition) -> None:
        """After it, the message is counted in one state, and found in one."""
        if arrow.result is Result.DROPPED:
            skip_over_shards(self)
        await act_of(arrow)(rig, await prepare(rig, arrow))
        counts = (await rig.store.stats()).topics["t"]
        for state in STATES:
            page = await rig.store.scan("t", state, None, 10)
            expected = ["x"] if arrow.after is state else []
            assert [id_ for id_ in page.messages.ids if id_ != "y"] == expected
            assert getattr(counts, state.name.lower()) == len(page.messages)

    @pytest.mark.parametrize(("verb", "state"), NO_ARROWS)
    @scenario
    async def test_no_arrow_by_id(self, rig: Rig, verb: str, state: State) -> None:
        """A verb by id on a state without an arrow answers ``unknown`` and changes nothing."""
        receipts = await reach(rig, state)
        before, start = await rig.find("x"), len(await rig.events())
        assert await ACTS[verb](rig, receipts) == ["unknown"]
        assert await rig.find("x") == before
        assert await rig.events(start) == []

    @pytest.mark.parametrize(("verb", "state"), list(itertools.product(BY_RECEIPT, State)))
    @scenario
    async def test_spent_receipt(self, rig: Rig, verb: str, state: State) -> None:
        """A spent receipt answers ``stale`` and changes nothing, wherever the message is."""
        receipts = await spend_receipt(rig, state)
        assert await rig.state("x") is state
        before, start = await rig.find("x"), len(await rig.events())
        assert await ACTS[verb](rig, receipts) == ["stale"]
        assert await rig.find("x") == before
        assert await rig.events(start) == []
