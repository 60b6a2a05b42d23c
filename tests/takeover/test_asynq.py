"""Tasks of asynq move off a Redis; asynq itself, in Go, puts them and works on them."""

import time

import pytest
import redis

import dwell
from dwell.errors import InvalidUrl
from tests.takeover.sources import FIRST_MS, asynq, contents, everything, moved

_GROUPED = "they are of a group, which asynq makes one task of"


def mails(store, topic="mails"):
    with dwell.open(store) as queue:
        return {message.id: message for message in everything(queue, topic)}


def test_what_cannot_be_a_message_stays_and_the_rest_keeps_what_asynq_knew(url, tmp_path):
    asynq(url, "odd")
    report = moved(tmp_path, f"asynq+{url}")
    assert (report.moved, report.balances, report.is_whole) == (2, True, False)
    large = next(reason for reason in report.by_reason if reason.startswith("body: got 2"))
    assert report.by_reason == {large: 1, _GROUPED: 2}
    assert report.left[:4] == (1, 2, 0, 0)
    found = mails(tmp_path)
    assert set(found) == {"fine", "empty"}
    fine = found["fine"]
    assert (fine.body, fine.max_attempts) == (b"\x00\xff", 4)
    assert fine.headers == {
        "traceparent": "00-1",
        "asynq-type": "a",
        "asynq-timeout-s": "60",
        "asynq-deadline-s": str(FIRST_MS // 1000),
    }
    assert (found["empty"].body, found["empty"].max_attempts) == (b"", 1)
    assert asynq(url, "read", "fine", "large") == ["fine false true", "large true false"]


def test_a_header_of_its_own_is_not_replaced(url, tmp_path):
    asynq(url, "fill", "2")
    pair = b"\x0a\x0aasynq-type\x12\x03own"
    with redis.Redis.from_url(url) as client:
        message = client.hget("asynq:{mails}:t:later-0", "msg")
        client.hset("asynq:{mails}:t:later-0", "msg", message + b"\x7a\x11" + pair)
    report = moved(tmp_path, f"asynq+{url}")
    assert (report.moved, report.left.delayed) == (3, 1)
    assert report.by_reason == {"they have a header asynq-type of their own": 1}


def test_equal_tasks_of_queues_with_slashes_stay_two(url, tmp_path):
    asynq(url, "slashes")
    report = moved(tmp_path, f"asynq+{url}", into="all")
    assert (report.moved, report.put["created"]) == (2, 2)
    assert set(mails(tmp_path, "all")) == {"a%2Fb/c", "a/b/c"}


def test_a_queue_that_is_named_twice_is_counted_once(url, tmp_path):
    asynq(url, "fill", "3")
    report = moved(tmp_path, f"asynq+{url}?queue=mails&queue=mails")
    assert (report.found.waiting, report.moved, report.gone) == (3, 3, 0)


def test_a_lock_of_uniqueness_goes_with_its_task(engine, url, tmp_path):
    # A paused queue keeps workers off, and moves.
    engine.ask("SET", "asynq:{mails}:paused", "1")
    assert asynq(url, "unique", "first") == ["false"]
    assert asynq(url, "unique", "second") == ["true"]
    assert moved(tmp_path, f"asynq+{url}").moved == 1
    assert asynq(url, "unique", "third") == ["false"]
    # The lock may be another task's by now.
    (lock,) = (key for key in contents(url) if b"unique" in key)
    engine.ask("SET", lock, "another")
    assert moved(tmp_path, f"asynq+{url}").moved == 1
    assert engine.ask("GET", lock) == "another"


def test_a_task_that_is_retried_keeps_its_due_and_attempts(url, tmp_path):
    asynq(url, "retries")
    report = moved(tmp_path, f"asynq+{url}")
    assert (report.found.delayed, report.moved) == (1, 1)
    (found,) = mails(tmp_path).values()
    assert found.max_attempts == 7
    assert found.headers["asynq-retried"] == "1"
    assert found.headers["asynq-error"] == "no way"
    assert 3_590_000 < found.due_ms - time.time_ns() // 1_000_000 <= 3_601_000


@pytest.mark.parametrize("change", ["later", "replaced", "archived"])
def test_a_task_that_changes_while_it_is_put_moves_in_its_new_version(
    engine, url, tmp_path, monkeypatch, change
):
    from dwell.takeover import asynq as place

    asynq(url, "fill", "2")
    remove, changes = place.AsynqPlace.let_go, iter([1])

    async def let_go(self, load, places):
        if load.puts.topic == "mails" and next(changes, None):
            if change == "later":
                engine.ask("ZADD", "asynq:{mails}:scheduled", 4_070_999_999, "later-0")
            elif change == "replaced":
                copy = "redis.call('HSET', KEYS[1], 'msg', redis.call('HGET', KEYS[2], 'msg'))"
                keys = [f"asynq:{{mails}}:t:later-{number}" for number in (0, 1)]
                engine.ask("EVAL", copy, 2, *keys)
            else:
                engine.ask("HSET", "asynq:{mails}:t:later-0", "state", "archived")
                engine.ask("ZREM", "asynq:{mails}:scheduled", "later-0")
        return await remove(self, load, places)

    monkeypatch.setattr(place.AsynqPlace, "let_go", let_go)
    report = moved(tmp_path, f"asynq+{url}?queue=mails")
    assert (report.balances, report.is_whole) == (True, True)
    first = mails(tmp_path)["later-0"]
    assert first.due_ms == (4_071_000_000_000 if change == "later" else FIRST_MS + 1_000)
    assert first.body == (b"1" if change == "replaced" else b"0")
    assert report.elsewhere == (change == "archived")


_MESSAGES = [
    b"\x0a",
    b"\xff" * 20,
    b"\x0a\x01a\x12\x05abc",
    b"\x08\x01",  # The type is a number.
    b"\x2a\x01x",  # The retries are a text.
    b"\x7a\x01x",  # A header is no pair.
    b"\x7a\x04\x08\x01\x10\x02",  # A header is of numbers.
    b"\x0a\x02\xff\xff",  # The type is no text.
    b"\x0b",
    b"\x82\x01\x01x",  # A field of a version to come.
]


def test_odd_tasks_end_nothing(engine, url, tmp_path):
    asynq(url, "fill", "1")
    for at, message in enumerate(_MESSAGES):
        engine.ask("RPUSH", "asynq:{orders}:pending", f"odd-{at}")
        engine.ask("HSET", f"asynq:{{orders}}:t:odd-{at}", "msg", message, "state", "pending")
    engine.ask("SET", "asynq:{orders}:t:text", "x")
    engine.ask("HSET", "asynq:{orders}:t:bare", "state", "pending")
    engine.ask("HSET", "asynq:{orders}:t:other", "state", "retry", "msg", b"\x0a\x01a")
    for id_ in ("gone", "text", "bare", "other"):
        engine.ask("RPUSH", "asynq:{orders}:pending", id_)
    for id_, score in (("far", "inf"), ("past", "-inf"), ("old", "-7")):
        engine.ask("HSET", f"asynq:{{orders}}:t:{id_}", "state", "scheduled", "msg", b"\x0a\x01a")
        engine.ask("ZADD", "asynq:{orders}:scheduled", score, id_)
    before = contents(url)
    assert moved(tmp_path, f"asynq+{url}", dry_run=True)
    assert contents(url) == before
    report = moved(tmp_path, f"asynq+{url}")
    assert (report.moved, report.held_back, report.balances) == (3, len(_MESSAGES) + 4, True)
    assert report.by_reason["they have fields that asynq 0.26 does not have"] == 1
    assert set(mails(tmp_path, "orders")) == {"now-0", "old"}


def test_what_is_no_asynq_is_refused(url, tmp_path):
    with pytest.raises(InvalidUrl, match="has no queues of asynq"):
        moved(tmp_path, f"asynq+{url}")
