"""The ends of Kafka by themselves, over a real one."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from dwell.relay.contract import LaneLost
from dwell.relay.kafka.once import OnceKafkaSink
from dwell.relay.kafka.source import KafkaSource, _Place
from dwell.relay.record import Record
from dwell.relay.rules import Rules
from dwell.relay.sent import Owner, name_of
from tests.waiting import until_async


class Lanes:
    """Whoever is told of lanes."""

    def __init__(self):
        self.open_ones = set()

    async def open(self, lanes):
        self.open_ones |= set(lanes)

    async def adopt(self, counts):
        return set()

    async def close(self, lanes, *, is_lost=False):
        self.open_ones -= set(lanes)


class Failing:
    """A consumer whose first commit fails: at once, by its answer for one partition, or by none."""

    def __init__(self, source, how):
        self._source, self._consumer = source, source._consumer
        self._how, self.fails = how, 1
        self._answer = []

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def consume(self, *args):
        if self._answer:
            self._source._answered(None, self._answer)
            self._answer = []
        return self._consumer.consume(*args)

    def commit(self, *, offsets, asynchronous):
        assert asynchronous, "an answer may never come"
        if not self.fails:
            self._consumer.commit(offsets=offsets, asynchronous=True)
            return
        self.fails -= 1
        error = KafkaError(KafkaError.REQUEST_TIMED_OUT, "Broker: Request timed out")
        if self._how == "all":
            raise KafkaException(error)
        bad, *good = sorted(offsets, key=lambda one: one.partition)
        if self._how == "one":
            place = {"topic": bad.topic, "partition": bad.partition, "offset": bad.offset}
            self._answer = [SimpleNamespace(**place, error=error)]
            if good:
                self._consumer.commit(offsets=good, asynchronous=True)


@pytest.mark.parametrize("how", ["all", "one", "none"])
async def test_a_commit_that_failed_is_made_again(topics, how, monkeypatch):
    """Without it nothing of the lane ever leaves where it does exactly once."""
    monkeypatch.setattr("dwell.relay.kafka.source._COMMIT_S", 1.0)
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
        source._consumer = Failing(source, how)
        await source.done(found)
        assert not any(source.is_committed(one.lane, one.origin) for one in found)

        async def are_committed():
            assert not await source.read(10)
            return all(source.is_committed(one.lane, one.origin) for one in found)

        await until_async(are_committed)
        assert source._consumer.fails == 0
        lane, origin = found[0].lane, found[0].origin
        mark = origin[-9:]
        assert not source.is_committed(lane, f"{lane}-9{mark}")
        # None of these is a record that the lane may still give.
        many = f"{lane}-{'9' * 5_000}{mark}"
        for no_record in ("by-hand", f"{lane}-9@otherone", f"{lane}x-9{mark}", many):
            assert source.is_committed(lane, no_record)
    finally:
        await source.close()
    assert not lanes.open_ones


async def test_a_lane_that_is_entered_knows_what_was_sent_of_it_by_whomever(topics):
    mine = topics(1)
    names = {lane: [name_of(at, lane), name_of(at + 7, lane)] for at, lane in enumerate("abc")}
    owner = Owner(mine.name, "group")
    first, second = (OnceKafkaSink(mine.sink, 10_000, owner) for _ in range(2))
    for sink in (first, second):
        await sink.open()
    for lane, sent in names.items():
        assert not await first.enter(lane, 7)
        records = [Record(mine.goes, "", lane.encode())]
        assert not any(await first.send_once(lane, records, sent))
    for lane, sent in names.items():
        assert await second.enter(lane, 7) == sent
    later = [name_of(99, "d")]
    assert not any(await second.send_once("b", [Record(mine.goes, "", b"d")], later))
    # It has read the topic before, and not what came since.
    assert await first.enter("b", 7) == later
    with pytest.raises(LaneLost):
        await second.send_once("b", [Record(mine.goes, "", b"e")], later)
    assert len(mine.read(mine.goes, 4)) == 4


async def test_a_cancel_names_a_place_in_a_topic_that_another_relay_reads(topics):
    """Each of two members has one of two topics."""
    one, other = topics(1), topics(1)
    url = f"kafka://{one.hosts}/{one.came},{other.came}?group={one.name}"
    sources = [KafkaSource(url) for _ in range(2)]
    lanes = [Lanes(), Lanes()]

    async def shared():
        for source in sources:
            await source.read(1)
        return all(len(mine.open_ones) == 1 for mine in lanes)

    try:
        for source, mine in zip(sources, lanes, strict=True):
            await source.open(mine)
        await until_async(shared)
        for topic, named in ((one, other), (other, one)):
            topic.say(None, {"dwell-cancel": f"{named.came}-0-7"})
            topic.flush()
        for source in sources:
            while not (found := await source.read(1)):
                pass
            said = Rules(to="to").read(found[0], now_ms=1)
            assert said.id in said.or_id
            assert "@" in said.or_id
    finally:
        for source in sources:
            await source.close()


async def test_a_record_from_before_a_lane_was_lost_says_nothing_of_it_since():
    source = KafkaSource("kafka://127.0.0.1:9/t?group.id=g")
    source._mine, source._turns = {"t-0": ("t", 0)}, Counter({"t-0": 2})
    old, new = (
        Record("t", "", b"", lane="t-0", place=_Place(("t", 0), offset, "", turn))
        for offset, turn in ((5, 1), (9, 2))
    )
    await source.done([new])
    await source.done([old])
    await source.defer([old])
    assert source._done == {"t-0": new.place}
    assert not source._deferred
    # Nor does one whose lane is another member's by now.
    source._mine, source._done = {}, {}
    await source.done([new])
    assert not source._done
