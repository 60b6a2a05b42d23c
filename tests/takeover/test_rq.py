"""Jobs of RQ move into a queue; RQ itself has put them, in an interpreter of its own."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dwell
from dwell.errors import InvalidUrl, ServerUnreachable
from dwell.message import MAX_DELAY_MS, State
from dwell.takeover.process import run
from dwell.takeover.rq import _expires_ms
from tests.takeover.sources import contents
from tools.rooms import ROOT

RQ = ROOT / ".brokers/tasks/bin/python"
_JOBS = Path(__file__).with_name("rq_jobs.py")


def rq(url, *words, given=b""):
    command = [RQ, _JOBS, url, *words]
    done = subprocess.run(command, input=given, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split("\n")[:-1]


def moved(store, url, **how):
    return run(str(store), f"rq+{url}", tell=lambda report: None, **how)


def everything(queue, topic):
    return [m for s in (State.DELAYED, State.READY) for page in queue.pages(topic, s) for m in page]


def test_all_that_waits_moves_as_it_is(url, tmp_path):
    rq(url, "fill", "1200")
    told = moved(tmp_path, url, dry_run=True)
    assert (told.found.delayed, told.found.ready) == (1200, 1200)
    assert len(rq(url, "ids")) == 2400
    report = moved(tmp_path, url)
    assert (report.moved, report.put["created"], report.left.here) == (2400, 2400, 0)
    assert report.balances
    assert report.is_whole
    assert [one for one in rq(url, "ids") if one] == []
    with dwell.open(tmp_path) as queue:
        later, now = everything(queue, "mails"), everything(queue, "orders")
    assert {m.id for m in now} == {f"now-{number}" for number in range(1200)}
    assert all(m.state is State.READY for m in now)
    for m in later:
        number = int(m.id.removeprefix("later-"))
        assert m.due_ms == 4_070_908_800_000 + 1000 * number
        assert m.headers["rq-description"] == f"no {number}"
        assert m.headers["content-type"] == "application/x-python-pickle"
    assert len(later) == 1200
    first = next(m for m in now if m.id == "now-7")
    assert rq(url, "run", given=first.body) == ["builtins.print (7,)"]


def test_what_cannot_be_a_message_stays_and_holds_up_nothing(url, tmp_path):
    rq(url, "odd")
    rq(url, "fill", "3")
    report = moved(tmp_path, url)
    assert (report.moved, report.refused, report.held_back) == (7, 0, 5)
    reasons = ["they repeat", "others wait for them", "they wait for other jobs of RQ"]
    reasons += ["RQ has forgotten them, and only their ids are there"]
    assert [report.by_reason[reason] for reason in reasons] == [1, 1, 1, 1]
    assert report.balances
    assert not report.is_whole
    assert {one for one in rq(url, "ids") if one} == {"large", "repeats", "first", "gone"}
    with dwell.open(tmp_path) as queue:
        (message,) = everything(queue, "json")
    assert message.headers["content-type"] == "application/json"
    assert message.json()[0] == "shop.pay"
    # Run again, it finds the same.
    assert moved(tmp_path, url).moved == 0


def test_a_job_expires_when_rq_would_forget_it(engine, url, tmp_path):
    rq(url, "ttl")
    forgotten_ms = engine.ask("PEXPIRETIME", "rq:job:waits")
    report = moved(tmp_path, url)
    assert (report.moved, report.held_back, report.balances) == (2, 1, True)
    # RQ forgets it before it is due.
    assert [one for one in rq(url, "ids") if one] == ["never"]
    with dwell.open(tmp_path) as queue:
        waits, later = queue.get("orders", "waits"), queue.get("mails", "later")
    assert abs(waits.expires_ms - forgotten_ms) < 2_000
    # The scheduler counts it again from when it moves the job to the list.
    assert later.expires_ms == later.due_ms + 3_600_000


def test_what_is_called_after_a_job_is_kept(url, tmp_path):
    rq(url, "callbacks")
    assert moved(tmp_path, url).moved == 1
    with dwell.open(tmp_path) as queue:
        headers = queue.get("orders", "calls").headers
    assert headers["rq-success-callback-name"] == "builtins.print"
    assert headers["rq-failure-callback-name"] == "builtins.print"
    assert headers["rq-failure-callback-timeout"] == "7"
    assert headers["rq-failure-ttl"] == "77"


def test_a_life_of_any_number_of_digits_is_read():
    last_ms = 5_000 + MAX_DELAY_MS
    assert [_expires_ms(0, 5_000, -1, ttl) for ttl in (b"3", b"9" * 5_000)] == [8_000, last_ms]


@pytest.mark.parametrize("field", ["data", "meta", "ttl"])
def test_no_more_than_fits_is_read_at_a_time(engine, url, tmp_path, monkeypatch, field):
    from dwell.takeover import hashes

    for number in range(20):
        engine.ask("HSET", f"rq:job:j{number}", "data", "x", field, "x" * 5_000)
        engine.ask("RPUSH", "rq:queue:mails", f"j{number}")
    engine.ask("SADD", "rq:queues", "rq:queue:mails")
    read, sizes = hashes.HashesPlace.data_of, []

    async def data_of(self, part, jobs):
        told = await read(self, part, jobs)
        sizes.append(sum(len(one) for fields in told for one in fields if isinstance(one, bytes)))
        return told

    monkeypatch.setattr(hashes.HashesPlace, "data_of", data_of)
    monkeypatch.setattr(hashes, "MOST_BYTES", 20_000)
    assert moved(tmp_path, url).moved == 20
    assert max(sizes) < 25_000


def test_a_job_that_falls_due_soon_is_left_to_the_scheduler_for_a_while(url, tmp_path):
    rq(url, "soon")
    report = moved(tmp_path, url)
    # No scheduler runs, so it is taken some seconds after its due.
    assert (report.moved, report.balances) == (1, True)
    with dwell.open(tmp_path) as queue:
        (message,) = everything(queue, "mails")
    assert message.due_ms + 5_000 < time.time_ns() // 1_000_000


def test_a_job_that_is_scheduled_again_moves_in_its_new_version(engine, url, tmp_path, monkeypatch):
    from dwell.takeover import rq as place

    rq(url, "fill", "2")
    look, moves = place.RqPlace.let_go, iter([1])

    async def let_go(self, load, places):
        if load.place.part.key == "rq:scheduled:mails" and next(moves, None):
            engine.ask("ZADD", "rq:scheduled:mails", 4_070_999_999, "later-0")
            engine.ask("ZREM", "rq:scheduled:mails", "later-1")
        return await look(self, load, places)

    monkeypatch.setattr(place.RqPlace, "let_go", let_go)
    report = moved(tmp_path, url)
    assert (report.moved, report.elsewhere, report.balances) == (3, 1, True)
    with dwell.open(tmp_path) as queue:
        assert queue.get("mails", "later-0").due_ms == 4_070_999_999_000


@pytest.mark.parametrize("change", ["waited for", "replaced", "replaced in the list"])
def test_a_job_that_changes_while_it_is_put_is_not_removed(
    engine, url, tmp_path, monkeypatch, change
):
    from dwell.takeover import rq as place

    rq(url, "fill", "1")
    look, changes = place.RqPlace.let_go, iter([1])
    id_ = "now-0" if change == "replaced in the list" else "later-0"

    async def let_go(self, load, places):
        if load.place.jobs[0].id == id_.encode() and next(changes, None):
            if change == "waited for":
                engine.ask("SADD", f"rq:job:{id_}:dependents", "other")
            else:
                engine.ask("HSET", f"rq:job:{id_}", "data", "newer")
        return await look(self, load, places)

    monkeypatch.setattr(place.RqPlace, "let_go", let_go)
    report = moved(tmp_path, url)
    assert report.balances
    with dwell.open(tmp_path) as queue:
        found = [m.body for topic in ("mails", "orders") for m in everything(queue, topic)]
    stays = change != "replaced"
    assert len([one for one in rq(url, "ids") if one]) == stays
    # The copy of a job that was ready may be with a worker by now, so the job counts as another.
    assert (report.held_back, report.others) == (change == "waited for", "list" in change)
    assert (b"newer" in found) == (not stays)
    assert len(found) == 1 + (change != "waited for")


@pytest.mark.parametrize("score", ["inf", "-inf", "253402300799", "1893456000.5", "-315619200"])
def test_odd_dues_end_nothing(engine, url, tmp_path, score):
    rq(url, "fill", "2")
    engine.ask("ZADD", "rq:scheduled:mails", score, "later-0")
    report = moved(tmp_path, url)
    assert report.balances
    with dwell.open(tmp_path) as queue:
        found = {m.id: m.due_ms for m in everything(queue, "mails")}
    stays = score in ("inf", "253402300799")
    assert set(found) == ({"later-1"} if stays else {"later-0", "later-1"})
    assert report.held_back == stays
    if not stays:
        assert found["later-0"] == max(float(score) * 1000, 0)


def test_what_is_no_job_ends_nothing(engine, url, tmp_path):
    rq(url, "fill", "2")
    engine.ask("SET", "rq:job:text", "x")
    engine.ask("RPUSH", "rq:queue:orders", "text")
    engine.ask("RPUSH", "rq:queue:orders", b"\xff")
    engine.ask("HSET", b"rq:job:\xff", "data", "x")
    report = moved(tmp_path, url)
    assert (report.moved, report.held_back, report.balances) == (4, 2, True)


def test_a_job_that_always_changes_is_left(url, tmp_path, monkeypatch):
    from dwell.takeover import rq as place

    rq(url, "fill", "2")
    always = "local t = {} for i = 3, #ARGV, 3 do t[#t + 1] = 2 end return t"
    monkeypatch.setattr(place.RqPlace, "_remove_script", always)
    report = moved(tmp_path, url)
    assert (report.held_back, report.left.here) == (4, 4)


def stay_and_wait(engine, url, stay, go):
    """Put jobs that others wait for in front of those of ``fill``."""
    rq(url, "fill", str(go))
    for number in range(stay):
        id_ = f"stay-{number}"
        engine.ask("COPY", "rq:job:now-0", f"rq:job:{id_}")
        engine.ask("SADD", f"rq:job:{id_}:dependents", "other")
        engine.ask("LPUSH", "rq:queue:orders", id_)


def test_jobs_behind_many_that_stay_are_removed_in_one_pass(engine, url, tmp_path):
    stay_and_wait(engine, url, 300, 1200)
    engine.ask("CONFIG", "RESETSTAT")
    report = moved(tmp_path, f"{url}?queue=orders")
    assert (report.moved, report.held_back, report.left.ready) == (1200, 300, 300)
    # One for each batch.
    assert engine.ask("INFO", "commandstats")["cmdstat_lrem"]["calls"] <= 4


@pytest.mark.parametrize("popped", [2, 30])
def test_a_list_that_is_pushed_and_popped_while_jobs_are_put(
    engine, url, tmp_path, monkeypatch, popped
):
    from dwell.takeover import rq as place

    stay_and_wait(engine, url, 20, 200)
    look, changes = place.RqPlace.let_go, iter([1])

    async def let_go(self, load, places):
        if next(changes, None):
            # A worker takes some, and gives one back at each end.
            engine.ask("LPOP", "rq:queue:orders", 20 + popped)
            engine.ask("RPUSH", "rq:queue:orders", *(f"new-{n}" for n in range(5_000)))
            engine.ask("RPUSH", "rq:queue:orders", "now-0")
            engine.ask("LPUSH", "rq:queue:orders", "now-1", "stay-7")
        return await look(self, load, places)

    monkeypatch.setattr(place.RqPlace, "let_go", let_go)
    report = moved(tmp_path, f"{url}?queue=orders")
    assert (report.moved, report.elsewhere) == (200 - popped + 2, popped - 2)
    assert engine.ask("LRANGE", "rq:queue:orders", 0, 1) == ["stay-7", "new-0"]
    assert engine.ask("LLEN", "rq:queue:orders") == 5_001


def test_jobs_that_a_rate_limit_holds_back_move_too(engine, url, tmp_path):
    rq(url, "limited", "2")
    before = contents(url)
    told = moved(tmp_path, url, dry_run=True)
    assert (told.found.delayed, told.found.ready) == (1, 10)
    assert contents(url) == before
    report = moved(tmp_path, url)
    assert (report.moved, report.elsewhere, report.left.here) == (11, 0, 0)
    assert report.is_whole
    for what in ("allowed", "rate_limited"):
        assert engine.ask("ZCARD", f"rq:rl:customer:{what}") == 0
    with dwell.open(tmp_path) as queue:
        for word in ("mail", "order"):
            # The topic follows the order of RQ.
            taken = [m.id for m in queue.take(f"{word}s", 10)]
            assert taken == [f"{word}-{number}" for number in range(5)]
        headers = queue.get("mails", "later").headers
    assert (headers["rq-rate-limit-key"], headers["rq-rate-limit-concurrency"]) == ("customer", "2")


@pytest.mark.parametrize("runs", [False, True])
def test_the_slot_of_a_job_that_moved_goes_to_one_that_stays(engine, url, tmp_path, runs):
    rq(url, "limited", "1")
    if runs:
        engine.ask("ZADD", "rq:executions:mail-0", 4_070_908_800, "one")
    report = moved(tmp_path, f"{url}?queue=mails")
    assert (report.found.here, report.moved, report.left.here) == (6, 6, 0)
    assert report.is_whole
    let_through = [] if runs else ["order-0"]
    assert engine.ask("LRANGE", "rq:queue:orders", 0, -1) == let_through
    allowed = engine.ask("ZRANGE", "rq:rl:customer:allowed", 0, -1)
    assert allowed == (["mail-0"] if runs else let_through)
    if not runs:
        rq(url, "work")
    assert moved(tmp_path, url).moved == (5 if runs else 0)


def test_jobs_that_wait_for_others_are_counted(engine, url, tmp_path):
    rq(url, "fill", "1")
    engine.ask("ZADD", "rq:deferred:mails", 1, "child")
    told = moved(tmp_path, url, dry_run=True)
    assert (told.found.delayed, told.found.ready) == (2, 1)
    report = moved(tmp_path, url)
    assert (report.moved, report.left.delayed, report.is_whole) == (2, 1, False)
    assert report.by_reason == {"they wait for other jobs of RQ": 1}


def test_jobs_between_two_states_are_counted_and_moved_if_they_wait(engine, url, tmp_path):
    rq(url, "fill", "3")
    for number, key in enumerate(("rq:ready:orders", "rq:queue:orders:intermediate")):
        engine.ask("LREM", "rq:queue:orders", 1, f"now-{number}")
        engine.ask(*(("RPUSH", key) if number else ("ZADD", key, 17)), f"now-{number}")
    report = moved(tmp_path, url)
    assert (report.found.ready, report.found.leased) == (2, 1)
    assert (report.moved, report.left.here, report.left.leased) == (5, 1, 1)
    with dwell.open(tmp_path) as queue:
        assert {m.id for m in everything(queue, "orders")} == {"now-0", "now-2"}


def test_a_job_that_is_more_than_once_in_its_list_stays(engine, url, tmp_path, monkeypatch):
    from dwell.takeover import rq as place

    monkeypatch.setattr(place, "_AT_ONCE", 3)
    rq(url, "fill", "10")
    engine.ask("LPUSH", "rq:queue:orders", "now-7")
    report = moved(tmp_path, f"{url}?queue=orders")
    assert (report.moved, report.elsewhere, report.left.ready) == (9, 0, 2)
    assert list(report.by_reason.values()) == [1]
    assert engine.ask("LRANGE", "rq:queue:orders", 0, -1) == ["now-7", "now-7"]
    assert engine.ask("EXISTS", "rq:job:now-7")


def test_a_job_that_comes_to_its_list_again_meanwhile_moves_once(
    engine, url, tmp_path, monkeypatch
):
    from dwell.takeover import rq as place

    async def _doubles(self, key):
        return set()

    rq(url, "fill", "3")
    engine.ask("RPUSH", "rq:queue:orders", "now-1")
    monkeypatch.setattr(place.RqPlace, "_doubles", _doubles)
    report = moved(tmp_path, f"{url}?queue=orders")
    assert (report.moved, report.elsewhere, report.left.ready) == (3, 1, 1)
    assert (report.held_back, report.is_whole) == (1, False)
    assert engine.ask("LRANGE", "rq:queue:orders", 0, -1) == ["now-1"]


def test_jobs_leave_a_redis_whose_memory_is_full(engine, url, tmp_path):
    rq(url, "fill", "5")
    engine.ask("CONFIG", "SET", "maxmemory", 1)
    try:
        assert moved(tmp_path, url).moved == 10
    finally:
        engine.ask("CONFIG", "SET", "maxmemory", 0)


def test_a_takeover_that_is_killed_goes_on(engine, url, tmp_path):
    rq(url, "fill", "3000")
    store, program = tmp_path / "store", Path(sys.executable).with_name("dwell")
    command = [program, "--store", store, "takeover", f"rq+{url}"]
    kills = 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if kills < 3:
            left = engine.ask("DBSIZE")
            while process.poll() is None and engine.ask("DBSIZE") >= left:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            kills += 1
        out, _ = process.communicate()
        if process.returncode != -signal.SIGKILL:
            break
    assert process.returncode == 0, out
    with dwell.open(store) as queue:
        for topic, word in (("mails", "later"), ("orders", "now")):
            ids = sorted(m.id for m in everything(queue, topic))
            assert ids == sorted(f"{word}-{number}" for number in range(3000))


@pytest.mark.parametrize(
    "text",
    ["rq+redis:///0", "rq+redis://localhost?tube=a", "rq+redis://localhost?queue=", "rq+http://x"],
)
def test_wrong_addresses_are_refused(tmp_path, text):
    with pytest.raises(InvalidUrl, match="url: got"):
        run(str(tmp_path / "store"), text, tell=lambda report: None)


def test_what_is_no_rq_is_told(engine, url, tmp_path):
    with pytest.raises(InvalidUrl, match="has no queues of RQ"):
        moved(tmp_path, url)
    engine.ask("SET", "rq:queues", "text")
    with pytest.raises(InvalidUrl, match="WRONGTYPE"):
        moved(tmp_path, url)
    engine.ask("DEL", "rq:queues")
    engine.ask("SADD", "rq:queues", b"rq:queue:\xff")
    with pytest.raises(InvalidUrl, match="not UTF-8"):
        moved(tmp_path, url)
    with pytest.raises(ServerUnreachable, match=r"RQ at 127\.0\.0\.1:1"):
        moved(tmp_path, "redis://127.0.0.1:1/0")
    rq(url.replace("/0", "/1"), "ids")
    engine.ask("FLUSHALL")
    engine.ask("SADD", "rq:queues", "rq:queue:a b")
    with pytest.raises(InvalidUrl, match="needs --into"):
        moved(tmp_path, url)
