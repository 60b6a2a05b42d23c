"""Picking: the next messages, messages by id and by number, and a new priority."""

from typing import Any

import numpy as np
import pytest

from dwell.batch.puts import Puts
from dwell.message import State
from dwell.testing.rig import Rig, Suite, encoded, receipts_of, scenario
from dwell.testing.suite.shards import within_a_shard
from dwell.testing.views import puts_of


class Picks(Suite):
    """The verbs ``peek``, ``take_ids`` and ``named``, and the priority of release and bury."""

    # --- peek ---------------------------------------------------------------------------------

    @within_a_shard
    @scenario
    async def test_peek_in_the_order_of_taking(self, rig: Rig) -> None:
        """It shows the messages that a take would give first, and changes nothing."""
        await rig.put("second", delay_ms=-1)
        await rig.put("third")
        await rig.put("first", priority=1)
        await rig.put("later", delay_ms=1_000)
        for _ in range(2):
            assert await rig.peek_ids(2) == ["first", "second"]
        seen = await rig.store.peek("t", 100)
        assert list(seen.ids) == ["first", "second", "third"]
        assert seen.receipts is None
        assert [m.state for m in seen] == [State.READY] * 3
        assert await rig.take_ids() == ["first", "second", "third"]
        assert len(await rig.store.peek("t", 2)) == 0
        assert len(await rig.store.peek("unknown", 2)) == 0

    @scenario
    async def test_peek_into_a_paused_topic(self, rig: Rig) -> None:
        """A paused topic shows the messages that it would give."""
        await rig.put("a")
        await rig.configure(paused=True)
        assert await rig.peek_ids(2) == ["a"]

    @scenario
    async def test_peek_past_what_was_taken_by_id(self, rig: Rig) -> None:
        """Messages taken by id, or moved, are not shown."""
        await rig.put("a", "b", "c", "d")
        await rig.take_by_ids("a", "c")
        await rig.cancel("b")
        assert await rig.peek_ids(1) == ["d"]

    # --- take_ids -----------------------------------------------------------------------------

    @scenario
    async def test_take_by_id_what_is_ready(self, rig: Rig) -> None:
        """It takes the ready messages of the given ids, in the order of the ids."""
        await rig.put("a", "b", "c", "leased", "dead")
        await rig.put("later", delay_ms=1_000)
        taken = await rig.take_by_ids("leased", "dead", owner="you")
        await rig.bury(receipts_of(taken)[1:])
        asked = encoded(["c", "later", "leased", "dead", "unknown", "a", "c"])
        batch = await rig.store.take_ids("t", asked, 5_000, "me")
        assert list(batch.ids) == ["c", "a"]
        assert [m.lease_until_ms for m in batch] == [rig.now_ms + 5_000] * 2
        assert [m.attempt for m in batch] == [1, 1]
        assert list((await rig.store.held("me")).ids) == ["a", "c"]
        assert await rig.take_ids() == ["b"]
        assert await rig.ack(receipts_of(batch)) == ["acked", "acked"]

    @scenario
    async def test_take_by_id_of_a_paused_or_unknown_topic(self, rig: Rig) -> None:
        """Neither gives anything."""
        await rig.put("a")
        await rig.configure(paused=True)
        assert len(await rig.take_by_ids("a")) == 0
        assert len(await rig.store.take_ids("unknown", encoded(["a"]), 0, "me")) == 0

    @scenario
    async def test_take_by_id_up_to_a_limit(self, rig: Rig) -> None:
        """It takes the first that may be taken, and counts no others."""
        if not rig.store.limits_ids:
            pytest.skip("its takes by id have no limit")
        most: dict[str, Any] = {"limit": 2}
        await rig.put("a", "b", "c")
        batch = await rig.store.take_ids("t", encoded(["?", "c", "a", "b"]), 0, "me", **most)
        assert list(batch.ids) == ["c", "a"]
        await rig.release(receipts_of(batch))
        await rig.configure(ordered=True)
        await rig.put("k1", "k2", key="k")
        await rig.put("l1", "l2", key="l")
        await rig.take_by_ids("c", "l1")
        asked = encoded(["l2", "k2", "b", "k1", "a"])
        for expected in (["b", "k1"], ["a"], []):
            batch = await rig.store.take_ids("t", asked, 0, "me", **most)
            assert list(batch.ids) == expected

    @within_a_shard
    @scenario
    async def test_take_by_id_and_come_back(self, rig: Rig) -> None:
        """A message that comes back is taken once more, not twice."""
        await rig.put("a", "b")
        await rig.take_by_ids("b", lease_ms=1_000)
        rig.advance(1_000)
        assert await rig.take_ids() == ["a", "b"]
        assert await rig.take_ids() == []

    # --- numbers ------------------------------------------------------------------------------

    @within_a_shard
    @scenario
    async def test_name_messages_by_number(self, rig: Rig) -> None:
        """A number names its message in every state, and nothing once it is gone."""
        await rig.put("a", topic="u")
        made = await rig.put_made(1)
        await rig.put("b", "later", delay_ms=500)
        seen = [await rig.get("a", "u"), await rig.get(made[0]), await rig.get("b")]
        numbers = np.array([m.number for m in seen], np.uint64)
        names = [("u", "a"), ("t", made[0]), ("t", "b")]
        assert len(set(numbers.tolist())) == 3
        assert all(0 < number < 2**63 for number in numbers.tolist())
        assert await rig.store.named(numbers) == names
        rig.advance(500)
        taken = await rig.take(topics="ut")
        assert taken.numbers.tolist() == [*numbers.tolist(), (await rig.get("later")).number]
        assert await rig.store.named(numbers) == names
        await rig.bury(receipts_of(taken)[:1])
        await rig.ack(receipts_of(taken)[1:2])
        assert await rig.store.named(numbers) == [names[0], None, names[2]]
        strange = np.array([0, 1 << 62, 2**63 - 1], np.uint64)
        assert await rig.store.named(strange) == [None] * 3
        assert await rig.store.named(strange[:0]) == []

    @scenario
    async def test_numbers_of_a_put(self, rig: Rig) -> None:
        """A put returns the numbers of created messages, and 0 for the others."""
        first = await rig.store.put(_puts(rig, "a", "b"), "keep")
        again = await rig.store.put(_puts(rig, "b", "c"), "keep")
        assert first.numbers.tolist() == [(await rig.get(id_)).number for id_ in "ab"]
        assert again.numbers.tolist() == [0, (await rig.get("c")).number]

    @scenario
    async def test_no_number_is_used_again(self, rig: Rig) -> None:
        """A message after one that is gone has another number, even in its place."""
        seen = set()
        for _ in range(3):
            await rig.put("a")
            seen.add((await rig.get("a")).number)
            await rig.cancel("a")
        assert len(seen) == 3

    @scenario
    async def test_topics_of_receipts(self, rig: Rig) -> None:
        """Good receipts return the topics they were taken from."""
        await rig.put("a", "b")
        await rig.put("c", topic="u")
        receipts = receipts_of(await rig.take(topics="tu"))
        assert await rig.store.taken_from(receipts) == ["t", "t", "u"]
        await rig.ack(receipts[2:])
        assert await rig.store.taken_from(receipts[::-1]) == [None, "t", "t"]
        assert await rig.store.taken_from(receipts[2:]) == [None]

    # --- priority -----------------------------------------------------------------------------

    @pytest.mark.parametrize("verb", ["release", "bury"])
    @within_a_shard
    @scenario
    async def test_a_new_priority(self, rig: Rig, verb: str) -> None:
        """Release and bury set the priority when one is given, and leave it when none is."""
        await rig.put("a", "b", "c", priority=10)
        receipts = receipts_of(await rig.take())
        for at, priority in enumerate((30, None, 0)):
            part = receipts[at : at + 1]
            if verb == "release":
                await rig.store.release(part, 0, None, counted=True, priority=priority)
            else:
                await rig.store.bury(part, None, priority=priority)
        if verb == "bury":
            await rig.kick("a", "b", "c")
        taken = await rig.take()
        assert [(m.id, m.priority) for m in taken] == [("c", 0), ("b", 10), ("a", 30)]


def _puts(rig: Rig, *ids: str) -> Puts:
    return puts_of("t", [rig.entry(id_) for id_ in ids])
