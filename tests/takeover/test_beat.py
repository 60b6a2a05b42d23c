"""Periodic tasks become schedules; django-celery-beat has written them in a program of its own."""

import json
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import psycopg
import pytest

import dwell
from dwell.calendar.epoch import from_ms, to_ms
from dwell.errors import InvalidUrl, ServerUnreachable
from dwell.message import Result
from tests.celery.workers import WorkerProcess
from tests.spark.conftest import ServerProcess
from tests.takeover.beat_tables import LATER
from tests.takeover.copies import copied, messages, reasons, schedules
from tests.waiting import until

_TABLES = Path(__file__).with_name("beat_tables.py")
_LATER_MS = to_ms(LATER)


def site(*words):
    command = [sys.executable, _TABLES, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "site.db"
    site(f"sqlite:///{path}", "fill")
    return path.read_bytes()


@pytest.fixture
def tables(filled, tmp_path):
    """The path of a database of the test's own."""
    path = tmp_path / "site.db"
    path.write_bytes(filled)
    return path


def do(path, *statements):
    with sqlite3.connect(path) as link:
        for statement in statements:
            link.execute(statement)
    link.close()


def test_tasks_keep_their_times_and_words(database, tmp_path):
    site(database, "fill")
    begin = datetime.fromisoformat("2037-01-29T00:00:00+00:00")
    moments = json.loads(site(database, begin.isoformat()))
    if database.startswith("postgresql"):
        with psycopg.connect(database) as link:
            name = database.rpartition("/")[2]
            link.execute(f"ALTER DATABASE {name} SET datestyle TO 'SQL, DMY'")
    store, url = tmp_path / "store", f"beat+{database}"
    report = copied(store, url, dry_run=True)
    assert (report.put["created"], schedules(store)) == (13, {})
    report = copied(store, url)
    assert (report.put["created"], report.over, report.refused) == (13, 2, 3)
    assert report.balances
    assert {where: said.split(":")[0] for where, said in reasons(report).items()} == {
        "periodic task 13": "enabled",
        "periodic task 14": "is disabled, as after its only run",
        "periodic task 15": "is run once, and was",
        "periodic task 17": "solar",
        "periodic task 18": "exchange, routing_key",
    }
    found = schedules(store)
    for name, expected in moments.items():
        schedule = found[f"beat:{name}"]
        times = islice(schedule.times.following(to_ms(begin)), 8)
        assert [from_ms(ms).isoformat() for ms in times] == expected, name
        assert (schedule.topic, schedule.priority) == ("mails", 1021)
    assert found["beat:often"].every_ms == 10_000
    assert found["beat:often"].topic == "celery"
    later = found["beat:later"]
    assert (later.start_ms, later.ttl_ms, later.times.after(0)) == (_LATER_MS, 60_000, _LATER_MS)
    assert found["beat:until"].end_ms == _LATER_MS - 1
    assert json.loads(found["beat:off"].body)["headers"]["who"] == "me"
    assert [name for name, one in found.items() if one.paused] == ["beat:off"]
    assert sum(name.startswith("beat:odd-name-") for name in found) == 1
    single = messages(store, "celery")
    assert single["beat:once"].due_ms == _LATER_MS
    assert single["beat:once"].expires_ms == _LATER_MS + 5_000
    assert single["beat:once"].priority == 1015
    first = found["beat:months"].times.after(time.time_ns() // 1_000_000)
    assert single["beat:first-of-month-ac99465825c9"].due_ms == first
    assert copied(store, url).put == {"kept": 13}


def test_a_run_there_in_between_is_no_change(tables, tmp_path):
    store, url = tmp_path / "store", f"beat+sqlite:///{tables}"
    copied(store, url)
    do(tables, "UPDATE django_celery_beat_periodictask SET last_run_at = '2026-01-02 03:04:05.6'")
    report = copied(store, url)
    # The moment of a task that runs once counts from there.
    assert [told.name[:10] for told in report.told if told.result == "other"] == ["beat:first"]
    do(tables, "UPDATE django_celery_beat_intervalschedule SET every = every + 1")
    assert copied(store, url).others == 5


@pytest.mark.parametrize("days", [0, 3, 40])
def test_tasks_that_are_overdue_are_caught_up_as_there(tables, tmp_path, days):
    ran = datetime.now(UTC) - timedelta(days=days)
    change = "UPDATE django_celery_beat_periodictask SET"
    do(
        tables,
        f"{change} last_run_at = '{ran.replace(tzinfo=None)}'",
        f"{change} last_run_at = NULL WHERE name = 'odd name/é'",
    )
    url, store = f"sqlite:///{tables}", tmp_path / "store"
    due = {f"beat:{name}" for name in json.loads(site(url, "due"))}
    told, now = copied(store, f"beat+{url}").told, datetime.now(UTC)
    found = {name for name, one in schedules(store).items() if not one.paused}
    next_at = {one.name: one.next_at for one in told if one.name in found}
    overdue = {name for name, text in next_at.items() if datetime.fromisoformat(text) <= now}
    assert overdue == due & found
    assert len(overdue) > 3 or days < 40


def test_a_start_holds_back_the_next_run_as_there(tables, tmp_path):
    do(tables, "DELETE FROM django_celery_beat_periodictask")
    url, store = f"sqlite:///{tables}", tmp_path / "store"
    there = json.loads(site(url, "starts"))
    report = copied(store, f"beat+{url}")
    assert (report.refused, report.over, report.balances) == (0, 0, True)
    found, next_at = schedules(store), {one.name: one.next_at for one in report.told}
    for name, texts in there.items():
        expected = [datetime.fromisoformat(text) for text in texts]
        moments = [datetime.fromisoformat(next_at[f"beat:{name}"])]
        if (schedule := found.get(f"beat:{name}")) is not None:
            moments.append(from_ms(schedule.times.after(to_ms(moments[0]))))
        if expected[0] <= datetime.now(UTC):
            # It is overdue there, and so it is here.
            assert moments[0] <= datetime.now(UTC), name
        else:
            # Beat counts an interval from when it looked.
            near = zip(moments, expected, strict=True)
            assert all(abs(one - other) <= timedelta(seconds=2) for one, other in near), name
    assert copied(store, f"beat+{url}").put == {"kept": report.put["created"]}


def test_zero_seconds_are_no_expiry(tables, tmp_path):
    do(tables, "UPDATE django_celery_beat_periodictask SET expire_seconds = 0")
    store = tmp_path / "store"
    copied(store, f"beat+sqlite:///{tables}")
    assert messages(store, "celery")["beat:once"].expires_ms == 0
    assert all(one.ttl_ms in (None, 0) for one in schedules(store).values())


def test_a_worker_of_celery_runs_each_moment_as_a_task_of_its_own(tables, tmp_path):
    set_task = "UPDATE django_celery_beat_periodictask SET task = 'tests.celery.shop.noted'"
    do(
        tables,
        f"{set_task}, args = '[\"copied\"]', kwargs = '{{}}' WHERE name = 'often'",
        "DELETE FROM django_celery_beat_periodictask WHERE name <> 'often'",
        "UPDATE django_celery_beat_intervalschedule SET every = 500000, period = 'microseconds'",
    )
    server = ServerProcess(tmp_path)
    worker = WorkerProcess(tmp_path, server.url)
    try:
        assert copied(server.url, f"beat+sqlite:///{tables}").put["created"] == 1
        until(lambda: len(worker.notes()) >= 3)
        results = tmp_path / "results"
        until(lambda: len(list(results.iterdir())) >= 3)
        assert all("beat:often@" in path.name for path in results.iterdir())
        with dwell.open(server.url) as queue:
            assert queue.schedules.remove("beat:often") is Result.CANCELLED
    finally:
        worker.stop()
        server.stop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("args = '{}'", "args"),
        ("args = '[' || printf('%.100000c', '[')", "args"),
        ("kwargs = 'None'", "kwargs"),
        ("headers = '5'", "headers"),
        ("task = CAST(x'ff' AS text)", "body"),
        ("queue = 'a b'", "queue"),
        ("priority = 'high'", "int"),
        ("expires = 'infinity'", "expires"),
        ("expires = '0001-01-01 00:00:00'", "date value out of range"),
        ("start_time = '99999-01-01'", "start_time"),
        ("enabled = 7", "bool"),
        ("crontab_id = NULL", "none"),
        ("crontab_id = 999", "none"),
        ("crontab_id = NULL, interval_id = 999", "none"),
        ("args = '[\"' || printf('%.2000000c', 'x') || '\"]'", "body"),
    ],
)
def test_an_odd_row_is_refused_and_holds_up_no_other(tables, tmp_path, change, said):
    do(
        tables,
        "PRAGMA foreign_keys = OFF",
        "PRAGMA ignore_check_constraints = ON",
        f"UPDATE django_celery_beat_periodictask SET {change} WHERE name = 'months'",
    )
    report = copied(tmp_path / "store", f"beat+sqlite:///{tables}")
    assert (report.put["created"], report.refused, report.balances) == (12, 4, True)
    assert said in reasons(report)["periodic task 3"]


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("crontab", "day_of_week = 'someday'", "weekday"),
        ("crontab", "day_of_week = '1', day_of_month = '1'", "both"),
        ("crontab", "timezone = 'Mars/Base'", "Mars/Base"),
        ("crontab", "hour = '*/5 ; drop'", "hour"),
        ("interval", "period = 'years'", "period"),
        ("interval", "every = 0", "every"),
        ("interval", "every = -5", "not negative"),
        ("interval", "every = 9223372036854775807", ""),
        ("clocked", "clocked_time = 'soon'", "clocked_time"),
        ("clocked", "clocked_time = '9999-12-31 23:59:59'", "due"),
    ],
)
def test_an_odd_schedule_is_refused_and_holds_up_no_other(tables, tmp_path, table, change, said):
    do(tables, f"UPDATE django_celery_beat_{table}schedule SET {change}")
    report = copied(tmp_path / "store", f"beat+sqlite:///{tables}")
    assert report.put["created"] >= 5
    assert report.balances
    others = {"periodic task 13", "periodic task 17", "periodic task 18"}
    assert any(said in said_of for at, said_of in reasons(report).items() if at not in others)


def test_tables_of_another_version_are_refused_before_anything_is_put(tables, tmp_path):
    do(tables, "ALTER TABLE django_celery_beat_periodictask RENAME COLUMN one_off TO once")
    with pytest.raises(InvalidUrl, match="django-celery-beat"):
        copied(tmp_path / "store", f"beat+sqlite:///{tables}")
    assert schedules(tmp_path / "store") == {}


def test_a_database_is_only_read(tables, tmp_path):
    before = tables.read_bytes()
    tables.chmod(0o444)
    copied(tmp_path / "store", f"beat+sqlite:///{tables}")
    assert tables.read_bytes() == before
    assert not tables.with_name("site.db-journal").exists()


def test_an_address_without_a_database_is_refused(tmp_path, postgres):
    (tmp_path / "text").write_text("no database")
    for url in ("sqlite:///none.db", f"sqlite:///{tmp_path}/text", postgres):
        with pytest.raises(InvalidUrl):
            copied(tmp_path / "store", f"beat+{url}")
    with pytest.raises(ServerUnreachable):
        copied(tmp_path / "store", "beat+postgresql://127.0.0.1:1/none")
    with psycopg.connect(postgres) as link:
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert link.execute(tables).fetchone() == (0,)
