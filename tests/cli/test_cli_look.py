import re
import sys
import time
from dataclasses import replace

import pytest
from rich.cells import cell_len

from dwell.message import Kind
from dwell.threads.sync import SyncQueue

DUE_MS = 4_000_000_000_000


@pytest.fixture
def messages(cli):
    """Topic t: d0, d1, d2 delayed, r ready, l leased, x dead; topic u: one ready."""
    with cli.queue() as queue:
        queue.put("t", b"dead", id="x", key="k", priority=1)
        queue.bury(queue.take("t"), "no such address")
        queue.put("t", b"leased", id="l")
        queue.take("t", lease="1d")
        queue.put("t", "ready " * 50, id="r")
        for n in (2, 0, 1):
            queue.put("t", f"[red]{n}", id=f"d{n}", due=DUE_MS + n)
        queue.put("u", b"")


def ids(objects):
    return [one["id"] for one in objects]


@pytest.mark.usefixtures("messages")
class TestLooking:
    def test_list_is_by_state_and_due(self, cli):
        assert ids(cli.json("list", "t")) == ["l", "r", "d0", "d1", "d2", "x"]

    def test_list_of_some_states(self, cli):
        states = ("--state", "dead", "--state", "delayed", "--state", "dead")
        assert ids(cli.json("list", "t", *states)) == ["x", "d0", "d1", "d2"]

    def test_a_limit_says_that_there_are_more(self, cli):
        done = cli.run("--json", "list", "t", "--limit", "3")
        assert done.stdout.count("\n") == 3
        assert done.stderr == "there are more: a larger --limit, or --all, shows them\n"
        assert cli.run("list", "t", "--limit", "6").stderr == ""
        assert len(cli.json("list", "t", "--limit", "1", "--all")) == 6
        assert len(cli.json("list", "t", "--limit", str(sys.maxsize))) == 6

    def test_the_table_has_the_columns_that_are_needed(self, cli):
        head, row = cli.out("list", "t", "--state", "delayed", "--limit", "1")
        assert head.split() == ["state", "id", "due", "attempt", "body"]
        assert row.split()[:2] == ["delayed", "d0"]
        assert row.endswith("[red]0")
        (head, _, ready, *_, dead) = cli.out("list", "t")
        assert head.split()[4:7] == ["lease", "ends", "died"]
        assert head.split()[7:] == ["priority", "key", "last", "error", "body"]
        assert dead.split()[-6:] == ["1", "k", "no", "such", "address", "dead"]
        assert ready.endswith("…")

    def test_a_table_fits_the_terminal(self, cli):
        terminal = {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "dumb"}
        lines = cli.out("list", "t", "--state", "ready", env=terminal)
        assert [cell_len(line) for line in lines] == [80, 80]
        assert lines[1].endswith("…")

    def test_stats(self, cli):
        (stats,) = cli.json("stats")
        assert stats["topics"] == {
            "t": {"delayed": 3, "ready": 1, "leased": 1, "dead": 1},
            "u": {"delayed": 0, "ready": 1, "leased": 0, "dead": 0},
        }
        assert stats["totals"]["put"] == 7
        lines = [line.split() for line in cli.out("stats")]
        assert lines[:4] == [
            ["topic", "delayed", "ready", "leased", "dead"],
            ["t", "3", "1", "1", "1"],
            ["u", "0", "1", "0", "0"],
            ["all", "3", "2", "1", "1"],
        ]
        assert ["put", "7"] in lines

    def test_topics(self, cli):
        assert cli.out("topics") == ["t", "u"]
        assert cli.json("topics")[1] == {
            "topic": "u",
            "delayed": 0,
            "ready": 1,
            "leased": 0,
            "dead": 0,
        }

    def test_events(self, cli):
        events = cli.json("events")
        assert [one["position"] for one in events] == list(range(10))
        assert [one["kind"] for one in events][:4] == ["put", "take", "bury", "put"]
        assert ids(events)[:2] == ["x", "x"]
        assert {one["kind"] for one in events} <= {str(kind) for kind in Kind}
        assert cli.json("events", "--from", "8") == events[8:]
        assert cli.json("events", "--from", "2", "--limit", "3") == events[2:5]
        assert cli.json("events", "--limit", "1", "--all") == events
        assert cli.json("events", "--from", "99") == []
        assert (
            "the newest event is before 10: the store was restored"
            in cli.run("events", "--from", "99").stderr
        )

    def test_events_go_on_in_the_same_history_only(self, cli):
        told = cli.run("events", "--limit", "4").stderr
        assert (how := re.search("continue with (--from 4 --history [0-9a-f]+)", told))
        assert cli.json("events", *how[1].split()) == cli.json("events", "--from", "4")
        other = cli.run("events", "--from", "4", "--history", "0", code=3)
        assert other.stdout == ""
        assert "the store was restored" not in told
        assert "history: got '0', and the store has" in other.stderr

    def test_events_of_one_message(self, cli):
        events = cli.json("events")
        of_x = [one for one in events if one["id"] == "x"]
        assert of_x
        assert cli.json("events", "--topic", "t", "--id", "x") == of_x
        assert cli.json("events", "--id", "x", "--limit", "2") == of_x[:2]
        assert cli.json("events", "--topic", "unknown") == []

    def test_events_for_people(self, cli):
        head, row = cli.out("events", "--limit", "1")
        assert head.split() == ["position", "time", "event", "topic", "id", "due", "attempt"]
        assert row.split()[0] == "0"
        assert row.split()[2:5] == ["put", "t", "x"]

    @pytest.mark.parametrize(
        ("args", "error"),
        [
            (["list", "a b"], "InvalidTopic: "),
            (["list", "t", "--state", "gone"], "InvalidInput: state: got str 'gone'"),
            (["list", "t", "--limit", "0"], "UsageError: Invalid value for '--limit'"),
            (["list", "t", "--limit", "9" * 20], "UsageError: Invalid value for '--limit'"),
            (["list", "t", "--json"], "UsageError: No such option: --json (options for all com"),
            (["list"], "UsageError: Missing argument 'TOPIC'"),
            (["stats", "t"], "UsageError: Got unexpected extra argument"),
            (["topics", "--limit", "1"], "UsageError: No such option: --limit"),
            (["events", "--from", "-1"], "InvalidLimit: position: got int -1"),
            (["events", "--limit", "0"], "UsageError: Invalid value for '--limit'"),
            (["events", "--limit", "9" * 20], "UsageError: Invalid value for '--limit'"),
        ],
    )
    def test_bad_input(self, cli, args, error):
        assert cli.error(*args).startswith(error)


def test_an_empty_topic(cli):
    cli.run("settings", "t", "paused=true")
    assert cli.run("list", "t").output == ""
    assert cli.json("list", "t") == []


def test_pages_are_followed(cli):
    with cli.queue() as queue:
        queue.put_many("t", ["x"] * 2500, delay="1h")
    assert len(cli.out("--json", "list", "t", "--all")) == 2500
    assert len(cli.out("--json", "list", "t", "--limit", "1200")) == 1200
    assert len(cli.out("--json", "events", "--limit", "2200")) == 2200


def test_events_that_were_dropped_between_two_pages_are_told(cli, monkeypatch):
    with cli.queue() as queue:
        queue.put_many("t", ["x"] * 2500, delay="1h")
    events = SyncQueue.events

    def dropping(queue, position, limit):
        if position != 1000:
            return events(queue, position, limit)
        return replace(events(queue, 2000, limit), first_position=2000)

    monkeypatch.setattr(SyncQueue, "events", dropping)
    told = cli.run("events", "--all").stderr
    assert told.count("no longer kept") == 1
    assert "events before 2000 are no longer kept" in told

    def restored(queue, position, limit):
        page = events(queue, position, limit)
        return replace(page, since="0") if position == 1000 else page

    monkeypatch.setattr(SyncQueue, "events", restored)
    assert "before position 1000: it was restored" in cli.error("events", "--all", code=3)


@pytest.mark.parametrize(
    "command",
    [
        ["take", "t"],
        ["ack", "0" * 32],
        ["cancel", "t", "a"],
        ["get", "t", "a"],
        ["list", "t"],
        ["stats"],
        ["find", "t", "@"],
        ["clear", "t", "--yes"],
        ["stale"],
        ["settings", "t"],
        ["check"],
    ],
)
def test_looking_makes_no_store(cli, tmp_path, command):
    error = cli.error(*command, code=3)
    assert error.startswith(f"NotAStore: {tmp_path / 'queue'}: there is no store here")
    assert not (tmp_path / "queue").exists()
    (tmp_path / "queue").mkdir()
    cli.error(*command, code=3)


def test_a_topic_that_is_not_there_is_named(cli):
    cli.run("put", "orders", "x")
    for args in (["list", "oders"], ["find", "oders", "a"]):
        done = cli.run(*args)
        assert done.stderr == "there is no topic oders; there are orders\n"
        assert done.stdout == ""
    assert cli.run("--json", "list", "oders").stdout == ""
    assert cli.run("--quiet", "list", "oders").output == ""
    assert cli.run("list", "orders", "--state", "dead").output == ""
    for number in range(11):
        cli.run("put", f"topic-{number:02}", "x")
    said = cli.run("list", "oders").stderr
    assert said.endswith("topic-08 and 2 more\n")


def test_a_dead_message_says_when_it_died(cli):
    cli.run("put", "t", "x", "--id", "a")
    (taken,) = cli.json("take", "t")
    before_ms = time.time_ns() // 1_000_000
    cli.run("bury", taken["receipt"])
    (dead,) = cli.json("list", "t", "--state", "dead")
    assert before_ms <= dead["died_ms"] <= time.time_ns() // 1_000_000
    assert dead["lease_until_ms"] == 0
    assert "died" in cli.run("get", "t", "a").stdout
    assert "died" in cli.run("list", "t").stdout.partition("\n")[0]
