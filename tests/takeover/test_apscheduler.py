"""Jobs of APScheduler become schedules and messages; it has kept them itself."""

import asyncio
import pickle
import sqlite3
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from dwell.calendar.epoch import from_ms, to_ms
from dwell.clock import RealClock
from dwell.errors import InvalidUrl
from dwell.handle import store_at
from dwell.message import State
from dwell.queue import Queue
from dwell.takeover.pickled import plain, read
from tests.takeover.copies import copied, messages, reasons, schedules
from tests.waiting import until

_LATER = datetime(2060, 7, 1, 9, tzinfo=UTC)
_TRIGGERS = {
    "nightly": CronTrigger(hour=3, timezone="Europe/Berlin"),
    "often": CronTrigger(minute="*/20", hour="8-10", timezone="Asia/Tokyo"),
    "days": CronTrigger(day="last", hour=1, minute=30, timezone="UTC"),
    "weekdays": CronTrigger(day_of_week="mon-wed,6", hour=5, timezone="UTC"),
    "odd": CronTrigger(day_of_week="*/3", month="jan-mar,7", timezone="America/New_York"),
    "third": CronTrigger(day="3rd fri", hour=12, timezone=ZoneInfo("Europe/Paris")),
    "final": CronTrigger(day="last sun", hour=12, timezone="UTC"),
    "seconds": CronTrigger(second="*/15", hour=4, minute=0, timezone="UTC"),
    "lines": CronTrigger.from_crontab("5 4 1,15 * *", timezone="UTC"),
    "span": IntervalTrigger(minutes=90, start_date="2026-01-01 00:10:00", timezone="Asia/Kolkata"),
}


def _ran(*args, **kwargs):
    """Be a function that jobs name."""


@pytest.fixture
def jobs(database):
    store = SQLAlchemyJobStore(database.replace("postgresql:", "postgresql+psycopg:"))
    scheduler = BackgroundScheduler(jobstores={"default": store}, timezone="UTC")
    scheduler.start(paused=True)
    yield scheduler
    if scheduler.running:
        scheduler.shutdown()
    store.engine.dispose()


def _moments(trigger, begin, count):
    found, before = [], None
    while len(found) < count:
        now = (before or begin) + timedelta(microseconds=1)
        before = trigger.get_next_fire_time(before, now)
        found.append(before.astimezone(UTC))
    return found


def test_jobs_keep_their_times_and_arguments(jobs, database, tmp_path):
    for name, trigger in _TRIGGERS.items():
        jobs.add_job(_ran, trigger, id=name, args=[name, {"a": [1.5, None]}], kwargs={"b": "é"})
    ended = datetime(2050, 1, 1, tzinfo=UTC)
    words = {"misfire_grace_time": None, "max_instances": 3, "coalesce": False}
    jobs.add_job(_ran, "interval", days=1, end_date=ended, jitter=30, id="words", **words)
    jobs.add_job(_ran, "cron", hour=3, id="off").pause()
    jobs.add_job(_ran, "date", run_date=_LATER, id="once", args=[7])
    jobs.add_job(_ran, "date", run_date=_LATER, id="once off").pause()
    jobs.add_job(_ran, OrTrigger([CronTrigger(hour=1), CronTrigger(hour=2)]), id="either")
    jobs.add_job(_ran, "cron", week="1-5", id="weeks")
    jobs.add_job(_ran, "cron", year=2040, id="year")
    jobs.add_job(_ran, "cron", day=13, day_of_week="fri", id="both")
    store, url = tmp_path / "store", f"apscheduler+{database}"
    report = copied(store, url)
    assert (report.put["created"], report.refused, report.balances) == (13, 5, True)
    said = {where: reason.split(":")[0] for where, reason in reasons(report).items()}
    assert said == {
        "job once off": "next_run_time",
        "job either": "trigger",
        "job weeks": "week",
        "job year": "year",
        "job both": "cron",
    }
    found = schedules(store)
    begin = datetime(2037, 1, 29, 11, 30, tzinfo=UTC)
    for name, trigger in _TRIGGERS.items():
        schedule = found[f"apscheduler:{name}"]
        times = [from_ms(ms) for ms in islice(schedule.times.following(to_ms(begin)), 8)]
        assert times == _moments(trigger, begin, 8), name
        body = b'{"func":"tests.takeover.test_apscheduler:_ran","kwargs":{"b":"\xc3\xa9"},"args":["'
        assert schedule.body.startswith(body)
        assert (schedule.misfire, schedule.grace_ms, schedule.overlap) == ("skip", 1000, "skip")
    words = found["apscheduler:words"]
    assert (words.end_ms, words.jitter_ms, words.misfire, words.overlap) == (
        to_ms(ended),
        30_000,
        "all",
        "queue",
    )
    assert [name for name, one in found.items() if one.paused] == ["apscheduler:off"]
    (once,) = messages(store, "apscheduler").values()
    assert (once.due_ms, once.json()["args"]) == (to_ms(_LATER), [7])
    assert once.headers["content-type"] == "application/json"
    # A run there in between is no change.
    later = _TRIGGERS["nightly"].get_next_fire_time(None, _LATER)
    jobs.modify_job("nightly", next_run_time=later)
    assert copied(store, url).put == {"kept": 13}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_arguments_that_json_has_not_travel_as_the_pickle(jobs, database, tmp_path):
    for number, one in enumerate([date(2030, 1, 1), (1, 2), {1}, b"x", float("nan"), {1: 2}]):
        jobs.add_job(_ran, "date", run_date=_LATER, id=f"j{number}", args=[one])
    assert copied(tmp_path / "store", f"apscheduler+{database}").put == {"created": 6}
    found = messages(tmp_path / "store", "apscheduler").values()
    assert {m.headers["content-type"] for m in found} == {"application/x-python-pickle"}
    first = next(m for m in found if m.id == "apscheduler:j0")
    assert pickle.loads(first.body)["args"] == (date(2030, 1, 1),)


class _Bomb:
    def __reduce__(self):
        import os

        return os._exit, (3,)


def _deep(count):
    value = []
    for _ in range(count):
        value = [value, value]
    return value


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_odd_row_is_refused_runs_nothing_and_holds_up_no_other(jobs, database, tmp_path):
    good = jobs.add_job(_ran, "date", run_date=_LATER, id="good", args=[1])
    state = good.__getstate__()
    # It looks at its jobs once more as it ends, and would run what they hold.
    jobs.shutdown()
    odd = {
        "bomb": pickle.dumps({**state, "trigger": _Bomb()}),
        "text": "text",
        "empty": b"",
        "cut": pickle.dumps(state)[:-20],
        "list": pickle.dumps([1]),
        "no trigger": pickle.dumps({"version": 1}),
        "old": pickle.dumps(state, 0),
        "large": pickle.dumps({**state, "args": ("x" * 2**20,)}),
        "keys": pickle.dumps({(1, 2): 3}),
        "stack": b"\x80\x04N0\x93.",
        "memo": b"\x80\x04j\xff\xff\xff\x7f.",
        "mark": b"\x80\x04u.",
        "self": b"\x80\x04}\x94h\x00h\x00s.",
        "self list": b"\x80\x04]\x94h\x00a.",
    }
    with sqlite3.connect(database.removeprefix("sqlite:///")) as link:
        for name, data in odd.items():
            link.execute("INSERT INTO apscheduler_jobs VALUES (?, 1e9, ?)", (name, data))
        for name, next_s in (("when", "soon"), ("never", 9e999), ("past", -5.0)):
            put = "INSERT INTO apscheduler_jobs VALUES (?, ?, ?)"
            link.execute(put, (name, next_s, pickle.dumps(state)))
        # It can be read, and its arguments are too many for JSON.
        wide = pickle.dumps({**state, "args": (_deep(40),)})
        link.execute("INSERT INTO apscheduler_jobs VALUES ('wide', 4e9, ?)", (wide,))
    link.close()
    report = copied(tmp_path / "store", f"apscheduler+{database}")
    assert set(reasons(report)) == {f"job {name}" for name in (*odd, "when", "never", "past")}
    found = messages(tmp_path / "store", "apscheduler")
    assert set(found) == {"apscheduler:good", "apscheduler:wide"}
    assert found["apscheduler:wide"].body == wide


def test_a_pickle_is_read_as_text():
    assert read(pickle.dumps({"a": [1, (2, None)], "b": "é", "c": 2.5, "d": -(2**70)})) == {
        "a": [1, (2, None)],
        "b": "é",
        "c": 2.5,
        "d": -(2**70),
    }
    shared = [1]
    assert read(pickle.dumps([shared, shared], 2)) == [[1], [1]]
    made = read(pickle.dumps(_Bomb()))
    assert (made.of, made.arguments) == ("posix:_exit", (3,))
    assert plain({"a": [1, "b", None, True]})
    assert not plain({"a": made})
    assert not plain(_deep(20))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_other_tables_and_their_names(jobs, database, tmp_path):
    jobs.add_job(_ran, "date", run_date=_LATER, id="a")
    url = f"apscheduler+{database}"
    for table in ("none", "x;y", 'apscheduler_jobs" --', "main.none"):
        with pytest.raises(InvalidUrl):
            copied(tmp_path / "store", f"{url}?table={table}")
    report = copied(tmp_path / "store", f"{url}?table=main.apscheduler_jobs&prefix=web1")
    assert report.put == {"created": 1}
    assert set(messages(tmp_path / "store", "apscheduler")) == {"web1:a"}


def test_a_job_that_was_postponed_is_not_early(jobs, database, tmp_path):
    jobs.add_job(_ran, CronTrigger(hour=9, timezone="UTC"), id="daily", next_run_time=_LATER)
    jobs.add_job(_ran, "interval", hours=24, id="often", next_run_time=_LATER)
    jobs.shutdown()
    copied(tmp_path / "store", f"apscheduler+{database}")
    for one in schedules(tmp_path / "store").values():
        days = [to_ms(_LATER + timedelta(days=day)) for day in range(3)]
        assert list(islice(one.times.following(0), 3)) == days


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("jitter", [None, 60])
def test_a_run_at_a_time_that_the_trigger_has_not_is_not_lost(jobs, database, tmp_path, jitter):
    by_hand = _LATER + timedelta(minutes=7, milliseconds=5)
    daily = CronTrigger(hour=9, jitter=jitter, timezone="UTC")
    jobs.add_job(_ran, daily, id="daily", args=[1], next_run_time=by_hand)
    jobs.shutdown()
    store, url = tmp_path / "store", f"apscheduler+{database}"
    for result in ("created", "kept"):
        report = copied(store, url)
        assert (report.put, report.balances) == ({result: 2}, True)
    (own,) = messages(store, "apscheduler").values()
    schedule = schedules(store)["apscheduler:daily"]
    assert (own.due_ms, own.body) == (to_ms(by_hand), schedule.body)
    assert own.headers["apscheduler-id"] == "daily"
    assert schedule.times.after(0) == to_ms(_LATER + timedelta(days=1))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_next_run_of_a_job_with_jitter_is_not_lost(jobs, database, tmp_path):
    for number in range(5):
        daily = CronTrigger(hour=9, jitter=600, timezone="UTC")
        often = CronTrigger(minute="*/10", jitter=3600, timezone="UTC")
        jobs.add_job(_ran, daily, id=f"daily{number}", misfire_grace_time=5)
        jobs.add_job(_ran, often, id=f"often{number}")
    planned = {job.id: to_ms(job.next_run_time) for job in jobs.get_jobs()}
    jobs.shutdown()
    copied(tmp_path / "store", f"apscheduler+{database}")
    found = schedules(tmp_path / "store")
    for id_, next_ms in planned.items():
        one = found[f"apscheduler:{id_}"]
        span_ms = 86_400_000 if id_.startswith("daily") else 600_000
        # Both begin at a whole number of spans and hours.
        shift_ms = 9 * 3_600_000 if id_.startswith("daily") else 0
        first_ms = next_ms - (next_ms - shift_ms) % span_ms
        assert list(islice(one.times.following(0), 2)) == [first_ms, first_ms + span_ms], id_
    # There it counts from the run with its jitter.
    assert found["apscheduler:daily0"].grace_ms == 605_000


def _executed(jobs, count):
    """Let a scheduler do or miss so many runs; return how often each job was executed."""
    done = []
    jobs.add_listener(done.append, EVENT_JOB_EXECUTED | EVENT_JOB_MISSED)
    jobs.resume()
    until(lambda: len(done) >= count, seconds=60)
    jobs.shutdown()
    return Counter(one.job_id for one in done if one.code == EVENT_JOB_EXECUTED)


async def _fired(store):
    """Return how many messages each schedule has put, once all have fired."""
    async with Queue(store_at(str(store), RealClock(), {})) as queue:
        firing = asyncio.create_task(queue.schedules.fire())
        async with asyncio.timeout(60):
            while any([one.last_ms is None async for one in queue.schedules.each()]):
                await asyncio.sleep(0.02)
        firing.cancel()
        states = (State.DELAYED, State.READY)
        pages = [page for one in states async for page in queue.pages("apscheduler", one)]
    return Counter(m.headers["dwell-schedule"] for page in pages for m in page)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_run_whose_moment_is_over_and_its_jitter_is_not(jobs, database, tmp_path):
    moment = datetime.now(UTC).replace(second=0, microsecond=0)
    daily = CronTrigger(hour=moment.hour, minute=moment.minute, jitter=7200, timezone="UTC")
    jobs.add_job(_ran, daily, id="daily", next_run_time=moment + timedelta(hours=1))
    jobs.shutdown()
    copied(tmp_path / "store", f"apscheduler+{database}")
    assert asyncio.run(_fired(tmp_path / "store")) == {"apscheduler:daily": 1}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_runs_that_are_overdue_are_caught_up_as_there(jobs, database, tmp_path):
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=60)
    daily = CronTrigger(hour=since.hour, minute=since.minute, second=since.second, timezone="UTC")
    for kind, trigger in (("cron", daily), ("every", IntervalTrigger(days=1, timezone="UTC"))):
        for name, words in {
            "once": {"misfire_grace_time": None},
            "all": {"misfire_grace_time": None, "coalesce": False, "max_instances": 5},
            "serial": {"misfire_grace_time": None, "coalesce": False, "max_instances": 1},
            "some": {"misfire_grace_time": 216_000, "coalesce": False, "max_instances": 5},
            "some-serial": {"misfire_grace_time": 216_000, "coalesce": False},
            "one": {"misfire_grace_time": 216_000},
            "late": {},
        }.items():
            jobs.add_job(_ran, trigger, id=f"{kind}-{name}", next_run_time=since, **words)
    copied(tmp_path / "store", f"apscheduler+{database}")
    there = _executed(jobs, 30)
    here = asyncio.run(_fired(tmp_path / "store"))
    assert here == {f"apscheduler:{id_}": count for id_, count in there.items()}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_single_runs_that_were_missed_there_are_not_put(jobs, database, tmp_path):
    since = datetime.now(UTC) - timedelta(hours=1)
    daily = CronTrigger(hour=(since.hour + 12) % 24, timezone="UTC")
    for name, words in {
        "default": {},
        "any": {"misfire_grace_time": None},
        "within": {"misfire_grace_time": 7200},
    }.items():
        jobs.add_job(_ran, "date", run_date=since, id=f"date-{name}", **words)
        jobs.add_job(_ran, daily, id=f"hand-{name}", next_run_time=since, **words)
    report = copied(tmp_path / "store", f"apscheduler+{database}")
    assert (report.put["created"], report.over, report.balances) == (7, 2, True)
    assert all("misfire_grace_time" in reason for reason in reasons(report).values())
    there = _executed(jobs, 6)
    found = messages(tmp_path / "store", "apscheduler").values()
    assert {one.headers["apscheduler-id"] for one in found} == {*there}


def test_keys_that_are_neither_text_nor_numbers_are_refused():
    assert read(pickle.dumps({1: 2, "a": None})) == {1: 2, "a": None}
    with pytest.raises(ValueError, match="got a key that is neither text nor a number"):
        read(pickle.dumps({(1, 2): 3}))
