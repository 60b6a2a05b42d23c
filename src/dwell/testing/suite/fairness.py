"""Fairness between the keys of a topic, alone and together with order."""

import random

import pytest

from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import LATER_MS
from dwell.testing.suite.shards import within_a_shard


class Fairness(Suite):
    """The setting ``fair``."""

    @within_a_shard
    @scenario
    async def test_fair_gives_each_key_its_turn(self, rig: Rig) -> None:
        """Keys take turns, each in its own order, no matter which put how many first."""
        await rig.configure(fair=True)
        await rig.put(*(f"a{number}" for number in range(6)), key="a")
        await rig.put("b0", "b1", "b2", key="b")
        await rig.put("c0")
        first = await rig.take_ids(5)
        assert sorted(first[:3]) == ["a0", "b0", "c0"]
        assert sorted(first[3:]) == ["a1", "b1"]
        await rig.put("d0", key="d")
        found = await rig.take_ids(2)
        assert "d0" in found
        found += await rig.take_ids()
        for key, number in (("a", 6), ("b", 3)):
            of_key = [id_ for id_ in (*first, *found) if id_[0] == key]
            assert of_key == [f"{key}{at}" for at in range(number)]

    @within_a_shard
    @scenario
    async def test_fair_as_messages_fall_due(self, rig: Rig) -> None:
        """A flood that falls due first does not delay messages that fall due later."""
        await rig.configure(fair=True)
        await rig.put(*(f"a{number:03d}" for number in range(300)), key="a", delay_ms=LATER_MS)
        await rig.put("b0", key="b", delay_ms=2 * LATER_MS)
        rig.advance(LATER_MS)
        await rig.tick()
        assert await rig.take_ids(1) == ["a000"]
        rig.advance(LATER_MS)
        assert "b0" in await rig.take_ids(2)

    @within_a_shard
    @scenario
    async def test_fair_and_ordered(self, rig: Rig) -> None:
        """Both hold: one message of a key at a time, and keys take turns."""
        await rig.configure(fair=True, ordered=True)
        await rig.put("a0", "a1", "a2", key="a")
        await rig.put("b0", "b1", key="b")
        batch = await rig.take()
        assert sorted(batch.ids) == ["a0", "b0"]
        await rig.ack(receipts_of(batch))
        assert sorted(await rig.take_ids()) == ["a1", "b1"]

    @pytest.mark.parametrize("again", ["moved", "replaced", "kicked"])
    @within_a_shard
    @scenario
    async def test_fair_and_ordered_keep_what_is_ready_again(self, rig: Rig, again: str) -> None:
        """A message that is ready again waits behind the first of its key, in order."""
        await rig.configure(fair=True, ordered=True)
        for id_ in ("a0", "a1", "a2"):
            rig.advance(1)
            await rig.put(id_, key="a")
        batch = await rig.take(1)
        if again == "kicked":
            await rig.bury(receipts_of(batch))
            batch = await rig.take(1)
            await rig.kick("a0")
        elif again == "moved":
            await rig.reschedule("a1")
        else:
            await rig.put("a1", key="a", on_conflict="replace")
        await rig.ack(receipts_of(batch))
        for id_ in ("a0" if again == "kicked" else "a1", "a2"):
            batch = await rig.take()
            assert list(batch.ids) == [id_]
            await rig.ack(receipts_of(batch))

    @within_a_shard
    @scenario
    async def test_fair_and_ordered_share_with_who_comes_late(self, rig: Rig) -> None:
        """A key with many skipped messages shares turns with a key that comes later."""
        await rig.configure(fair=True, ordered=True)
        await rig.put(*(f"a{number:02d}" for number in range(60)), key="a")
        batch = await rig.take(1)
        assert await rig.take_ids(5) == []
        await rig.put("b", key="b")
        keys = ""
        for number in range(60):
            await rig.ack(receipts_of(batch))
            rig.advance(1)
            batch = await rig.take(1)
            keys += batch.ids[0][0]
            if keys[-1] == "b":
                await rig.put(f"b{number}", key="b")
        assert keys.count("a") >= 27
        assert keys.count("b") >= 27

    @within_a_shard
    @scenario
    async def test_fair_and_ordered_within_a_key_by_priority_and_due(self, rig: Rig) -> None:
        """The next message of a key is the first by priority and due; all verbs agree."""
        await rig.configure(fair=True, ordered=True)
        await rig.put("late", key="k")
        await rig.put("early", key="k", delay_ms=-10)
        await rig.put("urgent", key="k", priority=1)
        await rig.put("other", key="l")
        for id_ in ("urgent", "early", "late"):
            assert id_ in await rig.peek_ids()
            assert len(await rig.peek_ids()) == 2
            assert list((await rig.take_by_ids("late", "early", "urgent")).ids) == [id_]
            await rig.ack(receipts_of(await rig.store.held("me")))
        await rig.put("late again", key="k")
        await rig.put("urgent again", key="k", priority=1)
        assert sorted(await rig.take_ids()) == ["other", "urgent again"]

    @within_a_shard
    @scenario
    async def test_fair_forgets_what_was_not_taken(self, rig: Rig) -> None:
        """Turns of messages that were cancelled, moved and replaced do not count."""
        await rig.configure(fair=True)
        await rig.put(*(f"b{number:03d}" for number in range(200)), key="b")
        await rig.put(*(f"a{number:03d}" for number in range(100)), key="a")
        await rig.cancel(*(f"a{number:03d}" for number in range(100)))
        await rig.put("a", key="a")
        await rig.put("c", key="c")
        for _ in range(50):
            rig.advance(1)
            await rig.reschedule("a")
            await rig.put("c", key="c", on_conflict="replace")
        found = await rig.take_ids(10)
        assert {"a", "c"} <= set(found)

    @within_a_shard
    @scenario
    async def test_fair_and_what_is_ready_again(self, rig: Rig) -> None:
        """Messages of a flood that are moved one by one get turns behind other keys."""
        await rig.configure(fair=True)
        flood = [f"a{number:03d}" for number in range(100)]
        await rig.put(*flood, key="a")
        for id_ in flood:
            rig.advance(1)
            await rig.reschedule(id_)
        await rig.put("b0", "b1", "b2", key="b")
        found = [id_ for _ in range(103) for id_ in await rig.take_ids(1)]
        assert {"b0", "b1", "b2"} <= set(found[:7])
        assert [id_ for id_ in found if id_[0] == "a"] == flood

    @within_a_shard
    @pytest.mark.parametrize("gone", [0, 1, 2])
    @scenario
    async def test_fair_keeps_the_order_of_a_key(self, rig: Rig, gone: int) -> None:
        """After a message of a key is cancelled, the others keep their order."""
        await rig.configure(fair=True)
        await rig.put("a0", "a1", "a2", key="a")
        await rig.put("b0", "b1", "b2", "b3", key="b")
        await rig.cancel(f"a{gone}")
        # It was due before the others, and became ready after them.
        await rig.put("a3", key="a", delay_ms=-10)
        found = [id_ for _ in range(7) for id_ in await rig.take_ids(1)]
        assert [id_ for id_ in found if id_[0] == "a"] == sorted(
            {"a0", "a1", "a2", "a3"} - {f"a{gone}"}
        )

    @within_a_shard
    @pytest.mark.parametrize("flood", [2, 200])
    @scenario
    async def test_fair_goes_on_when_ever_new_keys_come(self, rig: Rig, flood: int) -> None:
        """A waiting message gets its turn, even if new keys arrive in every turn."""
        await rig.configure(fair=True)
        await rig.put(*(f"a{number:03d}" for number in range(flood)), key="a")
        await rig.put("x", key="x")
        found: list[str] = []
        for number in range(20):
            found += await rig.take_ids(1)
            rig.advance(1)
            await rig.put(f"n{number}", key=f"n{number}")
        assert {"a000", "a001"} <= set(found)

    @within_a_shard
    @scenario
    async def test_fair_and_takes_by_id(self, rig: Rig) -> None:
        """A take by id of a flood's last message does not advance the turn."""
        await rig.configure(fair=True)
        await rig.put(*(f"a{number:03d}" for number in range(200)), key="a")
        assert len(await rig.take_by_ids("a199")) == 1
        await rig.put("b", key="b")
        assert "b" in await rig.take_ids(10)

    @within_a_shard
    @pytest.mark.parametrize("is_ordered", [False, True])
    @scenario
    async def test_fair_and_many_takes_by_id(self, rig: Rig, is_ordered: bool) -> None:
        """After many takes by id, a late key is not behind a flood."""
        await rig.configure(fair=True, ordered=is_ordered)
        await rig.put(*(f"a{number:02d}" for number in range(50)), key="a")
        for number in range(150):
            await rig.put(f"n{number}", key=f"n{number}")
            assert len(await rig.take_by_ids(f"n{number}")) == 1
        await rig.put("b", key="b")
        assert "b" in await rig.take_ids(3)

    @within_a_shard
    @scenario
    async def test_fair_and_ordered_without_keys_as_they_became_ready(self, rig: Rig) -> None:
        """Messages without a key are one key, and none of them is held back by another."""
        await rig.configure(fair=True, ordered=True)
        for id_, priority in (("first", 200), ("second", 1), ("third", 1)):
            rig.advance(1)
            await rig.put(id_, priority=priority)
        assert [id_ for _ in range(3) for id_ in await rig.take_ids(1)] == [
            "first",
            "second",
            "third",
        ]

    @within_a_shard
    @scenario
    async def test_fair_from_now_on(self, rig: Rig) -> None:
        """A topic becomes fair, and unfair again, with messages that are ready already."""
        await rig.put(*(f"a{number}" for number in range(6)), key="a")
        await rig.put("b0", "b1", "b2", key="b")
        await rig.configure(fair=True)
        assert sorted(await rig.take_ids(2)) == ["a0", "b0"]
        await rig.configure()
        assert await rig.take_ids(2) == ["a1", "a2"]

    @within_a_shard
    @pytest.mark.parametrize("seed", range(4))
    @scenario
    async def test_fair_keeps_all_and_their_order(self, rig: Rig, seed: int) -> None:
        """No message is lost or out of order after any puts, takes, cancels, moves and releases."""
        await rig.configure(fair=True)
        draw, ready, leased = random.Random(seed), dict[str, str](), dict[str, str]()
        for step in range(120):
            rig.advance(1)
            verb = draw.choice(("put", "put", "take", "take", "cancel", "move", "ack", "give back"))
            some = draw.sample(sorted(ready), min(len(ready), draw.randint(1, 3)))
            if verb == "put":
                key = draw.choice("abcd")
                ids = [f"{key}{step:03d}{number}" for number in range(draw.randint(1, 4))]
                await rig.put(*ids, key=key)
                ready |= dict.fromkeys(ids, key)
            elif verb == "take":
                limit = min(draw.randint(1, 5), len(ready))
                found: list[str] = []
                while len(found) < limit:
                    batch = await rig.take(limit - len(found))
                    assert len(batch), "what is ready is not given"
                    found += batch.ids
                for key in "abcd":
                    of_key = [id_ for id_, its in ready.items() if its == key]
                    taken = [id_ for id_ in found if ready[id_] == key]
                    assert sorted(taken) == sorted(of_key[: len(taken)])
                leased |= {id_: ready.pop(id_) for id_ in found}
            elif verb == "cancel":
                await rig.cancel(*some)
                for id_ in some:
                    del ready[id_]
            elif verb == "move":
                for id_ in some:
                    rig.advance(1)
                    await rig.reschedule(id_)
                    ready[id_] = ready.pop(id_)
            elif held := await rig.store.held("me"):
                at = draw.randrange(len(held))
                receipt, id_ = receipts_of(held)[at : at + 1], held.ids[at]
                key = leased.pop(id_)
                if verb == "ack":
                    assert await rig.ack(receipt) == ["acked"]
                else:
                    await rig.release(receipt, counted=False)
                    ready[id_] = key
        assert (await rig.store.stats()).topics["t"].ready == len(ready)

    @within_a_shard
    @pytest.mark.parametrize("seed", range(4))
    @scenario
    async def test_fair_gives_as_many_of_each(self, rig: Rig, seed: int) -> None:
        """Keys that all have messages get equal numbers of takes, give or take two."""
        await rig.configure(fair=True)
        draw = random.Random(seed)
        for key in "abc":
            await rig.put(*(f"{key}{number}" for number in range(150)), key=key)
        taken = dict.fromkeys("abc", 0)
        for step in range(80):
            rig.advance(1)
            if draw.random() < 0.3:
                await rig.put(f"new{step}", key=draw.choice(("a", f"n{step}")))
            for id_ in await rig.take_ids(draw.randint(1, 4)):
                if id_[0] in taken:
                    taken[id_[0]] += 1
            assert max(taken.values()) - min(taken.values()) <= 2
