"""Queries: the size of a topic shard by shard, and whether the parts of a store agree."""

from typing import Any

import pytest

from dwell.batch.spans import Spans
from dwell.batch.stats import Holder, TopicStats
from dwell.message import State
from dwell.store.base import RemoteStore
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import LATER_MS
from dwell.testing.suite.ids import one_in_each_state

_STATES = [state.name.lower() for state in State if state is not State.GONE]


async def _mixed_life(rig: Rig) -> None:
    """Move messages in every possible way, and leave some in every state."""
    await one_in_each_state(rig)
    await rig.configure("u", max_attempts=1, remember_ms=0)
    await rig.put_made(5, delay_ms=50)
    await rig.put(*"abcdefgh", topic="u", delay_ms=5, expires_in_ms=1_000)
    await rig.reschedule("a", "b", topic="u", delay_ms=LATER_MS)
    await rig.cancel("c", topic="u")
    rig.advance(60)
    batch = await rig.take(4, topics=["u", "t"], lease_ms=100)
    receipts = receipts_of(batch)
    await rig.ack(receipts[:1])
    await rig.release(receipts[1:2])
    await rig.touch(receipts[2:3], 5_000)
    await rig.bury(receipts[3:])
    await rig.put("d", "h", topic="u", delay_ms=70, on_conflict="replace")
    rig.advance(2_000)
    await rig.kick("dead", delay_ms=10)
    rig.advance(20)
    await rig.release(receipts_of(await rig.take(2, topics=["t"])), 30, counted=False)


class Queries(Suite):
    """The verbs ``sizes`` and ``find_stale``."""

    @scenario
    async def test_sizes_add_up(self, rig: Rig) -> None:
        """The shards of a topic add up to the counts, for each state."""
        await one_in_each_state(rig)
        await rig.put(*(f"{number}" for number in range(100)), topic="u")
        await rig.put(*(f"{number}" for number in range(100, 130)), topic="u", delay_ms=LATER_MS)
        await rig.take(20, topics=["u"])
        topics = (await rig.store.stats()).topics
        for topic in ("t", "u"):
            sizes = await rig.store.sizes(topic)
            for state in _STATES:
                total = sum(getattr(size, state) for size in sizes)
                assert total == getattr(topics[topic], state)
        assert topics["u"] == TopicStats(delayed=30, ready=80, leased=20)

    @scenario
    async def test_count_what_comes_before_a_priority(self, rig: Rig) -> None:
        """Counts ready messages of one topic, from any earlier state."""
        await rig.put("a", "b", priority=1023)
        await rig.put("usual")
        await rig.put("later", delay_ms=LATER_MS, priority=1)
        await rig.put("cancelled", "taken", priority=1)
        await rig.put("other", topic="u", priority=1)
        await rig.take(1)
        await rig.cancel("cancelled", "taken")
        assert await rig.store.count_urgent("t", 1024) == 2
        assert await rig.store.count_urgent("t", 1023) == 0
        assert await rig.store.count_urgent("t", 1025) == 3
        assert await rig.store.count_urgent("none", 1024) == 0
        rig.advance(LATER_MS)
        assert await rig.store.count_urgent("t", 1024) == 3

    @scenario
    async def test_count_what_was_moved_away_and_back_once(self, rig: Rig) -> None:
        """A message that was moved is counted once, however many entries it has."""
        await rig.put("a", priority=1)
        for delay_ms in (LATER_MS, 0, LATER_MS, 0):
            await rig.reschedule("a", delay_ms=delay_ms)
        assert await rig.store.count_urgent("t", 1024) == 1

    @scenario
    async def test_count_by_due(self, rig: Rig) -> None:
        """For some topics or all: delayed messages count in the span of their due."""
        await rig.put_made(40, delay_ms=1_000)
        await rig.put_made(3, delay_ms=1_999)
        await rig.put("now")
        await rig.put("far", delay_ms=LATER_MS)
        await rig.put("a", "b", topic="u", delay_ms=2_000)
        await rig.put("cancelled", delay_ms=1_000)
        await rig.put("dead", delay_ms=1_500, expires_in_ms=10)
        await rig.cancel("cancelled")
        rig.advance(20)
        spans = Spans(rig.now_ms - 20, 1_000, 4)
        assert (await rig.store.count_due([], spans)).tolist() == [0, 43, 2, 0]
        assert (await rig.store.count_due(["t"], spans)).tolist() == [0, 43, 0, 0]
        assert (await rig.store.count_due(["u", "none"], spans)).tolist() == [0, 0, 2, 0]
        assert (await rig.store.count_due(["none"], spans)).tolist() == [0, 0, 0, 0]
        narrow = Spans(spans.start_ms + 1_000, 1, 1_000)
        counts = (await rig.store.count_due(["t"], narrow)).tolist()
        assert (counts[0], counts[-1], sum(counts)) == (40, 3, 43)
        rig.advance(1_500)
        assert (await rig.store.count_due([], spans)).tolist() == [0, 3, 2, 0]

    @scenario
    async def test_count_a_block_whose_messages_fall_due_apart(self, rig: Rig) -> None:
        """Each message counts at its due, and messages of the block that are gone do not."""
        entries = [rig.entry(f"{at}", delay_ms=10_000 + 100 * at) for at in range(60)]
        await rig.put_entries(entries)
        await rig.cancel("0", "30")
        spans = Spans(rig.now_ms + 10_000, 1_000, 7)
        assert (await rig.store.count_due([], spans)).tolist() == [9, 10, 10, 9, 10, 10, 0]
        inner = Spans(rig.now_ms + 12_000, 1_000, 2)
        assert (await rig.store.count_due(["t"], inner)).tolist() == [10, 9]

    @scenario
    async def test_topics_with_something_ready(self, rig: Rig) -> None:
        """In the given order, also what has just fallen due."""
        await rig.put("a", topic="late", delay_ms=LATER_MS)
        await rig.put("b", topic="paused")
        await rig.put("c", "d", topic="all")
        await rig.put("e", topic="taken")
        await rig.take(topics=["taken"])
        await rig.configure("paused", paused=True)
        topics = ["none", "late", "all", "paused", "taken"]
        # Only a server knows what its store has ready.
        known = topics if isinstance(rig.store, RemoteStore) else ["all"]
        assert await rig.store.with_ready(topics) == known
        rig.advance(LATER_MS)
        assert set(await rig.store.with_ready(topics)) >= {"late", "all"}
        assert await rig.store.with_ready(["all", "late"]) == ["all", "late"]

    @scenario
    async def test_oldest_of_what_waits(self, rig: Rig) -> None:
        """A later message of a better priority does not hide the oldest."""
        first = rig.now_ms
        await rig.put("old")
        rig.advance(10)
        await rig.put("urgent", priority=1)
        await rig.put("other", topic="u")
        await rig.put("later", topic="v", delay_ms=LATER_MS)
        assert await rig.store.oldest_ready() == {"t": first, "u": first + 10}
        await rig.store.take_ids("t", [b"urgent"], 0, "")
        assert await rig.store.oldest_ready() == {"t": first, "u": first + 10}
        await rig.take_ids(1)
        assert await rig.store.oldest_ready() == {"u": first + 10}

    @pytest.mark.parametrize("how", [{"ordered": True}, {"fair": True}, {"paused": True}])
    @scenario
    async def test_oldest_of_topics_of_each_kind(self, rig: Rig, how: dict[str, Any]) -> None:
        """Messages that are held back, or behind other priorities, count as well."""
        await rig.configure(**how)
        first = rig.now_ms
        for step in range(20):
            await rig.put(f"{step}", priority=100 - step, key=f"{step % 3}")
            rig.advance(10)
        assert await rig.store.oldest_ready() == {"t": first}
        await rig.cancel("0")
        assert await rig.store.oldest_ready() == {"t": first + 10}

    @scenario
    async def test_who_holds_how_much(self, rig: Rig) -> None:
        """By owner and topic, most messages first, with the end of their first lease."""
        await rig.put_made(40)
        await rig.put("a", "b", topic="u")
        await rig.take(1, lease_ms=500, owner="ann")
        await rig.take(39, lease_ms=900, owner="ann")
        await rig.take(1, topics=["u"], lease_ms=700, owner="")
        held = [Holder("ann", "t", 40, rig.now_ms + 500), Holder("", "u", 1, rig.now_ms + 700)]
        assert await rig.store.holders(10) == held
        assert await rig.store.holders(1) == held[:1]
        # Other topics take no place in the answer.
        assert await rig.store.holders(1, ("u", "v")) == held[1:]
        assert await rig.store.holders(1, ()) == []
        rig.advance(600)
        assert await rig.store.holders(10) == [
            Holder("ann", "t", 39, rig.now_ms + 300),
            Holder("", "u", 1, rig.now_ms + 100),
        ]
        rig.advance(LATER_MS)
        assert await rig.store.holders(10) == []

    @scenario
    async def test_sizes_of_an_unknown_topic(self, rig: Rig) -> None:
        """Every shard holds nothing, and the query makes no topic."""
        sizes = await rig.store.sizes("none")
        assert len(sizes) >= 1
        assert set(map(repr, sizes)) == {repr(TopicStats())}
        assert "none" not in (await rig.store.stats()).topics

    @scenario
    async def test_the_parts_of_a_store_agree(self, rig: Rig) -> None:
        """After any verbs, each message is in all of its places; a repair changes nothing."""
        assert await rig.store.find_stale() == []
        await _mixed_life(rig)
        before = (await rig.store.stats()).topics, len(await rig.events())
        assert await rig.store.find_stale() == []
        assert await rig.store.find_stale(repair=True, limit=1) == []
        assert ((await rig.store.stats()).topics, len(await rig.events())) == before
        rig.clock.advance(-1_000)
        assert await rig.store.find_stale() == []
