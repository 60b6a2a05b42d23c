"""A topic without room holds up only what it is to hold, from whichever source."""

import asyncio
import contextlib
from random import Random

import pytest

import dwell
from dwell.errors import DwellError, Forbidden, StoreFull
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.kafka import source as kafka
from dwell.relay.kafka.source import KafkaSource
from dwell.relay.outbox import source as outbox
from dwell.relay.process import relay_of
from dwell.relay.rabbitmq import source as rabbitmq
from dwell.relay.settings import RelaySettings
from dwell.store.memory import MemoryStore
from tests.relay.outbox import Box, moving
from tests.waiting import until_async

COUNT = 40


@contextlib.asynccontextmanager
async def moving_to_workers(queue, source, **more):
    """Run a relay without a sink until the block ends."""
    relay = relay_of(queue, RelaySettings(source=source, sink=None, **more))
    stopping = asyncio.Event()
    running = asyncio.create_task(relay.run(stopping))
    try:
        yield relay
    finally:
        stopping.set()
        await running


async def ready(queue, topic):
    found = (await queue.stats()).topics.get(topic)
    return 0 if found is None else found.ready


async def drained(queue, topic, count):
    """Take and ack so many messages, a few at a time; return their bodies."""
    bodies = []
    while len(bodies) < count:
        batch = await queue.take(topic, 3, wait="60s")
        assert len(batch), f"{topic} got {len(bodies)}, expected {count}"
        bodies += map(bytes, batch.bodies)
        await queue.ack(batch)
    return bodies


def say_to_kafka(topics):
    """Write records for two topics by turns into a partition each; return the address."""
    mine = topics(2)
    for at in range(COUNT):
        for lane, topic in enumerate(("full", "other")):
            headers = {"dwell-to": topic, "dwell-delay": "1ms"}
            mine.say(b"%d" % at, headers, partition=lane)
    mine.flush()
    return mine.source


def say_to_rabbitmq(queues):
    mine = queues()
    headers = [{"dwell-to": topic, "dwell-delay": "0s"} for topic in ("full", "other")]
    mine.say_all([(b"%d" % at, one) for at in range(COUNT) for one in headers])
    return mine.source


def say_to_outbox(box: Box):
    for at in range(COUNT):
        for topic in ("full", "other"):
            box.put(topic, b"%d" % at)
    return box.address


@pytest.fixture(params=["kafka", "rabbitmq", "postgres", "sqlite"])
def source(request):
    """An address of each kind that gives ``COUNT`` messages for ``full`` and for ``other``."""
    fixtures = {"kafka": "topics", "rabbitmq": "queues"}
    says = {"kafka": say_to_kafka, "rabbitmq": say_to_rabbitmq}
    given = request.getfixturevalue(fixtures.get(request.param, request.param))
    return says.get(request.param, say_to_outbox)(given)


async def test_a_full_topic_holds_up_no_other_and_loses_nothing(source, tmp_path):
    async with dwell.open("memory:") as queue:
        await queue.configure("full", max_pending=7, on_full="refuse")
        # Smaller than what has no room, which would fill each read.
        async with moving_to_workers(queue, source, batch=10) as relay:
            await until_async(lambda: ready_of(queue, {"full": 7, "other": COUNT}))
            await until_async(lambda: "is full" in (relay.why_not_ready() or ""))
            bodies = await drained(queue, "full", COUNT)
            await until_async(lambda: relay.why_not_ready() is None)
            assert relay.tally.read == relay.tally.settled == 2 * COUNT
        assert bodies == [b"%d" % at for at in range(COUNT)]
        assert await ready(queue, "full") == 0
        assert sorted(await drained(queue, "other", COUNT)) == sorted(bodies)


class Guarded(MemoryStore):
    """A store that lets put and cancel in some topics only, as a server does by a token."""

    forbidden = frozenset({"full"})
    error = Forbidden

    def _check(self, topic):
        if topic in self.forbidden:
            raise self.error(f"token relay may not put to {topic}")

    async def put(self, puts, on_conflict):
        self._check(puts.topic)
        return await super().put(puts, on_conflict)

    async def cancel(self, topic, ids, versions=None):
        self._check(topic)
        return await super().cancel(topic, ids, versions)


@pytest.mark.parametrize("error", [Forbidden, StoreFull])
async def test_a_topic_without_the_right_to_it_holds_up_no_other(source, error):
    """Anybody who writes a record may name it; a quota may have no room for another one."""
    async with dwell.Queue(Guarded(dwell.RealClock())) as queue:
        queue.store.error = error
        async with moving_to_workers(queue, source, batch=10) as relay:
            await until_async(lambda: ready_of(queue, {"other": COUNT}))
            await until_async(lambda: "may not put to full" in (relay.why_not_ready() or ""))
            queue.store.forbidden = frozenset()
            await until_async(lambda: ready_of(queue, {"full": COUNT}))
            await until_async(lambda: relay.why_not_ready() is None)
            await until_async(lambda: relay.tally.read == relay.tally.settled == 2 * COUNT)
        bodies = await drained(queue, "full", COUNT)
        assert sorted(bodies) == sorted(b"%d" % at for at in range(COUNT))


async def ready_of(queue, counts):
    return all([await ready(queue, topic) == count for topic, count in counts.items()])


async def test_what_had_room_comes_no_second_time_after_a_restart(source):
    """Also where it stands behind what had none."""
    async with dwell.open("memory:") as queue:
        await queue.configure("full", max_pending=7, on_full="refuse")
        for _ in range(2):
            async with moving_to_workers(queue, source):
                await until_async(lambda: ready_of(queue, {"full": 7, "other": COUNT}))
        async with moving_to_workers(queue, source):
            bodies = await drained(queue, "full", COUNT)
        assert sorted(bodies) == sorted(b"%d" % at for at in range(COUNT))


async def test_a_full_topic_of_dead_letters_holds_up_no_good_row(box):
    """Bad rows wait until there is room for their letters."""
    bad = "INSERT INTO {table} (id, topic, body, due_ms) VALUES (:id, 'a b', :body, 0)"
    for at in range(5):
        box.do(bad, id=f"bad{at}", body=b"bad")
        box.put("jobs", b"%d" % at)
    async with dwell.open("memory:") as queue:
        await queue.configure("relay-dead", max_pending=2, on_full="refuse")
        async with moving(queue, box.address) as relay:
            await until_async(lambda: ready_of(queue, {"jobs": 5}))
            assert relay.why_not_ready() is not None
            assert await drained(queue, "relay-dead", 5) == [b"bad"] * 5
            await until_async(lambda: asyncio.to_thread(lambda: box.count() == 0))
            assert relay.tally.dead["source"] == 5


async def test_no_number_of_bad_rows_without_letters_holds_up_a_good_row(box, monkeypatch):
    """Also where the first of them would be tried again before the last was tried."""
    monkeypatch.setattr(outbox, "_REST_S", 0.001)
    bad = "INSERT INTO {table} (id, topic, body, due_ms) VALUES (:id, 'a b', :body, 0)"
    for at in range(COUNT):
        box.do(bad, id=f"bad{at}", body=b"bad")
    for at in range(COUNT):
        box.put("jobs", b"%d" % at)
    async with dwell.open("memory:") as queue:
        await queue.configure("relay-dead", max_pending=2, on_full="refuse")
        async with moving(queue, box.address, batch=2) as relay:
            await until_async(lambda: ready_of(queue, {"jobs": COUNT}))
            assert "pending" in (relay.why_not_ready() or "")
            assert await drained(queue, "relay-dead", COUNT) == [b"bad"] * COUNT
            await until_async(lambda: asyncio.to_thread(lambda: box.count() == 0))
        assert await drained(queue, "jobs", COUNT) == [b"%d" % at for at in range(COUNT)]


def test_a_pass_leaves_no_row_of_a_topic_behind_an_earlier_one():
    this = outbox.Pass()
    first = this.passed_over(100.0).to_seq
    this.defer(5, "early", 100.0)
    this.defer(9, None, 100.0)
    this.defer(12, "late", 100.0)
    assert this.passed_over(100.5) == (["early", "late"], 9)
    # The first row of one of them is ahead.
    assert this.passed_over(109.0) == (["early"], 9)
    this.turn_back(110.0)
    this.turn_back(115.0)
    # It took ten seconds to get there, and goes on for as long.
    assert this.passed_over(119.0) == (["early"], 9)
    assert this.passed_over(121.0) == ([], first)


async def test_a_lane_goes_on_at_the_record_that_had_no_room(topics):
    """What stands behind it in its partition is held, and is not held again."""
    mine = topics(1)
    for at in range(COUNT):
        topic = "full" if at % 4 == 1 else "other"
        mine.say(b"%d" % at, {"dwell-to": topic, "dwell-delay": "1ms"})
    mine.flush()
    others = [at for at in range(COUNT) if at % 4 != 1]
    async with dwell.open("memory:") as queue:
        await queue.configure("full", max_pending=1, on_full="refuse")
        # Ids are forgotten at once, so that whatever is held again is seen.
        await queue.configure("other", remember_ms=0)
        async with moving_to_workers(queue, mine.source) as relay:
            got = await drained(queue, "other", len(others))
            bodies = await drained(queue, "full", COUNT - len(others))
            await until_async(lambda: relay.tally.settled == COUNT)
        assert [int(body) for body in got] == others
        assert [int(body) for body in bodies] == [at for at in range(COUNT) if at % 4 == 1]
        assert await ready(queue, "other") == 0


async def test_an_offset_behind_a_deferred_record_is_not_committed(topics):
    mine = topics(1)
    for at in range(4):
        mine.say(b"%d" % at)
    mine.flush()
    found = []
    source = KafkaSource(mine.source)
    await source.open(Nobody())
    try:
        async with asyncio.timeout(60):
            while len(found) < 4:
                found += await source.read(10)
            await source.defer(found[1:])
            await source.done(found[:1])
            again = []
            while len(again) < 3:
                again += await source.read(10)
        assert [one.origin for one in again] == [one.origin for one in found[1:]]
        lane = found[0].lane
        is_committed = [source.is_committed(lane, one.origin) for one in found]
        assert is_committed == [True, False, False, False]
    finally:
        with contextlib.suppress(DwellError):
            await source.close()


@pytest.fixture
def queue_of_numbers(queues):
    """A queue with as many messages as there are numbers."""
    mine = queues()
    mine.say_all([(b"%d" % at, None) for at in range(COUNT)])
    return mine


async def check_left(mine, done):
    """Check that a queue of numbers still has all messages but those that are done."""
    left = await asyncio.to_thread(mine.read, mine.came, COUNT - len(done))
    assert sorted(one.body for one in left) == sorted({b"%d" % at for at in range(COUNT)} - done)


@pytest.mark.parametrize("seed", range(3))
async def test_only_what_is_done_is_acked_and_what_is_deferred_keeps_its_id(
    queue_of_numbers, seed, monkeypatch
):
    """Whatever is read, deferred and read again meanwhile."""
    monkeypatch.setattr(rabbitmq, "_REST_S", 0.0)
    draw, mine = Random(seed), queue_of_numbers
    source, done, reads = rabbitmq.RabbitMQSource(mine.source), set(), []
    ids = {}
    try:
        async with asyncio.timeout(60):
            while len(done) < COUNT // 2:
                reads.append(await source.read(draw.randint(1, 8)))
                if len(reads) < 2:
                    continue
                # The next batch is read before this one is settled.
                batch = reads.pop(0)
                assert all(ids.setdefault(one.body, one.id) == one.id for one in batch)
                good = [one for one in batch if draw.random() < 0.6]
                await source.defer([one for one in batch if one not in good])
                await source.done(good)
                done |= {one.body for one in good}
    finally:
        await source.close()
    await check_left(mine, done)


async def test_connections_that_are_lost_while_a_topic_is_full_narrow_nothing(queue_of_numbers):
    """The messages that had no room were read, so none of them broke the connection."""
    mine = queue_of_numbers
    source = rabbitmq.RabbitMQSource(mine.source)
    try:
        async with asyncio.timeout(60):
            for _ in range(6):
                while not (found := await source.read(COUNT)):
                    pass
                await source.defer(found)
                await source._connection.close()
            read = set()
            while len(read) < COUNT:
                read |= {one.body for one in await source.read(COUNT)}
    finally:
        await source.close()


async def test_connections_that_were_lost_with_nothing_held_slow_a_source_for_a_while(
    queue_of_numbers, monkeypatch
):
    monkeypatch.setattr(rabbitmq, "_WIDENED_AFTER", 2)
    source, done = rabbitmq.RabbitMQSource(queue_of_numbers.source), set()
    try:
        async with asyncio.timeout(60):
            for _ in range(4):
                while not await source.read(COUNT):
                    pass
                await source._connection.close()
            assert source._prefetch < 4
            while source._prefetch < 8:
                found = await source.read(COUNT)
                await source.done(found)
                done |= {one.body for one in found}
    finally:
        await source.close()
    await check_left(queue_of_numbers, done)


async def test_a_broker_that_is_away_narrows_nothing(queue_of_numbers, monkeypatch):
    """Only a connection that there was can have broken at a message."""
    source = rabbitmq.RabbitMQSource(queue_of_numbers.source)

    async def away():
        raise BrokerUnreachable("away")

    try:
        async with asyncio.timeout(60):
            await source.done(await source.read(COUNT))
            prefetch = source._prefetch
            await source._connection.close()
            with monkeypatch.context() as patch:
                patch.setattr(source._connection, "channel", away)
                for _ in range(9):
                    with pytest.raises(BrokerUnreachable):
                        await source.read(COUNT)
            await source.read(COUNT)
            assert source._prefetch == prefetch
    finally:
        await source.close()


async def test_what_is_read_again_after_an_outage_is_held(topics, tmp_path, monkeypatch):
    """A read that is tried again goes back itself, so what it gives is not to be dropped."""
    mine = topics(1)
    is_away, consumed = asyncio.Event(), kafka._consumed

    def away(consumer, limit):
        if is_away.is_set():
            raise BrokerUnreachable("away")
        found = consumed(consumer, limit)
        if found and not is_back.is_set():
            # Until the source was told to go back, and tried to.
            is_away.set()
        return found

    is_back = asyncio.Event()
    monkeypatch.setattr(kafka, "_consumed", away)
    async with dwell.open("memory:") as queue:
        await queue.configure("full", max_pending=2, on_full="refuse")
        await asyncio.to_thread(say_for_full, mine, range(6))
        async with moving_to_workers(queue, mine.source) as relay:
            await until_async(lambda: "source" in relay.tally.trouble and is_away.is_set())
            await until_async(lambda: ready_of(queue, {"full": 2}))
            await until_async(lambda: relay.tally.read == 2)
            is_back.set()
            is_away.clear()
            await queue.configure("full", max_pending=100)
            await asyncio.to_thread(say_for_full, mine, range(6, 8))
            await until_async(lambda: ready_of(queue, {"full": 8}))


def say_for_full(mine, numbers):
    for at in numbers:
        mine.say(b"%d" % at, {"dwell-to": "full", "dwell-delay": "0s"}, partition=0)
    mine.flush()


class Nobody:
    """Whoever is told of lanes, and has nothing to do."""

    async def open(self, lanes):
        """Do nothing."""

    async def adopt(self, counts):
        return set()

    async def close(self, lanes, *, is_lost=False):
        """Do nothing."""
