"""What waits in a queue of RabbitMQ moves into a queue of Dwell's."""

import asyncio
import json
import logging
import time

import aiormq
import pytest

import dwell
from dwell.batch.stats import TopicStats
from dwell.clock import RealClock
from dwell.errors import InvalidUrl
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.rabbitmq.connection import Connection
from dwell.takeover import broker
from dwell.takeover.broker import RabbitMQPlace
from dwell.takeover.process import run
from tests.relay.conftest import queues, rabbitmq_hosts, redis_url  # noqa: F401 - fixtures
from tests.relay.test_rabbitmq import Microseconds
from tests.waiting import until

MESSAGES = 1_000


def moved(folder, url, **how):
    return run(str(folder), url, tell=lambda report: None, **how)


def test_all_that_waits_moves(queues, tmp_path):  # noqa: F811
    mine = queues()
    now_ms = time.time_ns() // 1_000_000
    delays = [0 if at % 2 else 3_600_000 for at in range(MESSAGES)]
    mine.say_all([(b"%d" % at, {"x-delay": delay}) for at, delay in enumerate(delays)])
    mine.say(b"[]", {"n": "v"})
    report = moved(tmp_path, mine.source, dry_run=True)
    assert (report.found.ready, report.moved) == (MESSAGES + 1, 0)
    report = moved(tmp_path, mine.source)
    assert (report.moved, report.put["created"]) == (MESSAGES + 1, MESSAGES + 1)
    assert report.balances
    assert report.is_whole
    assert (report.left.here, report.came, report.gone) == (0, 0, 0)
    with dwell.open(tmp_path) as queue:
        ready = [m for page in queue.pages(mine.came, "ready") for m in page]
        later = [m for page in queue.pages(mine.came, "delayed") for m in page]
    bodies = (
        sorted(json.loads(m.body) for m in some if m.body != b"[]") for some in (ready, later)
    )
    assert [*bodies] == [list(range(1, MESSAGES, 2)), list(range(0, MESSAGES, 2))]
    assert all(m.due_ms >= now_ms + 3_600_000 for m in later)
    assert [m.headers["n"] for m in ready if m.body == b"[]"] == ["v"]


def test_what_is_no_message_is_a_dead_letter(queues, tmp_path):  # noqa: F811
    mine = queues()
    mine.say(b"bad", {"dwell-delay": "soon"})
    mine.say(b"good")
    report = moved(tmp_path, mine.source, into="jobs")
    assert (report.moved, report.put["dead"]) == (2, 1)
    assert report.balances
    with dwell.open(tmp_path) as queue:
        assert [m.body for m in queue.take("jobs", 9)] == [b"good"]
        assert [m.body for m in queue.take("takeover-dead", 9)] == [b"bad"]


@pytest.mark.parametrize("store", ["folder", "redis"])
def test_what_no_message_can_hold_stays(
    store,
    queues,  # noqa: F811
    redis_url,  # noqa: F811
    tmp_path,
):
    """A part of it would be no copy; the messages around it are moved whole."""
    mine = queues()
    large = {"trace": [{"n": at} for at in range(6_000)]}
    mine.say_all([(b"%d" % at, {"n": "v"}) for at in range(3)])
    mine.say_all([(b"x" * 2_000_000, {"n": "v"}), (b"large", large), (b"bad", {"x-delay": [1]})])
    mine.say_all([(b"%d" % at, {"n": "v"}) for at in range(3, 6)])
    new = str(tmp_path) if store == "folder" else f"{redis_url}?prefix=large"
    for report in (run(new, mine.source, into="jobs", tell=lambda report: None) for _ in range(2)):
        assert (report.held_back + report.refused, report.left.ready) == (3, 3)
        assert report.balances
        assert not report.is_whole
    assert (report.moved, report.put["dead"]) == (0, 0)
    with dwell.open(new) as queue:
        whole = queue.take("jobs", 10)
        assert sorted(whole.bodies) == [b"%d" % at for at in range(6)]
        assert all(m.headers["n"] == "v" for m in whole)
        assert not queue.take("takeover-dead", 10)
    assert sorted(len(one.body) for one in mine.read(mine.came, 3)) == [3, 5, 2_000_000]


def test_more_that_stay_than_are_prefetched_hold_up_nothing(queues, tmp_path):  # noqa: F811
    mine = queues()
    large = b"x" * (dwell.message.MAX_BODY_BYTES + 1)
    mine.say_all([*[(large, None)] * 9, (b"1", None)])
    report = moved(tmp_path, f"{mine.source}&prefetch=2")
    assert (report.moved, report.held_back, report.left.ready) == (1, 9, 9)


@pytest.mark.parametrize("on_full", ["drop", "refuse"])
def test_what_a_full_topic_does_not_take_stays(on_full, queues, tmp_path):  # noqa: F811
    mine = queues()
    with dwell.open(tmp_path) as queue:
        for topic in ("jobs", "takeover-dead"):
            queue.configure(topic, max_pending=1, on_full=on_full)
    mine.say_all([(b"1", None), (b"2", None)] + [(b"3", {"dwell-delay": "soon"})] * 2)
    report = moved(tmp_path, mine.source, into="jobs")
    assert (report.moved, report.put["dead"]) == (2, 1)
    assert (report.refused, report.left.ready) == (2, 2)
    assert report.balances


@pytest.mark.parametrize("name", ["message_id", "dwell-id"])
@pytest.mark.parametrize("what", ["good", "bad"])
def test_another_message_of_an_id_stays(name, what, queues, tmp_path):  # noqa: F811
    mine = queues()
    headers = {"dwell-delay": "soon"} if what == "bad" else {}
    for body in (b"first", b"second", b"first"):
        if name == "message_id":
            mine.say(body, headers, message_id="one")
        else:
            mine.say(body, {**headers, "dwell-id": "one"})
    report = moved(tmp_path, f"{mine.source}&id=message_id", into="jobs")
    if (name, what) == ("dwell-id", "bad"):
        # A refused message has not got the id that it names.
        assert (report.moved, report.others) == (3, 0)
        return
    assert (report.moved, report.others, report.left.ready) == (2, 1, 1)
    assert report.balances
    (left,) = mine.read(mine.came, 1)
    assert left.body == b"second"


def test_another_due_of_an_id_stays(queues, tmp_path):  # noqa: F811
    mine = queues()
    for year in (2098, 2099, 2098):
        headers = {"dwell-due-ms": f"{year}-01-01T00:00:00Z", "dwell-id": "one"}
        mine.say(b"same", headers)
    report = moved(tmp_path, mine.source)
    assert (report.moved, report.others, report.left.ready) == (2, 1, 1)


def test_what_a_killed_takeover_had_put_is_recognised(queues, tmp_path):  # noqa: F811
    """Each delivery has another count, and the death of an expired message another time."""
    mine = queues(**{"x-queue-type": "quorum"})
    source = f"{mine.source}&id=message_id"
    for at in range(3):
        mine.say(b"%d" % at, {"n": "v", "x-delay": 3_600_000 * (at % 2)}, message_id=f"m{at}")
    mine.say(b"3", {"n": "v"}, message_id="m3", expiration="3600000")
    mine.say(b"4", {"dwell-delay": "soon"}, message_id="m4")
    mine.say(b"5", {"dwell-due-ms": "1000"}, message_id="m5")
    mine.say(
        b"6", {"dwell-due-ms": "2099-01-01T00:00:00Z", "raw": bytearray(b"\xff")}, message_id="m6"
    )

    async def die():
        queue = dwell.Queue(dwell.handle.store_at(str(tmp_path), RealClock(), {}))
        async with queue:
            place = RabbitMQPlace(source, queue)
            await place.open()
            count = 0
            while count < 7:
                for load in await place.lend(100):
                    await queue.put_puts(load.puts)
                    count += len(load.puts)
            await place.close()

    asyncio.run(die())
    time.sleep(1.1)
    report = moved(tmp_path, source)
    assert (report.moved, report.put["kept"], report.put["dead"]) == (7, 6, 1)
    assert (report.others, report.left.ready) == (0, 0)


def test_a_queue_or_a_broker_that_is_not_there_is_told(queues, tmp_path):  # noqa: F811
    mine = queues()
    with pytest.raises(BrokerUnreachable, match="no queue 'none'"):
        moved(tmp_path, f"{mine.hosts}/?queue=none")
    with pytest.raises(BrokerUnreachable):
        moved(tmp_path, "amqp://127.0.0.1:1/?queue=a")
    with pytest.raises(InvalidUrl, match="needs --into"):
        moved(tmp_path, f"{mine.hosts}/?queue=a%2Fb")


def test_what_was_delivered_before_is_told(queues, tmp_path):  # noqa: F811
    """Nobody can say whether a takeover that was killed had put it."""
    mine = queues()
    mine.say_all([(b"%d" % at, None) for at in range(10)])

    async def leave(channel):
        for _ in range(4):
            await channel.basic_get(mine.came)

    mine.by_channel(leave)
    until(lambda: mine.ready(mine.came) == 10)
    report = moved(tmp_path, mine.source)
    assert (report.moved, report.again) == (10, 4)


def test_what_stays_is_not_told_as_delivered_before(queues, tmp_path):  # noqa: F811
    mine = queues()
    mine.say(b"x" * 2_000_000)
    reports = [moved(tmp_path, mine.source) for _ in range(2)]
    assert [(one.held_back, one.again) for one in reports] == [(1, 0)] * 2


@pytest.mark.parametrize("is_dry", [False, True])
def test_a_stream_is_refused(queues, tmp_path, is_dry):  # noqa: F811
    mine = queues()
    mine.declare(stream := f"{mine.name}-stream", **{"x-queue-type": "stream"})
    with pytest.raises(InvalidUrl, match="stream"):
        moved(tmp_path, f"{mine.hosts}/?queue={stream}", dry_run=is_dry)


def test_what_cancels_another_comes_to_nothing_and_ends_nothing(queues, tmp_path):  # noqa: F811
    mine = queues()
    mine.say(b"1", {"x-delay": 3_600_000, "dwell-id": "one"})
    mine.say_all([(b"", {"dwell-cancel": "one"})] * 2)
    mine.say(b"2")
    report = moved(tmp_path, mine.source)
    assert (report.moved, report.gone) == (2, 2)
    assert report.balances
    assert report.is_whole
    with dwell.open(tmp_path) as queue:
        assert queue.stats().topics[mine.came] == TopicStats(ready=1)


def test_what_the_client_cannot_read_stays_and_is_told(queues, tmp_path):  # noqa: F811
    """Each delivery counts, and this queue drops what was delivered too often."""
    mine = queues(**{"x-queue-type": "quorum", "x-delivery-limit": 8})
    mine.say_all([(b"%d" % at, None) for at in range(30)])

    async def publish(channel):
        await channel.basic_publish(b"bad", routing_key=mine.came, properties=Microseconds())

    mine.by_channel(publish)
    mine.say_all([(b"%d" % at, None) for at in range(10)])
    reports = [moved(tmp_path, f"{mine.source}&prefetch=20") for _ in range(3)]
    # A quorum queue may put those behind it in front of it, as it puts them back.
    assert reports[0].left.ready <= 11
    for report in reports:
        assert report.left.ready > 0
        assert dict(report.by_reason) == {broker._UNREADABLE: report.left.ready}
        assert (report.balances, report.is_whole) == (True, False)


def test_acks_that_are_lost_count_once(queues, tmp_path, monkeypatch):  # noqa: F811
    mine = queues()
    for at in range(20):
        mine.say(b"%d" % at, message_id=f"m{at}")
    ack, lost = aiormq.Channel.basic_ack, []

    async def basic_ack(self, *words, **more):
        lost.append(words)
        await (ack(self, *words, **more) if lost[1:] else self.connection.close())

    monkeypatch.setattr(aiormq.Channel, "basic_ack", basic_ack)
    report = moved(tmp_path, f"{mine.source}&id=message_id")
    assert lost
    assert (report.moved, report.came, report.gone, report.left.ready) == (20, 0, 0, 0)
    assert report.put["kept"] > 0
    assert report.balances


class Broker:
    """A broker that is away for some seconds after the takeover has asked it so often."""

    def __init__(self, monkeypatch, asked, away_s):
        self.until_s = None
        opened = Connection.channel

        async def channel(connection):
            nonlocal asked
            asked -= 1
            if asked < 0 and self.until_s is None:
                self.until_s = time.monotonic() + away_s
            if self.until_s is not None and time.monotonic() < self.until_s:
                await connection.close()
                raise BrokerUnreachable("away")
            return await opened(connection)

        monkeypatch.setattr(Connection, "channel", channel)


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_a_broker_that_is_away_for_a_moment_ends_nothing(
    asked,
    queues,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    mine = queues()
    mine.say_all([(b"%d" % at, None) for at in range(20)])
    Broker(monkeypatch, asked, 0.15)
    report = moved(tmp_path, mine.source)
    assert (report.moved, report.left.ready, report.balances) == (20, 0, True)


@pytest.mark.parametrize(("asked", "is_long"), [(1, False), (2, False), (2, True)])
def test_a_broker_that_is_away_is_waited_for(
    asked,
    is_long,
    queues,  # noqa: F811
    tmp_path,
    monkeypatch,
    caplog,
):
    monkeypatch.setattr(broker, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(broker, "_TOLD_S", 0.1)
    monkeypatch.setattr(broker, "_AWAY_S", 2.0 if is_long else 60.0)
    mine = queues()
    mine.say_all([(b"%d" % at, None) for at in range(20)])
    Broker(monkeypatch, asked, 3_600 if is_long else 2.0)
    with caplog.at_level(logging.WARNING, "dwell"):
        if is_long:
            with pytest.raises(BrokerUnreachable, match="away"):
                moved(tmp_path, mine.source)
        else:
            report = moved(tmp_path, mine.source)
            assert (report.moved, report.left.ready, report.balances) == (20, 0, True)
            assert report.is_whole
    assert caplog.text.count("away: trying again for") == 1
