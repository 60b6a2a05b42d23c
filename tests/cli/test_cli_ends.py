"""How commands end: what is said was done, and what could not be shown is given back."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dwell
from dwell import State

pytestmark = pytest.mark.campaign

COMMAND = [sys.executable, "-c", "from dwell.cli import main; main()"]


def lines(count, start=0):
    return [json.dumps({"body": "x", "id": f"i{n}"}) for n in range(start, start + count)]


def start(tmp_path, *args, **how):
    env = {**os.environ, "DWELL_STORE": "queue", **how.pop("env", {})}
    return subprocess.Popen([*COMMAND, *args], cwd=tmp_path, env=env, **how)


def filled(tmp_path, *bodies):
    with dwell.open(tmp_path / "queue") as queue:
        queue.put_many("t", list(bodies), ids=[f"m{n}" for n in range(len(bodies))])


def states(tmp_path):
    with dwell.open(tmp_path / "queue") as queue:
        counts = queue.stats().topics["t"]
        return counts.ready, counts.leased


def test_a_bad_line_says_by_its_code_whether_anything_was_put(cli):
    good = [*lines(1_500), "{bad", *lines(10, 1_500)]
    done = cli.run("--json", "put", "t", "--many", "-", stdin="\n".join(good), code=1)
    assert json.loads(done.stdout)["created"] == 1_000
    assert done.stderr.startswith("InvalidInput: line 1501: ")
    assert done.stderr.endswith("(after 1,000 messages)\n")
    with cli.queue() as queue:
        assert queue.stats().topics["t"].ready == 1_000
    assert cli.error("put", "u", "--many", "-", stdin="{bad").startswith("InvalidInput: line 1: ")


@pytest.mark.parametrize("args", [["--json"], []])
def test_what_cannot_be_written_is_given_back(tmp_path, args):
    filled(tmp_path, "a", "b")
    with open("/dev/full", "wb") as full:
        child = start(
            tmp_path, *args, "take", "t", "--limit", "2", stdout=full, stderr=subprocess.PIPE
        )
        error = child.stderr.read().decode()
        assert child.wait(60) == 3
        child.stderr.close()
    assert error.startswith("OSError: ")
    assert error.count("\n") == 1
    assert states(tmp_path) == (2, 0)


@pytest.mark.parametrize("args", [["--json"], []])
def test_a_closed_output_is_told_and_nothing_is_kept(tmp_path, args):
    filled(tmp_path, "a")
    child = start(
        tmp_path,
        *args,
        "take",
        "t",
        stderr=subprocess.PIPE,
        preexec_fn=lambda: os.close(1),
    )
    error = child.stderr.read().decode()
    assert (child.wait(60), error.count("\n")) == (3, 1)
    child.stderr.close()
    assert "standard output" in error
    assert states(tmp_path) == (1, 0)


def test_a_reader_that_leaves_early_keeps_what_it_was_handed(tmp_path):
    filled(tmp_path, *["x" * 20_000] * 60)
    child = start(
        tmp_path, "--json", "take", "t", "--limit", "60", stdout=subprocess.PIPE, stderr=-3
    )
    first = json.loads(child.stdout.readline())
    child.stdout.close()
    assert child.wait(60) == 0
    ready, leased = states(tmp_path)
    # What fits into the pipe was handed on; the rest nobody will see.
    assert ready + leased == 60
    assert 1 <= leased < 60
    with dwell.open(tmp_path / "queue") as queue:
        assert queue.get("t", first["id"]).state is State.LEASED


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_text_can_be_shown(tmp_path, encoding):
    filled(tmp_path, "grün 日本 \U0001f600")
    env = {"PYTHONIOENCODING": encoding}
    for args in (["--json", "take", "t", "--lease", "1ms"], ["list", "t", "--all"]):
        child = start(tmp_path, *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        out, error = child.communicate(timeout=60)
        assert (child.returncode, error) == (0, b"")
        if "--json" in args:
            assert json.loads(out.decode(encoding))["body"] == "grün 日本 \U0001f600"


def test_an_interrupt_counts_the_batch_that_was_under_way(tmp_path):
    (tmp_path / "many").write_text("\n".join(lines(200_000)))
    child = start(
        tmp_path,
        *("--json", "put", "t", "--many", "many"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # It has begun when the store has messages; the folder grows by then.
    while not any(tmp_path.glob("queue/journal-*")):
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    said = json.loads(out)["created"] if out else 0
    with dwell.open(tmp_path / "queue") as queue:
        topics = queue.stats().topics
    there = topics["t"].ready if "t" in topics else 0
    assert said == there
    if child.returncode == 0:
        assert there == 200_000
    else:
        assert child.returncode == 130


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_file_gets_a_standard_number(tmp_path, number):
    filled(tmp_path)
    child = start(tmp_path, "take", "other", "--wait", "60s", preexec_fn=lambda: os.close(number))
    try:
        # It waits once it has the journal open.
        while not any("journal-" in name for name in opened(child.pid).values()):
            assert child.poll() is None
        assert opened(child.pid)[str(number)] == "/dev/null"
    finally:
        child.kill()
        child.wait()


def opened(pid):
    """Return what each descriptor of a process leads to."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found[link.name] = str(link.readlink())
    return found


@pytest.mark.parametrize("args", [["put", "t", "-"], ["put", "t", "--many", "-"], ["ack", "-"]])
def test_a_closed_input_is_bad_input(tmp_path, args):
    filled(tmp_path)
    child = start(tmp_path, *args, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    error = child.stderr.read().decode()
    child.stderr.close()
    assert (child.wait(60), error.count("\n")) == (2, 1)
    assert error.startswith("InvalidInput: standard input: ")


def shell(tmp_path, line):
    """Run a line of bash, and return the code of its first command."""
    env = {**os.environ, "DWELL_STORE": "queue", "PYTHON": sys.executable}
    program = f"""dwell() {{ "$PYTHON" -c "from dwell.cli import main; main()" "$@"; }}
    {line}
    exit ${{PIPESTATUS[0]}}"""
    return subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )


def test_what_is_asked_for_is_done_though_nobody_reads_what_was(tmp_path):
    with dwell.open(tmp_path / "queue") as queue:
        for part in range(2):
            ids = [f"m{n}" for n in range(part * 8_000, part * 8_000 + 8_000)]
            queue.put_many("t", ["x"] * 8_000, ids=ids)
    (tmp_path / "ids").write_text("\n".join(f"m{n}" for n in range(16_000)))
    assert shell(tmp_path, "dwell cancel t - < ids | head -1").returncode == 0
    assert states(tmp_path) == (0, 0)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("dwell cancel t nope | true", 1),
        ("dwell --json get t nope | true", 1),
        ("dwell take nothing 2> >(exec true) | cat", 1),
        ("dwell take t --lease zz 2>/dev/full | cat", 2),
        ("dwell take t --lease zz 2>&- | cat", 2),
        ("dwell take t --nonsense 2>/dev/full | cat", 2),
    ],
)
def test_a_code_is_true_whatever_becomes_of_the_output(tmp_path, line, code):
    filled(tmp_path, "a")
    done = shell(tmp_path, line)
    assert (done.returncode, done.stdout) == (code, "")
