from datetime import UTC, datetime

import pytest

from dwell import State
from dwell.clock import RealClock
from dwell.message import MAX_BODY_BYTES

DUE_MS = 4_000_000_000_000


def test_everything_that_a_message_can_say(cli):
    answer = cli.json(
        *("put", "emails", "hello", "--id", "a", "--due", str(DUE_MS), "--priority", "7"),
        *("--lease", "5m", "--ttl", "36500d", "--key", "k", "--header", "x=1", "--header", "y=a=b"),
        *("--max-attempts", "3"),
    )
    assert answer == [{"topic": "emails", "id": "a", "result": "created"}]
    message = cli.get("emails", "a")
    assert (message.body, message.due_ms, message.priority) == (b"hello", DUE_MS, 7)
    assert (message.lease_ms, message.max_attempts, message.key) == (300_000, 3, "k")
    assert message.headers == {"x": "1", "y": "a=b"}
    assert message.expires_ms > DUE_MS
    assert message.state is State.DELAYED


def test_people_read_the_result_and_the_id(cli):
    assert cli.out("put", "t", "x", "--id", "a") == ["created  a"]
    assert cli.out("put", "t", "x", "--id", "a") == ["kept  a"]
    assert cli.out("put", "t", "y", "--id", "a", "--on-conflict", "replace") == ["replaced  a"]
    assert cli.get("t", "a").body == b"y"


def test_quiet_says_nothing(cli):
    done = cli.run("--quiet", "put", "t", "x")
    assert done.output == ""


def test_a_queue_made_id_can_be_used(cli):
    (answer,) = cli.json("put", "t", "x", "--delay", "1h")
    assert cli.out("cancel", "t", answer["id"]) == [f"cancelled  {answer['id']}"]


@pytest.mark.parametrize("body", [b"", b"text\n", b"\xff\x00", b"x" * MAX_BODY_BYTES])
def test_a_body_from_standard_input_is_put_as_it_is(cli, body):
    cli.run("put", "t", "-", "--id", "a", stdin=body)
    assert cli.get("t", "a").body == body


def test_a_body_above_the_limit_is_refused_before_it_is_read_to_its_end(cli):
    assert cli.error("put", "t", "-", stdin=b"x" * (MAX_BODY_BYTES + 9)).startswith(
        f"InvalidBody: body: got {MAX_BODY_BYTES + 1} bytes"
    )


@pytest.mark.parametrize(
    ("given", "least_ms"), [("90", 90_000), ("0.5", 500), ("1h30m", 5_400_000), ("250ms", 250)]
)
def test_delays(cli, given, least_ms):
    before_ms = RealClock().now_ms()
    cli.run("put", "t", "x", "--id", "a", "--delay", given)
    after_ms = RealClock().now_ms()
    assert before_ms + least_ms <= cli.get("t", "a").due_ms <= after_ms + least_ms


@pytest.mark.parametrize("given", ["2096-10-02T07:06:40Z", "2096-10-02T09:06:40.000+02:00"])
def test_a_due_with_a_zone(cli, given):
    cli.run("put", "t", "x", "--id", "a", "--due", given)
    assert datetime.fromtimestamp(cli.get("t", "a").due_ms / 1000, UTC) == datetime(
        2096, 10, 2, 7, 6, 40, tzinfo=UTC
    )


def test_a_delay_level_is_the_topics(cli):
    cli.run("settings", "t", "delay_levels_ms=1h,2h")
    before_ms = RealClock().now_ms()
    cli.run("put", "t", "x", "--id", "a", "--delay-level", "2")
    assert cli.get("t", "a").due_ms >= before_ms + 7_200_000
    assert cli.error("put", "t", "x", "--delay-level", "3").startswith("InvalidTime: delay_level:")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["a b", "x"], "InvalidTopic: topic: got str 'a b'"),
        (["t"], "InvalidInput: body: got none"),
        (["t", "x", "--id", ""], "InvalidId: id:"),
        (["t", "x", "--id", "~1-2"], "InvalidId: id:"),
        (["t", "x", "--delay", "soon"], "InvalidTime: delay: got str 'soon'"),
        (["t", "x", "--delay", "-5"], "InvalidTime: delay: got str '-5'"),
        (["t", "x", "--delay", "5", "--due", "9"], "InvalidTime: delay: got delay and due"),
        (["t", "x", "--due", "2030-01-01T00:00:00"], "InvalidTime: due: got str '2030-01-01T"),
        (["t", "x", "--due", "tomorrow"], "InvalidTime: due: got str 'tomorrow'"),
        (["t", "x", "--due", "9" * 18], "InvalidTime: due: got str"),
        (
            ["t", "x", "--due", "1900000000"],
            "InvalidTime: due: got str '1900000000', expected mill",
        ),
        (["t", "x", "--due", "9" * 5000], "InvalidTime: due: got str '9999"),
        (["t", "x", "--priority", "-1"], "InvalidPriority: priority: got int -1"),
        (["t", "x", "--priority", "high"], "UsageError: Invalid value for '--priority'"),
        (["t", "x", "--lease", "0"], "InvalidTime: lease:"),
        (["t", "x", "--ttl", "5m", "--delay", "6m"], "InvalidTime: ttl: ends before"),
        (["t", "x", "--ttl", "5m", "--expires", "4000000000000"], "InvalidTime: expires: got "),
        (["t", "x", "--expires", "soon"], "InvalidTime: expires: got str 'soon'"),
        (["t", "x", "--key", ""], "InvalidKey: key:"),
        (["t", "x", "--header", "a"], "InvalidHeaders: header: got str 'a'"),
        (["t", "x", "--header", "=a"], "InvalidHeaders: header: got str '=a'"),
        (["t", "x", "--max-attempts", "0"], "InvalidAttempts: max_attempts: got int 0"),
        (["t", "x", "--on-conflict", "maybe"], "InvalidInput: on_conflict: got str 'maybe'"),
        (["t", "x", "--many", "-"], "InvalidInput: many:"),
        ([], "UsageError: Missing argument 'TOPIC'. (see dwell put --help)"),
    ],
)
def test_bad_input(cli, args, error):
    assert cli.error("put", *args).startswith(error)


def test_error_on_an_id_that_exists_and_a_full_topic_end_with_one(cli):
    cli.run("put", "t", "x", "--id", "a")
    assert cli.error("put", "t", "x", "--id", "a", "--on-conflict", "error", code=1).startswith(
        "IdExists: "
    )
    cli.run("settings", "t", "max_pending=1")
    assert cli.error("put", "t", "x", code=1).startswith("TopicFull: ")


def test_what_is_not_put_is_said_even_when_quiet(cli):
    cli.run("settings", "t", "max_pending=1", "on_full=drop")
    cli.run("put", "t", "x", "--id", "a")
    assert cli.out("--quiet", "put", "t", "x", "--id", "b", code=1) == ["dropped  b"]
    cli.run("take", "t")
    again = ("put", "t", "x", "--id", "a", "--on-conflict", "replace")
    assert cli.json(*again, code=1) == [{"topic": "t", "id": "a", "result": "leased"}]


def test_a_moment_of_expiry(cli):
    cli.run("put", "t", "x", "--id", "one", "--expires", "2096-10-02T07:06:40Z")
    lines = b'{"body": 1, "id": "own", "ttl": "1h"}\n{"body": 2, "id": "default"}\n'
    cli.run("put", "t", "--many", "-", "--expires", "4000000000000", stdin=lines)
    found = {m["id"]: m["expires_ms"] for m in cli.json("list", "t")}
    assert found["one"] == found["default"] == 4_000_000_000_000
    assert 0 < found["own"] < 4_000_000_000_000
