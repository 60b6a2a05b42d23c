"""The way out where a broker takes longer than a lease."""

import asyncio

from dwell.clock import RealClock
from dwell.errors import ServerUnreachable
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


class Quick(Slow):
    """A sink that takes all at once."""

    async def send(self, records):
        self.sent += [record.body for record in records]
        return [None] * len(records)


class Unheard(MemoryStore):
    """A store whose first answer to a take is lost."""

    unheard = 0

    async def take(self, *given):
        batch = await super().take(*given)
        if len(batch) and not self.unheard:
            self.unheard = len(batch)
            raise ServerUnreachable("take: no answer")
        return batch


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

    looks = sized = 0

    async def stats(self):
        self.looks += 1
        return await super().stats()

    async def sizes(self, topic):
        self.sized += 1
        found = (await super().stats()).topics.get(topic)
        return [] if found is None else [found]


async def test_who_waits_for_a_lane_counts_no_other_topic():
    store, tally = Counted(RealClock()), Tally()
    async with Queue(store) as queue:
        dead = DeadLetters(QueueSink(queue), "dead", QueueSink(queue), tally)
        await queue.put("t", b"1")
        taken = await queue.take("t")
        outlet = Outlet(Way(queue, "t", 60_000, "to", is_ordered=True), Quick(), dead, tally)
        running = asyncio.create_task(outlet.run())
        await asyncio.sleep(0)
        await queue.put("t", b"2")
        await _until(lambda: store.sized > 1)
        assert not tally.sent
        await queue.ack(taken)
        await _until(lambda: tally.sent)
        outlet.stop()
        await running
        assert not store.looks


async def test_what_was_taken_by_a_take_without_a_reply_leaves_before_what_follows():
    store, sink, tally = Unheard(RealClock()), Quick(), Tally()
    async with Queue(store) as queue:
        dead = DeadLetters(QueueSink(queue), "dead", QueueSink(queue), tally)
        await queue.put("t", b"1", id="1")
        outlet = Outlet(Way(queue, "t", LEASE_MS, "to", is_ordered=True), sink, dead, tally)
        running = asyncio.create_task(outlet.run())
        await _until(lambda: store.unheard)
        await queue.put("t", b"2", id="2")
        await _until(lambda: tally.sent == 2)
        outlet.stop()
        await running
    assert sink.sent == [b"1", b"2"]


async def _until(met):
    async with asyncio.timeout(60):
        while not met():
            await asyncio.sleep(0.01)
