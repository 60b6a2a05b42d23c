"""A take of very many topics: it gives what some of them have, and says that there is more."""

import asyncio

from dwell.testing.faults import FaultyDisk
from tests.store.test_limits import embedded, queue_on


async def test_a_take_leaves_topics_to_the_next_one() -> None:
    topics = [f"t{number}" for number in range(10)]
    async with queue_on(FaultyDisk(), taken_topics=4) as queue:
        for topic in topics:
            await queue.put_many(topic, [b"x"] * 2)
        woken: list[str] = []
        embedded(queue).wake = lambda topic, count: woken.append(topic)
        batches = [await queue.take(topics, 100) for _ in range(4)]
        assert [len(batch) for batch in batches] == [8, 8, 4, 0]
        assert sorted({topic for batch in batches for topic in batch.topics}) == topics
        # Who waits for one of those that were left out has to ask again.
        assert set(woken) == set(topics)


async def test_takes_that_are_joined_get_what_other_topics_have() -> None:
    topics = [f"t{number}" for number in range(10)]
    async with queue_on(FaultyDisk(), taken_topics=4) as queue:
        for topic in topics:
            await queue.put(topic, b"x")
        # What does not wait would say that there is nothing.
        batches = await asyncio.gather(*(queue.take(topics, 2) for _ in range(5)))
        assert [len(batch) for batch in batches] == [2] * 5
        assert not len(await queue.take(topics, 2))
