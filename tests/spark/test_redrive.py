"""Dead and piled-up messages come back once: paced, spread, copied or dropped, and written down."""

import hashlib
import time
from pathlib import Path

import pytest

import dwell
import dwell.spark
from dwell.errors import InvalidInput, InvalidSettings
from dwell.spark.pipelines import pace, redrive

pytestmark = pytest.mark.usefixtures("registered")

START = "2030-01-01T00:00:00Z"
START_MS = 1_893_456_000_000


@pytest.fixture(scope="module")
def queue(shared):
    with dwell.open(shared.url) as queue:
        yield queue


@pytest.fixture
def run(spark, shared):
    def go(topic, **given):
        return redrive.run(
            spark, redrive.RedriveSettings(url=shared.url, topics=[topic], **given)
        ).removeprefix("redrive: ")

    return go


def bury(queue, topic, count, error="timeout"):
    ids = [f"{error}-{n:04}" for n in range(count)]
    priorities = [n % 10 for n in range(count)]
    queue.put_many(topic, [b"x" * 100] * count, ids=ids, priority=priorities, key="k")
    taken = queue.take(topic, count)
    assert len(taken) == count
    queue.bury(taken, error)
    return ids


def scanned(queue, topic):
    states = ("delayed", "ready", "dead")
    return {m.id: m for state in states for page in queue.pages(topic, state) for m in page}


def counts(queue, topic):
    found = queue.stats().topics[topic]
    return {"delayed": found.delayed, "ready": found.ready, "dead": found.dead}


def test_the_dead_come_back_paced_and_only_once(queue, run):
    bury(queue, "d1", 300)
    bury(queue, "d1", 100, "refused")
    given = {"where": "last_error = 'timeout'", "pace": "1/s", "start": START}
    assert run("d1", **given) == "300 chosen; 300 kicked over 5 min"
    back = [m for m in scanned(queue, "d1").values() if m.due_ms >= START_MS]
    assert sorted(m.due_ms for m in back) == [START_MS + n * 1000 for n in range(300)]
    # The important come first: priority, then due.
    first = sorted(back, key=lambda m: m.due_ms)
    assert [m.priority for m in first] == sorted(m.priority for m in back)
    assert counts(queue, "d1") == {"delayed": 300, "ready": 0, "dead": 100}
    assert run("d1", **given) == "0 chosen; 0 kicked"
    assert counts(queue, "d1") == {"delayed": 300, "ready": 0, "dead": 100}


def test_the_dead_come_back_with_their_dues_in_one_step(queue, run):
    """Nobody sees them with another due between, and a run that is killed leaves none late."""
    bury(queue, "once", 100)
    before = queue.stats().totals
    assert run("once", pace="1/s", start=START) == "100 chosen; 100 kicked over 99 s"
    after = queue.stats().totals
    assert after["kick"] - before.get("kick", 0) == 100
    assert after.get("move", 0) == before.get("move", 0)


def test_a_dry_run_changes_nothing(queue, run, tmp_path):
    bury(queue, "d2", 100)
    history = str(tmp_path / "history")
    line = run("d2", pace="1/m", limit=90, skip=True, dry_run=True, history=history)
    assert line == "100 chosen; would kick 90 over 89 min, drop 10 (dry run: nothing was changed)"
    assert counts(queue, "d2")["dead"] == 100
    assert not (tmp_path / "history").exists()


def test_the_unimportant_are_dropped_over_a_limit_and_the_history_tells(
    spark, queue, run, tmp_path
):
    bury(queue, "d3", 100)
    history = str(tmp_path / "history")
    given = {"limit": 60, "skip": True, "start": START, "history": history}
    assert run("d3", **given) == f"100 chosen; 60 kicked, 40 dropped; history {history}"
    left = scanned(queue, "d3")
    assert len(left) == 60
    assert max(m.priority for m in left.values()) == 5
    rows = spark.read.parquet(history).collect()
    assert len(rows) == 100
    kept = {row.id for row in rows if row.what == "kick"}
    assert kept == set(left)
    assert all(
        row.last_error == "timeout" and row.topic == "d3" and row.attempt == 1 for row in rows
    )
    assert {row.new_due.timestamp() * 1000 if row.new_due else None for row in rows} == {
        START_MS,
        None,
    }
    assert run("d3", **given) == f"0 chosen; 0 kicked, 0 dropped; history {history}"
    assert spark.read.parquet(history).count() == 100


def test_what_others_change_after_the_plan_is_left_alone(queue, run, monkeypatch):
    ids = bury(queue, "changed", 30)
    decide = redrive._decide

    def decided(*how):
        start_ms = decide(*how)
        queue.kick("changed", ids[:10])
        for again, delay in ((ids[10:15], 0), (ids[20:25], "1d")):
            queue.cancel("changed", again)
            queue.put_many("changed", [b"new"] * 5, ids=again, delay=delay)
        # These are dead again, for another reason.
        queue.bury(queue.take_ids("changed", ids[10:15]), "later")
        return start_ms

    monkeypatch.setattr(redrive, "_decide", decided)
    given = {"limit": 20, "skip": True, "start": START, "pace": "1/s"}
    line = run("changed", order_by=["id"], **given)
    assert line.startswith("30 chosen; 5 kicked over")
    assert "15 unknown, 5 dropped (5 were taken or gone before that)" in line
    left = scanned(queue, "changed")
    assert sorted(left) == ids[:25]
    assert all(left[id_].state is dwell.State.READY for id_ in ids[:10])
    assert all(left[id_].state is dwell.State.DEAD for id_ in ids[10:15])
    assert {left[id_].body for id_ in [*ids[10:15], *ids[20:25]]} == {b"new"}
    assert [left[id_].due_ms for id_ in ids[15:20]] == [START_MS + n * 1000 for n in range(15, 20)]


def test_without_skip_those_over_the_limit_stay(queue, run):
    bury(queue, "d4", 20)
    assert run("d4", limit=5, order_by=["priority desc"], start=START) == "20 chosen; 5 kicked"
    assert counts(queue, "d4") == {"delayed": 5, "ready": 0, "dead": 15}
    back = [m.priority for m in scanned(queue, "d4").values() if m.due_ms == START_MS]
    assert sorted(back) == [7, 8, 8, 9, 9]


def test_what_piled_up_is_moved_and_spread_the_same_way_each_time(queue, run):
    queue.put_many("p1", [b"x"] * 200, ids=[str(n) for n in range(200)])
    given = {"spread": "10m", "start": START}
    assert run("p1", state="ready", **given).startswith("200 chosen; 200 moved over ")
    first = {m.id: m.due_ms for m in scanned(queue, "p1").values()}
    assert len(set(first.values())) > 150
    assert all(START_MS <= due_ms < START_MS + 600_000 for due_ms in first.values())
    assert run("p1", state="delayed", **given).startswith("200 chosen; 200 moved over ")
    assert {m.id: m.due_ms for m in scanned(queue, "p1").values()} == first


def test_the_piled_up_are_dropped_over_a_limit(queue, run):
    queue.put_many("p2", [b"x"] * 50, ids=[str(n) for n in range(50)], priority=list(range(50)))
    line = run("p2", state="ready", limit=10, skip=True, start=START)
    assert line == "50 chosen; 10 moved, 40 dropped"
    assert sorted(m.priority for m in scanned(queue, "p2").values()) == list(range(10))


def test_copies_go_to_ten_topics_and_a_second_run_changes_nothing(queue, run):
    ids = bury(queue, "c0", 50)
    targets = [f"copy-{n}" for n in range(10)]
    given = {"copy_to": targets, "pace": "100/s", "start": START}
    assert run("c0", **given) == "50 chosen; 500 copied over 5 s"
    assert counts(queue, "c0")["dead"] == 50
    dues = []
    for target in targets:
        found = scanned(queue, target)
        assert set(found) == {f"c0/{name}" for name in ids}
        assert all(m.body == b"x" * 100 and m.key == "k" for m in found.values())
        dues += [m.due_ms for m in found.values()]
    assert sorted(dues) == [START_MS + n * 10 for n in range(500)]
    assert run("c0", **given) == "50 chosen; 0 copied, 500 kept"
    assert all(counts(queue, target)["delayed"] == 50 for target in targets)


def test_copies_of_long_ids_have_ids_that_fit(queue, run):
    queue.put_many("c1", [b"x"] * 2, ids=["a" * 256, "b" * 256])
    assert run("c1", state="ready", copy_to=["long"], start=START) == "2 chosen; 2 copied"
    # They follow from topic and id, so that a second run finds them there.
    digests = {hashlib.sha256(f"c1/{letter * 256}".encode()).hexdigest() for letter in "ab"}
    assert set(scanned(queue, "long")) == digests


def test_now_is_the_start_when_none_is_given(queue, run):
    bury(queue, "n1", 3)
    before_ms = time.time_ns() // 1_000_000
    assert run("n1") == "3 chosen; 3 kicked"
    dues = [m.due_ms for m in scanned(queue, "n1").values()]
    assert before_ms <= min(dues) <= max(dues) <= time.time_ns() // 1_000_000


def test_bad_settings_are_refused_before_anything_is_done(run):
    with pytest.raises(InvalidSettings, match=r"--where: got 'nope = 1': .*`nope`"):
        run("x", where="nope = 1")
    with pytest.raises(InvalidSettings, match=r"--order-by: got 'sideways'"):
        run("x", order_by=["sideways desc"], limit=1)
    with pytest.raises(InvalidSettings, match=r"--skip: got it without --limit"):
        run("x", skip=True)
    with pytest.raises(InvalidInput, match=r"--spread: got str 'long'"):
        run("x", spread="long")
    with pytest.raises(InvalidSettings, match=r"--start: got str 'noon', expected a time with"):
        run("x", start="noon")
    with pytest.raises(InvalidInput, match=r"topic: got str 'a b'"):
        run("x", copy_to=["a b"])


# --- what was decided -----------------------------------------------------------------------------


def lose_what_spark_keeps(spark):
    """Do what a lost machine does: cached blocks and shuffle files are gone."""
    for rdd in list(spark.sparkContext._jsc.getPersistentRDDs().values()):
        rdd.unpersist(True)
    for path in Path(spark.conf.get("spark.local.dir")).rglob("shuffle_*"):
        path.unlink()


def test_only_what_was_chosen_is_dropped_whatever_spark_loses(
    spark, queue, run, tmp_path, monkeypatch
):
    bury(queue, "lost", 100)
    plain = redrive._bring_back

    def then_lose(plan, settings):
        counts = plain(plan, settings)
        bury(queue, "lost", 50, "later")
        lose_what_spark_keeps(spark)
        return counts

    monkeypatch.setattr(redrive, "_bring_back", then_lose)
    history = str(tmp_path / "history")
    line = run("lost", limit=40, skip=True, start=START, pace="1/s", history=history)
    assert line.startswith("100 chosen; 40 kicked")
    assert "60 dropped" in line
    left = scanned(queue, "lost")
    assert sum(id_.startswith("later") for id_ in left) == 50
    rows = {row.id: row.what for row in spark.read.parquet(history).collect()}
    assert {id_ for id_, what in rows.items() if what == "kick"} == {
        id_ for id_ in left if not id_.startswith("later")
    }


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("when", "dies_in"),
    [
        ("before", "_keep_history"),
        ("after", "_keep_history"),
        ("after", "_bring_back"),
        ("after", "_drop"),
    ],
)
def test_a_run_that_was_killed_is_ended_by_the_next(
    spark, queue, run, tmp_path, monkeypatch, when, dies_in
):
    topic = f"killed{dies_in}-{when}"
    bury(queue, topic, 50)
    given = {"limit": 20, "skip": True, "start": START, "checkpoint": str(tmp_path / "check")}
    given["history"] = str(tmp_path / "history")
    plain = getattr(redrive, dies_in)

    def dies(plan, settings):
        if when == "after":
            plain(plan, settings)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(redrive, dies_in, dies)
        with pytest.raises(KeyboardInterrupt):
            run(topic, **given)
    bury(queue, topic, 5, "later")
    with pytest.raises(InvalidSettings, match="a run with other settings was not ended"):
        run(topic, **given | {"limit": 21})
    assert run(topic, **given).startswith("50 chosen; ")
    left = scanned(queue, topic)
    assert len(left) == 25
    assert sum(id_.startswith("later") for id_ in left) == 5
    what = {row.id: row.what for row in spark.read.parquet(given["history"]).collect()}
    assert {id_ for id_ in what if what[id_] == "kick"} == {
        id_ for id_ in left if not id_.startswith("later")
    }
    # What is ended is over: the next run decides anew.
    assert run(topic, **given).startswith("5 chosen; 5 kicked")


@pytest.fixture(scope="module")
def worded(queue):
    """A topic whose messages differ in all that a selection can say; 4 and 5 are ready."""
    queue.put("other", {"n": 1})
    for n, key in zip(range(1, 6), "aabbc", strict=True):
        headers = {"size": "large"} if n in (2, 4) else {}
        queue.put("words", {"n": n}, id=f"{n}", key=key, headers=headers)
        for _ in range(n == 3):
            queue.release(queue.take_ids("words", "3"))
        queue.reschedule("words", f"{n}", due=n)
        if n < 4:
            queue.bury(queue.take_ids("words", f"{n}"), "timeout: no answer")
    return "words"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"error": "no answer"}, "123"),
        ({"error": "no answer", "key": "a"}, "12"),
        ({"header": {"size": "large"}}, "2"),
        ({"attempt_from": 2}, "3"),
        ({"attempt_to": 2, "where": "key = 'a'"}, "12"),
        ({"due_from": "1970-01-01T00:00:00.002Z", "due_to": "4"}, "23"),
        ({"state": "ready", "due_from": "5"}, "5"),
    ],
)
def test_the_words_of_a_selection(spark, shared, worded, given, expected):
    wanted = redrive.RedriveSettings(url=shared.url, topics=[worded], **given)
    with pace.letting_go():
        chosen = [row.id for row in redrive._chosen(spark, wanted, None).collect()]
    assert sorted(chosen) == list(expected)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"due_from": "soon"}, "due_from: got str 'soon', expected ISO 8601"),
        ({"due_from": "20", "due_to": "10"}, "due_to: got int 10, expected a time that is not"),
        ({"attempt_from": -1}, "attempt_from: got int -1, expected a whole number"),
        ({"error": ""}, "error: got str '', expected text"),
    ],
)
def test_a_bad_selection_is_refused(given, words):
    with pytest.raises(InvalidInput, match="^" + words.replace("(", r"\(")):
        redrive.RedriveSettings(url="http://localhost:1", **given)
