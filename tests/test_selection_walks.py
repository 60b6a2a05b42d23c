"""Walks: verbs by selection, page by page, while others act between any two calls of the store.

Messages that nobody else touches are changed exactly once, whatever the clock and others do.
"""

import asyncio
import json
import random
from typing import Any

import pytest

import dwell
from dwell import State
from dwell.clock import SimulatedClock
from dwell.queue import changes, search
from dwell.queue.matcher import Matcher
from dwell.store.memory import MemoryStore
from tests.http.served import served

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
WALKS = 40
#: Where others may act: before and after each of these.
VERBS = ("scan", "reschedule", "cancel", "kick", "take_ids", "get")


class Shared(MemoryStore):
    """A store on which others act, on messages of their own, around each call."""

    clock: SimulatedClock

    def watch(self, queue: dwell.Queue, draw: random.Random, *, moves_clock: bool) -> None:
        self._others, self._draw, self._moves_clock = queue, draw, moves_clock
        self._is_acting = False
        for verb in VERBS:
            setattr(self, verb, self._watched(getattr(self, verb)))

    def _watched(self, real: Any) -> Any:
        async def call(*how: Any, **more: Any) -> Any:
            await self._act()
            answer = await real(*how, **more)
            await self._act()
            return answer

        return call

    def stop(self) -> None:
        """Let nobody act any more."""
        self._is_acting = True

    async def _act(self) -> None:
        if self._is_acting:
            return
        self._is_acting = True
        for _ in range(self._draw.randrange(3)):
            await self._act_once(f"other{self._draw.randrange(12)}")
        self._is_acting = False

    async def _act_once(self, id_: str) -> None:
        queue, draw = self._others, self._draw
        due = self.clock.now_ms() + draw.choice([-1000, 5000, 10**6])
        match draw.randrange(7):
            case 0:
                await queue.cancel("t", id_)
            case 1:
                key = draw.choice("ab")
                await queue.put("t", b"x", id=id_, key=key, due=due, on_conflict="replace")
            case 2:
                await queue.reschedule("t", id_, due=due)
            case 3:
                for message in await queue.take_ids("t", [id_]):
                    await draw.choice([queue.ack, queue.bury, queue.release])(message)
            case 4:
                await queue.kick("t", id_)
            case _ if self._moves_clock:
                self.clock.advance(draw.choice([1, 300, 2000]))


async def filled(queue: dwell.Queue, draw: random.Random) -> dict[str, int]:
    """Put messages that stay and others; return the dues of those that stay."""
    dues = {f"own{n}": NOW_MS + draw.choice([-5000, 500, 3000, 10**6]) for n in range(14)}
    for id_, due in dues.items():
        await queue.put("t", b"x", id=id_, key="a", due=due)
    for n in range(12):
        due = NOW_MS + draw.choice([-4000, 700, 4000, 10**6])
        await queue.put("t", b"x", id=f"other{n}", key=draw.choice("ab"), due=due)
    return dues


def is_right(verb: str, message: dwell.Message | None, due_ms: int) -> bool:
    """Tell whether a message that nobody else touched is as a verb has to leave it."""
    if verb == "cancel":
        return message is None
    assert message is not None
    if verb == "shift":
        return message.due_ms == due_ms + HOUR_MS
    if verb == "kick":
        return message.state is not State.DEAD
    return due_ms > NOW_MS or message.state is State.LEASED


@pytest.mark.parametrize("moves_clock", [False, True])
@pytest.mark.parametrize("verb", ["shift", "cancel", "kick", "take"])
async def test_what_nobody_else_touches_is_changed_once(monkeypatch, verb, moves_clock):
    monkeypatch.setattr(search, "_PAGE", 3)
    monkeypatch.setattr(search, "_MOST", 5)
    monkeypatch.setattr(changes, "_AT_ONCE", 4)
    monkeypatch.setattr(changes, "_READ_AT_ONCE", 2)
    for seed in range(WALKS):
        draw = random.Random(seed)
        store = Shared(SimulatedClock(NOW_MS))
        async with dwell.Queue(store) as queue:
            dues = await filled(queue, draw)
            if verb == "kick":
                store.clock.advance(2 * 10**6)
                taken = await queue.take("t", 100)
                await queue.bury([m for m in taken if m.id in dues])
                await queue.release([m for m in taken if m.id not in dues])
            store.watch(queue, draw, moves_clock=moves_clock)
            which = dwell.select(key="a")
            changed = None
            if verb == "take":
                await queue.take_where("t", which, 1000)
            elif verb == "shift":
                changed = await queue.reschedule_where("t", which, shift="1h")
            else:
                changed = await getattr(queue, f"{verb}_where")("t", which)
            store.stop()
            found = {id_: await queue.get("t", id_) for id_ in dues}
            wrong = [id_ for id_ in dues if not is_right(verb, found[id_], dues[id_])]
            assert not wrong, (seed, wrong)
            assert changed is None or changed.matched == sum(changed.results.values()), seed


async def test_a_search_that_costs_much_goes_on_behind_what_is_held_back():
    async with served() as server, dwell.open(server.url) as queue:
        await queue.configure("t", ordered=True)
        body = json.dumps({"items": [1] * 4000}).encode()
        for _ in range(6):
            await queue.put_many("t", [body] * 100, key="a")
        assert len(await queue.take("t", 1, lease="1h")) == 1
        assert len(await queue.take_where("t", "items[?@ > `0`]", 5)) == 0


async def test_parts_of_a_change_have_turns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is changed in a later turn, a part at a time."""
    turn, noted = 0, []

    def next_turn() -> None:
        nonlocal turn
        turn += 1

    class Noting(MemoryStore):
        async def scan(self, *how: Any) -> Any:
            noted.append(turn)
            asyncio.get_running_loop().call_soon(next_turn)
            return await super().scan(*how)

        async def cancel(self, *how: Any, **more: Any) -> Any:
            noted.append(turn)
            asyncio.get_running_loop().call_soon(next_turn)
            return await super().cancel(*how, **more)

    monkeypatch.setattr(changes, "_AT_ONCE", 4)
    async with dwell.Queue(Noting(SimulatedClock(NOW_MS))) as queue:
        await queue.put_many("t", [b"x"] * 10)
        changed = await queue.cancel_where("t", dwell.select(), limit=10)
        assert changed.matched == 10
        assert len(set(noted)) == len(noted) >= 6


async def test_a_search_of_which_all_match_reads_no_more_than_are_missing() -> None:
    read = []

    class Noting(MemoryStore):
        async def scan(self, topic: str, state: State, cursor: Any, limit: int) -> Any:
            read.append(limit)
            return await super().scan(topic, state, cursor, limit)

    async with dwell.Queue(Noting(SimulatedClock(NOW_MS))) as queue:
        await queue.put_many("t", [b"x"] * 5_000)
        which = Matcher(dwell.select())
        page = await search.find(queue.store, "t", which, State.READY, None, 2_500)
        assert len(page.messages) == 2_500
        assert sum(read) == 2_500
