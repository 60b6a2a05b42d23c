"""Keys of ordered topics in a folder: what stands in the ready runs, and what is known of rows."""

import asyncio
import gc

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
