"""The options that say which messages, on every command that has them."""

import json

import pytest

import dwell

FAR_MS = 4_000_000_000_000
#: Commands that take a selection, with what else each needs.
CHANGES = {"cancel": [], "reschedule": ["--delay", "1h"], "kick": []}
WAYS = [["list"], ["get"], ["find"], ["take"], *([name, *more] for name, more in CHANGES.items())]


@pytest.fixture(autouse=True)
def jobs(cli):
    """Topic t: jobs 0 to 5 by due; 4 is delayed, 5 dead; 1, 3 and 5 have failed by a timeout."""
    with cli.queue() as queue:
        for n in range(6):
            key = "odd" if n % 2 else None
            headers = {"size": "large" if n > 2 else "small"}
            queue.put("t", {"n": n}, id=f"{n}", due=10 + n, key=key, headers=headers)
        for n in (1, 3, 5):
            queue.release(queue.take_ids("t", f"{n}"), error="timeout: no answer")
            queue.reschedule("t", f"{n}", due=10 + n)
        queue.reschedule("t", "4", due=FAR_MS)
        queue.bury(queue.take_ids("t", "5"), "timeout: no answer")


def ids(cli, *args):
    return [one["id"] for one in cli.json(*args)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--where", "n > `2`"], "345"),
        (["--key", "odd"], "135"),
        (["--header", "size=large"], "345"),
        (["--error", "no answer"], "135"),
        (["--attempt-from", "1"], "135"),
        (["--attempt-from", "1", "--attempt-to", "2"], "13"),
        (["--attempt-to", "1"], "024"),
        (["--due-from", "12"], "2345"),
        (["--due-from", "12", "--due-to", "1970-01-01T00:00:00.014Z"], "23"),
        (["--state", "dead", "--state", "ready"], "01235"),
        (["--key", "odd", "--header", "size=large", "--where", "n < `4`", "--error", "time"], "3"),
    ],
)
def test_each_command_means_the_same_messages(cli, options, expected):
    ready = [id_ for id_ in expected if id_ in "0123"]
    assert sorted(ids(cli, "list", "t", *options)) == list(expected)
    assert sorted(ids(cli, "get", "t", *options)) == list(expected)
    found = ids(cli, "find", "t", *options)
    assert sorted(found) == (list(expected) if "--state" in options else ready)
    counts = {"cancel": "012345", "reschedule": "01234", "kick": "5"}
    for name, more in CHANGES.items():
        found_in = "012345" if "--state" in options else counts[name]
        (told,) = cli.json(name, "t", *options, *more, "--dry-run")
        matched = sum(id_ in found_in for id_ in expected)
        assert told == {"topic": "t", "matched": matched, "is_complete": True}
    if "--state" not in options:
        assert sorted(ids(cli, "take", "t", *options, "--limit", "9")) == ready


class TestChanges:
    def test_it_says_how_many_and_asks(self, cli):
        words = ["cancel", "t", "--error", "timeout"]
        done = cli.run(*words, stdin="n\n", code=1)
        assert done.stderr.rstrip() == "Cancel 3 messages of t? [y/N]:"
        assert len(ids(cli, "list", "t")) == 6
        cli.run(*words, stdin="", code=2)
        done = cli.run(*words, stdin="y\n")
        assert done.stdout.endswith("3 cancelled\n")
        assert sorted(ids(cli, "list", "t")) == ["0", "2", "4"]
        # There is nothing to ask about.
        assert cli.out(*words) == ["0 cancelled"]

    def test_kick_by_body_and_error(self, cli):
        assert cli.out("kick", "t", "--where", "n > `3`", "--error", "timeout", "--yes") == [
            "1 kicked"
        ]
        assert cli.get("t", "5").attempt == 0

    def test_a_number_of_the_dead_is_counted(self, cli):
        assert cli.out("kick", "t", "--limit", "9", "--dry-run") == ["1 message would be kicked"]
        assert cli.get("t", "5").attempt == 2

    def test_kick_at_a_pace(self, cli):
        with cli.queue() as queue:
            queue.put_many("dead", ["x"] * 5)
            queue.bury(queue.take("dead", 5))
        assert cli.out("kick", "dead", "--limit", "5", "--pace", "2", "--yes") == ["5 kicked"]
        dues_ms = sorted(row["due_ms"] for row in cli.json("list", "dead"))
        # The first are due when the store has them, a little after the second has begun.
        assert dues_ms[0] == dues_ms[1] <= dues_ms[2] - 900
        assert dues_ms[2] == dues_ms[3] == dues_ms[4] - 1000

    def test_shift_by_selection(self, cli):
        assert cli.out("reschedule", "t", "--key", "odd", "--shift", "1h", "--yes") == ["2 moved"]
        assert cli.get("t", "3").due_ms == 3_600_013
        assert cli.out("reschedule", "t", "--key", "odd", "--shift=-1h", "--yes") == ["2 moved"]
        assert cli.get("t", "3").due_ms == 13

    def test_what_was_taken_meanwhile_is_told(self, cli):
        cli.run("take", "t", "--key", "odd", "--limit", "1", "--lease", "1h")
        words = ["--state", "leased", "--state", "ready", "--key", "odd", "--yes"]
        (told,) = cli.json("cancel", "t", *words, code=1)
        assert told == {
            "topic": "t",
            "matched": 2,
            "results": {"leased": 1, "cancelled": 1},
            "is_complete": True,
        }

    def test_no_more_than_the_limit(self, cli):
        done = cli.run("cancel", "t", "--due-to", "100", "--limit", "2", stdin="y\n")
        assert done.stdout.endswith("2 cancelled\n")
        assert done.stderr.startswith("Cancel the first 2 messages of t? [y/N]:")
        assert done.stderr.endswith("there may be more that match\n")
        out = cli.out("cancel", "t", "--due-to", "100", "--limit", "2", "--dry-run")
        assert out == ["2 messages would be cancelled, and there may be more"]
        assert len(ids(cli, "list", "t")) == 4
        assert cli.out("--quiet", "cancel", "t", "--due-to", "100", "--yes") == []

    def test_get_shows_as_many_as_are_asked_for(self, cli):
        done = cli.run("--json", "get", "t", "--attempt-to", "9", "--limit", "2")
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["0", "1"]
        assert done.stderr == "there are more: a larger --limit shows them\n"


@pytest.mark.parametrize("words", WAYS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--header", "large"], "InvalidHeaders: header: got str 'large', expected name=value"),
        (["--due-from", "soon"], "InvalidTime: due_from: got str 'soon', expected ISO 8601"),
        (["--due-to", "1900000000"], "InvalidTime: due_to: got str '1900000000', expected mill"),
        (
            ["--due-from", "20", "--due-to", "10"],
            "InvalidTime: due_to: got int 10, expected a time that is not before due_from, 20",
        ),
        (["--attempt-from", "-1"], "InvalidAttempts: attempt_from: got int -1, expected a whole"),
        (
            ["--attempt-from", "3", "--attempt-to", "2"],
            "InvalidAttempts: attempt_to: got int 2, expected a number that is not below",
        ),
        (["--error", ""], "InvalidInput: error: got str '', expected text of 1-1000"),
        (["--key", ""], "InvalidKey: key: got str '', expected text"),
        (["--where", "a["], "InvalidQuery: where: got str 'a['"),
    ],
)
def test_bad_selections(cli, words, options, error):
    name, *more = words
    assert cli.error(name, "t", *more, *options).startswith(error)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["list", "t", "--state", "gone"], "InvalidInput: state: got str 'gone', expected del"),
        (["cancel", "t", "1", "--key", "odd"], "InvalidInput: cancel: got both, expected ids or"),
        (["cancel", "t", "1", "--dry-run"], "InvalidInput: cancel: got --dry-run beside ids"),
        (["kick", "t", "--yes"], "InvalidInput: kick: got neither, expected ids or some of --wh"),
        (["cancel", "t", "--key", "x", "--limit", "0"], "InvalidLimit: limit: got int 0"),
        (["get", "t", "--key", "x", "--limit", "0"], "InvalidLimit: limit: got int 0"),
        (["reschedule", "t", "--key", "x"], "InvalidTime: due: got none, expected one of delay"),
        (
            ["reschedule", "t", "--key", "x", "--shift", "1s", "--delay", "1s"],
            "InvalidTime: due: got delay and shift, expected one of",
        ),
        (["reschedule", "t", "1", "--shift", "1s"], "InvalidInput: reschedule: got --shift beside"),
        (
            ["reschedule", "t", "--key", "x", "--shift", "soon"],
            "InvalidTime: shift: got str 'soon', expected",
        ),
        (["find", "t", "n", "--where", "n"], "InvalidInput: where: got it beside an EXPRESSION"),
        (["take", "t", "u", "--key", "x"], "InvalidInput: take: expected one topic and no --wait"),
    ],
)
def test_what_does_not_go_together(cli, args, error):
    assert cli.error(*args).startswith(error)
    with cli.queue() as queue:
        assert queue.stats().topics["t"] == dwell.TopicStats(delayed=1, ready=4, dead=1)


@pytest.mark.parametrize("command", [("cancel", "t", "--key", "odd"), ("clear", "t")])
def test_where_nobody_can_answer_it_says_how_to_go_on(cli, command):
    before = cli.json("list", "t")
    assert "InvalidInput: nobody answers here: expected --yes" in cli.run(*command, code=2).stderr
    assert cli.json("list", "t") == before


def test_numbers_stand_in_backticks(cli):
    assert "numbers stand in backticks" in cli.error("find", "t", "total > 30")
