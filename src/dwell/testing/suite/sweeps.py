"""Sweeps: every message once, place by place, while other messages move."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from dwell.batch.sweep import EVERY, Wanted
from dwell.message import State
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.ids import one_in_each_state

_EVERYWHERE = 2**63 - 1


async def sweep_all(
    rig: Rig, wanted: Wanted = EVERY, *, limit: int = 2, parts: Sequence[int] = (0, _EVERYWHERE)
) -> list[str]:
    """Return the ids that a sweep returns, part after part."""
    ids: list[str] = []
    for start, stop in pairwise(parts):
        place: int | None = start
        while place is not None:
            found = await rig.store.sweep(wanted, place, stop, limit)
            assert found.messages.receipts is None
            assert len(found.messages) <= limit
            ids += found.messages.ids
            assert found.next_place is None or place < found.next_place < stop
            place = found.next_place
    return ids


class Sweeps(Suite):
    """The verb ``sweep``."""

    @pytest.mark.parametrize("limit", [1, 2, 5, 1000])
    @scenario
    async def test_sweep_gives_each_message_once(self, rig: Rig, limit: int) -> None:
        """Messages of all topics and states come once, with answers of any size."""
        await one_in_each_state(rig)
        await rig.put("other", topic="u")
        ids = await sweep_all(rig, limit=limit)
        assert sorted(ids) == ["dead", "delayed", "leased", "other", "ready"]

    @scenario
    async def test_sweep_in_parts(self, rig: Rig) -> None:
        """Adjacent parts return each message once."""
        await rig.put(*"abcdefg", delay_ms=5)
        places = (await rig.store.sweep(EVERY, 0, 0, 0)).places
        for cut in (*range(0, places, places // 16 + 1), places):
            parts = (0, cut, places)
            assert sorted(await sweep_all(rig, parts=parts)) == list("abcdefg")

    @pytest.mark.parametrize("state", list(State)[1:])
    @scenario
    async def test_sweep_by_state(self, rig: Rig, state: State) -> None:
        """Only the requested states are returned."""
        await one_in_each_state(rig)
        assert await sweep_all(rig, Wanted(states=(state,))) == [state.name.lower()]

    @scenario
    async def test_sweep_by_topic_due_and_key(self, rig: Rig) -> None:
        """All conditions must hold; the upper bound of due is exclusive."""
        start = rig.now_ms
        await rig.put("a", delay_ms=10, key="k")
        await rig.put("b", delay_ms=20, key="k")
        await rig.put("c", delay_ms=10, key="l")
        await rig.put("d", delay_ms=10, key="k", topic="u")
        assert await sweep_all(rig, Wanted(topics=("u", "none"))) == ["d"]
        assert await sweep_all(rig, Wanted(topics=("none",))) == []
        assert sorted(await sweep_all(rig, Wanted(key="k"))) == ["a", "b", "d"]
        early = Wanted(due_from_ms=start + 10, due_to_ms=start + 20)
        assert sorted(await sweep_all(rig, early)) == ["a", "c", "d"]
        assert await sweep_all(rig, Wanted(topics=("t",), due_from_ms=start + 11)) == ["b"]

    @scenario
    async def test_sweep_while_messages_move(self, rig: Rig) -> None:
        """A message that exists throughout is returned once, in its state of that moment."""
        await rig.put(*"abcdef", delay_ms=10)
        first = await rig.store.sweep(EVERY, 0, _EVERYWHERE, 3)
        assert first.next_place is not None
        seen = set(first.messages.ids)
        await rig.reschedule(*"abcdef", delay_ms=1)
        rig.advance(1)
        taken = await rig.take(6)
        await rig.release(receipts_of(taken)[:5], 100)
        await rig.put(*"xyz")
        rest = await rig.store.sweep(EVERY, first.next_place, _EVERYWHERE, 1000)
        assert rest.next_place is None
        assert (set(rest.messages.ids) & set("abcdef")) | seen == set("abcdef")
        assert not set(rest.messages.ids) & seen

    @scenario
    async def test_sweep_shows_whole_messages(self, rig: Rig) -> None:
        """A sweep and a get show the same."""
        await rig.put("x", key="k", headers={"h": "v"}, priority=3, expires_in_ms=10**6)
        await rig.release(receipts_of(await rig.take()), 0, "oops")
        found = await rig.store.sweep(EVERY, 0, _EVERYWHERE, 10)
        assert list(found.messages) == [await rig.get("x")]

    @scenario
    async def test_sweep_of_nothing(self, rig: Rig) -> None:
        """An empty store returns nothing."""
        found = await rig.store.sweep(EVERY, 0, _EVERYWHERE, 10)
        assert (len(found.messages), found.next_place) == (0, None)

    @scenario
    async def test_clear__other_states_and_topics__stay(self, rig: Rig) -> None:
        """Clear cancels messages that are not leased, and leaves the rest and other topics."""
        await one_in_each_state(rig)
        await rig.put("other", topic="u")
        assert await clear(rig) == 3
        assert sorted(await sweep_all(rig)) == ["leased", "other"]
        assert await clear(rig) == 0
        assert await clear(rig, "unknown") == 0

    @scenario
    async def test_clear__messages_that_come_and_go__each_is_cancelled_once(self, rig: Rig) -> None:
        """Messages that exist throughout are cancelled; cancels by others are not counted."""
        await rig.put(*map(str, range(40)), delay_ms=5)
        count, place, come = 0, 0, 0
        following: int | None = 0
        while following is not None:
            place = following
            cancelled, following = await rig.store.clear_part("t", place)
            count += cancelled
            count += (await rig.cancel(str(39 - come))).count("cancelled")
            await rig.put(f"new {come}")
            come += 1
        left = await sweep_all(rig)
        assert all(id_.startswith("new") for id_ in left)
        assert count + len(left) == 40 + come


async def clear(rig: Rig, topic: str = "t") -> int:
    """Cancel all messages of a topic that are not leased; return how many."""
    count = 0
    place: int | None = 0
    while place is not None:
        cancelled, place = await rig.store.clear_part(topic, place)
        count += cancelled
    return count
