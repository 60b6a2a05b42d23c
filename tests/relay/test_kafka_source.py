"""The source of Kafka by itself, over a real one, where a call of it fails."""

import asyncio
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from dwell.relay.kafka.source import KafkaSource
from tests.waiting import until_async


class Lanes:
    """Whoever is told of lanes."""

    def __init__(self):
        self.open_ones = set()

    async def open(self, lanes):
        self.open_ones |= set(lanes)

    async def close(self, lanes, *, is_lost=False):
        self.open_ones -= set(lanes)


class Failing:
    """A consumer whose first commit fails: of all partitions, or by the answer for one of them."""

    def __init__(self, consumer, *, is_partial):
        self._consumer, self._is_partial, self.fails = consumer, is_partial, 1

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def commit(self, *, offsets, asynchronous):
        if not self.fails:
            return self._consumer.commit(offsets=offsets, asynchronous=asynchronous)
        self.fails -= 1
        error = KafkaError(KafkaError.REQUEST_TIMED_OUT, "Broker: Request timed out")
        if not self._is_partial:
            raise KafkaException(error)
        bad, *good = sorted(offsets, key=lambda one: one.partition)
        told = self._consumer.commit(offsets=good, asynchronous=False) if good else []
        return [SimpleNamespace(topic=bad.topic, partition=bad.partition, error=error), *told]


@pytest.mark.parametrize("is_partial", [False, True], ids=["all", "one"])
async def test_a_commit_that_failed_is_made_again(topics, is_partial):
    """Without it nothing of the lane ever leaves where it does exactly once."""
    mine = topics(2)
    for partition in (0, 1):
        mine.say(b"x", partition=partition)
    mine.flush()
    source, lanes, found = KafkaSource(mine.source), Lanes(), []
    await source.open(lanes)
    try:
        async with asyncio.timeout(60):
            while len(found) < 2:
                found += await source.read(10)
        source._consumer = Failing(source._consumer, is_partial=is_partial)
        await source.done(found)
        assert not any(source.is_committed(one.origin) for one in found)

        async def are_committed():
            assert not await source.read(10)
            return all(source.is_committed(one.origin) for one in found)

        await until_async(are_committed)
        assert source._consumer.fails == 0
    finally:
        await source.close()
    assert not lanes.open_ones
