"""Job schedulers of BullMQ become schedules; BullMQ itself has made them."""

import re

import pytest

from dwell.errors import InvalidUrl
from tests.takeover.copies import copied, reasons, schedules
from tests.takeover.sources import FIRST_MS, bullmq

_HOUR_MS = 3_600_000


@pytest.fixture
def url(engine):
    engine.ask("FLUSHALL")
    return f"bullmq-schedulers+{engine.url}"


@pytest.fixture
def nexts(engine, url, monkeypatch):
    """Make job schedulers; return the next moment of each as BullMQ has computed it."""
    monkeypatch.setenv("TZ", "America/New_York")
    words = bullmq(engine.url, "schedulers")[-1].split()
    return {id_: int(ms) for id_, ms in zip(words[::2], words[1::2], strict=True)}


def test_each_runs_next_when_bullmq_would_run_it(url, nexts, tmp_path):
    report = copied(tmp_path, f"{url}?queue=mails&zone=America/New_York")
    assert reasons(report) == {
        "job scheduler 'limited' of mails": "limit: got 5, expected none: use an endDate",
        # BullMQ runs it on Tuesdays and on every second day, and Dwell on Tuesdays that are both.
        "job scheduler 'stepped' of mails": (
            "cron: got '0 9 */2 * 2', expected days that are listed where a weekday is too, such "
            "as 1-31/2 instead of */2"
        ),
    }
    assert (report.found, report.moved, report.refused) == (9, 7, 2)
    made = schedules(tmp_path)
    assert {name.removeprefix("bullmq:mails:") for name in made} == nexts.keys() - {
        "limited",
        "stepped",
    }
    for id_ in nexts.keys() - {"limited", "stepped"}:
        times = made[f"bullmq:mails:{id_}"].times
        assert times.after(nexts[id_] - 1) == nexts[id_], id_
    nightly = made["bullmq:mails:nightly"]
    assert (nightly.topic, nightly.body, nightly.zone) == ("mails", b'{"a":1}', "Europe/Berlin")
    assert (nightly.max_attempts, nightly.priority) == (3, 1024 + 2)
    assert nightly.headers["bullmq-name"] == "night"
    often = made["bullmq:mails:often"]
    assert (often.every_ms, often.body) == (90_000, b'"x"')
    assert made["bullmq:mails:local"].zone == "America/New_York"
    bounded = list(made["bullmq:mails:bounded"].times.following(0))
    assert bounded == [FIRST_MS + number * _HOUR_MS for number in range(6)]


def test_a_job_whose_id_ends_as_the_key_of_schedulers_is_no_queue(engine, url, nexts, tmp_path):
    engine.ask("HSET", "bull:mails:a:b:repeat", "name", "a")
    # Nine are of mails, and one is of orders.
    assert copied(tmp_path, f"{url}?zone=America/New_York").found == 10


def test_a_pattern_in_another_zone_is_refused(url, nexts, tmp_path):
    found = reasons(copied(tmp_path, f"{url}?queue=mails"))
    told = found["job scheduler 'local' of mails"]
    expected = r"zone: got UTC, where it runs at .*T04:30:00Z, expected .* at .*T0[89]:30:00Z: .*"
    assert re.fullmatch(expected, told)
    assert "bullmq:mails:local" not in schedules(tmp_path)


def test_it_is_repeated_and_nothing_there_changes(engine, url, nexts, tmp_path):
    before = sorted(engine.ask("KEYS", "*"))
    dry = copied(tmp_path, url, dry_run=True)
    assert dry.found == 10
    assert schedules(tmp_path) == {}
    first, again = copied(tmp_path, url), copied(tmp_path, url)
    assert (first.put["created"], again.put["kept"]) == (7, 7)
    assert {"bullmq:orders:nightly", "bullmq:mails:nightly"} <= schedules(tmp_path).keys()
    # A run there moves the next moment of what repeats after a span, and no other schedule comes.
    engine.ask("ZADD", "bull:mails:repeat", str(nexts["often"] + 90_000), "often")
    assert copied(tmp_path, url).put["kept"] == 7
    assert sorted(engine.ask("KEYS", "*")) == before


def test_one_that_is_odd_stops_no_other(engine, url, nexts, tmp_path):
    for at, (field, value) in enumerate(
        [
            ("pattern", "61 * * * *"),
            ("opts", "[1"),
            ("every", "soon"),
            ("endDate", "x"),
            ("tz", "No"),
        ]
    ):
        engine.ask("HSET", f"bull:mails:repeat:odd{at}", "pattern", "0 3 * * *", field, value)
        engine.ask("ZADD", "bull:mails:repeat", str(FIRST_MS), f"odd{at}")
    for at, score in (("5", "inf"), ("6", "-inf"), ("7", "1e300")):
        engine.ask("HSET", f"bull:mails:repeat:odd{at}", "every", "1000")
        engine.ask("ZADD", "bull:mails:repeat", score, f"odd{at}")
    # The hash of the last is gone, and an older BullMQ had none.
    engine.ask("ZADD", "bull:mails:repeat", str(FIRST_MS), "name:id:::0 3 * * *")
    report = copied(tmp_path, f"{url}?queue=mails&zone=America/New_York")
    found = reasons(report)
    assert (report.moved, report.refused, report.balances) == (7, 11, True)
    assert all(found[f"job scheduler 'odd{at}' of mails"] for at in range(8))
    assert "older BullMQ" in found["job scheduler 'name:id:::0 3 * * *' of mails"]


def test_what_is_no_bullmq_is_refused(engine, url, tmp_path):
    with pytest.raises(InvalidUrl, match="has no queues of BullMQ with prefix 'bull'"):
        copied(tmp_path, url)
    engine.ask("HSET", "bull:mails:meta", "version", "bullmq:4.1.0")
    with pytest.raises(InvalidUrl, match="expected bullmq:5 or bullmq:6"):
        copied(tmp_path, f"{url}?queue=mails")
    engine.ask("HSET", "bull:mails:meta", "version", "bullmq:6.1.0")
    engine.ask("SET", "bull:mails:repeat", "x")
    with pytest.raises(InvalidUrl, match="WRONGTYPE"):
        copied(tmp_path, f"{url}?queue=mails")
    for odd in ("", "?queue=", "?tube=a", "?zone="):
        with pytest.raises(InvalidUrl, match=r"url: got|has no queues"):
            copied(tmp_path, f"{url.replace('127.0.0.1', '') if not odd else url}{odd}")
