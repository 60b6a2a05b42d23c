"""The forecast: what falls due when, and what a capacity makes of it."""

import csv
import re
import time
from datetime import UTC, datetime

import numpy as np
import pytest

import dwell
from dwell.errors import InvalidSettings
from dwell.spark import register
from dwell.spark.pipelines import forecast
from dwell.spark.pipelines.backlog import MINUTE_MS, backlog
from dwell.spark.pipelines.load import DAY_MS, HOUR_MS, by_minute, load
from dwell.spark.schemas import DUE
from tests.spark.conftest import ServerProcess

MIDNIGHT = 1_700_006_400_000
NOW = MIDNIGHT + 90_000
END = NOW + 24 * HOUR_MS


def messages(spark, rows):
    """A pending set of (topic, due, state) rows."""
    rest = (1024, 0, 16, 60_000, *[None] * 6)
    full = [
        (topic, f"m{n}", b"", datetime.fromtimestamp(due / 1000, UTC), state, *rest, n)
        for n, (topic, due, state) in enumerate(rows)
    ]
    return spark.createDataFrame(full, DUE).coalesce(1)


# --- what falls due -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(spark):
    rows = [
        ("a", NOW - 5 * DAY_MS, "ready"),
        ("a", NOW - 1, "ready"),
        ("a", NOW + 20_000, "delayed"),
        ("a", NOW + HOUR_MS, "delayed"),
        ("b", NOW + HOUR_MS, "delayed"),
        ("b", NOW + HOUR_MS + 1, "delayed"),
        ("b", END - 1, "delayed"),
        ("b", END, "delayed"),
        ("b", NOW + HOUR_MS, "dead"),
        ("b", NOW - 1, "leased"),
    ]
    return load(by_minute(messages(spark, rows), NOW, END), NOW, END, 1.0)


def test_what_is_overdue_counts_in_the_first_minute(found):
    assert found.start_ms == MIDNIGHT + MINUTE_MS
    assert found.due[0] == 3
    assert found.overdue == 2


def test_what_is_dead_leased_or_behind_the_horizon_does_not_count(found):
    assert found.total == 7
    assert found.due[60] == 3
    assert found.due[-1] == 1
    assert found.peak == (3, found.start_ms)


def test_topics_are_told_apart(found):
    assert [topic[:3] for topic in found.topics] == [("a", 4, 2), ("b", 3, 0)]
    assert found.topic_count == 2
    assert found.topics[1].peak_ms == MIDNIGHT + 61 * MINUTE_MS


def test_hours_and_days_add_up_to_the_same(found):
    hours, days = found.by(HOUR_MS), found.by(DAY_MS)
    assert sum(n for _, n in hours) == sum(n for _, n in days) == found.total
    assert hours[0] == (MIDNIGHT, 3)
    assert hours[1] == (MIDNIGHT + HOUR_MS, 3)
    assert days == [(MIDNIGHT, 6), (MIDNIGHT + DAY_MS, 1)]


def test_nothing_falls_due(spark):
    nothing = load(by_minute(messages(spark, []), NOW, END), NOW, END, 5)
    assert (nothing.total, nothing.overdue, nothing.topics) == (0, 0, [])
    assert nothing.backlog.stretches == []


# --- the backlog ----------------------------------------------------------------------------------


def minutes(*counts):
    return np.array(counts, dtype=np.int64)


def test_a_peak_builds_up_and_is_worked_off():
    found = backlog(MIDNIGHT, MIDNIGHT, minutes(0, 150, 90, 0, 60, 0), 1)
    assert found.waiting.tolist() == [0, 90, 120, 60, 60, 0]
    assert found.minutes_over == 2
    (late,) = found.stretches
    assert (late.start_ms, late.most) == (MIDNIGHT + MINUTE_MS, 120)
    assert late.end_ms == MIDNIGHT + 6 * MINUTE_MS
    assert late.late_ms == 120_000


def test_what_a_quiet_time_leaves_unused_is_gone():
    found = backlog(MIDNIGHT, MIDNIGHT, minutes(0, 0, 0, 70), 1)
    assert found.waiting.tolist() == [0, 0, 0, 10]
    assert found.stretches[0].end_ms == MIDNIGHT + 4 * MINUTE_MS + 10_000


def test_stretches_are_told_apart():
    found = backlog(MIDNIGHT, MIDNIGHT, minutes(61, 0, 61, 0, 0), 1)
    assert [late.start_ms for late in found.stretches] == [MIDNIGHT, MIDNIGHT + 2 * MINUTE_MS]
    assert [late.most for late in found.stretches] == [1, 1]


def test_the_first_minute_has_partly_gone_by():
    found = backlog(MIDNIGHT, MIDNIGHT + 45_000, minutes(60, 0), 1)
    assert found.waiting.tolist() == [45, 0]


def test_a_backlog_outlives_the_forecast():
    (late,) = backlog(MIDNIGHT, MIDNIGHT, minutes(3_660, 0), 1).stretches
    assert late.end_ms == MIDNIGHT + 61 * MINUTE_MS


def test_a_backlog_is_what_a_plain_queue_says():
    random = np.random.default_rng(5)
    due = random.poisson(60, 2_000).astype(np.int64)
    waiting, said = 0.0, []
    for n in due:
        waiting = max(0.0, waiting + n - 63.0)
        said.append(waiting)
    found = backlog(MIDNIGHT, MIDNIGHT, due, 1.05)
    assert np.allclose(found.waiting, said, atol=1e-5)


# --- the pipeline ---------------------------------------------------------------------------------


@pytest.fixture
def ready(spark):
    register(spark)
    return spark


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A server that is only read.

    It has 1,000 messages in an hour, 100 overdue, 50 tomorrow, some dead and held.
    """
    server = ServerProcess(tmp_path_factory.mktemp("full"))
    now_ms = time.time_ns() // 1_000_000
    with dwell.open(server.url) as queue:
        queue.put_many("calls", ["x"] * 1000, due=[now_ms + HOUR_MS + n for n in range(1000)])
        queue.put_many("mails", ["x"] * 103, due=[now_ms - 10 * DAY_MS] * 103)
        queue.put_many("mails", ["x"] * 50, due=[now_ms + 30 * HOUR_MS] * 50)
        taken = list(queue.take("mails", 3, lease="1h"))
        queue.bury(taken[0], "no")
    yield server
    server.stop()


def settings(server, tmp_path, **more):
    return forecast.ForecastSettings(url=server.url, out=str(tmp_path / "out"), **more)


def test_a_forecast_of_a_server(ready, full, tmp_path):
    line = forecast.run(ready, settings(full, tmp_path, capacity=0.5))
    assert line.startswith("forecast: 1,100 fall due in 24 h, 100 of them overdue, peak ")
    assert "x of the capacity 0.5/s), late in 2 stretches until " in line
    assert line.endswith(f"; report {tmp_path}/out/forecast.html")
    table = ready.read.parquet(str(tmp_path / "out" / "minutes"))
    sums = {
        row.topic: row.n
        for row in table.groupBy("topic").agg({"due": "sum"}).toDF("topic", "n").collect()
    }
    assert sums == {"calls": 1000, "mails": 100}
    rows = ready.read.option("header", True).csv(str(tmp_path / "out" / "minutes_csv"))
    assert rows.count() == table.count()
    with (tmp_path / "out" / "hours.csv").open() as lines:
        hours = list(csv.DictReader(lines))
    assert sum(int(row["due"]) for row in hours) == 1100
    assert len(hours) == 25


def test_the_page_is_whole_in_itself(ready, full, tmp_path):
    forecast.run(ready, settings(full, tmp_path, capacity=0.5))
    page = (tmp_path / "out" / "forecast.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "1,100 messages in\n2 topics, 100 of them overdue" in page
    assert "When messages are late" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert "http" not in re.sub(r"base64,[^\"]+", "", page)


def test_topics_and_days_can_be_chosen(ready, full, tmp_path):
    wanted = settings(full, tmp_path, topics=("mails",), days=2, report=False)
    line = forecast.run(ready, wanted)
    assert line.startswith("forecast: 150 fall due in 48 h, 100 of them overdue, peak 100/min at ")
    assert "late" not in line
    assert not (tmp_path / "out" / "forecast.html").exists()


def test_capacity_for_everything(ready, full, tmp_path):
    line = forecast.run(ready, settings(full, tmp_path, capacity=1e6, report=False))
    assert line.endswith("never late")


def test_no_time_at_all_is_refused(ready, full, tmp_path):
    with pytest.raises(InvalidSettings, match=r"hours: got .*0, expected a minute"):
        forecast.run(ready, settings(full, tmp_path, hours=0))
