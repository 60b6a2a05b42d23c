"""What waits in a queue of RabbitMQ moves into a queue of Dwell's."""

import json
import time

import pytest

import dwell
from dwell.batch.stats import TopicStats
from dwell.errors import InvalidUrl
from dwell.relay.contract import BrokerUnreachable
from dwell.takeover.process import run
from tests.relay.conftest import queues, rabbitmq_hosts, redis_url  # noqa: F401 - fixtures
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
def test_properties_too_large_for_a_message_make_a_dead_letter(
    store,
    queues,  # noqa: F811
    redis_url,  # noqa: F811
    tmp_path,
):
    """Its body is worth more than its properties; the messages beside it are moved whole."""
    mine = queues()
    bodies = [b"%d" % at for at in range(6)]
    large = {"trace": [{"n": at} for at in range(6_000)]}
    mine.say_all([(body, large if body == b"3" else {"n": "v"}) for body in bodies])
    new = str(tmp_path) if store == "folder" else f"{redis_url}?prefix=large"
    report = run(new, mine.source, into="jobs", tell=lambda report: None)
    assert (report.moved, report.put["dead"]) == (6, 1)
    assert report.balances
    with dwell.open(new) as queue:
        whole = queue.take("jobs", 10)
        assert sorted(whole.bodies) == [b"0", b"1", b"2", b"4", b"5"]
        assert all(m.headers["n"] == "v" for m in whole)
        (letter,) = queue.take("takeover-dead", 10)
    assert letter.body == b"3"
    assert "expected" in letter.headers["dwell-reason"]


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


def test_a_stream_is_refused(queues, tmp_path):  # noqa: F811
    mine = queues()
    mine.declare(stream := f"{mine.name}-stream", **{"x-queue-type": "stream"})
    with pytest.raises(InvalidUrl, match="stream"):
        moved(tmp_path, f"{mine.hosts}/?queue={stream}")


def test_what_cancels_another_comes_to_nothing_and_ends_nothing(queues, tmp_path):  # noqa: F811
    mine = queues()
    mine.say(b"1", {"x-delay": 3_600_000, "dwell-id": "one"})
    mine.say_all([(b"", {"dwell-cancel": "one"})] * 2)
    mine.say(b"2")
    report = moved(tmp_path, mine.source)
    assert (report.moved, report.put["cancelled"]) == (2, 1)
    assert report.balances
    assert report.is_whole
    with dwell.open(tmp_path) as queue:
        assert queue.stats().topics[mine.came] == TopicStats(ready=1)
