"""Exactly once into Kafka: what was sent is known by store and message; nothing waits forever."""

import asyncio
import contextlib

import pytest
from redis.asyncio import Redis

import dwell
from bench.brokers import kafka_server
from dwell.clock import RealClock
from dwell.message import MAX_BATCH_MESSAGES
from dwell.queue import Queue
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.dead import DeadLetters
from dwell.relay.house import QueueSink
from dwell.relay.kafka.once import OnceKafkaSink
from dwell.relay.outlet import OnceOutlet, Way
from dwell.relay.record import Refusal
from dwell.relay.relay import Plan, Relay
from dwell.relay.rules import Rules
from dwell.relay.sent import Owner, decoded, encoded, name_of, names_of
from dwell.relay.tally import Tally
from dwell.store.memory import MemoryStore
from tests.relay.kafka import Topics, numbers, relaying
from tests.relay.test_kafka import committed, make_anew
from tests.waiting import until, until_async

COUNT = 60
SOON = {"dwell-delay": "300ms"}


def ends(mine: Topics, goes: str, group: str = "") -> list[str]:
    source = f"{mine.source}{group}"
    return ["--from", source, "--to", f"kafka://{mine.hosts}/{goes}", "--exactly-once"]


def say(mine: Topics, first: int = 0) -> None:
    for at in range(first, first + COUNT):
        mine.say(b"%d" % at, SOON)
    mine.flush()


@pytest.mark.campaign
def test_relays_of_two_stores_keep_their_states_apart(topics, tmp_path):
    mine, other = topics(1), topics(1)
    with (
        relaying(tmp_path / "a", ends(mine, mine.goes), tmp_path / "log-a"),
        relaying(tmp_path / "b", ends(mine, other.goes, "-b"), tmp_path / "log-b"),
    ):
        for first in range(0, 3 * COUNT, COUNT):
            say(mine, first)
            for one in (mine, other):
                found = numbers(one.read(one.goes, first + COUNT))
                assert sorted(found) == list(range(first + COUNT))
    # With one state for both, each would fence the other off, and recover from that.
    assert "FENCED" not in (tmp_path / "log-a").read_text() + (tmp_path / "log-b").read_text()


def test_a_new_store_sends_what_has_the_numbers_of_what_an_old_one_sent(topics, tmp_path):
    mine = topics(1)
    for at, store in enumerate(("old", "new")):
        with relaying(tmp_path / store, ends(mine, mine.goes), tmp_path / "log") as relay:
            say(mine, at * COUNT)
            found = mine.read(mine.goes, (at + 1) * COUNT)
            assert relay.end() == 0
    assert sorted(numbers(found)) == list(range(2 * COUNT))


def test_records_held_for_a_topic_that_was_made_anew_leave_as_do_others(topics, tmp_path):
    mine = topics(1)
    options = [*ends(mine, mine.goes), "--hold", mine.name]
    hold = f"{mine.name}.{mine.came}-0"
    for at in range(3):
        mine.say(b"%d" % at, {"dwell-delay": "1h"})
    mine.flush()
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: committed(mine) == 3)
        assert relay.end() == 0
    make_anew(mine)
    with dwell.open(tmp_path / "store") as queue:
        held = [one.id for one in queue.scan(hold, "delayed").messages]
        queue.reschedule(hold, held, delay=0)
        # Somebody puts one by hand, which no source ever commits.
        queue.put(hold, b"3", id="by-hand", headers={"dwell-to": mine.goes})
    mine.say(b"4", SOON)
    mine.flush()
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        assert sorted(numbers(mine.read(mine.goes, 5))) == [0, 1, 2, 3, 4]


def test_what_is_held_without_a_commit_leaves_if_the_group_begins_at_the_end(topics, tmp_path):
    """A relay was killed between its first hold and the commit, which is nothing to wait for."""
    mine = topics(1)
    options = ends(mine, mine.goes)
    mine.say(b"0", {"dwell-delay": "1h"})
    mine.flush()
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: committed(mine) == 1)
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        assert queue.reschedule_where(f"relay.{mine.came}-0", dwell.select(), delay="1ms").matched
    # Another group has no commit, as one whose relay was killed.
    place = f"{mine.source.replace('group=', 'group=other-')}&auto.offset.reset=latest"
    options[options.index(mine.source)] = place
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        assert numbers(mine.read(mine.goes, 1)) == [0]
        assert relay.end() == 0


class Keeping:
    """A sink that sends in transactions, and says that some messages were sent before."""

    def __init__(self, names=(), refused=()):
        self.names, self.refused, self.sent, self.entered = names, refused, [], []

    async def enter(self, lane, store):
        self.entered.append(store)
        return self.names

    async def send_once(self, lane, records, names):
        answer = [
            Refusal("too large", is_final=True) if record.body in self.refused else None
            for record in records
        ]
        if not any(answer):
            self.sent += [record.body for record in records]
        return answer

    async def leave(self, lane):
        """End with a lane."""


async def outgoing(queue, sink, until_left, is_committed=lambda lane, origin: True):
    """Run the outlet of the topic ``t`` until so many messages are left in it."""
    tally = Tally()
    dead = DeadLetters(QueueSink(queue), "dead", QueueSink(queue), tally)
    outlet = OnceOutlet(Way(queue, "t", 3_000, "to"), sink, dead, tally, "lane", is_committed)
    running = asyncio.create_task(outlet.run())

    async def is_done():
        found = (await queue.stats()).topics["t"]
        return found.ready + found.leased == until_left

    await until_async(is_done)
    outlet.stop()
    await running
    return tally


async def test_a_message_is_known_by_its_number_and_its_id():
    async with Queue(MemoryStore(RealClock())) as queue:
        await queue.put_many("t", [b"0", b"1", b"2"], ids=["a", "b", "c"])
        taken = await queue.take("t", 3)
        names = names_of(taken)
        await queue.release(taken, 0, counted=False)
        # The second number was another message's in an earlier life of the store.
        earlier = [names[0], name_of(int(taken.numbers[1]), "other")]
        sink = Keeping(earlier)
        tally = await outgoing(queue, sink, 0)
        assert sink.sent == [b"1", b"2"]
        assert tally.repeated == 1


async def test_any_number_of_names_of_earlier_messages_stops_no_lane():
    async with Queue(MemoryStore(RealClock())) as queue:
        await queue.put_many("t", [b"0", b"1"], ids=["a", "b"])
        taken = await queue.take("t", 2)
        await queue.release(taken, 0, counted=False)
        gone = [name_of(number, "gone") for number in range(MAX_BATCH_MESSAGES)]
        sink = Keeping([*gone, names_of(taken)[0]])
        tally = await outgoing(queue, sink, 0)
        assert (sink.sent, tally.repeated) == ([b"1"], 1)


def test_a_number_that_no_message_has_is_left_out():
    names = [name_of(number, "a") for number in (0, 2**63 - 1, 2**63)]
    assert decoded(encoded(names)) == names[:2]


async def test_a_lane_is_entered_anew_for_a_store_in_place_of_a_lost_one(redis_url):
    """As when an engine comes back without data: its messages are those of another store."""
    async with dwell.open(f"{redis_url}?prefix=anew") as queue:
        sink, stores, tally = Keeping(), [], Tally()
        dead = DeadLetters(QueueSink(queue), "dead", QueueSink(queue), tally)
        way = Way(queue, "t", 3_000, "to")
        outlet = OnceOutlet(way, sink, dead, tally, "lane", lambda lane, origin: True)
        running = asyncio.create_task(outlet.run())
        for at in range(2):
            await queue.put("t", b"%d" % at)
            await until_async(lambda at=at: len(sink.sent) == at + 1)
            stores.append(queue.store.number)
            async with Redis.from_url(redis_url) as engine:
                await engine.delete(*[key async for key in engine.scan_iter("*anew*")])
            await queue.stats()
        outlet.stop()
        await running
        assert sink.sent == [b"0", b"1"]
        assert sink.entered == stores
        assert len(set(stores)) == 2


class Quiet:
    """A source with lanes and without records."""

    has_lanes = True

    async def open(self, lanes):
        """Nothing to connect to."""

    async def read(self, limit):
        await asyncio.sleep(0.01)
        return []

    async def close(self):
        """Nothing to release."""

    def is_committed(self, lane, origin):
        return True


class Slow(Keeping):
    """A sink whose first batch fails when it is told to; it says who came and went."""

    def __init__(self):
        super().__init__()
        self.told, self.may_end = [], asyncio.Event()

    async def open(self):
        """Nothing to connect to."""

    async def close(self):
        """Nothing to release."""

    async def send(self, records):
        raise NotImplementedError

    async def enter(self, lane, store):
        self.told.append(f"{lane} is entered")
        return await super().enter(lane, store)

    async def send_once(self, lane, records, names):
        if lane == "slow" and not self.may_end.is_set():
            self.told.append("slow sends")
            await self.may_end.wait()
            raise BrokerUnreachable("timed out")
        return await super().send_once(lane, records, names)

    async def leave(self, lane):
        self.told.append(f"{lane} is left")


@contextlib.asynccontextmanager
async def relaying_to(sink):
    """Run a relay without records to a sink in this process; give its queue and it."""
    async with Queue(MemoryStore(RealClock())) as queue:
        stopping = asyncio.Event()
        ends = {"source": Quiet(), "sink": sink, "letters": QueueSink(queue)}
        relay = Relay(queue, Plan(hold="h"), Rules(to="out"), **ends)
        running = asyncio.create_task(relay.run(stopping))
        await until_async(lambda: relay.why_not_ready() is None)
        yield queue, relay
        stopping.set()
        await running


async def test_a_lane_that_comes_back_is_entered_when_it_was_left():
    """The source waits for some time only until a lane that it gives away is closed."""
    sink = Slow()
    async with relaying_to(sink) as (queue, relay):
        await queue.put("h.slow", b"1", headers={"dwell-to": "out"})
        await relay.open(["slow"])
        await until_async(lambda: "slow sends" in sink.told)
        closing = asyncio.create_task(relay.close(["slow"]))
        await until_async(lambda: relay.tally.lanes == 0)
        for lane in ("slow", "other"):
            await queue.put(f"h.{lane}", b"2", headers={"dwell-to": "out"})
        await relay.open(["slow", "other"])
        await until_async(lambda: sink.sent == [b"2"])
        sink.may_end.set()
        await until_async(lambda: len(sink.sent) == 3)
        await closing
    told = [one for one in sink.told if one.startswith("slow is")]
    assert told == ["slow is entered", "slow is left"] * 2


@pytest.mark.parametrize("topic", ["a", "a" * 220])
async def test_former_lanes_are_open_until_their_topic_has_them_again(topic):
    first, second, third, other = (f"{topic}-{part}" for part in ("0", "1", "2", "b-7"))
    async with relaying_to(Slow()) as (queue, relay):
        await relay.open([first, second, third, other])
        # Their topics in the store have settings by then.
        while len((await queue.stats()).topics) < 4:
            await asyncio.sleep(0.01)
        await relay.close([first, second, third, other])
        await relay.open([first])
        assert await relay.adopt({topic: 1}) == {topic}
        assert relay.tally.lanes == 3
        # Another member has the second one.
        assert await relay.adopt({topic: 2}) == {topic}
        assert relay.tally.lanes == 2
        # This one gets the third, and keeps it when it loses the first.
        await relay.open([third])
        assert await relay.adopt({topic: 3}) == set()
        await relay.close([first])
        assert relay.tally.lanes == 1
        await relay.close([third])
        await relay.open([first])
        assert await relay.adopt({topic: 1}) == {topic}
        await relay.close([first])
        assert relay.tally.lanes == 0
        assert await relay.adopt({topic: 1}) == set()


async def test_the_trouble_of_a_lane_goes_with_it():
    class Failing(Slow):
        async def send_once(self, lane, records, names):
            raise BrokerUnreachable("timed out")

    async with relaying_to(Failing()) as (queue, relay):
        await queue.put("h.lane", b"1", headers={"dwell-to": "out"})
        await relay.open(["lane"])
        await until_async(lambda: relay.why_not_ready() == "timed out")
        await relay.close(["lane"])
        assert relay.why_not_ready() is None


async def test_what_is_not_committed_holds_up_no_other():
    async with Queue(MemoryStore(RealClock())) as queue:
        await queue.put_many("t", [b"0", b"1", b"2"], ids=["a", "b", "c"])
        sink = Keeping()
        await outgoing(queue, sink, 1, lambda lane, origin: origin != "b")
        assert sink.sent == [b"0", b"2"]


async def test_a_letter_that_is_refused_as_well_holds_up_no_other():
    async with Queue(MemoryStore(RealClock())) as queue:
        await queue.put_many("t", [b"0", b"large", b"2"], ids=["a", "b", "c"])
        sink = Keeping(refused={b"large"})
        tally = await outgoing(queue, sink, 0)
        assert sink.sent == [b"0", b"2"]
        (dead,) = (await queue.scan("t", "dead")).messages
        assert (dead.body, dead.last_error) == (b"large", "too large")
        assert tally.dead["sink"] == 1


class Stuck(Keeping):
    """The same where one target takes nothing until it is told to."""

    is_stuck = True

    async def send_once(self, lane, records, names):
        why = Refusal("has no leader", is_final=False, is_of_target=True)
        refused = [why if self.is_stuck and one.topic == "stuck" else None for one in records]
        if not any(refused):
            self.sent += [(one.topic, one.body) for one in records]
        return refused


@pytest.mark.parametrize("limit", [4, 50])
async def test_a_target_that_takes_nothing_holds_up_no_other(limit, caplog):
    """Also where more is due for it than is taken at once; if not, its order is kept."""
    async with Queue(MemoryStore(RealClock())) as queue:
        sink, bodies = Stuck(), [b"%d" % at for at in range(9)]
        await queue.put_many("t", bodies, headers={"dwell-to": "stuck"})
        await queue.put_many("t", bodies)
        tally = Tally()
        dead = DeadLetters(QueueSink(queue), "dead", QueueSink(queue), tally)
        way = Way(queue, "t", 3_000, "to", limit=limit)
        outlet = OnceOutlet(way, sink, dead, tally, "lane", lambda lane, origin: True)
        running = asyncio.create_task(outlet.run())
        await until_async(lambda: len(sink.sent) >= 9)
        assert sink.sent == [("to", body) for body in bodies]
        assert list(tally.trouble.values()) == ["has no leader"]
        assert caplog.text.count("stuck: its messages wait") == 1
        sink.is_stuck = False
        await until_async(lambda: len(sink.sent) >= 18)
        left = sink.sent[9:] if limit > len(bodies) else sorted(sink.sent[9:])
        assert left == [("stuck", body) for body in bodies]
        await until_async(lambda: not tally.trouble)
        outlet.stop()
        await running


async def test_a_state_that_cannot_be_read_is_ignored_and_told(topics, caplog):
    mine = topics(1)
    owner = Owner(mine.name, "group")
    mine.producer.produce(f"dwell-{mine.name}-sent", b"abc", f"{owner.of(7)}.lane".encode())
    mine.producer.produce(f"dwell-{mine.name}-sent", b"x" * 16, b"\xff")
    sink = OnceKafkaSink(mine.sink, 10_000, owner)
    await sink.open()
    mine.flush()
    assert not await sink.enter("lane", 7)
    assert "got 3 bytes" in caplog.text


def test_a_long_lease_is_no_longer_than_what_kafka_lets_a_transaction_take(topics, tmp_path):
    mine = topics(1)
    say(mine)
    with relaying(tmp_path / "store", [*ends(mine, mine.goes), "--lease", "2h"], tmp_path / "log"):
        assert sorted(numbers(mine.read(mine.goes, COUNT))) == list(range(COUNT))


def test_a_transaction_that_the_broker_finds_too_long_ends_the_relay_and_holds_nothing(tmp_path):
    with kafka_server(transaction_max_timeout_ms=30_000) as kafka:
        mine = Topics(kafka.hosts, "short", 1)
        say(mine)
        options = [*ends(mine, mine.goes), "--lease", "1m"]
        with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
            until(lambda: relay.process.poll() is not None)
            assert relay.process.returncode not in (0, None)
            assert "--lease: lets a transaction take 40000 ms" in relay.log
            assert "transaction.max.timeout.ms" in relay.log
        with dwell.open(tmp_path / "store") as queue:
            assert not any(topic.leased for topic in queue.stats().topics.values())
        with relaying(tmp_path / "store", ends(mine, mine.goes), tmp_path / "log"):
            assert sorted(numbers(mine.read(mine.goes, COUNT))) == list(range(COUNT))


@pytest.mark.parametrize("is_once", [False, True], ids=["at-least-once", "exactly-once"])
def test_a_record_cannot_name_the_topic_of_a_state_as_its_target(topics, tmp_path, is_once):
    mine = topics(1)
    state = f"dwell-{mine.name}-sent"
    mine.say(b"0" * 16, {**SOON, "dwell-to": state}, f"{mine.name}.lane")
    mine.say(b"1", SOON)
    mine.flush()
    options = ["--from", mine.source, "--to", mine.sink, "--hold", mine.name, "--dead", mine.dead]
    more = ["--exactly-once"] if is_once else []
    with relaying(tmp_path / "store", [*options, *more], tmp_path / "log"):
        assert numbers(mine.read(mine.goes, 1)) == [1]
        (dead,) = mine.read(mine.dead, 1)
    assert "keeps the state of relays" in dict(dead.headers())["dwell-reason"].decode()
