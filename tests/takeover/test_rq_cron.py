"""Jobs of RQ's cron schedulers become schedules; RQ itself shows them in Redis."""

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from dwell.calendar.epoch import to_ms
from dwell.errors import InvalidUrl
from dwell.takeover.entries import moment_of
from tests.takeover.copies import copied, reasons, schedules
from tests.takeover.test_rq import rq


@pytest.fixture
def url(engine, monkeypatch):
    engine.ask("FLUSHALL")
    monkeypatch.setenv("TZ", "America/New_York")
    return f"rq-cron+{engine.url}"


def by_rule(store):
    return {one.cron or one.every_ms: one for one in schedules(store).values()}


def test_each_runs_next_when_rq_would_run_it(engine, url, tmp_path):
    lines = rq(engine.url, "cron", "first")[-4:]
    # A span begins with microseconds, and no run is early.
    nexts = [to_ms(moment_of(line, "next") + timedelta(microseconds=999)) for line in lines]
    report = copied(tmp_path, f"{url}?zone=America/New_York")
    assert reasons(report) == {
        "cron job 4 of 'first'": "args: got values that are not JSON, which RQ does not show"
    }
    assert (report.found, report.moved, report.refused) == (4, 3, 1)
    found = by_rule(tmp_path)
    for rule, next_ms in zip(("0 3 * * *", 90_000, "*/5 9-17 * * 1-5"), nexts, strict=False):
        assert found[rule].times.after(next_ms - 1) == next_ms
    nightly, often = found["0 3 * * *"], found[90_000]
    assert (nightly.topic, nightly.zone, nightly.ttl_ms) == ("mails", "America/New_York", 600_000)
    assert json.loads(nightly.body) == {
        "func": "builtins.print",
        "args": [1, "a"],
        "kwargs": {"end": ""},
    }
    assert nightly.headers["rq-timeout"] == "30"
    assert often.name.startswith("rq:often:")
    assert (often.topic, often.headers["rq-meta"]) == ("orders", '{"a": 1}')


def test_a_line_in_another_zone_is_refused(engine, url, tmp_path):
    rq(engine.url, "cron", "first")
    found = reasons(copied(tmp_path, url))
    assert "zone: got UTC, where it runs at" in found["cron job 1 of 'first'"]
    assert list(by_rule(tmp_path)) == [90_000]


def test_a_zone_that_one_line_shows_to_be_wrong_is_wrong_for_all(engine, url, tmp_path):
    rq(engine.url, "lines", "*/5 * * * *;0 3 * * *")
    found = reasons(copied(tmp_path, url))
    assert set(found) == {"cron job 1 of 'lines'", "cron job 2 of 'lines'"}
    assert all("zone: got UTC, where it runs at" in reason for reason in found.values())


def test_a_line_that_runs_earlier_in_a_wrong_zone_is_refused(engine, url, tmp_path):
    """Though it also runs there when RQ runs it next, in two hours."""
    now = datetime.now(ZoneInfo("America/New_York"))
    hours = {(now.astimezone(UTC).hour + later) % 24 for later in range(3)}
    hours.add((now.hour + 2) % 24)
    rq(engine.url, "lines", f"*/5 {','.join(map(str, sorted(hours)))} * * *")
    found = reasons(copied(tmp_path, url))
    assert "zone: got UTC, where it runs at" in found["cron job 1 of 'lines'"]


def test_lines_of_croniter_run_as_there(engine, url, tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    kept = ["0 9 * * 1/2", "0 9 * * mon/2,6", "0 9 * * 7/3", "0 9 * * 6/2", "0 9 * * 1-5/2"]
    kept += ["0 0 * * * 0", "5 4 1/7 * * 30", "0 9 * * 4-7/3", "0 9 * 3/4 *", "@weekly"]
    kept += ["0 9 * * fri-mon", "0 22-2 * * *", "0 0 28-3 nov-feb *", "0 9 * * sat-sun"]
    lines = [*kept, "0 9-9/3 * * *", "0 9 * * fri-5/2", "50-10/20 9 * * *"]
    told = rq(engine.url, "lines", ";".join(lines))[-len(lines) :]
    report = copied(tmp_path, url)
    refused = reasons(report)
    assert set(refused) == {f"cron job {number} of 'lines'" for number in (15, 16, 17)}
    assert all("in place of a range" in reason for reason in refused.values())
    by_line = {json.loads(one.body)["args"][0]: one for one in schedules(tmp_path).values()}
    for line, runs in zip(kept, told, strict=False):
        first_ms, *rest_ms = (int(run) * 1000 for run in runs.split())
        found = by_line[line].times.following(first_ms)
        assert list(islice(found, len(rest_ms))) == rest_ms, line


def test_it_is_repeated_beside_a_second_scheduler(engine, url, tmp_path):
    rq(engine.url, "cron", "first")
    before = sorted(engine.ask("KEYS", "*"))
    place = f"{url}?zone=America/New_York"
    assert copied(tmp_path, place, dry_run=True).put["created"] == 3
    assert schedules(tmp_path) == {}
    assert copied(tmp_path, place).put["created"] == 3
    assert sorted(engine.ask("KEYS", "*")) == before
    rq(engine.url, "cron", "second")
    again = copied(tmp_path, place)
    assert (again.put["kept"], again.put["created"], again.others) == (3, 0, 0)
    assert len(schedules(tmp_path)) == 3


def test_a_job_that_is_registered_twice_runs_twice(engine, url, tmp_path):
    job = {"func_name": "f" * 200, "queue_name": "mails", "interval": 60}
    for name, count in (("first", 2), ("second", 3), ("third", 1)):
        engine.ask("ZADD", "rq:cron_schedulers", "1", name)
        engine.ask("HSET", f"rq:cron_scheduler:{name}", "cron_jobs", json.dumps([job] * count))
    report = copied(tmp_path, url)
    assert (report.found, report.put["created"], len(schedules(tmp_path))) == (3, 3, 3)
    again = copied(tmp_path, url)
    assert (again.put["kept"], again.put["created"]) == (3, 0)


def test_jobs_that_are_odd_stop_no_other(engine, url, tmp_path):
    rq(engine.url, "cron", "first")
    plain = {"func_name": "f", "queue_name": "q", "interval": 60}
    odd = [
        1,
        {},
        {**plain, "interval": None},
        {**plain, "args": "["},
        {**plain, "interval": None, "cron": "61 * * * *"},
        {**plain, "queue_name": "a b"},
        {**plain, "next_enqueue_time": "soon"},
        {**plain, "ttl": "x"},
    ]
    engine.ask("ZADD", "rq:cron_schedulers", "1", "odd")
    engine.ask("HSET", "rq:cron_scheduler:odd", "cron_jobs", json.dumps([*odd, plain]))
    engine.ask("ZADD", "rq:cron_schedulers", "1", "none")
    engine.ask("HSET", "rq:cron_scheduler:none", "cron_jobs", "{[")
    engine.ask("ZADD", "rq:cron_schedulers", "1", "ended")
    report = copied(tmp_path, f"{url}?zone=America/New_York")
    assert (report.moved, report.refused, report.balances) == (4, len(odd) + 2, True)
    assert all(f"cron job {at} of 'odd'" in reasons(report) for at in range(1, len(odd) + 1))


def test_a_redis_without_a_cron_scheduler_is_refused(engine, url, tmp_path):
    with pytest.raises(InvalidUrl, match="has no cron scheduler of RQ that runs"):
        copied(tmp_path, url)
    with pytest.raises(InvalidUrl, match=r"expected rq-cron\+redis://HOST:PORT/DB\[\?zone=ZONE\]"):
        copied(tmp_path, f"{url}?queue=mails")
