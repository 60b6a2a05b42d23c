"""Keys of ordered topics in a folder: what stands in the ready runs, and what is known of rows."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dwell
from dwell.clock import SimulatedClock
from dwell.queue import Queue
from dwell.store.embedded.runs import Chunk
from dwell.testing.faults import FaultyDisk
from tests.alive import newcomers
from tests.store.test_limits import embedded, queue_on


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
    async with queue_on(FaultyDisk(), formed_rows=2) as queue:
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


def counted(place: Any, name: str) -> list[None]:
    """Return a list that grows with each call of a method."""
    calls: list[None] = []
    real: Callable[..., Any] = getattr(place, name)

    def call(*how: Any, **more: Any) -> Any:
        calls.append(None)
        return real(*how, **more)

    setattr(place, name, call)
    return calls
