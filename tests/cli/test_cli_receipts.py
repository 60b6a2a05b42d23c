import re

import pytest

import dwell
from dwell import State
from dwell.threads.sync import SyncQueue


@pytest.fixture
def receipt(cli):
    """The receipt of message a of topic t, taken."""
    cli.run("put", "t", "x", "--id", "a")
    (message,) = cli.json("take", "t")
    return message["receipt"]


def test_take_prints_everything_for_programs(cli):
    cli.run("put", "t", "é", "--id", "a", "--key", "k", "--header", "x=1")
    cli.run("put", "t", "-", "--id", "b", stdin=b"\xff")
    first, second = cli.json("take", "t", "--limit", "9", "--lease", "1h", "--owner", "me")
    assert set(first) == {*dwell.Message.__struct_fields__}
    assert (first["id"], first["body"], first["state"]) == ("a", "é", "leased")
    assert (first["key"], first["headers"], first["attempt"]) == ("k", {"x": "1"}, 1)
    assert second["body_base64"] == "/w=="
    assert "body" not in second
    with cli.queue() as queue:
        assert queue.held("me")[0].receipt == first["receipt"]


def test_take_prints_a_block_for_people(cli):
    cli.run(
        *("put", "t", "-", "--id", "a", "--priority", "3", "--lease", "1h30m", "--header", "x=1"),
        *("--max-attempts", "4", "--ttl", "2h"),
        stdin=b"two\nlines \x1b[31m [bold]",
    )
    out = cli.run("take", "t").stdout
    (message,) = cli.json("list", "t")
    assert out.startswith("a  t  leased\n  receipt    ")
    for fact in ("attempt    1 of 4", "priority   3", "lease      1h30m", "header     x=1"):
        assert fact in out
    assert re.search(r"lease ends \S+  \(in 1h (30|29)m\)", out)
    assert out.endswith("  body       two\n             lines \\x1b[31m [bold]\n")
    assert message["receipt"] is None


def test_take_from_several_topics_in_their_order(cli):
    cli.run("put", "b", "x")
    cli.run("put", "a", "x")
    assert [m["topic"] for m in cli.json("take", "a", "b", "--limit", "2")] == ["a", "b"]


def test_take_with_nothing_ends_with_one(cli):
    cli.run("put", "t", "x", "--delay", "1h")
    done = cli.run("take", "t", "u", "--wait", "1ms", code=1)
    said = "there is no topic u; there are t\nnothing is due in t, u\n"
    assert (done.stdout, done.stderr) == ("", said)
    assert cli.run("--quiet", "take", "t", code=1).output == ""


def test_an_interrupt_ends_with_130(cli, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    cli.run("put", "t", "x")
    monkeypatch.setattr(SyncQueue, "take", interrupted)
    done = cli.run("take", "t", code=130)
    assert done.output == ""


def test_ack(cli, receipt):
    assert cli.out("ack", receipt) == [f"acked  {receipt}"]
    assert cli.get("t", "a") is None


def test_a_second_ack_is_stale_and_said_even_when_quiet(cli, receipt):
    assert cli.out("--quiet", "ack", receipt) == []
    assert cli.out("--quiet", "ack", receipt, code=1) == [f"stale  {receipt}"]
    assert cli.json("ack", receipt, code=1) == [{"receipt": receipt, "result": "stale"}]


def test_receipts_from_standard_input(cli):
    cli.run("put", "t", "--many", "-", stdin='{"body": 1}\n' * 3)
    receipts = [m["receipt"] for m in cli.json("take", "t", "--limit", "9")]
    stdin = "\n".join([*receipts, ""])
    assert [one["result"] for one in cli.json("ack", "-", stdin=stdin)] == ["acked"] * 3
    assert cli.out("ack", "-", stdin="") == []


def test_release(cli, receipt):
    assert cli.json("release", receipt, "--delay", "1h", "--error", "no answer") == [
        {"receipt": receipt, "result": "released"}
    ]
    message = cli.get("t", "a")
    assert (message.state, message.last_error) == (State.DELAYED, "no answer")


def test_release_for_the_retry_delay(cli, receipt):
    cli.run("settings", "t", "retry_delays_ms=1h")
    cli.run("release", receipt, "--retry")
    assert cli.get("t", "a").state is State.DELAYED


def test_release_of_the_last_attempt_is_not_what_was_asked_for(cli, receipt):
    cli.run("settings", "t", "max_attempts=1")
    assert cli.out("release", receipt, code=1) == [f"buried  {receipt}"]


def test_touch(cli, receipt):
    before_ms = cli.get("t", "a").lease_until_ms
    assert cli.out("touch", receipt, "--lease", "2h") == [f"touched  {receipt}"]
    assert cli.get("t", "a").lease_until_ms > before_ms + 3_600_000


def test_bury(cli, receipt):
    assert cli.out("bury", receipt, "--reason", "why") == [f"buried  {receipt}"]
    message = cli.get("t", "a")
    assert (message.state, message.last_error) == (State.DEAD, "why")


@pytest.mark.parametrize("verb", ["ack", "release", "touch", "bury"])
def test_bad_receipts(cli, verb, receipt):
    assert cli.error(verb, "x").startswith("InvalidReceipt: receipts[0]: got str 'x'")
    assert cli.error(verb, receipt, "x").startswith("InvalidReceipt: ")
    assert cli.error(verb, "0" * 32).startswith("ForeignReceipt: ")
    assert cli.error(verb, "-", stdin=b"\xff\n") == "InvalidInput: line 1: is not UTF-8"
    assert cli.error(verb) == f"UsageError: Missing argument 'RECEIPT'. (see dwell {verb} --help)"
    assert cli.get("t", "a").state is State.LEASED


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["take", "a b"], "InvalidTopic: topic: got str 'a b'"),
        (["take", "t", "--limit", "0"], "InvalidLimit: limit: got int 0"),
        (["take", "t", "--limit", "many"], "UsageError: Invalid value for '--limit'"),
        (["take", "t", "--wait", "long"], "InvalidTime: wait: got str 'long'"),
        (["take", "t", "--lease", "30d"], "InvalidTime: lease: got str '30d'"),
        (["take", "t", "--owner", "x" * 300], "InvalidId: owner:"),
        (["release", "R", "--delay", "-1"], "InvalidTime: delay: got str '-1'"),
        (["release", "R", "--delay", "1", "--retry"], "InvalidTime: delay: got delay and retry"),
        (["touch", "R", "--lease", "0"], "InvalidTime: lease:"),
    ],
)
def test_bad_input(cli, receipt, args, error):
    args = [receipt if arg == "R" else arg for arg in args]
    assert cli.error(*args).startswith(error)
