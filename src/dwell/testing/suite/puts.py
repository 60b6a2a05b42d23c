"""Putting: the stored fields of a message, existing ids, full topics."""

import pytest

from dwell.errors import IdExists, TopicFull
from dwell.message import MAX_BATCH_MESSAGES, MAX_BODY_BYTES, MAX_PRIORITY, State
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import LATER_MS, reach
from dwell.testing.suite.shards import within_a_shard
from dwell.testing.views import STATES, view_of_store


async def acked(rig: Rig, id_: str) -> None:
    """Put, take and ack a message."""
    assert await rig.put(id_) == ["created"]
    assert await rig.ack(receipts_of(await rig.take())) == ["acked"]


class Puts(Suite):
    """The verb ``put``."""

    @scenario
    async def test_put_keeps_every_field(self, rig: Rig) -> None:
        """A read returns all fields of the put."""
        await rig.put(
            "x",
            body=bytes(range(256)),
            delay_ms=LATER_MS,
            priority=MAX_PRIORITY,
            lease_ms=1_234,
            max_attempts=65_535,
            expires_in_ms=20_000,
            key="customer 7",
            headers={"trace": "ä1"},
        )
        message = await rig.get("x")
        assert (message.topic, message.id, message.body) == ("t", "x", bytes(range(256)))
        assert (message.due_ms, message.expires_ms) == (rig.now_ms + LATER_MS, rig.now_ms + 20_000)
        assert (message.priority, message.lease_ms) == (MAX_PRIORITY, 1_234)
        assert (message.max_attempts, message.attempt) == (65_535, 0)
        assert (message.key, message.headers) == ("customer 7", {"trace": "ä1"})
        assert (message.last_error, message.receipt, message.lease_until_ms) == (None, None, 0)

    @scenario
    async def test_put_extreme_bodies_and_ids(self, rig: Rig) -> None:
        """An empty body, the largest body, and the longest id are returned unchanged."""
        largest, longest = b"\xff" * MAX_BODY_BYTES, "ü" * 128
        entries = [rig.entry("empty", body=b""), rig.entry("big", body=largest), rig.entry(longest)]
        assert await rig.put_entries(entries) == ["created"] * 3
        taken = {message.id: message.body for message in await rig.take()}
        assert taken == {"empty": b"", "big": largest, longest: longest.encode()}

    @pytest.mark.parametrize("count", [1, MAX_BATCH_MESSAGES])
    @within_a_shard
    @scenario
    async def test_put_and_whole_life_of_a_batch(self, rig: Rig, count: int) -> None:
        """A batch of any size is put, taken and acked as one."""
        ids = [f"id {number}" for number in range(count)]
        assert await rig.put(*ids, delay_ms=LATER_MS) == ["created"] * count
        rig.advance(LATER_MS)
        batch = await rig.take(count)
        assert list(batch.ids) == ids
        assert await rig.ack(receipts_of(batch)) == ["acked"] * count
        assert await rig.take_ids() == []
        assert len(await rig.events()) == 3 * count

    @pytest.mark.parametrize("on_conflict", ["keep", "replace", "error"])
    @scenario
    async def test_put_nothing(self, rig: Rig, on_conflict: str) -> None:
        """An empty batch gets an empty answer, with callers' ids or without."""
        assert await rig.put(on_conflict=on_conflict) == []
        assert await rig.put_made(0) == []
        await rig.put("x")
        await rig.configure(max_pending=1)
        assert await rig.put(on_conflict=on_conflict) == []
        assert await rig.put_made(0) == []
        assert len(await rig.events()) == 1

    # --- ids that exist -----------------------------------------------------------------------

    @pytest.mark.parametrize("state", STATES)
    @scenario
    async def test_keep_changes_nothing(self, rig: Rig, state: State) -> None:
        """A repeated put is harmless."""
        await reach(rig, state)
        before = await rig.get("x")
        assert await rig.put("x", body=b"other", delay_ms=1, priority=0) == ["kept"]
        assert await rig.get("x") == before

    @pytest.mark.parametrize("state", [State.DELAYED, State.READY, State.DEAD])
    @within_a_shard
    @scenario
    async def test_replace_starts_anew(self, rig: Rig, state: State) -> None:
        """Nothing of the old message is left, except its place in the order."""
        await rig.put("x", key="old", headers={"old": "1"}, expires_in_ms=10**6, lease_ms=5)
        receipts = receipts_of(await rig.take(lease_ms=LATER_MS))
        if state is State.DEAD:
            await rig.bury(receipts, "broken")
        else:
            await rig.release(receipts, LATER_MS if state is State.DELAYED else 0, "broken")
        await rig.put("later")
        assert await rig.put("x", body=b"new", on_conflict="replace") == ["replaced"]
        message = await rig.get("x")
        assert (message.state, message.body, message.due_ms) == (State.READY, b"new", rig.now_ms)
        assert (message.attempt, message.last_error, message.expires_ms) == (0, None, 0)
        assert (message.key, message.headers, message.lease_ms) == (None, {}, 0)
        assert await rig.take_ids() == ["x", "later"]

    @scenario
    async def test_replace_leaves_a_taken_message_alone(self, rig: Rig) -> None:
        """The taker has it: its receipt stays good."""
        receipts = await reach(rig, State.LEASED)
        before = await rig.get("x")
        assert await rig.put("x", body=b"new", on_conflict="replace") == ["leased"]
        assert await rig.get("x") == before
        assert await rig.ack(receipts) == ["acked"]

    @pytest.mark.parametrize("state", STATES)
    @within_a_shard
    @scenario
    async def test_error_puts_nothing(self, rig: Rig, state: State) -> None:
        """One existing id refuses the batch."""
        await reach(rig, state)
        before, start = await view_of_store(rig.store, "t"), len(await rig.events())
        with pytest.raises(IdExists, match="x"):
            await rig.put("new", "x", "newer", on_conflict="error")
        assert await view_of_store(rig.store, "t") == before
        assert await rig.events(start) == []

    @within_a_shard
    @scenario
    async def test_error_with_an_id_twice_in_the_batch(self, rig: Rig) -> None:
        """The second occurrence meets the first."""
        with pytest.raises(IdExists):
            await rig.put("x", "y", "x", on_conflict="error")
        assert await view_of_store(rig.store, "t") == {}
        assert await rig.put("x", "y", on_conflict="error") == ["created"] * 2

    @scenario
    async def test_keep_with_an_id_twice_in_the_batch(self, rig: Rig) -> None:
        """The first occurrence counts."""
        entries = [rig.entry("x", body=b"1"), rig.entry("y"), rig.entry("x", body=b"2")]
        assert await rig.put_entries(entries) == ["created", "created", "kept"]
        assert (await rig.get("x")).body == b"1"

    @within_a_shard
    @scenario
    async def test_replace_with_an_id_twice_in_the_batch(self, rig: Rig) -> None:
        """The last occurrence counts, in the place of the first."""
        entries = [rig.entry("x", body=b"1"), rig.entry("y"), rig.entry("x", body=b"2")]
        answer = await rig.put_entries(entries, on_conflict="replace")
        assert answer == ["created", "created", "replaced"]
        assert [(m.id, m.body) for m in await rig.take()] == [("x", b"2"), ("y", b"y")]
        assert (await rig.happened())[:3] == ["put x", "put y", "replace x"]

    @scenario
    async def test_same_id_in_two_topics(self, rig: Rig) -> None:
        """An id belongs to its topic."""
        assert await rig.put("x", body=b"1") == ["created"]
        assert await rig.put("x", body=b"2", topic="u", on_conflict="error") == ["created"]
        assert await rig.cancel("x") == ["cancelled"]
        assert (await rig.get("x", topic="u")).body == b"2"

    # --- ids that are remembered --------------------------------------------------------------

    @scenario
    async def test_remembered_until_the_time_is_over(self, rig: Rig) -> None:
        """An acked id exists for ``remember_ms``, and not longer."""
        await rig.configure(remember_ms=5_000)
        await acked(rig, "x")
        rig.advance(4_999)
        assert await rig.put("y", "x", "x") == ["created", "kept", "kept"]
        assert await rig.find("x") is None
        rig.advance(1)
        assert await rig.put("x") == ["created"]

    @pytest.mark.parametrize("on_conflict", ["replace", "error"])
    @scenario
    async def test_remembered_ids_matter_to_keep_only(self, rig: Rig, on_conflict: str) -> None:
        """``replace`` and ``error`` check present messages, not remembered ids."""
        await acked(rig, "x")
        assert await rig.put("x", on_conflict=on_conflict) == ["created"]
        assert await rig.cancel("x") == ["cancelled"]
        assert await rig.put("x") == ["kept"]

    @scenario
    async def test_remembered_since_the_last_ack(self, rig: Rig) -> None:
        """An id that was acked again is remembered from then on."""
        await rig.configure(remember_ms=5_000)
        await acked(rig, "x")
        rig.advance(3_000)
        await rig.put("x", on_conflict="replace")
        await rig.ack(receipts_of(await rig.take()))
        rig.advance(4_999)
        assert await rig.put("x") == ["kept"]
        rig.advance(1)
        assert await rig.put("x") == ["created"]

    @scenario
    async def test_remembered_never(self, rig: Rig) -> None:
        """``remember_ms`` 0 forgets at once."""
        await rig.configure(remember_ms=0)
        await acked(rig, "x")
        assert await rig.put("x") == ["created"]

    @scenario
    async def test_remembered_ids_are_only_those_acked(self, rig: Rig) -> None:
        """A cancelled id is free again at once, and so is an acked one in another topic."""
        await rig.put("x")
        await rig.cancel("x")
        assert await rig.put("x", delay_ms=1) == ["created"]
        await acked(rig, "y")
        assert await rig.put("y", topic="u") == ["created"]

    # --- ids that the store makes -------------------------------------------------------------

    @scenario
    async def test_made_ids(self, rig: Rig) -> None:
        """They start with ``~``, never come twice, and serve the verbs by id."""
        ids = await rig.put_made(3, delay_ms=LATER_MS)
        more = await rig.put_made(100)
        assert len({*ids, *more}) == 103
        assert all(id_.startswith("~") for id_ in (*ids, *more))
        assert await rig.cancel(ids[0]) == ["cancelled"]
        assert await rig.reschedule(ids[1]) == ["moved"]
        assert await rig.state(ids[1]) is State.READY
        assert (await rig.get(ids[2])).id == ids[2]

    @scenario
    async def test_made_ids_that_are_gone(self, rig: Rig) -> None:
        """A made id stays unknown after the ack, even when new messages come."""
        (id_,) = await rig.put_made(1)
        receipts = receipts_of(await rig.take())
        assert await rig.cancel(id_) == ["leased"]
        await rig.bury(receipts)
        assert await rig.kick(id_) == ["kicked"]
        await rig.ack(receipts_of(await rig.take()))
        await rig.put_made(1)
        assert await rig.find(id_) is None
        assert await rig.cancel(id_, "~", "~zz") == ["unknown"] * 3

    @scenario
    async def test_made_ids_have_one_form(self, rig: Rig) -> None:
        """A text that only resembles a made id names nothing."""
        (id_,) = await rig.put_made(1)
        rest, last = id_[1:], id_.rpartition("-")[2]
        for like in (f"~0{rest}", f"~0x{rest}", f"~ {rest}", f"~+{rest}", f"~{rest} "):
            assert await rig.find(like) is None
            assert await rig.cancel(like) == ["unknown"]
        for like in (f"~{rest}-{rest}", f"~ffff-{last}", f"~ffffffff-{last}", f"~0-0{last}"):
            assert await rig.find(like) is None
            assert await rig.reschedule(like) == ["unknown"]
        assert await rig.cancel(id_) == ["cancelled"]

    # --- topics that are full -----------------------------------------------------------------

    @within_a_shard
    @scenario
    async def test_full_topic_refuses_the_batch(self, rig: Rig) -> None:
        """Delayed and ready messages count, and one too many refuses the batch."""
        await rig.configure(max_pending=3)
        await rig.put("ready")
        await rig.put("delayed", delay_ms=LATER_MS)
        with pytest.raises(TopicFull, match="max_pending"):
            await rig.put("x", "y")
        assert set(await view_of_store(rig.store, "t")) == {("t", "ready"), ("t", "delayed")}
        assert await rig.happened() == ["put ready", "put delayed"]
        assert await rig.put("x") == ["created"]

    @within_a_shard
    @scenario
    async def test_full_topic_drops_what_is_too_much(self, rig: Rig) -> None:
        """The first messages fit, the others are dropped, including repeated ids."""
        await rig.configure(max_pending=3, on_full="drop")
        await rig.put("a")
        answer = await rig.put("b", "b", "c", "d", "a", "d")
        assert answer == ["created", "kept", "created", "dropped", "kept", "dropped"]
        assert await rig.take_ids() == ["a", "b", "c"]

    @scenario
    async def test_full_topic_counts_only_what_would_be_created(self, rig: Rig) -> None:
        """Existing ids can be put again, and a repeated id in the batch counts once."""
        await rig.configure(max_pending=2, remember_ms=10**6)
        await acked(rig, "done")
        assert await rig.put("a", "a", "b", "b", "done") == [
            "created",
            "kept",
            "created",
            "kept",
            "kept",
        ]
        assert await rig.put("a", "b", "done") == ["kept"] * 3
        assert await rig.put("a", "b", on_conflict="replace") == ["replaced"] * 2

    @pytest.mark.parametrize("on_conflict", ["replace", "error"])
    @within_a_shard
    @scenario
    async def test_full_topic_refuses_ids_of_the_past(self, rig: Rig, on_conflict: str) -> None:
        """A remembered id that would be created again is one too many."""
        await rig.configure(max_pending=1)
        await acked(rig, "x")
        await rig.put("y")
        with pytest.raises(TopicFull):
            await rig.put("x", on_conflict=on_conflict)
        assert await rig.find("x") is None

    @within_a_shard
    @scenario
    async def test_full_topic_does_not_count_leased_and_dead(self, rig: Rig) -> None:
        """They do not wait; coming back is not refused either."""
        await rig.configure(max_pending=2)
        await rig.put("a", "b")
        batch = receipts_of(await rig.take())
        assert await rig.put("c", "d") == ["created"] * 2
        assert await rig.release(batch[:1]) == ["released"]
        assert await rig.bury(batch[1:]) == ["buried"]
        assert await rig.kick("b") == ["kicked"]
        with pytest.raises(TopicFull):
            await rig.put("e")
        assert await rig.put("a") == ["kept"]

    @scenario
    async def test_full_topic_is_alone(self, rig: Rig) -> None:
        """The limit belongs to the topic; without one there is no limit."""
        await rig.configure(max_pending=1)
        await rig.put("a")
        assert await rig.put("a", "b", topic="u") == ["created"] * 2
        await rig.configure(max_pending=0)
        assert await rig.put("b", "c") == ["created"] * 2
