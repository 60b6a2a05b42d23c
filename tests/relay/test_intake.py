"""The way in and the dead letters where the queue or a broker refuses, or is away."""

import asyncio

from dwell.clock import RealClock
from dwell.errors import InvalidBody, ServerUnreachable
from dwell.queue import Queue
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.dead import DeadLetters
from dwell.relay.house import QueueSink
from dwell.relay.intake import Intake
from dwell.relay.record import Record, Refusal
from dwell.relay.relay import Plan, Relay
from dwell.relay.rules import Rules
from dwell.relay.tally import Tally
from dwell.store.memory import MemoryStore
from tests.waiting import until_async


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


def intake_of(source, queue, tally, **rules):
    """Return an intake into the topic of the queue that a record names, or into jobs."""
    sink = QueueSink(queue)
    return Intake(
        source,
        queue,
        Rules(to="jobs", is_named=False, **rules),
        DeadLetters(sink, "dead", sink, tally),
        tally,
        topic_of=lambda one: one.target,
        topics=lambda: None,
    )


async def test_what_the_queue_refuses_is_a_dead_letter_and_holds_up_nothing():
    bodies = [b"1", b"bad1", b"2", b"bad2", b"3", b"4"]
    records = [Record("in", f"r{at}", body) for at, body in enumerate(bodies)]
    async with Queue(Choosy(RealClock())) as queue:
        source, tally = Once(list(records)), Tally()
        intake = intake_of(source, queue, tally, default_delay_ms=0)
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


async def test_a_record_whose_id_is_too_long_is_a_dead_letter_and_holds_up_nothing():
    """The id of a record without its own is its place, with the name of its topic."""
    records = [Record("in", f"r{at}" + "x" * 300 * (at == 2), b"%d" % at) for at in range(5)]
    async with Queue(MemoryStore(RealClock())) as queue:
        source, tally = Once(list(records)), Tally()
        intake = intake_of(source, queue, tally, default_delay_ms=0)
        running = asyncio.create_task(intake.run())
        await until_async(lambda: tally.settled == len(records) or running.done())
        intake.stop()
        await running
        assert sorted((await queue.take("jobs", 9)).bodies) == [b"0", b"1", b"3", b"4"]
        (dead,) = await queue.take("dead", 9)
    assert dead.body == b"2"
    assert "id: got 302 bytes" in dead.headers["dwell-reason"]


async def test_records_that_share_an_id_are_letters_of_their_own():
    """An id is one of its topic, and letters of records for all topics are in one."""
    said = [
        {"dwell-delay": b"soon"},
        {"dwell-delay": b"1s", "dwell-to": b"a b"},
        {"dwell-delay": b"1s", "dwell-to": b"jobs", "h": b"x" * 20_000},
        {},
    ]
    records = [
        Record("in", f"r{at}", b"%d" % at, headers=[("dwell-id", b"same"), *one.items()])
        for at, one in enumerate(said)
    ]
    async with Queue(MemoryStore(RealClock())) as queue:
        source, tally = Once(records), Tally()
        intake = intake_of(source, queue, tally)
        running = asyncio.create_task(intake.run())
        await until_async(lambda: tally.settled == len(said) or running.done())
        intake.stop()
        await running
        assert sorted((await queue.take("dead", 9)).bodies) == [b"0", b"1", b"2", b"3"]
        assert tally.dead["source"] == len(said)


class Deferring(Once):
    """The same with lanes; records that are deferred go to another relay."""

    has_lanes = True

    def comes_again(self, record):
        return False

    async def defer(self, records):
        """Nothing comes again here."""


async def test_lanes_that_go_take_what_they_waited_for_with_them():
    async with Queue(MemoryStore(RealClock())) as queue:
        await queue.configure("jobs", max_pending=1, on_full="refuse")
        records = [Record("in", f"{at}", b"x", lane=f"in-{at % 2}") for at in range(4)]
        tally = Tally()
        intake = intake_of(Deferring(records), queue, tally, default_delay_ms=0)
        running = asyncio.create_task(intake.run())
        await until_async(lambda: "topic jobs" in tally.trouble)
        intake.forget(["in-0"])
        await until_async(lambda: tally.settled == 1)
        assert tally.trouble == {"topic jobs": "jobs: is full"}
        intake.forget(["in-1"])
        await until_async(lambda: not tally.trouble)
        intake.stop()
        await running


async def test_letters_that_are_too_many_for_one_batch_keep_their_bodies():
    async with Queue(MemoryStore(RealClock())) as queue:
        sink, tally = QueueSink(queue), Tally()
        dead = DeadLetters(sink, "dead", sink, tally)
        bodies = [bytes([at]) * 1_000_000 for at in range(20)]
        many = [("h", b"\xff" * 900)] * 100
        letters = [(Record("in", f"r{at}", body), "no due") for at, body in enumerate(bodies)]
        letters.append((Record("in", "many", b"body", headers=many), "too many headers"))
        assert await dead.send(letters) == ([], [])
        found = {m.id: m for page in [x async for x in queue.pages("dead", "ready")] for m in page}
        assert [found[f"r{at}"].body for at in range(20)] == bodies
        assert found["many"].body == b"body"
        assert found["many"].headers["dwell-reason"] == "too many headers"


async def test_letters_that_their_topic_drops_are_counted_and_told_once(caplog):
    async with Queue(MemoryStore(RealClock())) as queue:
        await queue.configure("dead", max_pending=2, on_full="drop")
        sink, tally = QueueSink(queue), Tally()
        dead = DeadLetters(sink, "dead", sink, tally)
        for at in range(3):
            names = [f"in-{at}-{one}" for one in range(3)]
            letters = [(Record("in", name, b"body", origin=name), "no due") for name in names]
            # It is asked for, so the source goes on, and the relay is ready.
            assert await dead.send(letters) == ([], [])
        assert list((await queue.take("dead", 9)).ids) == ["in-0-0", "in-0-1"]
        assert (tally.dropped, tally.trouble) == (7, {})
        (line,) = [one for one in caplog.messages if "dropped" in one]
        assert line.endswith(
            "in-0-2 (no due): topic 'dead' is full and drops more, as its on_full says"
        )


async def test_letters_that_nothing_takes_are_counted():
    class Never:
        async def send(self, records):
            return [Refusal("too large", is_final=True)] * len(records)

    tally = Tally()
    letters = [(Record("in", "1", b""), "x")]
    assert await DeadLetters(Never(), "dead", Never(), tally).send(letters) == ([], [])
    assert tally.dropped == 1


class Away:
    """A sink of which the broker is away."""

    def __init__(self):
        self.is_away = True

    async def send(self, records):
        if self.is_away:
            raise BrokerUnreachable("gone")
        return [None] * len(records)


async def test_letters_that_wait_are_told_once_and_make_a_relay_not_ready(caplog):
    sink, tally = Away(), Tally()
    dead = DeadLetters(sink, "dead", sink, tally)
    record = Record("in", "1", b"")
    for _ in range(3):
        assert await dead.send([(record, "no due")]) == ([record], [])
    assert list(tally.trouble.values()) == ["gone"]
    assert caplog.text.count("dead letters wait") == 1
    sink.is_away = False
    assert await dead.send([(record, "no due")]) == ([], [])
    assert not tally.trouble


async def test_a_setting_that_somebody_changes_meanwhile_stays():
    async with Queue(MemoryStore(RealClock())) as queue:
        settings = queue.settings

        async def changed(topic):
            found = await settings(topic)
            await queue.configure(topic, remember_ms=86_400_000)
            return found

        queue.settings = changed
        source, sink = Once([]), Away()
        source.open = source.close = sink.open = sink.close = idle
        relay = Relay(queue, Plan(), Rules(to="out"), source=source, sink=sink, letters=sink)
        stopping = asyncio.Event()
        running = asyncio.create_task(relay.run(stopping))

        async def is_told():
            return (await settings("relay")).max_attempts == 65_535

        await until_async(is_told)
        stopping.set()
        await running
        assert (await settings("relay")).remember_ms == 86_400_000


class Late(MemoryStore):
    """A store that is away for longer than a lease."""

    failures = 4

    async def configure(self, *given):
        if self.failures:
            self.failures -= 1
            raise ServerUnreachable("gone")
        return await super().configure(*given)


async def test_what_a_topic_has_to_know_is_told_it_however_long_that_takes():
    store = Late(RealClock())
    async with Queue(store) as queue:
        sink = Away()
        sink.open = sink.close = idle
        source = Once([])
        source.close = idle
        source.open = idle
        plan = Plan(lease_ms=300)
        relay = Relay(queue, plan, Rules(to="out"), source=source, sink=sink, letters=sink)
        stopping = asyncio.Event()
        running = asyncio.create_task(relay.run(stopping))

        async def is_told():
            return (await queue.settings("relay")).max_attempts == 65_535

        await until_async(is_told)
        assert not store.failures
        stopping.set()
        await running


async def idle(*_given):
    """Do nothing."""
