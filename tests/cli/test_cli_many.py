import io
import json

import numpy as np
import pytest

from dwell.batch.puts import PutAnswer
from dwell.cli.lines import BATCH_LINES, MAX_LINE_BYTES, Line, Reader
from dwell.clock import RealClock
from dwell.errors import StoreFull
from dwell.message import DELAY_LEVELS_MS, MAX_BATCH_BYTES, MAX_BODY_BYTES, Result
from dwell.store.partly import PartlyPut
from dwell.threads.sync import SyncQueue

DUE_MS = 4_000_000_000_000


def lines(*objects):
    return "".join(json.dumps(one) + "\n" for one in objects)


def put(cli, *objects, args=(), code=0):
    """Put lines; return what was counted."""
    (answer,) = cli.json("put", "t", "--many", "-", *args, stdin=lines(*objects), code=code)
    return {name: count for name, count in answer.items() if count and name != "topic"}


def test_every_field(cli):
    full = {
        "body": "x",
        "id": "a",
        "due_ms": DUE_MS,
        "priority": 7,
        "lease": "5m",
        "ttl": "36500d",
        "key": "k",
        "headers": {"x": "1"},
        "max_attempts": 3,
    }
    assert put(cli, full) == {"lines": 1, "created": 1}
    message = cli.get("t", "a")
    assert (message.body, message.due_ms, message.priority) == (b"x", DUE_MS, 7)
    assert (message.lease_ms, message.max_attempts, message.key) == (300_000, 3, "k")
    assert message.headers == {"x": "1"}
    assert message.expires_ms > DUE_MS


def test_bodies(cli):
    stdin = (
        '{"id": "text", "body": "\\u00e9\\n"}\n'
        '{"id": "json", "body": {"n":  1.0, "big": 123456789012345678901234567890}}\n'
        '{"id": "null", "body": null}\n'
        '{"id": "bytes", "body_base64": "/wA="}\n'
        '{"id": "both", "body": null, "body_base64": ""}\n'
    )
    cli.run("put", "t", "--many", "-", stdin=stdin)
    with cli.queue() as queue:
        text, as_json, null, data, both = (
            message.body for message in queue.get("t", ["text", "json", "null", "bytes", "both"])
        )
    assert text == "é\n".encode()
    assert as_json == b'{"n":  1.0, "big": 123456789012345678901234567890}'
    assert (null, data, both) == (b"null", b"\xff\x00", b"")


def test_options_are_for_lines_that_do_not_say_otherwise(cli):
    given = [
        {"id": "a", "body": 1},
        {"id": "b", "body": 1, "priority": 9, "key": "own", "headers": {"z": "2"}},
        {"id": "c", "body": 1, "delay": "2h"},
    ]
    args = ["--due", str(DUE_MS), "--priority", "5", "--key", "k", "--header", "x=1"]
    put(cli, *given, args=args)
    with cli.queue() as queue:
        a, b, c = queue.get("t", ["a", "b", "c"])
    assert (a.due_ms, a.priority, a.key, a.headers) == (DUE_MS, 5, "k", {"x": "1"})
    assert (b.due_ms, b.priority, b.key, b.headers) == (DUE_MS, 9, "own", {"z": "2"})
    assert c.due_ms < DUE_MS


def test_lines_that_say_when_in_different_ways_keep_their_order(cli):
    before_ms = RealClock().now_ms()
    given = [
        {"body": "0"},
        {"body": "1", "id": "a"},
        {"body": "2", "delay": "1h"},
        {"body": "3", "due": "2096-10-02T07:06:40Z"},
        {"body": "4", "delay_level": 18},
        {"body": "5", "id": "b", "due_ms": 5},
    ]
    assert put(cli, *given) == {"lines": 6, "created": 6}
    due_ms = {int(m["body"]): m["due_ms"] for m in cli.json("list", "t")}
    assert due_ms[5] == 5
    assert due_ms[3] == DUE_MS
    assert due_ms[0] >= before_ms
    assert due_ms[2] >= before_ms + 3_600_000
    assert due_ms[4] >= before_ms + DELAY_LEVELS_MS[17]
    with cli.queue() as queue:
        assert [m.body for m in queue.take("t", 9)] == [b"5", b"0", b"1"]


def test_counts(cli):
    given = [{"id": name, "body": 1} for name in "aab"]
    assert put(cli, *given) == {"lines": 3, "created": 2, "kept": 1}
    assert put(cli, *given, args=["--on-conflict", "replace"]) == {"lines": 3, "replaced": 3}
    assert cli.out("put", "t", "--many", "-", stdin=lines(*given)) == [
        "0 created, 3 kept, 0 replaced"
    ]
    assert cli.out("--quiet", "put", "t", "--many", "-", stdin=lines(*given)) == []


def test_dropped_and_leased_end_with_one(cli):
    cli.run("settings", "t", "max_pending=1", "on_full=drop")
    given = [{"id": name, "body": 1} for name in "ab"]
    assert put(cli, *given, code=1) == {"lines": 2, "created": 1, "dropped": 1}
    cli.run("take", "t")
    args = ("put", "t", "--many", "-", "--on-conflict", "replace")
    assert cli.out("--quiet", *args, stdin=lines(given[0]), code=1) == [
        "0 created, 0 kept, 0 replaced, 1 leased"
    ]


def test_a_bad_line_is_named_and_only_the_batches_before_it_are_put(cli):
    given = [{"body": n} for n in range(BATCH_LINES + 5)] + [{"body": 1, "priority": -1}]
    done = cli.run("--json", "put", "t", "--many", "-", stdin="\n" + lines(*given), code=1)
    assert done.stderr.startswith(f"InvalidPriority: line {BATCH_LINES + 7}: priority: got int -1")
    assert json.loads(done.stdout)["created"] == BATCH_LINES
    with cli.queue() as queue:
        assert queue.stats().topics["t"].ready == BATCH_LINES


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("nonsense", "InvalidInput: line 1: JSON is malformed"),
        ("[]", "InvalidInput: line 1: Expected `object`, got `array`"),
        ("{", "InvalidInput: line 1: Input data was truncated"),
        ('{"body": 1, "dealy": 3}', "InvalidInput: line 1: Object contains unknown field `dealy`"),
        ('{"body": 1, "priority": "x"}', "InvalidInput: line 1: Expected `int | null`, got `str`"),
        ("{}", "InvalidBody: line 1: body: expected either body or body_base64"),
        ('{"body": 1, "body_base64": ""}', "InvalidBody: line 1: body: expected either"),
        ('{"body_base64": "%"}', "InvalidBody: line 1: body_base64: got str '%'"),
        ('{"body": "\\ud800"}', "InvalidInput: line 1: "),
        (b'{"body": "\xff"}', "InvalidInput: line 1: 'utf-8' codec can't decode"),
        ("[" * 5000, "InvalidInput: line 1: "),
        ('{"body": 1, "id": ""}', "InvalidId: line 1: id:"),
        ('{"body": 1, "id": "~1-2"}', "InvalidId: line 1: id:"),
        ('{"body": 1, "delay": -1}', "InvalidTime: line 1: delay: got int -1"),
        ('{"body": 1, "delay": "soon"}', "InvalidTime: line 1: delay: got str 'soon'"),
        ('{"body": 1, "delay": 1, "due_ms": 1}', "InvalidTime: line 1: delay: got delay and due"),
        ('{"body": 1, "due": "2030-01-01"}', "InvalidTime: line 1: due: got str"),
        ('{"body": 1, "due_ms": -1}', "InvalidTime: line 1: due: got int -1"),
        ('{"body": 1, "delay_level": 19}', "InvalidTime: line 1: delay_level: got int 19"),
        ('{"body": 1, "lease": 0}', "InvalidTime: line 1: lease: got int 0"),
        ('{"body": 1, "ttl": 5, "delay": 5}', "InvalidTime: line 1: ttl: ends before"),
        ('{"body": 1, "key": ""}', "InvalidKey: line 1: key:"),
        ('{"body": 1, "headers": {"a": 1}}', "InvalidInput: line 1: Expected `str`, got `int`"),
        ('{"body": 1, "max_attempts": 0}', "InvalidAttempts: line 1: max_attempts: got int 0"),
    ],
)
def test_bad_lines(cli, line, error):
    done = cli.run("put", "t", "--many", "-", stdin=line, code=2)
    assert done.stderr.startswith(error)
    assert done.stdout == "0 created, 0 kept, 0 replaced\n"


def test_two_ways_to_say_when_among_the_options(cli):
    args = ("put", "t", "--many", "-", "--delay", "1", "--due", "2")
    assert cli.error(*args, stdin='{"body": 1}').startswith("InvalidTime: line 1: delay: got delay")


def test_a_file_that_cannot_be_read(cli, tmp_path):
    assert cli.error("put", "t", "--many", str(tmp_path / "no")).endswith(
        "No such file or directory"
    )
    assert cli.error("put", "t", "--many", str(tmp_path)).startswith("InvalidInput: many: cannot")
    assert cli.error("put", "t", "--many", "x", "--id", "a").startswith("InvalidInput: many:")


def test_a_refused_batch_says_how_many_were_put_before(cli):
    cli.run("settings", "t", "max_pending=1")
    given = [{"id": "a", "body": 1}, {"body": 1}]
    done = cli.run("put", "t", "--many", "-", stdin=lines(*given), code=1)
    assert done.stdout == "1 created, 0 kept, 0 replaced\n"
    assert done.stderr.startswith("TopicFull: ")
    assert done.stderr.endswith("(after 1 message)\n")


def test_what_a_failed_batch_has_put_all_the_same_is_counted(cli, monkeypatch):
    def failed(*_):
        numbers = np.arange(3)
        answer = PutAnswer(["a", "b", "c"], np.full(3, Result.CREATED, np.uint8), numbers)
        raise PartlyPut(StoreFull("no room"), answer, numbers >= 2).told()

    monkeypatch.setattr(SyncQueue, "put_rows", failed)
    done = cli.run("--json", "put", "t", "--many", "-", stdin=lines(*[{"body": 1}] * 3), code=3)
    assert json.loads(done.stdout)["created"] == 2


def test_progress_is_for_terminals_and_stands_on_standard_error(cli, tmp_path):
    file = tmp_path / "lines"
    file.write_text(lines(*({"body": n} for n in range(3))))
    terminal = {"FORCE_COLOR": "1"}
    done = cli.run("--json", "put", "t", "--many", str(file), env=terminal)
    assert "3 messages" in done.stderr
    assert json.loads(done.stdout)["created"] == 3
    assert cli.run("--quiet", "put", "t", "--many", str(file), env=terminal).output == ""
    assert cli.run("put", "t", "--many", str(file)).stderr == ""


def read(data):
    return list(Reader(io.BytesIO(data), Line(), RealClock(), DELAY_LEVELS_MS).batches())


def test_batches_stay_below_the_limits_of_one_put():
    rows = read(b'{"body": 1}\n' * (BATCH_LINES + 1))
    assert [len(batch) for batch in rows] == [BATCH_LINES, 1]
    most = MAX_BATCH_BYTES // MAX_BODY_BYTES
    big = b'{"body": "' + b"x" * MAX_BODY_BYTES + b'"}\n'
    assert [len(batch) for batch in read(big * (most + 1))] == [most, 1]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(cli):
    error = cli.error("--quiet", "put", "t", "--many", "-", stdin=b"x" * (MAX_LINE_BYTES + 1))
    assert error == f"InvalidInput: line 1: got more than {MAX_LINE_BYTES} bytes in one line"


def test_an_unknown_field_is_answered_with_those_that_are_known(cli):
    error = cli.run("--quiet", "put", "t", "--many", "-", stdin='{"boddy": 1}', code=2).stderr
    assert "unknown field `boddy`, expected body, body_base64, delay, " in error
