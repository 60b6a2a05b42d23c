"""Versions: verbs by id that change a message only if it is as a scan has seen it."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest

from dwell.batch.puts import Puts, Row
from dwell.batch.sweep import EVERY, Wanted
from dwell.message import U64, State
from dwell.store.base import Store
from dwell.testing.rig import Rig, Suite, encoded, receipts_of, scenario, words

LATER_MS = 3_600_000


async def _taken_and_released(rig: Rig) -> None:
    await rig.release(receipts_of(await rig.take_by_ids("x")), counted=False)


async def _taken_and_buried(rig: Rig) -> None:
    await rig.bury(receipts_of(await rig.take_by_ids("x")), "why")


async def _cancelled_and_put(rig: Rig) -> None:
    await rig.cancel("x")
    await rig.put("x")


async def _falls_due(rig: Rig) -> None:
    await rig.reschedule("x", delay_ms=1_000)
    rig.advance(1_000)


#: Possible changes of a ready message between a scan and a verb.
CHANGES: dict[str, Callable[[Rig], Awaitable[object]]] = {
    "released": _taken_and_released,
    "buried": _taken_and_buried,
    "put again": _cancelled_and_put,
    "due later": _falls_due,
    "replaced": lambda rig: rig.put("x", on_conflict="replace"),
    "rescheduled": lambda rig: rig.reschedule("x", delay_ms=LATER_MS),
    "given a body": lambda rig: rig.put("x", on_conflict="replace", body=b"other"),
}


async def _cancel(store: Store, versions: U64) -> str:
    return words(await store.cancel("t", [b"x"], versions))[0]


async def _reschedule(store: Store, versions: U64) -> str:
    due_ms = np.array([store.clock.now_ms() + 2 * LATER_MS])
    return words(await store.reschedule("t", [b"x"], due_ms, versions))[0]


async def _take(store: Store, versions: U64) -> str:
    taken = await store.take_ids("t", [b"x"], 0, "", versions)
    return "taken" if len(taken) else "unknown"


async def _replace(store: Store, versions: U64) -> str:
    due_ms = store.clock.now_ms() + LATER_MS
    row = Row(b"new", due_ms, 1, 0, 0, 0, b"", b"x", 0)
    puts = replace(Puts.of_rows("t", [row]), versions=versions)
    (done,) = await store.put(puts, "replace")
    return str(done.result)


#: Verbs that change a ready message by its id, and their answers.
VERBS = {"cancelled": _cancel, "moved": _reschedule, "taken": _take, "replaced": _replace}


async def versions_of(rig: Rig, state: State) -> dict[str, np.uint64]:
    """Return the version of each message of one state, by id."""
    page = await rig.store.scan("t", state, None, 100)
    assert len(page.versions) == len(page.messages)
    return dict(zip(page.messages.ids, page.versions, strict=True))


class Versions(Suite):
    """The verbs ``cancel``, ``kick``, ``reschedule`` and ``take_ids`` with versions."""

    @pytest.mark.parametrize("done", VERBS)
    @scenario
    async def test_version__unchanged_message__is_changed(self, rig: Rig, done: str) -> None:
        """A message in the seen version is changed, whatever happened to others."""
        await rig.put("a", "x", "b")
        versions = await versions_of(rig, State.READY)
        await rig.put("a", on_conflict="replace")
        await rig.cancel("b")
        assert await VERBS[done](rig.store, np.array([versions["x"]])) == done

    @pytest.mark.parametrize("done", VERBS)
    @pytest.mark.parametrize("change", CHANGES)
    @scenario
    async def test_version__changed_message__is_left_alone(
        self, rig: Rig, change: str, done: str
    ) -> None:
        """A message that changed in any way since it was seen counts as unknown."""
        await rig.put("x", "other")
        versions = await versions_of(rig, State.READY)
        await CHANGES[change](rig)
        before = await rig.find("x")
        assert await VERBS[done](rig.store, np.array([versions["x"]])) == "unknown"
        assert await rig.find("x") == before

    @scenario
    async def test_version__of_a_sweep__is_that_of_a_scan(self, rig: Rig) -> None:
        """A sweep and a scan give a message the same version, selected by a key or not."""
        await rig.put("a", "b", key="k")
        await rig.put("c", "d")
        await rig.take_by_ids("d")
        await rig.reschedule("c", delay_ms=LATER_MS)
        scanned = await versions_of(rig, State.READY) | await versions_of(rig, State.DELAYED)
        for wanted in (EVERY, Wanted(key="k")):
            found = await rig.store.sweep(wanted, 0, 2**63 - 1, 100)
            assert found.versions is not None
            swept = dict(zip(found.messages.ids, found.versions, strict=True))
            assert {i: v for i, v in swept.items() if i in scanned}.items() <= scanned.items()
            assert len(swept) == (4 if wanted is EVERY else 2)

    @scenario
    async def test_version__kicked_message__is_not_kicked_again(self, rig: Rig) -> None:
        """A dead message is kicked in the seen version, and not after it died again."""
        await rig.put("x", "y")
        for id_ in "xy":
            await rig.bury(receipts_of(await rig.take_by_ids(id_)), "why")
        versions = await versions_of(rig, State.DEAD)
        await rig.kick("x")
        await rig.bury(receipts_of(await rig.take_by_ids("x")), "other")
        seen = np.array([versions["x"], versions["y"]])
        due_ms = np.full(2, rig.now_ms + LATER_MS)
        results = await rig.store.kick("t", encoded("xy"), due_ms, seen)
        assert words(results) == ["unknown", "kicked"]
        assert await rig.state("x") is State.DEAD

    @scenario
    async def test_version__leased_message__is_leased(self, rig: Rig) -> None:
        """A message that was taken since it was seen is leased, whatever its version."""
        await rig.put("x")
        versions = np.array([(await versions_of(rig, State.READY))["x"]])
        await rig.take_by_ids("x")
        assert await _cancel(rig.store, versions) == "leased"
        assert await _reschedule(rig.store, versions) == "leased"
        assert await _replace(rig.store, versions) == "leased"
        assert await _take(rig.store, versions) == "unknown"

    @scenario
    async def test_version__message_that_is_gone__is_not_put(self, rig: Rig) -> None:
        """A replacement with a version is not put if the message is gone."""
        await rig.put("x")
        versions = np.array([(await versions_of(rig, State.READY))["x"]])
        await rig.ack(receipts_of(await rig.take_by_ids("x")))
        assert await _replace(rig.store, versions) == "unknown"
        assert await rig.find("x") is None
        # Without a version it replaces any message, and is put where there was none.
        assert await _replace(rig.store, np.zeros(1, np.uint64)) == "created"
        assert await _replace(rig.store, np.zeros(1, np.uint64)) == "replaced"

    @scenario
    async def test_version__delayed_message__is_changed_as_seen(self, rig: Rig) -> None:
        """Only delayed messages in the seen version are changed."""
        await rig.put(*"abcd", delay_ms=LATER_MS)
        seen = await versions_of(rig, State.DELAYED)
        await rig.reschedule("b", delay_ms=LATER_MS - 1)
        await rig.cancel("c")
        await rig.put("c", delay_ms=LATER_MS)
        versions = np.array([seen[id_] for id_ in "abcd"])
        assert words(await rig.store.cancel("t", encoded("abcd"), versions)) == [
            "cancelled",
            "unknown",
            "unknown",
            "cancelled",
        ]

    @scenario
    async def test_version__id_twice__is_changed_once(self, rig: Rig) -> None:
        """A repeated id in one batch is changed by its first occurrence."""
        await rig.put("x")
        version = (await versions_of(rig, State.READY))["x"]
        due_ms = np.full(2, rig.now_ms + LATER_MS)
        twice = np.array([version, version])
        results = await rig.store.reschedule("t", encoded("xx"), due_ms, twice)
        assert words(results) == ["moved", "unknown"]
