"""Time: dues, leases and expiries to the millisecond, deadlines, and clocks that jump."""

import numpy as np
import pytest

from dwell.batch.puts import DUE_COUNTED, EXPIRY_COUNTED, Puts, uniform
from dwell.message import State
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import ACTS, LATER_MS
from dwell.testing.suite.shards import within_a_shard

_FIFTY_YEARS_MS = 50 * 365 * 24 * 3_600_000
_DEAD_BY_TIME = "expired"


class Times(Suite):
    """Changes by time, and the verb ``tick``."""

    # --- dues ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("counted", [None, 0, DUE_COUNTED, DUE_COUNTED | EXPIRY_COUNTED])
    @scenario
    async def test_due_and_expiry_are_stored_to_the_millisecond(
        self, rig: Rig, counted: int | None
    ) -> None:
        """Given or counted: by the clock of the store they are the same."""
        dues_ms = [rig.now_ms + off_ms for off_ms in (-1_000, -1, 0, 1, 1_000)]
        size = len(dues_ms)
        puts = Puts(
            topic="t",
            bodies=[b"x"] * size,
            ids=[b"%d" % at for at in range(size)],
            due_ms=np.array(dues_ms, np.int64),
            priority=uniform(5, size, np.uint32),
            lease_ms=uniform(0, size, np.uint32),
            max_attempts=uniform(0, size, np.uint16),
            expires_ms=uniform(rig.now_ms + 9_000, size, np.int64),
            counted=None if counted is None else uniform(counted, size, np.uint8),
        )
        await rig.store.put(puts, "keep")
        found = await rig.found([b"%d" % at for at in range(size)])
        assert [message and message.due_ms for message in found] == dues_ms
        ends_ms = {message and message.expires_ms for message in found}
        assert ends_ms == {rig.now_ms + 9_000}
        taken = await rig.store.take(["t"], 10, 0, "")
        assert sorted(taken.due_ms.tolist()) == dues_ms[:3]

    # --- leases -------------------------------------------------------------------------------

    @scenario
    async def test_lease_ends_in_its_millisecond(self, rig: Rig) -> None:
        """The message comes back as it was, with its attempt counted."""
        await rig.put("x", delay_ms=-5)
        await rig.take(lease_ms=1_000)
        rig.advance(999)
        await rig.tick()
        assert await rig.state("x") is State.LEASED
        rig.advance(1)
        await rig.tick()
        message = await rig.get("x")
        assert (message.state, message.attempt, message.lease_until_ms) == (State.READY, 1, 0)
        assert message.due_ms == rig.now_ms - 1_005
        assert message.last_error is None
        lapse = (await rig.events())[-1]
        assert (str(lapse.kind), lapse.time_ms, lapse.attempt) == ("lapse", rig.now_ms, 1)

    @pytest.mark.parametrize(
        ("verb", "answer", "state"),
        [
            ("ack", ["stale"], State.READY),
            ("release", ["stale"], State.READY),
            ("touch", ["stale"], State.READY),
            ("bury", ["stale"], State.READY),
            ("cancel", ["cancelled"], State.GONE),
            ("reschedule", ["moved"], State.DELAYED),
            ("put", ["kept"], State.READY),
            ("replace", ["replaced"], State.DELAYED),
            ("take", [], State.LEASED),
        ],
    )
    @scenario
    async def test_each_verb_sees_that_a_lease_ended(
        self, rig: Rig, verb: str, answer: list[str], state: State
    ) -> None:
        """No verb needs a tick before it."""
        await rig.put("x")
        receipts = receipts_of(await rig.take(lease_ms=1_000))
        rig.advance(1_000)
        assert await ACTS[verb](rig, receipts) == answer
        assert await rig.state("x") is state

    @pytest.mark.parametrize(
        ("verb", "answer"),
        [
            ("cancel", ["cancelled"]),
            ("reschedule", ["unknown"]),
            ("kick", ["kicked"]),
            ("put", ["kept"]),
            ("replace", ["replaced"]),
        ],
    )
    @scenario
    async def test_each_verb_sees_that_a_message_expired(
        self, rig: Rig, verb: str, answer: list[str]
    ) -> None:
        """The message is dead before the verb reads it."""
        await rig.put("x", expires_in_ms=1_000)
        rig.advance(1_000)
        assert await ACTS[verb](rig, np.zeros((0, 2), np.uint64)) == answer
        assert (await rig.happened())[:2] == ["put x", "expire x"]

    @scenario
    async def test_each_reader_sees_the_present(self, rig: Rig) -> None:
        """Counts, scans and held messages show the present."""
        await rig.put("x")
        await rig.take(lease_ms=1_000)
        await rig.put("y", delay_ms=1_000)
        rig.advance(1_000)
        assert (await rig.store.stats()).topics["t"].ready == 2
        rig.advance(-1_000)
        await rig.take(lease_ms=1_000)
        rig.advance(1_000)
        assert len(await rig.store.held("me")) == 0
        page = await rig.store.scan("t", State.READY, None, 10)
        assert list(page.messages.ids) == ["x", "y"]

    # --- expiry -------------------------------------------------------------------------------

    @pytest.mark.parametrize("delay_ms", [0, LATER_MS])
    @scenario
    async def test_expires_in_its_millisecond(self, rig: Rig, delay_ms: int) -> None:
        """A message that was not taken in time is dead, ready or delayed before."""
        await rig.put("x", delay_ms=delay_ms, expires_in_ms=1_000)
        rig.advance(999)
        await rig.tick()
        assert await rig.state("x") is (State.DELAYED if delay_ms else State.READY)
        rig.advance(1)
        assert await rig.take_ids() == []
        message = await rig.get("x")
        assert (message.state, message.last_error) == (State.DEAD, _DEAD_BY_TIME)

    @scenario
    async def test_expires_at_once(self, rig: Rig) -> None:
        """A message put too late is accepted, and is dead."""
        assert await rig.put("x", expires_in_ms=0) == ["created"]
        assert await rig.take_ids() == []
        assert await rig.happened() == ["put x", "expire x"]

    @within_a_shard
    @scenario
    async def test_expires_not_while_leased(self, rig: Rig) -> None:
        """A message that was taken in time may be acked; it cannot be given back."""
        await rig.put("acked", "released", "lapsed", expires_in_ms=500)
        receipts = receipts_of(await rig.take(lease_ms=1_000))
        rig.advance(600)
        await rig.tick()
        assert await rig.state("acked") is State.LEASED
        assert await rig.ack(receipts[:1]) == ["acked"]
        assert await rig.release(receipts[1:2]) == ["buried"]
        assert await rig.state("released") is State.DEAD
        rig.advance(400)
        assert await rig.state("lapsed") is State.DEAD
        assert (await rig.happened())[-2:] == ["lapse lapsed", "expire lapsed"]
        assert (await rig.get("lapsed")).last_error == _DEAD_BY_TIME

    @scenario
    async def test_expires_after_being_moved(self, rig: Rig) -> None:
        """Moving a message leaves an expiry that comes after the new due."""
        await rig.put("x", expires_in_ms=1_000)
        await rig.reschedule("x", delay_ms=999)
        rig.advance(1_000)
        assert await rig.state("x") is State.DEAD

    @scenario
    async def test_expires_not_after_being_moved_to_the_same_due(self, rig: Rig) -> None:
        """A move clears an expiry before the due, even if the due stays the same."""
        await rig.put("x", delay_ms=2_000, expires_in_ms=1_000)
        assert await rig.reschedule("x", delay_ms=2_000) == ["moved"]
        assert (await rig.get("x")).expires_ms == 0
        rig.advance(2_000)
        assert await rig.take_ids() == ["x"]

    # --- deadlines ----------------------------------------------------------------------------

    @scenario
    async def test_deadline_is_the_nearest(self, rig: Rig) -> None:
        """Dues, leases and expiries all count; ready and dead messages have no deadline.

        A store may wake up too early, and then name the next time, but never too late.
        """
        assert await rig.tick() is None
        await rig.put("dead", "ready", priority=0)
        await rig.bury(receipts_of(await rig.take(1)))
        await rig.put("far", delay_ms=5_000)
        assert 0 < (await rig.tick() or 0) <= 5_000
        await rig.put("expiring", delay_ms=-1, expires_in_ms=4_000)
        assert 0 < (await rig.tick() or 0) <= 4_000
        await rig.put("near", delay_ms=3_000)
        assert 0 < (await rig.tick() or 0) <= 3_000
        await rig.take(1, lease_ms=2_000)
        assert 0 < (await rig.tick() or 0) <= 2_000

    @scenario
    async def test_deadline_goes_away(self, rig: Rig) -> None:
        """A deadline of a message that was cancelled, moved, acked or touched soon disappears."""
        await rig.put("x", delay_ms=1_000)
        await rig.put("y", delay_ms=2_000)
        await rig.cancel("x")
        await rig.reschedule("y", delay_ms=3_000)
        rig.advance(3_000)
        receipts = receipts_of(await rig.take(lease_ms=1_000))
        await rig.touch(receipts, 4_000)
        await rig.ack(receipts)
        wakes = 0
        while (delay_ms := await rig.tick()) is not None:
            rig.advance(delay_ms)
            wakes += 1
        assert wakes <= 5

    @scenario
    async def test_deadline_after_deadline(self, rig: Rig) -> None:
        """Sleeping from deadline to deadline meets each message in its millisecond."""
        dues = [1, 2, 59_999, 60_000, 60_001, 3_600_000, 86_400_000]
        await rig.put_entries([rig.entry(f"{due}", delay_ms=due) for due in reversed(dues)])
        start, met = rig.now_ms, []
        while (delay_ms := await rig.tick()) is not None:
            assert delay_ms > 0
            rig.advance(delay_ms)
            met += [(id_, rig.now_ms - start) for id_ in await rig.take_ids()]
            await rig.ack(receipts_of(await rig.store.held("me")))
        assert met == [(f"{due}", due) for due in dues]

    @scenario
    async def test_due_in_fifty_years(self, rig: Rig) -> None:
        """A far due is as exact as a near one; the store may look at it before, but not often."""
        await rig.put("x", delay_ms=_FIFTY_YEARS_MS)
        deadline_ms = await rig.tick()
        assert deadline_ms is not None
        assert 3_600_000 < deadline_ms <= _FIFTY_YEARS_MS
        rig.advance(_FIFTY_YEARS_MS - 1)
        assert await rig.take_ids() == []
        assert await rig.tick() == 1
        rig.advance(1)
        assert await rig.take_ids() == ["x"]

    @scenario
    async def test_due_long_ago(self, rig: Rig) -> None:
        """A due in the past, even at the start of time, is simply due."""
        await rig.put_entries([rig.entry("old", delay_ms=-rig.now_ms), rig.entry("new")])
        assert (await rig.get("old")).due_ms == 0
        assert await rig.take_ids() == ["old", "new"]

    # --- clocks that jump ---------------------------------------------------------------------

    @scenario
    async def test_clock_jumps_back_before_the_due(self, rig: Rig) -> None:
        """A ready message is not taken early, but at its due by the corrected clock."""
        await rig.put("x", delay_ms=5_000)
        rig.advance(5_000)
        await rig.tick()
        assert await rig.state("x") is State.READY
        rig.advance(-2_000)
        assert await rig.take_ids() == []
        assert await rig.state("x") is State.DELAYED
        assert await rig.tick() == 2_000
        rig.advance(2_000)
        assert await rig.take_ids() == ["x"]

    @scenario
    async def test_clock_jumps_back_with_leases(self, rig: Rig) -> None:
        """A lease lasts to its end by the clock; new leases count from the present clock."""
        await rig.put("x")
        receipts = receipts_of(await rig.take(lease_ms=1_000))
        rig.advance(-500)
        await rig.put("y", delay_ms=100)
        assert await rig.take_ids() == []
        rig.advance(1_499)
        assert await rig.state("x") is State.LEASED
        assert await rig.take_ids() == ["y"]
        assert await rig.ack(receipts) == ["acked"]

    @scenario
    async def test_clock_jumps_back_after_an_expiry(self, rig: Rig) -> None:
        """A change by time is final: a dead message does not come to life again."""
        await rig.put("x", expires_in_ms=1_000)
        rig.advance(1_000)
        await rig.tick()
        rig.advance(-1_000)
        assert await rig.state("x") is State.DEAD

    @within_a_shard
    @scenario
    async def test_clock_jumps_far_ahead(self, rig: Rig) -> None:
        """After a long sleep all due messages come at once, in order."""
        await rig.put_entries(
            [rig.entry(f"{number}", delay_ms=1 + number * 600_000) for number in range(500)]
        )
        rig.advance(10**9)
        assert await rig.take_ids() == [f"{number}" for number in range(500)]
