"""Rounds: who goes first, and what reserves from many tubes look at."""

import asyncio
import random
import threading

import pytest

from dwell.clock import RealClock
from dwell.queue import Queue
from dwell.queue.gather import Rounds
from dwell.server.beanstalk.steps import Steps
from dwell.server.beanstalk.taken import take_best
from dwell.store.memory import MemoryStore
from tests.beanstalk.served import Line, Served
from tests.waiting import until


async def test_large_rounds_that_come_again_and_again_keep_no_small_one_back():
    done: list[str] = []

    async def do(key, parts):
        await asyncio.sleep(0)
        done.append(key)
        if len(done) < 200 and key != "small":
            rounds.add(key, None, 100)

    rounds: Rounds[str, None] = Rounds(do, lambda parts: None, Steps())
    for at in range(10):
        rounds.add(f"large {at}", None, 100)
    while len(done) < 20:
        await asyncio.sleep(0)
    before = len(done)
    rounds.add("small", None)
    await rounds.settled()
    # Each of the others goes before it once, and some of them until it was passed often.
    assert done.index("small") - before <= 15


class Noting(MemoryStore):
    """A store that notes each peek."""

    def __init__(self) -> None:
        super().__init__(RealClock())
        self.peeked: list[str] = []

    async def peek(self, topic, limit):
        self.peeked.append(topic)
        return await super().peek(topic, limit)


class Stopped(Noting):
    """A store whose peeks into some topics end when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    async def peek(self, topic, limit):
        batch = await super().peek(topic, limit)
        while topic.startswith("many") and not self.may.is_set():
            await asyncio.sleep(0.001)
        return batch


def watch(line: Line, tubes: list[str]) -> None:
    line.ask(b"".join(b"watch %b\r\n" % tube.encode() for tube in tubes), len(tubes))
    line.ask(b"ignore default\r\n")


@pytest.mark.parametrize("verb", [b"reserve-with-timeout 0", b"reserve", b"reserve-with-timeout 9"])
def test_no_command_waits_for_a_look_at_many_tubes(verb):
    store, tubes = Stopped(), [f"many{at}" for at in range(9)]
    with (
        Served(lambda: store) as served,
        Line(served.number) as wide,
        Line(served.number, 5) as own,
    ):
        for tube in tubes[:2]:
            served.call(served.queue.put(tube, tube))
        watch(wide, tubes)
        try:
            wide.send(verb + b"\r\n")
            until(lambda: store.peeked)
            number = own.put(b"x")
            assert own.reserve() == (number, b"x")
            assert own.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"
        finally:
            store.may.set()
        assert wide.read().endswith(b"many0\r\n")


async def test_only_topics_with_something_ready_are_peeked():
    store, topics = Noting(), [f"t{at}" for at in range(1_000)]
    async with Queue(store) as queue:
        assert await take_best(queue, topics, 10) == []
        await queue.put("t500", "only")
        (batch,) = await take_best(queue, topics, 10)
        assert list(batch.bodies) == [b"only"]
        # Where one topic has something, there is nothing to choose.
        assert store.peeked == []
        for topic in ("t3", "t999", "t400"):
            await queue.put(topic, topic)
        await queue.configure("t400", paused=True)
        batches = await take_best(queue, topics, 10)
        assert [list(batch.bodies) for batch in batches] == [[b"t3"], [b"t999"]]
        assert store.peeked == ["t3", "t999"]


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_the_most_urgent_of_all_topics_come_first(limit):
    left = sorted(zip(random.Random(limit).sample(range(10_000), 200), range(200), strict=True))
    async with Queue(MemoryStore(RealClock())) as queue:
        topics = [f"t{at}" for at in range(40)]
        for priority, at in left:
            await queue.put(topics[at % 40], f"{at}", priority=priority)
        while left:
            batches = await take_best(queue, topics, limit)
            found = {int(body) for batch in batches for body in batch.bodies}
            assert found == {at for _, at in left[:limit]}
            del left[:limit]


async def test_where_others_were_faster_the_other_topics_give_what_they_have():
    class Emptied(MemoryStore):
        async def take(self, topics, limit, lease_ms, owner):
            if tuple(topics) == ("a",):
                await super().take(topics, limit, lease_ms, owner)
            return await super().take(topics, limit, lease_ms, owner)

    async with Queue(Emptied(RealClock())) as queue:
        await queue.put("a", "first", priority=1)
        await queue.put("b", "second", priority=2)
        batches = await take_best(queue, ("a", "b"), 1)
        assert [list(batch.bodies) for batch in batches] == [[b"second"]]
