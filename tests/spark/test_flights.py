"""The flights job on the first days of the year, the server killed on the way; its books.

Where the books and the data set differ, the checks have to say so.
"""

import shutil
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from dwell.spark.schemas import EVENTS
from examples.flights import audit, data, plan
from examples.flights.processes import Outage
from tests.spark import PATIENCE_S

pytestmark = pytest.mark.campaign

CHROMIUM = shutil.which("chromium")
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Run the job; return what it printed, and its page."""
    out = tmp_path_factory.mktemp("report")
    # Some four days, in four seconds.
    options = ["--flights", "4000", "--speed", "100000", "--out", str(out)]
    command = [sys.executable, "-m", "examples.flights", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, out / "flights.html"


def test_the_books_balance(report):
    printed, _ = report
    assert "killing the server (SIGKILL)" in printed
    assert "The books balance." in printed
    assert "4,000 accepted = 3,970 acked + 30 cancelled + 0 dead + 0 pending" in printed
    assert "NO" not in printed
    assert printed.count("ok ") == 8


def test_only_the_page_and_the_books_are_left(report):
    folder = report[1].parent
    assert sorted(path.name for path in folder.iterdir()) == ["audit", "flights.html"]


def test_the_page_in_a_browser(report, tmp_path):
    assert CHROMIUM is not None, "chromium is not installed; make setup installs it"
    command = [CHROMIUM, *_QUIET, f"--user-data-dir={tmp_path}", "--dump-dom", report[1].as_uri()]
    page = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    assert "nothing lost" in " ".join(page.split())
    assert page.count("data:image/png;base64,") == 2
    assert page.count("<td>ok</td>") == 8
    assert (report[1].parent / "audit" / "audit.html").exists()


def test_the_books_balance_over_kafka(tmp_path):
    for head_start_s in ("30", "150"):
        options = ["--flights", "4000", "--speed", "100000", "--head-start", head_start_s]
        options += ["--out", str(tmp_path)]
        command = [sys.executable, "-m", "examples.flights_kafka", *options]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
        )
        # A busy machine takes longer to schedule the plan.
        if "use a longer --head-start" not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killing a relay (SIGKILL)" in done.stdout
    assert "The books balance." in done.stdout
    assert "3,970 acked + 30 cancelled" in done.stdout
    assert "NO" not in done.stdout
    assert done.stdout.count("ok ") == 10


@pytest.mark.campaign
def test_each_of_the_departures_becomes_what_it_was_to_become(tmp_path):
    command = [sys.executable, "-m", "examples.departures", "--rows", "200000"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killing the server (SIGKILL)" in done.stdout
    assert done.stdout.count("holds: ") == 4
    assert "FAILS" not in done.stdout


# --- books that should not balance ----------------------------------------------------------------


@pytest.fixture(scope="module")
def flights(spark, tmp_path_factory):
    """What is to become of the first flights of the year: some cancelled, some late."""
    folder = tmp_path_factory.mktemp("flights") / "flights.parquet"
    table = data.load(1000)
    data.save(table, folder)
    replay = plan.Replay.of(table, start_ms=1_000_000_000_000, speed=100_000.0)
    return plan.expected(spark, str(folder), replay).cache()


def at(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def events_of(spark, flights, change=lambda flight, steps: steps):
    """Return the events of a queue that did all that the flights ask for, but for a change."""
    rows = []
    for flight in flights.collect():
        steps = [("put", flight.planned_ms)]
        if flight.is_late:
            steps.append(("move", flight.due_ms))
        if flight.kind != "cancel":
            steps += [("take", flight.due_ms)] * (2 if flight.fails_once else 1)
        steps.append((flight.kind, flight.due_ms))
        for kind, due_ms in change(flight, steps):
            position = len(rows)
            rows.append((position, at(due_ms + 5), kind, plan.TOPIC, flight.id, at(due_ms), 1))
    return spark.createDataFrame(rows, EVENTS).coalesce(1).cache()


def failed(spark, flights, change=lambda flight, steps: steps):
    """Return the checks that do not hold."""
    lives = audit.lives_of(events_of(spark, flights, change))
    failing = flights.where("kind = 'ack' AND fails_once").count()
    found = audit.checks(lives, flights, {"retry: the handler failed": failing})
    return {check.what: check.queue - check.data for check in found if not check.holds}


def test_a_queue_that_did_all_that_was_asked_for_agrees(spark, flights):
    assert failed(spark, flights) == {}


def test_news_that_came_too_late_shows(spark, flights):
    late = flights.where("is_late AND kind = 'ack'").head().id
    gone = flights.where("is_cancelled").head()

    def change(flight, steps):
        if flight.id == gone.id:
            return [("put", flight.due_ms), ("take", flight.due_ms), ("ack", flight.due_ms)]
        if flight.id == late:
            return [(kind, flight.planned_ms) for kind, _ in steps if kind != "move"]
        return steps

    assert failed(spark, flights, change) == {
        "cancelled = flights that never left": -1,
        "moved = flights 15 minutes late or more": -1,
        "acked = all others": 1,
        "each flight's end is the right one": -1,
        "each was sent for the right due": -1,
    }


def test_two_flights_with_each_other_s_end_show_though_the_sums_agree(spark, flights):
    one = flights.where("is_cancelled").head().id
    other = flights.where("kind = 'ack' AND NOT is_late").head().id

    def change(flight, steps):
        if flight.id == one:
            return [("put", flight.due_ms), ("take", flight.due_ms), ("ack", flight.due_ms)]
        if flight.id == other:
            return [("put", flight.due_ms), ("cancel", flight.due_ms)]
        return steps

    assert failed(spark, flights, change) == {
        "each flight's end is the right one": -2,
        "each was sent for the right due": -1,
    }


def test_a_flight_that_the_queue_does_not_know_shows(spark, flights):
    gone = flights.where("kind = 'ack' AND NOT is_late").head().id
    wrong = failed(spark, flights, lambda f, steps: [] if f.id == gone else steps)
    assert wrong["accepted = flights"] == -1
    assert wrong["each flight's end is the right one"] == -1


def test_deliveries_again_are_told_by_reason(spark):
    rows = [
        (position, at(time_ms), "take", plan.TOPIC, id_, at(0), 1)
        for position, id_, time_ms in [
            *((0, "held", 1_000), (1, "slow", 3_000), (2, "failed", 1_000), (3, "odd", 1_000)),
            *((4, "held", 6_000), (5, "slow", 6_000), (6, "failed", 1_200), (7, "odd", 1_300)),
        ]
    ]
    found = [(4, "held", "lapse"), (5, "slow", "lapse"), (6, "failed", "release"), (7, "odd", None)]
    findings = spark.createDataFrame(
        [(*row, True) for row in found], "position BIGINT, id STRING, origin STRING, again BOOLEAN"
    )
    events = spark.createDataFrame(rows, EVENTS)
    assert audit.reasons(events, findings, Outage(down_ms=2_000, up_ms=2_500)) == {
        "crash: one of both was killed while the worker had the message": 1,
        "lease ended while the handler was at work": 1,
        "retry: the handler failed": 1,
        "unexplained": 1,
    }
