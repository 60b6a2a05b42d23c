"""Keys of ordered topics in a folder: what stands in the ready runs, and what is known of rows."""

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dwell
from dwell.clock import SimulatedClock
from dwell.queue import Queue
from dwell.store.embedded.lanes import Lanes
from dwell.store.embedded.runs import Chunk
from dwell.testing.faults import FaultyDisk
from tests.alive import newcomers
from tests.store.test_limits import embedded, queue_on
from tools.parts import disagreements


async def taken(queue: Queue, limit: int = 100) -> list[str]:
    return [str(id_) for id_ in (await queue.take("t", limit)).ids]


async def test_a_row_has_no_key_of_who_was_there_before() -> None:
    async with queue_on(FaultyDisk()) as queue:
        await queue.configure("t", ordered=True)
        for number in range(3):
            await queue.put("t", b"x", id=f"{number}", key="k")
        for _ in range(3):
            await queue.ack(await queue.take("t", 1))
        await queue.configure("t", ordered=False)
        for id_ in "abc":
            await queue.put("t", b"x", id=id_)
        await queue.configure("t", ordered=True)
        assert await taken(queue) == ["a", "b", "c"]


async def test_what_stands_twice_in_the_runs_is_parked_once() -> None:
    clock = SimulatedClock()
    async with queue_on(FaultyDisk(), clock) as queue:
        await queue.configure("t", ordered=True)
        await queue.put("t", b"x", id="front", key="k")
        front = await queue.take("t", 1, lease="1d")
        for id_, key in (("p", "k"), ("a", "other"), ("d", "k")):
            clock.advance(1)
            await queue.put("t", b"x", id=id_, key=key)
        await queue.reschedule("t", "d", delay="50ms")
        await queue.reschedule("t", "d", delay=0)
        clock.advance(100)
        assert await taken(queue, 1) == ["a"]
        assert await taken(queue, 1) == []
        await queue.put("t", b"x", id="free")
        assert await taken(queue) == ["free"]
        for id_ in ("p", "d"):
            await queue.ack(front)
            front = await queue.take("t", 100)
            assert list(front.ids) == [id_]


async def test_a_peek_looks_behind_what_is_parked() -> None:
    async with queue_on(FaultyDisk(), passed_rows=2) as queue:
        await queue.configure("t", ordered=True)
        await queue.put_many("t", [b"x"] * 20, key="k")
        await queue.put("t", b"x", id="last", key="l")
        await queue.take("t", 1)
        assert list((await queue.peek("t", 10)).ids) == ["last"]


async def test_who_waits_for_one_of_several_topics_hears_of_what_a_take_passed_by() -> None:
    async with queue_on(FaultyDisk(), passed_rows=2) as queue:
        await queue.configure("t", ordered=True)
        await queue.put("t", b"x", id="front", key="k")
        await queue.take("t", 1)
        await queue.put("t", b"x", id="first", key="l")
        await queue.put_many("t", [b"x"] * 20, key="k")
        await queue.put("t", b"x", id="last", key="m")
        woken: list[str] = []
        embedded(queue).wake = lambda topic, count: woken.append(topic)
        assert list((await queue.take(["u", "t"], 2)).ids) == ["first"]
        assert "t" in woken


async def test_fair_topics_that_fall_due_together_leave_nothing() -> None:
    clock, chunks = SimulatedClock(), newcomers(Chunk)
    async with queue_on(FaultyDisk(), clock) as queue:
        for topic in "ab":
            await queue.configure(topic, fair=True)
        for _ in range(50):
            for topic in "ab":
                await queue.put(topic, b"x", key="k", delay="10ms")
            clock.advance(10)
            batch = await queue.take(["a", "b"], 10)
            assert len(batch) == 2
            await queue.ack(batch)
        gc.collect()
        assert len(chunks()) < 20


async def test_other_settings_may_come_while_keys_are_read() -> None:
    async with queue_on(FaultyDisk(), keyed_rows=1) as queue:
        await queue.put_many("t", [b"x"] * 5, key="k")
        first = asyncio.create_task(queue.configure("t", ordered=True))
        await asyncio.sleep(0)
        await queue.configure("u", max_attempts=3)
        await embedded(queue).configure("t", {})
        await queue.put_many("t", [b"x"] * 5, key="k")
        await first
        assert len(await taken(queue)) == 1


async def test_forming__other_calls_meanwhile__see_no_message_out_of_order() -> None:
    """While messages are put in their new order, the topic gives none, and others go on."""
    async with queue_on(FaultyDisk(), formed_rows=1) as queue:
        keys = [f"k{number % 5}" for number in range(40)]
        await queue.put_many("t", [b"x"] * 40, ids=[f"{n:02}" for n in range(40)], key=keys)
        await queue.put("other", b"y")
        changes = [{"ordered": True}, {"fair": True}, {"ordered": False}, {"ordered": True}]
        running = [asyncio.create_task(queue.configure("t", **change)) for change in changes]
        looks = 0
        while not all(task.done() for task in running):
            await asyncio.sleep(0)
            if "t" in forming(queue):
                assert embedded(queue).ready("t") == 0
                # On a slow machine this may take as long as a whole change.
                assert len(await queue.peek("other", 1)) == 1
                assert await queue.count_urgent("t", 2_000) in (40, 41)
                looks += 1
            if looks == 3:
                await queue.cancel("t", "07")
                await queue.put("t", b"x", id="40", key="k0")
        assert looks >= 3
        await asyncio.gather(*running)
        settings = await queue.settings("t")
        assert settings.ordered
        assert settings.fair
        taken = []
        while batch := await queue.take("t", 40):
            leased = [message.key for message in batch]
            assert len(set(leased)) == len(leased), "two of a key at once"
            taken += [message.id for message in batch]
            await queue.ack(batch)
        assert sorted(taken) == [f"{n:02}" for n in range(41) if n != 7]
        for key in range(5):
            of_key = [id_ for id_ in taken if int(id_) % 5 == key]
            assert of_key == sorted(of_key)


def forming(queue: Queue) -> list[str]:
    """Return the topics whose messages do not stand yet as their settings say."""
    machine = embedded(queue).core.machine
    return [machine.topics.names[number] for number in machine.forming]


async def test_take_where__key_is_held__searches_no_table_and_asks_once_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other keys are found, and no message of the held key costs a search of its own."""
    async with queue_on(FaultyDisk()) as queue:
        await queue.configure("t", ordered=True)
        for _ in range(5):
            await queue.put_many("t", [b"x"] * 500, key="held")
        await queue.put("t", b"x", id="free", key="free")
        await queue.take("t", 1)
        store = embedded(queue)
        calls, parts = counted(store, "take_ids"), list[int]()

        def read(rows: np.ndarray) -> np.ndarray:
            parts.append(len(rows))
            return rows

        admission = store.core.machine.admission
        ready = admission._ready_parts
        monkeypatch.setattr(admission, "_ready_parts", lambda topic: map(read, ready(topic)))
        assert len(await queue.take_where("t", dwell.select(key="held"), 1)) == 0
        assert (len(parts), len(calls)) == (0, 3)
        assert list((await queue.take_where("t", dwell.select(), 2)).ids) == ["free"]
        assert (len(parts), len(calls)) == (1, 7)


async def test_take_by_id__another_precedes__is_found_in_the_first_part() -> None:
    async with queue_on(FaultyDisk()) as queue:
        await queue.configure("t", ordered=True)
        ids = [f"{number:03}" for number in range(300)]
        await queue.put_many("t", [b"x"] * 300, ids=ids, key="k")
        machine = embedded(queue).core.machine
        topic, table = machine.topics.number("t"), machine.table
        rows = np.flatnonzero(table.topic[: table.top] == topic)
        seen: list[int] = []

        def parts() -> Iterator[np.ndarray]:
            for part in np.array_split(rows, 30):
                seen.append(len(part))
                yield part

        lanes = machine.admission.lanes(topic)
        assert lanes is not None
        for at, expected in ((299, 1), (0, 30)):
            seen.clear()
            assert lanes.firsts(rows[at:], parts()).tolist()[0] is (at == 0)
            assert len(seen) == expected


@pytest.mark.parametrize("keys", [1, 7])
async def test_outdated_parked_entries__very_many__are_thrown_away_in_parts(
    keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one key or several, while those that are left are taken in order."""
    looked: list[int] = []
    throw_away = Lanes._throw_away

    def noted(self: Lanes, most: int) -> None:
        before = self.size
        throw_away(self, most)
        looked.append(most)
        assert before - self.size <= most

    monkeypatch.setattr(Lanes, "_throw_away", noted)
    async with queue_on(FaultyDisk(), spare_parked=9) as queue:
        await queue.configure("t", ordered=True)
        ids, of_keys = [f"{n:03}" for n in range(400)], [f"k{n % keys}" for n in range(400)]
        await queue.put_many("t", [b"x"] * 400, ids=ids, key=of_keys)
        front = await queue.take("t", 400)
        await queue.cancel("t", ids[50:390])
        lanes = embedded(queue).core.machine.admission.lanes(0)
        assert lanes is not None
        assert lanes.size == 400 - keys
        for number in range(8):
            await queue.put("t", b"x", id=f"late{number}", key="k0")
            assert await taken(queue) == []
        assert disagreements(embedded(queue)) == []
        left = [*ids[:50], *ids[390:], *(f"late{number}" for number in range(8))]
        found = list[str]()
        while len(front):
            found += front.ids
            await queue.ack(front)
            front = await queue.take("t", 400)
        for key in range(keys):
            of_key = [n for n in left if (0 if n[0] == "l" else int(n) % keys) == key]
            assert [n for n in found if n in of_key] == of_key
        assert sorted(found) == sorted(left)
        assert len(looked) > 5
        assert max(looked) <= 9 + 1 + 400
        assert sorted(looked)[len(looked) // 2] <= 9 + 1 + 1
        assert lanes.size == lanes.parked == 0


async def test_count_urgent__few_or_many__counts_the_same() -> None:
    """From the entries of a small topic as from all rows, whatever its settings are."""
    async with queue_on(FaultyDisk(), swept_rows=3) as queue:
        chance, ready = random.Random(1), embedded(queue).core.machine.ready
        names = {"plain": {}, "o": {"ordered": True}, "f": {"fair": True}}
        names["both"] = {"ordered": True, "fair": True}
        for name, settings in names.items():
            await queue.configure(name, **settings)
        for step in range(60):
            for name in names:
                keys = [chance.choice("abc") for _ in range(3)]
                ids, priorities = [f"{step} {n}" for n in range(3)], [chance.randrange(5)] * 3
                await queue.put_many(name, [b"x"] * 3, ids=ids, key=keys, priority=priorities)
                batch = await queue.take(name, chance.randrange(3) or 1, lease="1h")
                if chance.random() < 0.7:
                    await queue.ack(batch)
                back = f"{chance.randrange(step + 1)} 1"
                await queue.reschedule(name, back, delay=chance.choice(("1h", "0s")))
                await queue.cancel(name, f"{chance.randrange(step + 1)} 2")
                counts = await queue.count_urgent(name, 3)
                few, ready._limits = ready._limits, replace(ready._limits, few_ready=-1)
                assert await queue.count_urgent(name, 3) == counts
                ready._limits = few


async def test_count_urgent__many__lets_others_go_on_between_parts() -> None:
    async with queue_on(FaultyDisk(), swept_rows=10, few_ready=5) as queue:
        await queue.put_many("t", [b"x"] * 100)
        assert await turns_of(queue.count_urgent("t", 2_000)) == (100, 10)


async def test_fair_keys__their_turns_are_freed_in_parts() -> None:
    """When a topic is fair no longer, as when it becomes fair anew."""
    async with queue_on(FaultyDisk(), formed_rows=10) as queue:
        await queue.configure("t", fair=True)
        await queue.put_many("t", [b"x"] * 200, key=[f"k{n}" for n in range(200)])
        admission = embedded(queue).core.machine.admission
        turns = admission._turns[0]
        frees = counted(turns, "free")
        await queue.configure("t", fair=False)
        assert len(frees) >= 200 // 10
        assert turns.free(1) == 0


async def turns_of(work: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """Return what comes of some work, and how many turns others had meanwhile."""
    task, turns = asyncio.ensure_future(work), 0
    await asyncio.sleep(0)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return await task, turns


def counted(place: Any, name: str) -> list[None]:
    """Return a list that grows with each call of a method."""
    calls: list[None] = []
    real: Callable[..., Any] = getattr(place, name)

    def call(*how: Any, **more: Any) -> Any:
        calls.append(None)
        return real(*how, **more)

    setattr(place, name, call)
    return calls
