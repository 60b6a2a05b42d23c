"""Reading: scans, events, counts, settings, and the errors of a closed store."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from dwell.batch.events import Event
from dwell.batch.stats import TopicStats
from dwell.batch.sweep import EVERY
from dwell.errors import StoreClosed
from dwell.message import MAX_BODY_BYTES, State, TopicSettings
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import LATER_MS
from dwell.testing.suite.ids import one_in_each_state
from dwell.testing.suite.shards import within_a_shard
from dwell.testing.views import scan_all

_NONE = np.zeros((0, 2), np.uint64)

#: A harmless call of every verb.
VERBS: dict[str, Callable[[Rig], Coroutine[Any, Any, object]]] = {
    "put": lambda rig: rig.put("x"),
    "take": lambda rig: rig.take(),
    "held": lambda rig: rig.store.held("me"),
    "ack": lambda rig: rig.ack(_NONE),
    "release": lambda rig: rig.release(_NONE),
    "touch": lambda rig: rig.touch(_NONE),
    "bury": lambda rig: rig.bury(_NONE),
    "kick": lambda rig: rig.kick("x"),
    "cancel": lambda rig: rig.cancel("x"),
    "reschedule": lambda rig: rig.reschedule("x"),
    "get": lambda rig: rig.find("x"),
    "scan": lambda rig: rig.store.scan("t", State.READY, None, 1),
    "sweep": lambda rig: rig.store.sweep(EVERY, 0, 1, 1),
    "events": lambda rig: rig.store.events(0, 1),
    "stats": lambda rig: rig.store.stats(),
    "sizes": lambda rig: rig.store.sizes("t"),
    "configure": lambda rig: rig.configure(),
    "tick": lambda rig: rig.tick(),
}


class Reading(Suite):
    """The verbs ``scan``, ``events``, ``stats`` and ``configure``, and ``close``."""

    # --- scan ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 1000])
    @within_a_shard
    @scenario
    async def test_scan_page_after_page(self, rig: Rig, limit: int) -> None:
        """All messages come once, by due and then arrival, with pages of any size."""
        for id_, delay_ms in (("e", 9), ("b", 5), ("c", 5), ("a", 1), ("d", 5), ("f", 10**9)):
            await rig.put(id_, delay_ms=delay_ms)
        messages = await scan_all(rig.store, "t", State.DELAYED, limit)
        assert [message.id for message in messages] == ["a", "b", "c", "d", "e", "f"]

    @scenario
    async def test_scan_no_more_bytes_than_a_batch_has(self, rig: Rig) -> None:
        """A page of large messages is short, and leads to the next."""
        ids = [f"{number:02d}" for number in range(40)]
        for at in range(0, len(ids), 2):
            await rig.put(*ids[at : at + 2], body=bytes(MAX_BODY_BYTES))
        page = await rig.store.scan("t", State.READY, None, 1000)
        assert 0 < len(page.messages) < 40
        found = await scan_all(rig.store, "t", State.READY, 1000)
        assert sorted(message.id for message in found) == ids

    @within_a_shard
    @scenario
    async def test_scan_ends_with_the_last_message(self, rig: Rig) -> None:
        """A page that holds the last message has no cursor, even when it is full."""
        await rig.put("a", "b", "c", "d", delay_ms=5)
        page = await rig.store.scan("t", State.DELAYED, None, 2)
        assert page.cursor is not None
        page = await rig.store.scan("t", State.DELAYED, page.cursor, 2)
        assert list(page.messages.ids) == ["c", "d"]
        assert page.cursor is None

    @within_a_shard
    @scenario
    async def test_scan_while_things_change(self, rig: Rig) -> None:
        """A cursor keeps its place: nothing is shown twice, and nothing is skipped."""
        await rig.put("a", "b", "c", "d", delay_ms=5)
        page = await rig.store.scan("t", State.DELAYED, None, 2)
        await rig.cancel("a", "b", "c")
        await rig.put("e", delay_ms=5)
        page = await rig.store.scan("t", State.DELAYED, page.cursor, 10)
        assert list(page.messages.ids) == ["d", "e"]

    @pytest.mark.parametrize("state", State)
    @scenario
    async def test_scan_one_state(self, rig: Rig, state: State) -> None:
        """A scan shows one state of one topic, without messages that are gone."""
        await one_in_each_state(rig)
        await rig.put("other", topic="u")
        page = await rig.store.scan("t", state, None, 10)
        assert list(page.messages.ids) == ([] if state is State.GONE else [state.name.lower()])
        assert page.cursor is None
        assert page.messages.receipts is None

    @scenario
    async def test_scan_shows_whole_messages(self, rig: Rig) -> None:
        """A scan and a get show the same."""
        await rig.put("x", key="k", headers={"h": "v"}, priority=3, expires_in_ms=10**6)
        await rig.release(receipts_of(await rig.take()), 0, "oops")
        page = await rig.store.scan("t", State.READY, None, 10)
        assert list(page.messages) == [await rig.get("x")]
        assert page.messages[0].last_error == "oops"

    @scenario
    async def test_scan_an_unknown_topic(self, rig: Rig) -> None:
        """It returns nothing."""
        page = await rig.store.scan("none", State.READY, None, 10)
        assert (len(page.messages), page.cursor) == (0, None)

    # --- events -------------------------------------------------------------------------------

    @scenario
    async def test_events_tell_a_life(self, rig: Rig) -> None:
        """Each event has time, kind and message, and the due and attempt after it."""
        start = rig.now_ms
        await rig.put("x", delay_ms=10)
        rig.advance(10)
        receipts = receipts_of(await rig.take())
        rig.advance(5)
        await rig.release(receipts, 20)
        rig.advance(20)
        await rig.ack(receipts_of(await rig.take()))
        told = [
            (event.position, event.time_ms - start, str(event.kind), event.due_ms - start)
            for event in await rig.events()
        ]
        assert told == [
            (0, 0, "put", 10),
            (1, 10, "take", 10),
            (2, 15, "release", 35),
            (3, 35, "take", 35),
            (4, 35, "ack", 35),
        ]
        assert [event.attempt for event in await rig.events()] == [0, 1, 1, 2, 2]
        assert {(event.topic, event.id) for event in await rig.events()} == {("t", "x")}

    @within_a_shard
    @scenario
    async def test_events_from_a_position(self, rig: Rig) -> None:
        """Positions count from 0 and stay; a page has the start of the next."""
        await rig.put("a", "b", "c", "d", "e")
        page = await rig.store.events(1, 2)
        assert [(event.position, event.id) for event in page.events] == [(1, "b"), (2, "c")]
        assert (page.next_position, page.first_position) == (3, 0)
        page = await rig.store.events(3, 100)
        assert [event.id for event in page.events] == ["d", "e"]
        page = await rig.store.events(page.next_position, 100)
        assert (list(page.events), page.next_position) == ([], 5)
        await rig.cancel("a")
        (event,) = (await rig.store.events(5, 100)).events
        assert event == Event(5, rig.now_ms, event.kind, "t", "a", rig.now_ms, 0)

    @within_a_shard
    @scenario
    async def test_events_of_batches_stand_in_order(self, rig: Rig) -> None:
        """The events of one verb are in the order of its batch."""
        await rig.put("b", "a")
        await rig.put("c", topic="u")
        await rig.cancel("none", "a", "b")
        assert await rig.happened() == ["put b", "put a", "put c", "cancel a", "cancel b"]

    # --- stats and settings -------------------------------------------------------------------

    @scenario
    async def test_stats_count_now_and_ever(self, rig: Rig) -> None:
        """Topics are counted by state, events by kind since the store was made."""
        await one_in_each_state(rig)
        await rig.put("other", "another", topic="u")
        stats = await rig.store.stats()
        assert stats.topics["t"] == TopicStats(delayed=1, ready=1, leased=1, dead=1)
        assert stats.topics["u"] == TopicStats(ready=2)
        totals = {kind: count for kind, count in stats.totals.items() if count}
        assert totals == {"put": 6, "take": 2, "bury": 1}
        rig.advance(LATER_MS)
        await rig.cancel("ready", "dead")
        assert (await rig.store.stats()).topics["t"] == TopicStats(ready=1, leased=1)

    @scenario
    async def test_bytes_are_counted_by_topic(self, rig: Rig) -> None:
        """A store that counts them counts callers' ids and bodies of its messages."""
        if not rig.store.counts_bytes:
            return
        assert sum((await rig.store.stored_bytes()).values()) == 0
        await rig.put("a", "bb")
        await rig.put("c", topic="u")
        before = await rig.store.stored_bytes()
        assert before["t"] > before["u"] > 0
        await rig.cancel("a")
        after = await rig.store.stored_bytes()
        assert 0 < after["t"] < before["t"]
        assert after["u"] == before["u"]

    @scenario
    async def test_settings_are_kept(self, rig: Rig) -> None:
        """Each topic has its own, and the defaults until they are set."""
        settings = TopicSettings(lease_ms=7, retry_delays_ms=(1, 2), on_full="drop", paused=True)
        assert await rig.store.settings("t") == TopicSettings()
        assert await rig.store.configure("t", structs.asdict(settings)) == settings
        assert await rig.store.settings("t") == settings
        assert await rig.store.settings("u") == TopicSettings()
        # So that an export has them.
        assert (await rig.store.stats()).topics == {"t": TopicStats()}
        await rig.configure()
        assert await rig.store.settings("t") == TopicSettings()

    @scenario
    async def test_settings__changes_of_several_callers__are_merged(self, rig: Rig) -> None:
        """A change leaves other settings alone, even under concurrent changes."""
        changes: list[dict[str, Any]] = [
            {"paused": True},
            {"ordered": True},
            {"rate": 5},
            {"fair": True, "lease_ms": 7},
            {"retry_delays_ms": (1, 2)},
        ]
        await rig.put("a", "b", key="k")
        await asyncio.gather(*[rig.store.configure("t", change) for change in changes])
        expected = TopicSettings(
            paused=True, ordered=True, rate=5, fair=True, lease_ms=7, retry_delays_ms=(1, 2)
        )
        assert await rig.store.settings("t") == expected
        assert await rig.store.configure("t", {"paused": False}) == structs.replace(
            expected, paused=False
        )

    @pytest.mark.parametrize("verb", VERBS)
    @scenario
    async def test_closed_store(self, rig: Rig, verb: str) -> None:
        """Every verb raises the error of a closed store."""
        await VERBS[verb](rig)
        await rig.store.close()
        with pytest.raises(StoreClosed):
            await VERBS[verb](rig)
