"""Verbs by selection while other callers change messages between the search and the change."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import dwell
from dwell import State
from dwell.clock import RealClock
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.testing.faults import FaultyDisk
from tests import RUNS

FAR_MS = 4_000_000_000_000
HOUR_MS = 3_600_000
IDS = [f"i{number}" for number in range(8)]
#: What another caller does to a message, and the city that it then has if it is put.
OTHERS = st.tuples(
    st.sampled_from(["cancel", "put", "put ready", "reschedule", "kick", "release", "bury"]),
    st.sampled_from(IDS),
    st.sampled_from(["Rome", "Oslo"]),
)
#: The verb by id that each selection comes to, and the states that it is asked for.
VERBS = {
    "cancel": ("cancel", (State.DELAYED, State.READY, State.DEAD)),
    "shift": ("reschedule", (State.DELAYED, State.READY)),
    "kick": ("kick", (State.DEAD,)),
    "take": ("take_ids", (State.READY,)),
}


class Shared:
    """A store on which others act before each call of one verb by id."""

    verb = ""
    others: list[tuple[str, str, str]]
    operator: dwell.Queue

    def watch(self, verb: str, others: list[tuple[str, str, str]], operator: dwell.Queue) -> None:
        """Let others act before each call of a verb, two acts at a time."""
        self.others, self.operator = list(others), operator
        self.calls: list[dict[str, dwell.Message | None]] = []
        real = getattr(self, verb)

        async def watched(topic: str, ids: list[bytes], *how: Any, **more: Any) -> Any:
            if self.others is None:
                return await real(topic, ids, *how, **more)
            acts, self.others = self.others[:2], None
            for act in acts:
                await self._act(*act)
            names = [id_.decode() for id_ in ids]
            found = await self.get(topic, ids)
            answer = await real(topic, ids, *how, **more)
            after = await self.get(topic, ids)
            self.calls.append({name: pair for name, *pair in zip(names, found, after, strict=True)})
            self.others = others[2 * len(self.calls) :]
            return answer

        setattr(self, verb, watched)

    async def _act(self, verb: str, id_: str, city: str) -> None:
        queue = self.operator
        if verb.startswith("put"):
            due, body = FAR_MS if verb == "put" else 0, {"city": city}
            await queue.put("t", body, id=id_, due=due, on_conflict="replace")
        elif verb == "reschedule":
            await queue.reschedule("t", id_, due=FAR_MS - len(self.calls) - 1)
        elif verb in ("release", "bury"):
            await queue.reschedule("t", id_, delay=0)
            taken = await self.take_ids("t", [id_.encode()], HOUR_MS, "other")
            if len(taken) and verb == "bury":
                await self.bury(taken.receipts, "other")
            elif len(taken):
                await self.release(taken.receipts, 5 * HOUR_MS, None, counted=True)
        else:
            await getattr(queue, verb)("t", id_)


class SharedMemory(Shared, MemoryStore):
    pass


class SharedFolder(Shared, EmbeddedStore):
    pass


def is_wanted(message: dwell.Message | None, states: tuple[State, ...]) -> bool:
    return message is not None and message.state in states and message.json() == {"city": "Rome"}


async def select(queue: dwell.Queue, verb: str) -> None:
    which = "city == 'Rome'"
    if verb == "shift":
        await queue.reschedule_where("t", which, shift="1h")
    elif verb == "take":
        await queue.take_where("t", which, 100, lease="1h")
    else:
        await getattr(queue, f"{verb}_where")("t", which)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["memory", "folder"])
@settings(
    max_examples=12 * RUNS, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
)
@given(others=st.lists(OTHERS, max_size=8))
@example(others=[("put ready", "i0", "Oslo"), ("put ready", "i1", "Rome")])
async def test_selection__other_callers__each_message_is_judged_as_it_is_then(
    kind: str, verb: str, others: list[tuple[str, str, str]]
) -> None:
    """What is changed matches at that moment; what matches in the end is changed."""
    store = (
        SharedMemory(RealClock())
        if kind == "memory"
        else SharedFolder(Path("/store"), disk=FaultyDisk())
    )
    name, states = VERBS[verb]
    async with dwell.Queue(store) as queue:
        bodies = [{"city": ("Rome", "Oslo")[number % 2]} for number in range(len(IDS))]
        await queue.put_many("t", bodies, ids=IDS, due=FAR_MS)
        if verb in ("kick", "take"):
            await queue.reschedule("t", IDS, delay=0)
        if verb == "kick":
            await queue.bury(await queue.take("t", len(IDS)))
        store.watch(name, others, queue)
        await select(queue, verb)
        store.others = None
        changed: set[str] = set()
        for call in store.calls:
            for id_, (before, after) in call.items():
                if before == after:
                    continue
                assert is_wanted(before, states), (id_, before, after)
                changed.add(id_)
                if verb == "shift":
                    assert after.due_ms == before.due_ms + HOUR_MS
        acted = {id_ for _, id_, _ in others}
        # These matched in the beginning.
        for id_, message in zip(IDS[::2], await queue.get("t", IDS[::2]), strict=True):
            is_left = id_ not in changed and (verb != "take" or id_ not in acted)
            assert not (is_left and is_wanted(message, states)), f"{id_} matches, and was left"
