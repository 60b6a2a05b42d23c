"""The way out where a broker takes longer than a lease."""

import asyncio

from dwell.clock import RealClock
from dwell.queue import Queue
from dwell.relay.dead import DeadLetters
from dwell.relay.house import QueueSink
from dwell.relay.outlet import Outlet, Way
from dwell.relay.tally import Tally
from dwell.store.memory import MemoryStore

LEASE_MS = 1_500


class Slow:
    """A sink that takes its time for each call, as one does that others are using."""

    def __init__(self):
        self.sent = []

    async def send(self, records):
        await asyncio.sleep(2 * LEASE_MS / 1000)
        self.sent += [record.body for record in records]
        return [None] * len(records)


async def test_what_waits_for_a_broker_is_kept_and_sent_once():
    async with Queue(MemoryStore(RealClock())) as queue:
        sink, tally = Slow(), Tally()
        dead = DeadLetters(QueueSink(queue), "dead", QueueSink(queue), tally)
        ways = [Outlet(Way(queue, "t", LEASE_MS, "to"), sink, dead, tally) for _ in range(2)]
        await queue.put_many("t", [b"1", b"2"])
        # The second would get what the first has not kept.
        running = [asyncio.create_task(way.run()) for way in ways]
        while (await queue.stats()).topics["t"].leased or not sink.sent:
            await asyncio.sleep(0.01)
        for way in ways:
            way.stop()
        await asyncio.gather(*running)
    assert sink.sent == [b"1", b"2"]
    assert tally.sent == 2


class Counted(MemoryStore):
    """A store that notes who asks for the counts of all topics."""

    looks = 0

    async def stats(self):
        self.looks += 1
        return await super().stats()

    async def sizes(self, topic):
        found = (await super().stats()).topics.get(topic)
        return [] if found is None else [found]


async def test_who_waits_for_a_lane_counts_no_other_topic():
    store, tally = Counted(RealClock()), Tally()
    async with Queue(store) as queue:
        dead = DeadLetters(QueueSink(queue), "dead", QueueSink(queue), tally)
        await queue.put("t", b"1")
        taken = await queue.take("t")
        outlet = Outlet(Way(queue, "t", 60_000, "to"), Slow(), dead, tally)
        waiting = asyncio.create_task(outlet.alone())
        await asyncio.sleep(0)
        assert not waiting.done()
        await queue.ack(taken)
        await asyncio.wait_for(waiting, 60)
        assert not store.looks
