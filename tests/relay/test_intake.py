"""The way in where the queue refuses some of what it is given."""

import asyncio

from dwell.clock import RealClock
from dwell.errors import InvalidBody
from dwell.queue import Queue
from dwell.relay.dead import DeadLetters
from dwell.relay.house import QueueSink
from dwell.relay.intake import Intake
from dwell.relay.record import Record
from dwell.relay.rules import Rules
from dwell.relay.tally import Tally
from dwell.store.memory import MemoryStore


class Choosy(MemoryStore):
    """A store that refuses a batch for the sake of some bodies, as one with smaller bounds does."""

    async def put(self, puts, on_conflict):
        if puts.topic == "jobs" and any(body.startswith(b"bad") for body in puts.bodies):
            raise InvalidBody("body: got one that is bad, expected none")
        return await super().put(puts, on_conflict)


class Once:
    """A source that gives one batch."""

    has_lanes = False

    def __init__(self, records):
        self.records, self.committed = records, []

    async def read(self, limit):
        records, self.records = self.records, []
        if not records:
            await asyncio.sleep(0.01)
        return records

    async def done(self, records):
        self.committed += records


async def test_what_the_queue_refuses_is_a_dead_letter_and_holds_up_nothing():
    bodies = [b"1", b"bad1", b"2", b"bad2", b"3", b"4"]
    records = [Record("in", f"r{at}", body) for at, body in enumerate(bodies)]
    async with Queue(Choosy(RealClock())) as queue:
        source, tally = Once(list(records)), Tally()
        intake = Intake(
            source,
            queue,
            Rules(to="jobs", default_delay_ms=0, is_named=False),
            DeadLetters(QueueSink(queue), "dead", QueueSink(queue)),
            tally,
            topic_of=lambda one: one.target,
            topics=lambda: None,
        )
        running = asyncio.create_task(intake.run())
        while not tally.settled and not running.done():
            await asyncio.sleep(0.01)
        intake.stop()
        await running
        assert source.committed == records
        assert sorted((await queue.take("jobs", 9)).bodies) == [b"1", b"2", b"3", b"4"]
        dead = await queue.take("dead", 9)
        assert sorted(dead.bodies) == [b"bad1", b"bad2"]
        assert all("expected none" in one.headers["dwell-reason"] for one in dead)
        assert tally.dead["source"] == 2
