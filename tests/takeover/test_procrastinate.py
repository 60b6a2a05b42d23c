"""Jobs of procrastinate move into a queue; it has deferred them, and its own worker runs beside."""

import asyncio
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import procrastinate
import psycopg
import pytest

import dwell
from dwell.clock import RealClock
from dwell.errors import InvalidUrl, ServerUnreachable
from dwell.handle import store_at
from dwell.queue import Queue
from dwell.takeover import procrastinate as procrastinate_place
from dwell.takeover import takeover
from dwell.takeover.procrastinate import Procrastinate
from dwell.takeover.takeover import Takeover
from tests.takeover.copies import copied as moved
from tests.takeover.copies import messages
from tests.waiting import until

_LATER = datetime(2060, 7, 1, 9, 0, 0, 500, tzinfo=UTC)


@pytest.fixture
def app(postgres):
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=postgres))
    with app.open():
        app.schema_manager.apply_schema()
        yield app


def defer(app, count, task="shop.pay", queue="mails", **words):
    jobs = app.configure_task(task, queue=queue, **words)
    return jobs.batch_defer(*({"order": number} for number in range(count)))


def do(url, query, *given):
    with psycopg.connect(url) as link:
        cursor = link.execute(query, given)
        return cursor.fetchall() if cursor.description else None


def left(url):
    query = "SELECT status::text, count(*) FROM procrastinate_jobs GROUP BY 1 ORDER BY 1"
    return dict(do(url, query))


def test_jobs_that_wait_move_with_their_dues_and_words(app, postgres, tmp_path):
    defer(app, 1_500)
    defer(app, 700, queue="later", schedule_at=_LATER, priority=7)
    words = {"lock": "order-1", "queueing_lock": "only", "priority": -3}
    (job,) = app.configure_task("t", queue="odd", **words).batch_defer(
        {"a": {"b": [1.1, "\u00e9"]}}
    )
    store, url = tmp_path / "store", f"procrastinate+{postgres}"
    report = moved(store, url, dry_run=True)
    assert (report.found.delayed, report.found.ready) == (700, 1501)
    assert left(postgres) == {"todo": 2201}
    report = moved(store, url)
    assert (report.moved, report.put["created"], report.left.here) == (2201, 2201, 0)
    assert (report.balances, report.is_whole, left(postgres)) == (True, True, {})
    assert do(postgres, "SELECT count(*) FROM procrastinate_events") == [(0,)]
    later = messages(store, "later")
    assert len(later) == 700
    # Rounded up, as nothing may be early.
    assert {m.due_ms for m in later.values()} == {int(_LATER.timestamp()) * 1000 + 1}
    assert {m.priority for m in later.values()} == {1017}
    assert sorted(m.json()["args"]["order"] for m in messages(store, "mails").values()) == list(
        range(1_500)
    )
    (odd,) = messages(store, "odd").values()
    assert odd.id.startswith(f"procrastinate-{job}-")
    assert (odd.key, odd.priority) == ("order-1", 1027)
    assert odd.headers["procrastinate-queueing-lock"] == "only"
    assert odd.body == '{"task":"t","args":{"a": {"b": [1.1, "\u00e9"]}}}'.encode()


def test_another_job_of_a_number_is_another_message(app, postgres, tmp_path):
    """As in tables that were made anew; the second job differs in its time alone."""
    for moves in (1, 2):
        (job,) = app.configure_task("t", queue="mails").batch_defer({"to": "ann"})
        assert job == 1
        assert moved(tmp_path, f"procrastinate+{postgres}").moved == 1
        assert (left(postgres), len(messages(tmp_path, "mails"))) == ({}, moves)
        do(postgres, "TRUNCATE procrastinate_jobs RESTART IDENTITY CASCADE")


def test_the_highest_priorities_keep_their_order(app, postgres, tmp_path, monkeypatch):
    """They are of one priority here."""
    monkeypatch.setattr(takeover, "_LIMIT", 3)
    order = [5_000, 1_024, 2**31 - 1, 1_025, 7, 5_000, 0, -(2**31)]
    for number, priority in enumerate(order):
        app.configure_task("t", queue="mails", priority=priority).defer(n=number)
    assert moved(tmp_path, f"procrastinate+{postgres}").moved == len(order)
    with dwell.open(tmp_path) as queue:
        found = [m.json()["args"]["n"] for m in queue.take("mails", 20)]
    assert found == sorted(range(len(order)), key=lambda at: -order[at])


def test_queues_of_an_address_and_a_schema(app, postgres, tmp_path):
    defer(app, 2)
    defer(app, 3, queue="other")
    defer(app, 4, queue="a b")
    with pytest.raises(InvalidUrl, match="--into"):
        moved(tmp_path, f"procrastinate+{postgres}")
    assert left(postgres) == {"todo": 9}
    assert moved(tmp_path, f"procrastinate+{postgres}?queue=mails&queue=none").moved == 2
    assert moved(tmp_path, f"procrastinate+{postgres}?schema=public", into="all").moved == 7
    assert len(messages(tmp_path, "all")) == 7


def test_jobs_that_can_be_no_messages_stay_and_hold_up_no_other(
    app, postgres, tmp_path, monkeypatch
):
    real, sizes = Procrastinate._rows, []

    async def measured(self, query, *given):
        rows = await real(self, query, *given)
        sizes.extend(len(text) for row in rows for text in row if isinstance(text, str))
        return rows

    monkeypatch.setattr(Procrastinate, "_rows", measured)
    defer(app, 3)
    large = {"text": "x" * 2**20}
    app.configure_task("t", queue="mails").defer(**large)
    app.configure_task("t", queue="mails", lock="x" * 300).defer()
    defer(app, 2, schedule_at=_LATER)
    change = "UPDATE procrastinate_jobs SET scheduled_at = %s WHERE id = %s"
    do(postgres, change, "infinity", 6)
    do(postgres, change, "-infinity", 7)
    defer(app, 1, schedule_at=_LATER - timedelta(days=365 * 300 // 10))
    do(postgres, change, "9999-01-01", 8)
    defer(app, 3)
    report = moved(tmp_path, f"procrastinate+{postgres}")
    assert (report.moved, report.refused, report.balances) == (6, 0, True)
    assert (report.held_back, report.is_whole) == (5, False)
    reasons = list(report.by_reason.items())
    assert {count for _, count in reasons} == {1, 2}
    told = {reason.partition(":")[0]: reason for reason, count in reasons if count}
    assert set(told) == {"key", "due", "their time is infinite", procrastinate_place._LARGE}
    assert told["key"].endswith("(such as job 5)")
    assert told["due"].endswith("(such as job 8)")
    assert left(postgres) == {"todo": 5}
    assert max(sizes) < 2**20


def test_jobs_that_others_lock_are_waited_for_and_counted(app, postgres, tmp_path, monkeypatch):
    monkeypatch.setattr(procrastinate_place, "_PATIENCE_S", 0.5)
    defer(app, 5)
    defer(app, 1, queue="other")
    lock = "SELECT id FROM procrastinate_jobs ORDER BY id LIMIT 2 FOR UPDATE"
    with psycopg.connect(postgres) as link:
        link.execute(lock)
        report = moved(tmp_path, f"procrastinate+{postgres}?queue=mails")
        assert (report.moved, report.left.ready, report.is_whole) == (3, 2, False)
        assert report.by_reason == {"another connection to PostgreSQL has locked them": 2}
    monkeypatch.setattr(procrastinate_place, "_PATIENCE_S", 30)
    with psycopg.connect(postgres) as link:
        link.execute(lock)
        timer = threading.Timer(1.5, link.rollback)
        timer.start()
        report = moved(tmp_path, f"procrastinate+{postgres}")
        timer.join()
    assert (report.moved, report.left.here, report.is_whole) == (3, 0, True)


def test_a_round_reads_each_once_past_those_that_stay(app, postgres, tmp_path, monkeypatch):
    real, asked = Procrastinate._rows, []

    async def noted(self, query, *given):
        rows = await real(self, query, *given)
        if "octet_length" in query:
            asked.append(len(rows))
        return rows

    monkeypatch.setattr(Procrastinate, "_rows", noted)
    defer(app, 2_500, lock="x" * 300)
    defer(app, 10)
    report = moved(tmp_path, f"procrastinate+{postgres}")
    assert (report.moved, report.held_back) == (10, 2_500)
    # Another round looks for those that came in the first.
    assert sum(asked) == 2_510 + 2_500


def test_a_full_topic_leaves_jobs_where_they_are(app, postgres, tmp_path):
    defer(app, 10)
    with dwell.open(tmp_path) as queue:
        queue.configure("mails", max_pending=4)
    report = moved(tmp_path, f"procrastinate+{postgres}")
    assert (report.moved, report.refused, report.balances) == (4, 6, True)
    assert left(postgres) == {"todo": 6}


def test_jobs_that_run_or_failed_stay(app, postgres, tmp_path):
    defer(app, 6)
    for id_, status in enumerate(("doing", "failed", "succeeded", "cancelled", "aborted"), 1):
        query = "UPDATE procrastinate_jobs SET status = %s WHERE id = %s"
        do(postgres, query, status, id_)
    report = moved(tmp_path, f"procrastinate+{postgres}")
    assert (report.moved, report.left.leased, report.left.dead) == (1, 1, 1)
    assert (report.balances, report.is_whole) == (True, True)


@pytest.mark.parametrize("step", ["lend", "let_go"])
def test_a_takeover_that_is_killed_loses_nothing(app, postgres, tmp_path, step):
    defer(app, 20)
    url = f"procrastinate+{postgres}"
    code = (
        "import os; from dwell.takeover import procrastinate as place\n"
        f"real = place.Procrastinate.{step}\n"
        "async def dies(self, *given):\n"
        f"    {'await real(self, *given)' if step == 'lend' else 'pass'}\n"
        "    os.kill(os.getpid(), 9)\n"
        f"place.Procrastinate.{step} = dies\n"
        "from dwell.takeover.process import run\n"
        f"run({str(tmp_path)!r}, {url!r}, tell=print)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert left(postgres) == {"todo": 20}
    # The server unlocks them as soon as it sees the end.
    locked = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    until(lambda: do(postgres, locked) == [(0,)])
    report = moved(tmp_path, url)
    assert report.put["kept"] == (0 if step == "lend" else 20)
    assert (left(postgres), len(messages(tmp_path, "mails"))) == ({}, 20)


def test_two_at_once_and_a_worker_beside_do_each_job_once(app, postgres, tmp_path):
    defer(app, 3_000)
    url = f"procrastinate+{postgres}"

    async def all_at_once():
        other = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=postgres))
        done = []

        @other.task(name="shop.pay")
        async def pay(order):
            done.append(order)

        async with other.open_async(), Queue(store_at(str(tmp_path), RealClock(), {})) as queue:
            worker = asyncio.create_task(other.run_worker_async(wait=False, concurrency=4))
            movers = [
                Takeover(Procrastinate(url, RealClock()), queue, lambda report: None)
                for _ in range(2)
            ]
            reports = await asyncio.gather(*(mover.run() for mover in movers))
            await worker
        return done, reports

    done, reports = asyncio.run(all_at_once())
    assert all(report.balances for report in reports)
    put = [m.json()["args"]["order"] for m in messages(tmp_path, "mails").values()]
    assert sorted(put + done) == list(range(3_000))
    assert sum(report.put["created"] for report in reports) == len(put) > 0


def test_a_server_that_ends_in_between_gives_all_back(app, postgres, tmp_path, monkeypatch):
    defer(app, 5)
    real = Procrastinate.let_go

    async def cut(self, load, places):
        do(postgres, "SELECT pg_terminate_backend(%s)", self._opened.info.backend_pid)
        return await real(self, load, places)

    monkeypatch.setattr(Procrastinate, "let_go", cut)
    with pytest.raises(ServerUnreachable):
        moved(tmp_path, f"procrastinate+{postgres}")
    monkeypatch.undo()
    assert left(postgres) == {"todo": 5}
    assert moved(tmp_path, f"procrastinate+{postgres}").put == {"kept": 5}


def test_an_address_without_its_tables_is_refused(postgres, tmp_path):
    with pytest.raises(InvalidUrl, match="procrastinate 3"):
        moved(tmp_path, f"procrastinate+{postgres}")
    with pytest.raises(ServerUnreachable):
        moved(tmp_path, "procrastinate+postgresql://127.0.0.1:1/none")
