"""Taking: order, limits, leases, attempts, and the messages of an owner."""

import pytest

from dwell.message import MAX_BODY_BYTES, Message, State
from dwell.store.base import RemoteStore
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import LATER_MS
from dwell.testing.suite.shards import within_a_shard


class Takes(Suite):
    """The verbs ``take`` and ``held``."""

    # --- size ---------------------------------------------------------------------------------

    @scenario
    async def test_take_no_more_bytes_than_a_batch_has(self, rig: Rig) -> None:
        """Messages that do not fit in one answer are in the next answers."""
        ids = [f"{number:02d}" for number in range(40)]
        for at in range(0, len(ids), 2):
            await rig.put(*ids[at : at + 2], topic="ts"[at // 20], body=bytes(MAX_BODY_BYTES))
        peeked = await rig.store.peek("t", 1000)
        assert 0 < len(peeked) < 20
        found: list[str] = []
        while batch := await rig.take(topics=("t", "s")):
            assert len(batch) < 20
            found += batch.ids
        assert sorted(found) == ids

    @scenario
    async def test_take_by_ids_no_more_bytes_than_a_batch_has(self, rig: Rig) -> None:
        """Messages that do not fit stay ready."""
        ids = [f"{number:02d}" for number in range(24)]
        for at in range(0, len(ids), 2):
            await rig.put(*ids[at : at + 2], body=bytes(MAX_BODY_BYTES))
        found: list[str] = []
        while batch := await rig.take_by_ids(*ids):
            assert len(batch) < 22
            found += batch.ids
        assert sorted(found) == ids

    # --- order --------------------------------------------------------------------------------

    @within_a_shard
    @scenario
    async def test_take_by_priority_due_and_arrival(self, rig: Rig) -> None:
        """Priority comes first, then the due, then the arrival."""
        await rig.put("late", delay_ms=-1)
        await rig.put("early", delay_ms=-2)
        await rig.put("early too", delay_ms=-2)
        await rig.put("low", delay_ms=-9, priority=2_000)
        await rig.put("high", delay_ms=0, priority=7)
        await rig.put("highest", delay_ms=0, priority=0)
        expected = ["highest", "high", "early", "early too", "late", "low"]
        assert await rig.take_ids(2) == expected[:2]
        assert await rig.take_ids() == expected[2:]

    @within_a_shard
    @scenario
    async def test_take_late_but_more_urgent(self, rig: Rig) -> None:
        """A message that falls due later goes before older messages, if it is more urgent."""
        await rig.put("urgent", delay_ms=LATER_MS, priority=1)
        await rig.put("usual")
        rig.advance(LATER_MS)
        await rig.put("newest", priority=1, delay_ms=-1)
        assert await rig.take_ids() == ["newest", "urgent", "usual"]

    @pytest.mark.parametrize("verb", ["release", "lapse", "kick", "reschedule", "replace"])
    @within_a_shard
    @scenario
    async def test_take_keeps_the_arrival(self, rig: Rig, verb: str) -> None:
        """A message that comes back keeps its place among messages of the same due."""
        await rig.put("a", delay_ms=-5)
        receipts = receipts_of(await rig.take(lease_ms=LATER_MS))
        await rig.put("b", delay_ms=LATER_MS if verb != "lapse" else -5)
        if verb == "lapse":
            rig.advance(LATER_MS)
        elif verb == "kick":
            await rig.bury(receipts)
            await rig.kick("a", delay_ms=LATER_MS)
        else:
            await rig.release(receipts, LATER_MS if verb == "release" else 0)
        if verb == "reschedule":
            await rig.reschedule("a", delay_ms=LATER_MS)
        elif verb == "replace":
            await rig.put("a", delay_ms=LATER_MS, on_conflict="replace")
        rig.advance(LATER_MS)
        assert await rig.take_ids() == ["a", "b"]

    @within_a_shard
    @scenario
    async def test_take_after_rescheduling_to_the_front(self, rig: Rig) -> None:
        """A ready message that is moved goes to the place of its new due."""
        await rig.put("a", "b", "c")
        await rig.reschedule("c", delay_ms=-1)
        await rig.reschedule("a", delay_ms=LATER_MS)
        assert await rig.take_ids() == ["c", "b"]

    # --- limits and topics --------------------------------------------------------------------

    @scenario
    async def test_take_never_early_never_twice(self, rig: Rig) -> None:
        """A message comes in the millisecond of its due, once."""
        await rig.put("x", delay_ms=LATER_MS)
        rig.advance(LATER_MS - 1)
        assert await rig.take_ids() == []
        rig.advance(1)
        assert await rig.take_ids() == ["x"]
        assert await rig.take_ids() == []

    @within_a_shard
    @scenario
    async def test_take_topics_as_listed(self, rig: Rig) -> None:
        """Topic after topic, up to the limit over all; unknown topics give nothing."""
        await rig.put("a1", "a2", topic="a", priority=1)
        await rig.put("b1", "b2", topic="b", priority=0)
        batch = await rig.take(3, topics=["none", "a", "a", "b"])
        assert list(batch.ids) == ["a1", "a2", "b1"]
        assert list(batch.topics) == ["a", "a", "b"]
        assert await rig.take_ids(topics=["a"]) == []
        assert await rig.take_ids(topics=["b", "a"]) == ["b2"]

    @within_a_shard
    @scenario
    async def test_take_from_many_topics(self, rig: Rig) -> None:
        """One take may ask hundreds of topics."""
        topics = [f"topic-{number}" for number in range(300)]
        for topic in topics[::3]:
            await rig.put(f"in {topic}", topic=topic)
        ids = [f"in {topic}" for topic in topics[::3]]
        assert await rig.take_ids(40, topics=topics) == ids[:40]
        assert await rig.take_ids(topics=topics) == ids[40:]

    @scenario
    async def test_take_nothing(self, rig: Rig) -> None:
        """A take that finds nothing answers with an empty batch, without receipts."""
        batch = await rig.take(topics=["none"])
        assert len(batch) == 0
        assert receipts_of(batch).shape == (0, 2)
        assert await rig.ack(receipts_of(batch)) == []

    @scenario
    async def test_take_from_a_paused_topic(self, rig: Rig) -> None:
        """It gives nothing, and everything when it resumes."""
        await rig.put("x")
        await rig.put("y", topic="u")
        await rig.configure(paused=True)
        assert await rig.take_ids(topics=["t", "u"]) == ["y"]
        assert await rig.state("x") is State.READY
        await rig.configure(paused=False)
        assert await rig.take_ids(topics=["t", "u"]) == ["x"]

    # --- leases -------------------------------------------------------------------------------

    @scenario
    async def test_take_shows_what_was_taken(self, rig: Rig) -> None:
        """A taken message shows that it is leased, until when, and its attempt."""
        await rig.put("x", key="k", headers={"h": "v"})
        (message,) = await rig.take(lease_ms=1_000)
        assert (message.topic, message.id, message.body) == ("t", "x", b"x")
        assert (message.state, message.attempt) == (State.LEASED, 1)
        assert message.lease_until_ms == rig.now_ms + 1_000
        assert (message.key, message.headers) == ("k", {"h": "v"})
        assert message.receipt is not None
        read = await rig.get("x")
        assert read.receipt is None
        assert (read.state, read.lease_until_ms) == (State.LEASED, message.lease_until_ms)

    @scenario
    async def test_take_chooses_the_lease(self, rig: Rig) -> None:
        """The taker's lease precedes the message's, and that precedes the topic's."""
        await rig.configure(lease_ms=300_000)
        await rig.put("own", lease_ms=200_000)
        await rig.put("usual")
        assert {m.lease_until_ms - rig.now_ms for m in await rig.take()} == {200_000, 300_000}
        rig.advance(300_000)
        asked = await rig.take(lease_ms=100_000)
        assert [message.lease_until_ms - rig.now_ms for message in asked] == [100_000] * 2

    @scenario
    async def test_take_asks_the_topic_when_it_matters(self, rig: Rig) -> None:
        """A topic's lease and attempts apply as they are at the take, not at the put."""
        await rig.configure(lease_ms=300, max_attempts=1)
        await rig.put("x")
        await rig.configure(lease_ms=500, max_attempts=2)
        (message,) = await rig.take()
        assert message.lease_until_ms == rig.now_ms + 500
        rig.advance(500)
        assert await rig.state("x") is State.READY
        await rig.take()
        await rig.configure(max_attempts=3)
        rig.advance(500)
        assert await rig.state("x") is State.READY

    @scenario
    async def test_take_counts_attempts(self, rig: Rig) -> None:
        """When the last attempt's lease ends, the message is dead; its own limit comes first."""
        await rig.configure(lease_ms=100, max_attempts=1)
        await rig.put("x", max_attempts=3)
        for attempt in (1, 2, 3):
            (message,) = await rig.take()
            assert message.attempt == attempt
            rig.advance(100)
        assert await rig.take_ids() == []
        assert await rig.state("x") is State.DEAD
        assert (await rig.happened())[-2:] == ["take x", "exhaust x"]

    # --- held ---------------------------------------------------------------------------------

    @scenario
    async def test_held_by_an_owner(self, rig: Rig) -> None:
        """It returns the messages of that owner, by due, with the receipts of the take."""
        await rig.put("late", delay_ms=-1, priority=0)
        await rig.put("early", delay_ms=-2)
        await rig.put("other", delay_ms=-3, topic="u")
        taken = await rig.take(owner="me")
        await rig.take(owner="you", topics="u")
        held = await rig.store.held("me")
        assert list(held.ids) == ["early", "late"]
        assert [m.receipt for m in held] == [m.receipt for m in reversed(list(taken))]
        assert [m.attempt for m in held] == [1, 1]
        assert list((await rig.store.held("you")).ids) == ["other"]
        assert len(await rig.store.held("nobody")) == 0

    @scenario
    async def test_held_page__gives_each_once(self, rig: Rig) -> None:
        """Pages together are all that an owner holds, even while others are acked and taken."""
        names = [f"n{at:03}" for at in range(150)]
        for at, id_ in enumerate(names):
            await rig.put(id_, delay_ms=at % 7)
        rig.advance(10)
        for owner in ("me", "you"):
            await rig.store.take(["t"], 70, 0, owner)
        held = await rig.store.held("me")
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await rig.store.held_page("me", cursor, 10)
            assert page.messages.receipts is not None
            assert page.messages.due_ms.tolist() == sorted(page.messages.due_ms.tolist())
            found += list(page.messages)
            cursor, pages = page.cursor, pages + 1
            assert len(found) <= len(held)
            if pages == 1:
                await rig.ack(page.messages.receipts[:3])
                await rig.store.take(["t"], 5, 0, "you")
        assert sorted(found, key=_name) == sorted(held, key=_name)
        # A server fills an answer up to its own limit.
        assert pages > 1 or isinstance(rig.store, RemoteStore)
        assert not len((await rig.store.held_page("nobody", None, 10)).messages)

    @within_a_shard
    @scenario
    async def test_held_no_longer(self, rig: Rig) -> None:
        """Acked, released, buried and lapsed messages are no longer held; touched messages are."""
        await rig.put("acked", "released", "buried", "touched", "lapsed")
        receipts = receipts_of(await rig.take(lease_ms=1_000))
        await rig.ack(receipts[:1])
        await rig.release(receipts[1:2])
        await rig.bury(receipts[2:3])
        await rig.touch(receipts[3:4], 5_000)
        rig.advance(1_000)
        held = await rig.store.held("me")
        assert list(held.ids) == ["touched"]
        assert await rig.ack(receipts_of(held)) == ["acked"]


def _name(message: Message) -> str:
    return message.id
