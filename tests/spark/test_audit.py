"""The audit: books that balance, faults that are found, and a table with each event once."""

import dataclasses
import re
import shutil
import threading
import time
from datetime import UTC, datetime

import pytest

import dwell
from dwell.message import TRANSITIONS, Kind, State
from dwell.spark import register
from dwell.spark.pipelines import audit, rules
from dwell.spark.pipelines.books import Account, books
from dwell.spark.pipelines.closing import Closing, Meanwhile, absent, checks
from dwell.spark.pipelines.command import PipelineFailed, main
from dwell.spark.schemas import EVENTS

DUE = 1_700_000_000_000


def at(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def table(spark, stories, first=0):
    """Events of topics, each with one message ``m`` whose life is a list of steps.

    A step is a kind, or (kind, milliseconds after the due, due, attempt). The attempt of a kind
    alone is what follows from those before it.
    """
    rows = []
    for topic, steps in stories.items():
        attempt = 0 if steps[0] in ("put", "take") else 1
        for step in steps:
            name = step if isinstance(step, str) else ""
            attempt = 0 if name in ("put", "replace", "kick") else attempt + (name == "take")
            kind, late, due, attempt = (step, 5, DUE, attempt) if name else step
            moment = DUE + late if kind != "put" else DUE - 1000
            position = first + len(rows)
            rows.append((position, at(moment), kind, topic, "m", at(due), attempt))
    return spark.createDataFrame(rows, EVENTS).coalesce(1)


def outcome(account):
    """What became of a topic's messages: acked, cancelled, dead, pending."""
    return account.acked, account.cancelled, account.dead, account.pending


# --- the rules ------------------------------------------------------------------------------------


def test_the_rules_are_the_transitions():
    lawful = set(rules.lawful_pairs(from_start=True))
    for arrow in TRANSITIONS:
        if arrow.event is None:
            continue
        for prior in (rules.NONE, *Kind):
            if rules.state_after(prior) is arrow.before:
                assert rules.pair(prior, arrow.event) in lawful
    for prior, kind in (("ack", "ack"), ("take", "take"), ("cancel", "take"), ("dead", "take")):
        before = Kind.BURY if prior == "dead" else Kind[prior.upper()]
        assert rules.pair(before, Kind[kind.upper()]) not in lawful
    assert rules.state_after(Kind.TAKE) is State.LEASED


# --- lives that can be ----------------------------------------------------------------------------

LAWFUL = {
    # steps, (acked, cancelled, dead, pending), accepted, deliveries, again
    "waits": (["put"], (0, 0, 0, 1), 1, 0, 0),
    "held": (["put", "take"], (0, 0, 0, 1), 1, 1, 0),
    "done": (["put", "take", "ack"], (1, 0, 0, 0), 1, 1, 0),
    "cancelled": (["put", "cancel"], (0, 1, 0, 0), 1, 0, 0),
    "moved": (["put", ("move", -500, DUE + 9, 0), ("take", 9, DUE + 9, 1)], (0, 0, 0, 1), 1, 1, 0),
    "replaced": (["put", "replace", "take", "ack"], (1, 0, 0, 0), 1, 1, 0),
    "retried": (["put", "take", "release", "take", "ack"], (1, 0, 0, 0), 1, 2, 1),
    "lapsed": (["put", "take", "lapse", "take", "ack"], (1, 0, 0, 0), 1, 2, 1),
    "retried-moved": (["put", "take", "release", "move", "take"], (0, 0, 0, 1), 1, 2, 1),
    "buried": (["put", "take", "bury"], (0, 0, 1, 0), 1, 1, 0),
    "exhausted": (["put", "take", "exhaust"], (0, 0, 1, 0), 1, 1, 0),
    "expired": (["put", "expire"], (0, 0, 1, 0), 1, 0, 0),
    "lapsed-expired": (["put", "take", "lapse", "expire"], (0, 0, 1, 0), 1, 1, 0),
    "kicked": (["put", "take", "bury", "kick", "take", "ack"], (1, 0, 0, 0), 1, 2, 1),
    "kicked-first": (["put", "expire", "kick", "take", "ack"], (1, 0, 0, 0), 1, 1, 0),
    "dead-replaced": (["put", "take", "bury", "replace", "take"], (0, 0, 0, 1), 1, 2, 0),
    "dead-cancelled": (["put", "take", "bury", "cancel"], (0, 1, 0, 0), 1, 1, 0),
    "two-lives": (["put", "take", "ack", "put", "take", "ack"], (2, 0, 0, 0), 2, 2, 0),
    "gone-and-back": (["put", "cancel", "put"], (0, 1, 0, 1), 2, 0, 0),
}


@pytest.fixture(scope="module")
def lawful(spark):
    return books(table(spark, {topic: story[0] for topic, story in LAWFUL.items()}))


@pytest.mark.parametrize("topic", LAWFUL)
def test_a_life_that_can_be(lawful, topic):
    _, ends, accepted, deliveries, again = LAWFUL[topic]
    account = lawful.topics[topic]
    assert outcome(account) == ends
    assert (account.accepted, account.deliveries, account.again) == (accepted, deliveries, again)
    assert (account.broken, account.doubled, account.early, account.known) == (0, 0, 0, 0)


def test_lawful_lives_balance(lawful):
    assert lawful.is_balanced
    assert lawful.is_from_start
    assert lawful.events == sum(len(story[0]) for story in LAWFUL.values())
    assert lawful.total.accepted == lawful.total.whole == len(LAWFUL) + 2
    assert sum(lawful.kinds.values()) == lawful.events == lawful.next_position
    assert sum(sum(hour.kinds.values()) for hour in lawful.hours) == lawful.events
    assert lawful.again == {
        "retry: its taker gave it back": 2,
        "its lease ended": 1,
        "it was dead, and was kicked": 1,
    }
    assert len(lawful.delivered_again) == lawful.total.again == 4
    assert not (lawful.gaps)
    assert not (lawful.broken)
    assert not (lawful.doubled)
    assert not (lawful.early)


def test_lateness_is_from_the_due_that_was_taken_for(spark):
    stories = {f"t{n}": ["put", ("take", n, DUE, 1), "ack"] for n in range(100)}
    # A retry has a due of its own, and is not a first delivery.
    stories["retry"] = [
        *("put", ("take", 7, DUE, 1), ("release", 8, DUE + 60_000, 1)),
        *(("take", 60_002, DUE + 60_000, 2), ("ack", 60_003, DUE + 60_000, 2)),
    ]
    found = books(table(spark, stories))
    late = found.total.late
    assert (late.count, late.max_ms, late.p50_ms) == (101, 99, 49)
    assert (late.p90_ms, late.p99_ms) == (89, 98)
    assert found.topics["retry"].late.max_ms == 7
    assert found.attempts == {1: 100, 2: 1}
    assert found.is_balanced


@pytest.mark.campaign
def test_a_delivery_of_a_long_outage_is_counted_with_four_digits(spark):
    found = books(table(spark, {"t": ["put", ("take", 123_456_789, DUE, 1)]}))
    assert found.late_ms == {123_400_000: 1}
    assert found.total.late.max_ms == 123_456_789


# --- lives that cannot be -------------------------------------------------------------------------

BROKEN = {
    "ack-without-take": (["put", "ack"], "ack after put, when it was delayed"),
    "ack-twice": (["put", "take", "ack", "ack"], "ack after ack, when it was gone"),
    "no-put": (["take", "ack"], "take of a message that was never put"),
    "put-twice": (["put", "put"], "put after put, when it was delayed"),
    "cancel-held": (["put", "take", "cancel"], "cancel after take, when it was leased"),
    "kick-alive": (["put", "kick"], "kick after put, when it was delayed"),
    "lapse-free": (["put", "lapse"], "lapse after put, when it was delayed"),
    "move-dead": (["put", "expire", "move"], "move after expire, when it was dead"),
    "unknown": (["put", "vanish"], "unknown event after put, when it was delayed"),
}
DOUBLED = {
    "held": (["put", "take", "take"], "take after take, when it was leased"),
    "after-ack": (["put", "take", "ack", "take"], "take after ack, when it was gone"),
    "after-cancel": (["put", "cancel", "take"], "take after cancel, when it was gone"),
    "dead": (["put", "expire", "take"], "take after expire, when it was dead"),
}
EARLY = {
    "too-soon": (["put", ("take", -1, DUE, 1)], "1 ms early"),
    "before-the-move": (
        ["put", ("move", -900, DUE + 500, 0), ("take", 5, DUE, 1)],
        "before the due that was asked for",
    ),
    "retry-too-soon": (
        ["put", "take", ("release", 6, DUE + 1000, 1), ("take", 7, DUE + 1000, 2)],
        "993 ms early",
    ),
}


@pytest.fixture(scope="module")
def faulty(spark):
    stories = [BROKEN, DOUBLED, EARLY]
    named = {f"{n}-{topic}": s[0] for n, part in enumerate(stories) for topic, s in part.items()}
    return books(table(spark, named))


@pytest.mark.parametrize(
    ("part", "fault", "topic", "why"),
    [
        (f"{n}-{topic}", fault, topic, story[1])
        for n, (fault, part) in enumerate(
            [("broken", BROKEN), ("doubled", DOUBLED), ("early", EARLY)]
        )
        for topic, story in part.items()
    ],
)
def test_a_fault_is_found_and_listed(faulty, part, fault, topic, why):
    account = faulty.topics[part]
    faults = {name: getattr(account, name) for name in ("broken", "doubled", "early")}
    assert faults == {"broken": 0, "doubled": 0, "early": 0} | {fault: 1}
    (entry,) = [entry for entry in getattr(faulty, fault) if entry.topic == part]
    assert (entry.id, entry.why) == ("m", why)


def test_faults_unbalance_the_books(faulty):
    assert not faulty.is_balanced
    assert faulty.lost == len(BROKEN)
    assert (faulty.total.doubled, faulty.total.early) == (len(DOUBLED), len(EARLY))


def test_sums_that_do_not_add_up_are_seen_in_the_sums_too(faulty):
    assert faulty.topics["0-ack-twice"].accepted != faulty.topics["0-ack-twice"].whole
    assert faulty.topics["0-no-put"].accepted != faulty.topics["0-no-put"].whole


@pytest.mark.campaign
def test_a_tolerance_lets_a_clock_be_behind(spark):
    events = table(spark, {"t": ["put", ("take", -3, DUE, 1), "ack"]})
    assert books(events).total.early == 1
    assert books(events, early_ms=2).total.early == 1
    assert books(events, early_ms=3).is_balanced


@pytest.mark.campaign
def test_missing_positions_are_found(spark):
    events = table(spark, {f"t{n}": ["put", "take", "ack"] for n in range(100)})
    # Whole lives go, so that no state tells it: only the positions do.
    cut = events.where("position not between 30 and 32 and position not between 90 and 149")
    found = books(cut)
    assert not found.is_balanced
    assert (found.missing, found.lost) == (63, 63)
    assert found.gaps == ((30, 32), (90, 149))
    assert found.total.accepted == found.total.whole == 79


def test_a_missing_end_is_found(spark):
    events = table(spark, {"t": ["put", "take", "ack"]})
    found = books(events, until=5)
    assert (found.missing, found.gaps) == (2, ((3, 4),))


def test_an_event_that_is_there_twice_is_found_and_counted_once(spark):
    events = table(spark, {"t": ["put", "take", "ack"], "u": ["put", "take"]})
    twice = events.union(events.where("position in (1, 4)"))
    found = books(twice)
    assert (found.repeated, found.missing, found.events) == (2, 0, 5)
    assert found.total.accepted == found.total.whole == 2
    assert (found.total.doubled, found.total.broken, found.total.deliveries) == (0, 0, 2)
    assert not found.is_balanced


def test_books_end_where_they_are_closed(spark):
    events = table(spark, {"t": ["put", "take", "ack"], "u": ["put"]})
    found = books(events, until=2)
    assert (found.events, found.next_position) == (2, 2)
    assert outcome(found.topics["t"]) == (0, 0, 0, 1)
    assert set(found.topics) == {"t"}


@pytest.mark.campaign
def test_books_over_a_log_whose_begin_is_gone(spark):
    stories = {"known": [("take", 3, DUE, 2), "ack"], "new": ["put"], "again": ["release", "take"]}
    found = books(table(spark, stories, first=1000))
    assert found.first_position == 1000
    assert not found.is_from_start
    assert found.is_balanced
    assert (found.total.accepted, found.total.known) == (3, 2)
    # An attempt beyond the first was delivered before, though nobody here saw it.
    assert found.again == {
        "taken before the books begin": 1,
        "retry: its taker gave it back": 1,
    }
    # What is impossible stays impossible.
    broken = books(table(spark, {"t": ["ack", "ack"]}, first=1000))
    assert broken.total.broken == 1


@pytest.mark.campaign
def test_books_can_begin_anew_behind_a_gap(spark):
    events = table(spark, {f"t{n}": ["put", "take", "ack"] for n in range(10)})
    cut = events.where("position not in (7, 8)")
    assert not books(cut).is_balanced
    assert books(cut, since=9).is_balanced


@pytest.mark.campaign
def test_books_over_nothing(spark):
    found = books(spark.createDataFrame([], EVENTS))
    assert found.is_balanced
    assert found.total == Account()


# --- beside the server's counts -------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(spark):
    """Books, and the counts of a server that says the same."""
    stories = {"a": ["put", "take", "ack"], "b": ["put"], "c": ["put", "expire"]}
    found = books(table(spark, stories))
    totals = {"put": 3, "take": 1, "ack": 1, "expire": 1}
    pending, dead = {"a": 0, "b": 1, "c": 0}, {"a": 0, "b": 0, "c": 1}
    return found, Closing(6, totals, pending, dead)


def failing(found, end):
    return [check.what for check in checks(found, end, 0) if not check.holds]


def test_a_server_that_says_the_same(pair):
    found, end = pair
    assert failing(found, end) == []
    assert absent(found, end) == 0


def test_a_server_that_has_lost_a_message(pair):
    found, end = pair
    end = end._replace(pending={"a": 0, "b": 0, "c": 0})
    assert absent(found, end) == 1
    assert {"messages that the server no longer has", "pending, by the server"} <= {
        *failing(found, end)
    }


def test_a_server_that_counts_another_event(pair):
    found, end = pair
    assert failing(found, end._replace(totals=end.totals | {"take": 2})) == ["events: take"]


def test_topics_that_differ_though_the_sums_agree(pair):
    found, end = pair
    end = end._replace(pending={"a": 1, "b": 0, "c": 0})
    assert "topics that differ from the server's" in failing(found, end)


def test_a_server_in_use_is_compared_as_exactly_as_it_counts(pair):
    """Its count of one topic has an event that happened meanwhile, and behind the position."""
    found, end = pair
    meanwhile = Meanwhile({"ack": 1, "take": 1}, {"b": 1})
    end = end._replace(
        totals=end.totals | {"ack": 2}, pending=dict.fromkeys("abc", 0), meanwhile=meanwhile
    )
    assert failing(found, end) == []
    assert absent(found, end) == 0
    assert failing(found, end._replace(meanwhile=Meanwhile()))
    assert failing(found, end._replace(totals=end.totals | {"put": 4})) == ["events: put"]
    end = end._replace(dead=dict.fromkeys("abc", 0))
    assert absent(found, end) == 1
    assert {"messages that the server no longer has", "topics that differ from the server's"} <= {
        *failing(found, end)
    }


# --- the pipeline ---------------------------------------------------------------------------------


@pytest.fixture
def ready(spark):
    register(spark)
    return spark


def settings(server, tmp_path, **more):
    return audit.AuditSettings(url=server.url, out=str(tmp_path / "books"), **more)


def work(queue, topic, count):
    """Live some lives: 1 of 10 retried, 1 cancelled, 1 buried, 1 left; all others acked."""
    ids = [f"{topic}-{n}" for n in range(count)]
    queue.put_many(topic, ["x"] * count, ids=ids)
    queue.cancel(topic, ids[: count // 10])
    # However long the books take: what ends by itself meanwhile is one more event.
    taken = queue.take(topic, count, lease="1h")
    parts = [list(taken[n * count // 10 : (n + 1) * count // 10]) for n in range(9)]
    queue.release(parts[0], 0)
    queue.bury(parts[1], "no address")
    for part in parts[3:]:
        queue.ack(part)
    queue.ack(queue.take(topic, count // 10))


@pytest.mark.campaign
def test_a_run_reads_what_is_new_and_each_event_once(ready, server, tmp_path):
    """The server is killed between two runs."""
    wanted = settings(server, tmp_path, report=False, max_rows_per_batch=150)
    with dwell.open(server.url) as queue:
        work(queue, "a", 100)
    line = audit.run(ready, wanted)
    assert re.match(
        r"audit: 100 accepted = 70 acked \+ 10 cancelled \+ 10 dead \+ 10 pending;", line
    )
    assert "lost 0, early 0, doubled 0" in line
    first = positions(ready, wanted)
    server.kill()
    server.start()
    with dwell.open(server.url) as queue:
        work(queue, "b", 200)
    line = audit.run(ready, wanted)
    assert re.match(r"audit: 300 accepted = 210 acked", line), line
    second = positions(ready, wanted)
    assert second == list(range(len(second)))
    assert len(second) > len(first) > 0
    assert line == audit.run(ready, wanted)
    assert positions(ready, wanted) == second


def positions(spark, wanted):
    rows = audit.collected(spark, wanted.out).select("position").collect()
    return sorted(row.position for row in rows)


@pytest.mark.campaign
def test_a_server_in_use_gives_no_false_alarm(ready, server, queue, tmp_path):
    wanted = settings(server, tmp_path, report=False)
    work(queue, "t", 100)
    end = threading.Event()

    def go_on():
        with dwell.open(server.url) as other:
            for n in range(10_000):
                if end.is_set():
                    return
                work(other, f"t{n % 5}-{n}", 50)
                time.sleep(0.01)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        lines = [audit.run(ready, wanted) for _ in range(2)]
    finally:
        end.set()
        thread.join()
    assert all("lost 0, early 0, doubled 0" in line for line in lines)


def rewrite(spark, folder, change):
    """Change the rows of the only file of a table, and its size in the list of files."""
    (part,) = folder.rglob("*.parquet")
    size = part.stat().st_size
    change(spark.read.parquet(str(part)).toPandas()).to_parquet(part, coerce_timestamps="us")
    part.with_name(f".{part.name}.crc").unlink()
    listed = folder / "_spark_metadata" / "0"
    now = listed.read_text().replace(f'"size":{size}', f'"size":{part.stat().st_size}')
    listed.write_text(now)
    listed.with_name(".0.crc").unlink(missing_ok=True)


@pytest.mark.campaign
def test_the_books_do_not_balance_when_an_event_is_gone(ready, server, queue, tmp_path, capfd):
    wanted = settings(server, tmp_path)
    work(queue, "a", 100)
    audit.run(ready, wanted)
    rewrite(ready, tmp_path / "books" / "events", lambda rows: rows[rows.position != 50])
    with pytest.raises(PipelineFailed, match="lost 2"):
        audit.run(ready, wanted)
    page = (tmp_path / "books" / "audit.html").read_text()
    assert "The books do not balance." in page
    assert "50 to 50" in page
    # Nor do they when the whole table is gone.
    shutil.rmtree(tmp_path / "books" / "events")
    argv = ["--url", wanted.url, "--out", wanted.out]
    assert main("audit", argv) == 1
    assert "the first position, at most: 300, not 0" in capfd.readouterr().err


def test_books_cannot_begin_behind_what_could_be_read(pair):
    found, end = pair
    late = dataclasses.replace(found, first_position=1)
    assert "the first position, at most" in failing(late, end)


def test_the_report_and_the_tables(ready, server, queue, tmp_path):
    wanted = settings(server, tmp_path)
    work(queue, "orders", 100)
    audit.run(ready, wanted)
    page = (tmp_path / "books" / "audit.html").read_text()
    assert "The books balance" in page
    assert "orders" in page
    assert page.count("data:image/png;base64,") == 4
    assert not re.findall(
        r"(?:https?:)?//(?!\w*=)[a-z]+\.[a-z]", re.sub(r"base64,[^\"]+", "", page)
    )
    assert "retry: its taker gave it back" in page
    assert "<td>NO</td>" not in page
    assert not list((tmp_path / "books").glob(".*.crc"))
    hours = ready.read.parquet(f"{wanted.out}/hours").groupBy().sum("put", "ack", "again").collect()
    assert tuple(hours[0]) == (100, 70, 10)
    found = ready.read.parquet(f"{wanted.out}/findings")
    assert found.where("again").count() == found.count() == 10
    assert {row.origin for row in found.collect()} == {"release"}


def test_an_empty_server_balances(ready, server, tmp_path):
    line = audit.run(ready, settings(server, tmp_path))
    assert line.startswith("audit: 0 accepted = 0 acked + 0 cancelled + 0 dead + 0 pending; lost 0")
