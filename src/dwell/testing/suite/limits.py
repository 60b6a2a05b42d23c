"""Limits of a topic that hold for all its takers: order by key, leases and rate."""

from collections.abc import Awaitable, Callable

import pytest

from dwell.message import DEFAULT_PRIORITY, State
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import LATER_MS
from dwell.testing.suite.shards import skip_over_shards, within_a_shard

Leave = Callable[[Rig], Awaitable[object]]


async def _ack(rig: Rig) -> None:
    await rig.ack(receipts_of(await rig.take(1)))


async def _bury(rig: Rig) -> None:
    await rig.bury(receipts_of(await rig.take(1)))


async def _exhaust(rig: Rig) -> None:
    for _ in range(2):
        await rig.release(receipts_of(await rig.take(1)))


async def _lapse(rig: Rig) -> None:
    for _ in range(2):
        await rig.take(1, lease_ms=LATER_MS)
        rig.advance(LATER_MS)
        await rig.tick()


async def _cancel(rig: Rig) -> None:
    await rig.release(receipts_of(await rig.take(1)), LATER_MS)
    await rig.cancel("1")


async def _expire(rig: Rig) -> None:
    await rig.put("1", key="k", expires_in_ms=LATER_MS // 2, on_conflict="replace")
    await rig.release(receipts_of(await rig.take(1)), LATER_MS)
    rig.advance(LATER_MS // 2)
    await rig.tick()


async def _replace(rig: Rig) -> None:
    await rig.release(receipts_of(await rig.take(1)), LATER_MS)
    await rig.put("1", key="another", delay_ms=LATER_MS, on_conflict="replace")


async def _give_back(rig: Rig) -> None:
    await rig.release(receipts_of(await rig.take(1)), LATER_MS, counted=False)


LEAVES = (_ack, _bury, _exhaust, _lapse, _cancel, _expire, _replace, _give_back)


class Limits(Suite):
    """The settings ``ordered``, ``most_leased`` and ``rate``."""

    # --- ordered ------------------------------------------------------------------------------

    @scenario
    async def test_ordered_gives_one_message_of_a_key_at_a_time(self, rig: Rig) -> None:
        """The next message is taken when the previous is done, and a taker is woken for it."""
        await rig.configure(ordered=True)
        await rig.put("1", "2", "3", key="k")
        for id_ in ("1", "2", "3"):
            batch = await rig.take()
            assert list(batch.ids) == [id_]
            assert await rig.take_ids() == []
            rig.hush()
            await rig.ack(receipts_of(batch))
            assert id_ == "3" or rig.woken["t"]
        assert await rig.take_ids() == []

    @scenario
    async def test_ordered_holds_no_other_keys_back(self, rig: Rig) -> None:
        """One take gives the first message of each key, and all messages without a key."""
        await rig.configure(ordered=True)
        for key in ("k", "l", None):
            await rig.put(*(f"{key} {number}" for number in range(3)), key=key)
        batch = await rig.take()
        expected = ["None 0", "None 1", "None 2", "k 0", "l 0"]
        assert sorted(batch.ids) == expected
        await rig.ack(receipts_of(batch)[[list(batch.ids).index("k 0")]])
        assert await rig.take_ids() == ["k 1"]

    @scenario
    async def test_ordered_passes_over_many_of_a_key(self, rig: Rig) -> None:
        """Other messages are found behind any number that wait for a taken message."""
        await rig.configure(ordered=True)
        await rig.put(*(f"{number:04d}" for number in range(1200)), key="k")
        await rig.put("other", key="l")
        assert await rig.take_ids(1) == ["0000"]
        for _ in range(100):
            if found := await rig.take_ids(1):
                break
        assert found == ["other"]
        assert await rig.take_ids() == []

    @scenario
    async def test_ordered_waits_for_the_next_attempt(self, rig: Rig) -> None:
        """A message that waits for its retry, or whose taker died, comes before the others."""
        await rig.configure(ordered=True)
        await rig.put("1", "2", key="k")
        await rig.release(receipts_of(await rig.take()), LATER_MS)
        assert await rig.take_ids() == []
        rig.advance(LATER_MS)
        batch = await rig.take(lease_ms=LATER_MS)
        assert list(batch.ids) == ["1"]
        rig.advance(LATER_MS)
        batch = await rig.take()
        assert list(batch.ids) == ["1"]
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == ["2"]

    @pytest.mark.parametrize("leave", LEAVES)
    @scenario
    async def test_ordered_goes_on_when_a_message_is_gone(self, rig: Rig, leave: Leave) -> None:
        """When a message leaves, in any way, the next of its key is taken, and a taker is woken."""
        if leave is _replace:
            skip_over_shards(self)
        await rig.configure(ordered=True, max_attempts=2)
        await rig.put("1", key="k")
        rig.advance(1)
        await rig.put("2", "3", key="k")
        assert await rig.peek_ids() == ["1"]
        rig.hush()
        await leave(rig)
        assert rig.woken["t"]
        assert await rig.take_ids() == ["2"]
        assert await rig.take_ids() == []

    @scenario
    async def test_ordered_by_priority_and_due(self, rig: Rig) -> None:
        """The first of the waiting messages is by priority and due, whenever it was put."""
        await rig.configure(ordered=True)
        await rig.put("now", key="k")
        batch = await rig.take()
        await rig.put("last", key="k")
        assert await rig.take_ids() == []
        await rig.put("early", key="k", delay_ms=-5)
        await rig.put("urgent", key="k", priority=1)
        assert await rig.take_ids() == []
        found: list[str] = []
        while len(batch):
            found += batch.ids
            await rig.ack(receipts_of(batch))
            batch = await rig.take()
        assert found == ["now", "urgent", "early", "last"]

    @scenario
    async def test_ordered_shows_what_waits(self, rig: Rig) -> None:
        """Messages behind another are ready: they are counted, listed, moved and cancelled."""
        await rig.configure(ordered=True)
        await rig.put("1", "2", "3", "4", key="k")
        batch = await rig.take()
        assert await rig.take_ids() == []
        stats = await rig.store.stats()
        assert (stats.topics["t"].ready, stats.topics["t"].leased) == (3, 1)
        page = await rig.store.scan("t", State.READY, None, 10)
        assert list(page.messages.ids) == ["2", "3", "4"]
        assert await rig.peek_ids() == []
        assert await rig.store.count_urgent("t", DEFAULT_PRIORITY + 1) == 3
        assert await rig.cancel("2") == ["cancelled"]
        assert await rig.reschedule("3", delay_ms=LATER_MS) == ["moved"]
        await rig.ack(receipts_of(batch))
        batch = await rig.take()
        assert list(batch.ids) == ["4"]
        rig.advance(LATER_MS)
        assert await rig.take_ids() == []
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == ["3"]

    @scenario
    async def test_ordered_holds_for_takes_by_id(self, rig: Rig) -> None:
        """A take by id gets a message only if it is the first of its key."""
        await rig.configure(ordered=True)
        await rig.put("1", "2", key="k")
        await rig.put("3")
        batch = await rig.take_by_ids("2", "3", "1")
        assert list(batch.ids) == ["3", "1"]
        assert len(await rig.take_by_ids("2")) == 0
        await rig.ack(receipts_of(batch))
        assert list((await rig.take_by_ids("2")).ids) == ["2"]

    @scenario
    async def test_ordered_from_now_on(self, rig: Rig) -> None:
        """A topic becomes ordered, and unordered again, while messages wait and are taken."""
        await rig.put("1", "2", "3", key="k")
        await rig.put("4", key="l")
        batch = await rig.take(1)
        await rig.configure(ordered=True)
        assert await rig.take_ids() == ["4"]
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == ["2"]
        assert await rig.take_ids() == []
        rig.hush()
        await rig.configure()
        assert rig.woken["t"]
        assert await rig.take_ids() == ["3"]

    @scenario
    async def test_ordered_when_the_clock_goes_back(self, rig: Rig) -> None:
        """A message that is no longer due waits, even behind another of its key."""
        await rig.configure(ordered=True)
        await rig.put("1", key="k")
        await rig.put("2", "3", key="k", delay_ms=LATER_MS)
        rig.advance(LATER_MS)
        batch = await rig.take()
        assert await rig.take_ids() == []
        rig.advance(-LATER_MS // 2)
        await rig.ack(receipts_of(batch))
        assert await rig.take_ids() == []
        rig.advance(LATER_MS)
        assert await rig.take_ids() == ["2"]

    @pytest.mark.parametrize("first", [0, 1])
    @scenario
    async def test_ordered_waits_for_all_that_are_begun(self, rig: Rig, first: int) -> None:
        """All messages of a key that were taken before the topic was ordered must be done first."""
        await rig.put("1", "2", "3", "4", key="k")
        receipts = receipts_of(await rig.take(2))
        await rig.configure(ordered=True)
        assert await rig.take_ids() == []
        await rig.ack(receipts[[first]])
        assert await rig.take_ids() == []
        assert await rig.peek_ids() == []
        assert len(await rig.take_by_ids("3")) == 0
        rig.hush()
        await rig.ack(receipts[[1 - first]])
        assert rig.woken["t"]
        assert await rig.take_ids() == ["3"]
        assert await rig.take_ids() == []

    @scenario
    async def test_ordered_retries_what_was_begun_in_order(self, rig: Rig) -> None:
        """Taken messages are retried one at a time, in order, before the others."""
        await rig.put("1", key="k")
        rig.advance(1)
        await rig.put("2", key="k")
        rig.advance(1)
        await rig.put("3", key="k")
        receipts = receipts_of(await rig.take(2))
        await rig.configure(ordered=True)
        await rig.release(receipts[[1]], LATER_MS)
        rig.advance(LATER_MS)
        assert await rig.take_ids() == []
        await rig.release(receipts[[0]], LATER_MS)
        found: list[str] = []
        rig.advance(LATER_MS)
        for _ in range(3):
            batch = await rig.take()
            assert await rig.take_ids() == []
            found += batch.ids
            await rig.ack(receipts_of(batch))
        assert found == ["2", "1", "3"]

    # --- most_leased --------------------------------------------------------------------------

    @within_a_shard
    @scenario
    async def test_most_leased_bounds_what_is_taken(self, rig: Rig) -> None:
        """Only so many are leased at a time, and each end of a lease wakes a taker."""
        await rig.configure(most_leased=2)
        await rig.put(*"abcdef")
        batch = await rig.take()
        assert list(batch.ids) == ["a", "b"]
        assert await rig.take_ids() == []
        assert len(await rig.take_by_ids("c")) == 0
        rig.hush()
        await rig.ack(receipts_of(batch)[:1])
        assert rig.woken["t"]
        assert await rig.take_ids() == ["c"]
        rig.hush()
        await rig.configure(most_leased=4)
        assert rig.woken["t"]
        assert await rig.take_ids() == ["d", "e"]

    @pytest.mark.parametrize("verb", ["release", "bury", "lapse"])
    @within_a_shard
    @scenario
    async def test_most_leased_when_a_lease_ends(self, rig: Rig, verb: str) -> None:
        """Another message may be taken after a lease ends, in any way."""
        await rig.configure(most_leased=1)
        await rig.put("a", "b")
        receipts = receipts_of(await rig.take(lease_ms=LATER_MS))
        rig.hush()
        if verb == "release":
            await rig.release(receipts, 9 * LATER_MS)
        elif verb == "bury":
            await rig.bury(receipts)
        else:
            await rig.reschedule("b")
            rig.advance(LATER_MS)
            await rig.tick()
        assert rig.woken["t"]
        assert len(await rig.take_ids()) == 1
        assert await rig.take_ids() == []

    # --- rate ---------------------------------------------------------------------------------

    @within_a_shard
    @scenario
    async def test_rate_bounds_what_is_taken_a_second(self, rig: Rig) -> None:
        """In any span at most the rate, and a tenth of a second's worth, is taken."""
        await rig.configure(rate=20)
        await rig.put(*(f"{number:03d}" for number in range(100)))
        assert len(await rig.take_ids(1)) == 1
        rig.advance(60_000)
        taken = []
        for _ in range(60):
            taken.append(len(await rig.take_ids()))
            rig.advance(50)
        assert taken[0] == 2
        for start in range(60):
            for end in range(start + 1, 61):
                assert sum(taken[start:end]) <= 20 * 0.05 * (end - start - 1) + 2
        assert sum(taken) >= 60

    @within_a_shard
    @scenario
    async def test_rate_below_one_a_second(self, rig: Rig) -> None:
        """One message is taken each five seconds, however long nothing was taken before."""
        await rig.configure(rate=0.2)
        await rig.put("a", "b", "c", "d", "e")
        assert await rig.take_ids() == ["a"]
        for wanted in ("b", "c"):
            rig.advance(4_900)
            assert await rig.take_ids() == []
            rig.advance(101)
            assert await rig.take_ids() == [wanted]
        rig.advance(60_000)
        assert len(await rig.take_ids()) == 1

    @within_a_shard
    @scenario
    async def test_rate_wakes_who_waits(self, rig: Rig) -> None:
        """When the rate allows more there is a deadline, and a taker is woken at it."""
        await rig.configure(rate=2)
        await rig.put("a", "b", "c")
        await rig.tick()
        rig.hush()
        assert await rig.take_ids() == ["a"]
        assert rig.plans
        wait_ms = await rig.tick()
        assert wait_ms is not None
        assert wait_ms <= 500
        rig.hush()
        for _ in range(20):
            rig.advance(50)
            await rig.tick()
        assert rig.woken["t"]
        assert len(await rig.take_by_ids("b", "c")) == 1
        assert await rig.take_ids() == []

    @within_a_shard
    @scenario
    async def test_rate_when_the_clock_goes_back(self, rig: Rig) -> None:
        """A taker that waits for a rate does not wait until the clock is where it was."""
        await rig.configure(rate=10)
        await rig.put("a", "b")
        assert await rig.take_ids() == ["a"]
        rig.advance(-60_000)
        await rig.put("c", delay_ms=-100_000)
        rig.advance(2_000)
        assert await rig.take_ids() == ["c"]

    @within_a_shard
    @scenario
    async def test_rate_wakes_who_asked_for_few(self, rig: Rig) -> None:
        """A take of fewer than allowed leaves the others to waiting takers."""
        await rig.configure(rate=2)
        await rig.put("a", "b", "c")
        await rig.tick()
        assert await rig.take_ids(1) == ["a"]
        await _check_that_takers_come_again(rig, "b")
        assert list((await rig.take_by_ids("b")).ids) == ["b"]
        await _check_that_takers_come_again(rig, "c")

    @within_a_shard
    @scenario
    async def test_rate_that_is_taken_away_wakes_who_waits(self, rig: Rig) -> None:
        """A taker that waits for a rate is woken when the rate is removed."""
        await rig.configure(rate=1)
        await rig.put("a", "b")
        assert await rig.take_ids() == ["a"]
        await rig.tick()
        rig.hush()
        await rig.configure(rate=0)
        await rig.tick()
        assert rig.woken["t"]
        assert await rig.take_ids() == ["b"]

    @within_a_shard
    @scenario
    async def test_rate_wakes_who_sees_that_there_is_none(self, rig: Rig) -> None:
        """A taker that sees that nothing may be taken now does not ask, and is still woken."""
        await rig.configure(rate=2)
        await rig.put("a")
        assert await rig.take_ids() == ["a"]
        await rig.tick()
        await rig.put("b")
        if rig.store.ready("t") > 1:
            pytest.skip("it is not known here how many are ready, so that everybody asks")
        assert not rig.store.ready("t")
        await _check_that_takers_come_again(rig, "b")

    @within_a_shard
    @scenario
    async def test_rate_wakes_for_what_came_meanwhile(self, rig: Rig) -> None:
        """A late taker that was woken for one message leaves another for waiting takers."""
        await rig.configure(rate=20)
        await rig.put(*"abcde")
        assert await rig.take_ids() == ["a", "b"]
        rig.advance(50)
        await rig.tick()
        assert rig.store.ready("t")
        rig.advance(50)
        rig.hush()
        assert await rig.take_ids(1) == ["c"]
        wait_ms = await rig.tick()
        assert rig.woken["t"] or (wait_ms is not None and wait_ms <= 5)

    @within_a_shard
    @scenario
    async def test_rate_wakes_again_after_takes_by_id(self, rig: Rig) -> None:
        """Takes by id may use up the allowance; waiting takers keep waiting, and are woken."""
        await rig.configure(rate=150)
        await rig.put(*(f"{number:03d}" for number in range(100)))
        assert len(await rig.take_ids()) == 15
        assert await rig.take_ids() == []
        for number in range(50, 60):
            rig.advance(1)
            await rig.take_by_ids(f"{number:03d}")
        await _check_that_takers_come_again(rig, "015")

    @within_a_shard
    @scenario
    async def test_rate_holds_over_changes_of_settings(self, rig: Rig) -> None:
        """A change of settings, of the rate or of another, does not allow more."""
        await rig.configure(rate=10)
        await rig.put(*(f"{number:03d}" for number in range(100)))
        taken = 0
        for lease_ms in range(1_000, 1_050):
            taken += len(await rig.take_ids())
            rig.advance(20)
            await rig.configure(rate=10, lease_ms=lease_ms)
        assert 10 <= taken <= 11
        assert len(await rig.take_ids()) <= 1
        await rig.configure(rate=1_000)
        await rig.configure(rate=10)
        assert await rig.take_ids() == []


async def _check_that_takers_come_again(rig: Rig, first: str) -> None:
    """Check that takers are woken at a deadline, and that they find a message."""
    rig.hush()
    for _ in range(20):
        wait_ms = await rig.tick()
        if rig.woken["t"]:
            break
        assert wait_ms is not None
        rig.advance(min(max(wait_ms, 1), 500))
    assert rig.woken["t"]
    assert await rig.peek_ids(1) == [first]
    assert rig.store.ready("t")
