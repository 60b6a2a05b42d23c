"""Jobs of BullMQ move off a Redis; BullMQ itself puts them, and works on what is left."""

import subprocess
import time

import pytest

import dwell
from dwell.errors import InvalidUrl
from tests.takeover.sources import (
    FIRST_MS,
    bullmq,
    bullmq_command,
    contents,
    dues,
    everything,
    moved,
)

_FAMILY = "they have a parent or children"
_SCHEDULER = "a job scheduler made them, and makes the next one when they run"


def mails(store, topic="mails"):
    with dwell.open(store) as queue:
        return {message.id: message for message in everything(queue, topic)}


def test_what_cannot_be_a_message_stays_and_the_rest_keeps_what_bullmq_knew(url, tmp_path):
    bullmq(url, "odd")
    report = moved(tmp_path, f"bullmq+{url}")
    assert (report.moved, report.balances, report.is_whole) == (2, True, False)
    large = next(reason for reason in report.by_reason if reason.startswith("body: got 2"))
    assert report.by_reason == {large: 1, _FAMILY: 1, _SCHEDULER: 1}
    # The parent waits for its child.
    assert report.left[:4] == (2, 1, 1, 0)
    found = mails(tmp_path)
    assert set(found) == {"once", "fine"}
    fine = found["fine"]
    assert (fine.body, fine.priority, fine.max_attempts) == (b"7", 1024 + 3, 5)
    assert 3_590_000 < fine.due_ms - time.time_ns() // 1_000_000 < 3_600_000
    assert fine.headers["content-type"] == "application/json"
    assert fine.headers["bullmq-name"] == "fine"
    assert '"backoff"' in fine.headers["bullmq-opts"]


def test_bullmq_goes_on_and_is_told_what_was_removed(url, tmp_path):
    bullmq(url, "odd")
    with subprocess.Popen(
        bullmq_command(url, "works"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as works:
        assert works.stdout.readline() == b"ready\n"
        assert moved(tmp_path, f"bullmq+{url}").moved == 2
        told = works.communicate(b"\n", timeout=60)[0]
    # A job with the deduplication id of one that moved can be put again.
    assert told == b"true delayed fine,delayed once\n"


def test_priorities_and_paused_queues_keep_their_order(url, tmp_path):
    bullmq(url, "priorities")
    report = moved(tmp_path, f"bullmq+{url}")
    assert (report.moved, report.is_whole) == (4, True)
    with dwell.open(tmp_path) as queue:
        assert [m.id for m in queue.take("mails", 9)] == ["p0", "p1", "p5", "p9"]


def test_a_job_whose_delay_was_changed_is_due_then(url, tmp_path):
    """The fields of the job are not, so the score counts."""
    bullmq(url, "moved")
    assert moved(tmp_path, f"bullmq+{url}").moved == 1
    assert abs(dues(tmp_path)["moved"] - FIRST_MS - 500) < 5_000


def test_a_job_that_failed_keeps_the_attempts_that_are_left(url, tmp_path):
    bullmq(url, "retries")
    assert moved(tmp_path, f"bullmq+{url}").moved == 1
    (found,) = mails(tmp_path).values()
    assert found.max_attempts == 3
    assert 3_500_000 < found.due_ms - time.time_ns() // 1_000_000 <= 3_600_000


@pytest.mark.parametrize("change", ["later", "updated", "retried", "a child"])
def test_a_job_that_changes_while_it_is_put_moves_in_its_new_version(
    engine, url, tmp_path, monkeypatch, change
):
    from dwell.takeover import bullmq as place

    bullmq(url, "fill", "2")
    remove, changes = place.BullmqPlace.let_go, iter([1])

    async def let_go(self, load, places):
        if load.puts.topic == "mails" and next(changes, None):
            if change == "later":
                score = (FIRST_MS + 5_000_000) * 0x1000
                engine.ask("ZADD", "bull:mails:delayed", score, "later-0")
            else:
                fields = {"updated": ("data", "8"), "retried": ("atm", "1")}
                field = fields.get(change, ("parentKey", "bull:mails:parent"))
                engine.ask("HSET", "bull:mails:later-0", *field)
        return await remove(self, load, places)

    monkeypatch.setattr(place.BullmqPlace, "let_go", let_go)
    report = moved(tmp_path, f"bullmq+{url}?queue=mails")
    assert report.balances
    found = mails(tmp_path)
    assert ("later-0" in found) == (change != "a child")
    assert report.by_reason == ({_FAMILY: 1} if change == "a child" else {})
    if change == "later":
        assert found["later-0"].due_ms == FIRST_MS + 5_000_000
    elif change == "updated":
        assert found["later-0"].body == b"8"


def test_odd_jobs_end_nothing(engine, url, tmp_path):
    bullmq(url, "fill", "1")
    for id_ in ("gone", b"\xff", "text", "bare", "opts", "deep", "far", "0:12345"):
        engine.ask("RPUSH", "bull:orders:wait", id_)
    engine.ask("SET", "bull:orders:text", "x")
    for id_, *fields in (
        (b"\xff", "data", "1"),
        ("bare", "name", "x"),
        ("opts", "data", "1", "opts", "["),
        ("deep", "data", "1", "opts", "[" * 100_000),
        ("far", "data", "1", "opts", '{"attempts":1e400}', "priority", "inf"),
        ("endless", "data", "1"),
        ("before", "data", "1"),
    ):
        engine.ask(
            "HSET", b"bull:orders:" + (id_ if isinstance(id_, bytes) else id_.encode()), *fields
        )
    engine.ask("ZADD", "bull:orders:delayed", "inf", "endless")
    engine.ask("ZADD", "bull:orders:delayed", "-5", "before")
    before = contents(url)
    assert moved(tmp_path, f"bullmq+{url}", dry_run=True)
    assert contents(url) == before
    report = moved(tmp_path, f"bullmq+{url}")
    assert (report.moved, report.held_back, report.balances) == (3, 6, True)
    assert set(mails(tmp_path, "orders")) == {"now-0", "before"}


def test_two_queues_have_the_same_ids_in_one_topic(engine, url, tmp_path):
    bullmq(url, "fill", "1")
    engine.ask("RENAME", "bull:mails:later-0", "bull:mails:now-0")
    engine.ask("ZREM", "bull:mails:delayed", "later-0")
    engine.ask("ZADD", "bull:mails:delayed", FIRST_MS * 0x1000, "now-0")
    report = moved(tmp_path, f"bullmq+{url}", into="all")
    assert (report.moved, report.others) == (2, 0)
    assert set(mails(tmp_path, "all")) == {"mails/now-0", "orders/now-0"}


def test_other_versions_and_systems_are_refused(engine, url, tmp_path):
    with pytest.raises(InvalidUrl, match="has no queues of BullMQ"):
        moved(tmp_path, f"bullmq+{url}")
    # Bull, its forerunner, has other keys.
    engine.ask("RPUSH", "bull:mails:wait", "1")
    with pytest.raises(InvalidUrl, match="queue 'mails' is of None, expected bullmq:5"):
        moved(tmp_path, f"bullmq+{url}?queue=mails")
    bullmq(url, "fill", "1")
    for version in ("bullmq:7.0.0", "bullmq:50.0", "bullmq-pro:6.0.0"):
        engine.ask("HSET", "bull:mails:meta", "version", version)
        with pytest.raises(InvalidUrl, match=version):
            moved(tmp_path, f"bullmq+{url}")
    engine.ask("HSET", "bull:mails:meta", "version", "bullmq:5.80.0")
    assert moved(tmp_path, f"bullmq+{url}").moved == 2


def test_a_prefix_is_that_of_an_app(engine, url, tmp_path):
    bullmq(url, "fill", "1")
    for key in list(contents(url)):
        engine.ask("RENAME", key, key.replace(b"bull:", b"my[a]pp:"))
    with pytest.raises(InvalidUrl, match="has no queues"):
        moved(tmp_path, f"bullmq+{url}")
    assert moved(tmp_path, f"bullmq+{url}?prefix=my[a]pp").moved == 2


def test_a_number_of_bullmq_is_no_identity(engine, url, tmp_path):
    """BullMQ counts its jobs, and begins again in a Redis that was emptied."""
    for run in ("first", "second"):
        engine.ask("FLUSHALL")
        bullmq(url, "counted", run)
        report = moved(tmp_path, f"bullmq+{url}")
        assert (report.put["created"], report.put["kept"]) == (1, 0)
        with dwell.open(tmp_path) as queue:
            (message,) = queue.take("mails")
            assert message.json() == {"run": run}
            assert message.id.startswith("1@")
            queue.ack(message)


def test_a_queue_that_only_flows_have_filled_stops_no_other(engine, url, tmp_path):
    bullmq(url, "flow")
    engine.ask("HSET", "bull:flows:meta", "opts.maxLenEvents", "10000")
    engine.ask("HDEL", "bull:flows:meta", "version")
    report = moved(tmp_path, f"bullmq+{url}")
    assert (report.moved, report.balances, sum(report.by_reason.values())) == (1, True, 1)
    assert "version of BullMQ of their queue is unknown" in next(iter(report.by_reason))
    with pytest.raises(InvalidUrl, match="queue 'flows' is of None, expected bullmq:5"):
        moved(tmp_path, f"bullmq+{url}?queue=flows")


def test_a_queue_that_is_not_there_is_refused(url, tmp_path):
    bullmq(url, "counted", "x")
    engine_url = f"bullmq+{url}?queue=mials"
    with pytest.raises(InvalidUrl, match="queue 'mials' is of None"):
        moved(tmp_path, engine_url)
