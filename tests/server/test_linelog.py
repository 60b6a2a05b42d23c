"""Line logs: bounded in every way, and nobody waits for them."""

import json
import os
import re
import stat
import threading
from functools import partial

import pytest

from dwell.errors import InvalidSettings
from dwell.server import linelog
from dwell.server.linelog import LineLog, line_of
from tests.waiting import until

MIB = 1 << 20


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log(tmp_path):
    made = LineLog("access", str(tmp_path / "log"), MIB)
    made.start()
    yield made
    made.stop()


def test_lines_are_in_order_and_for_their_owner(log, tmp_path):
    for number in range(1000):
        log.write({"n": number})
    path = tmp_path / "log"
    until(lambda: len(lines_of(path)) == 1000)
    found = lines_of(path)
    assert [line["n"] for line in found] == list(range(1000))
    assert found[0]["time"].endswith("Z")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_waits_is_written_at_the_end(tmp_path):
    log = LineLog("access", str(tmp_path / "log"), MIB)
    log.start()
    log.write({"n": 1})
    log.stop()
    assert [line["n"] for line in lines_of(tmp_path / "log")] == [1]


def test_a_full_file_is_kept_once(tmp_path):
    log = LineLog("access", str(tmp_path / "log"), 20_000)
    for turn in range(4):
        for number in range(100):
            log.write({"turn": turn, "n": number, "text": "x" * 100})
        (log.start if not turn else int)()
        until(partial(_has, tmp_path, turn))
    log.stop()
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]
    assert turns(tmp_path)[-1] == 3
    for name in ("log", "log.1"):
        assert (tmp_path / name).stat().st_size <= 40_000


def _has(folder, turn):
    return turns(folder).count(turn) == 100 or turn in turns(folder)[-1:]


def turns(folder):
    return [
        line["turn"]
        for name in ("log.1", "log")
        if (folder / name).exists()
        for line in lines_of(folder / name)
    ]


def test_a_file_that_was_moved_away_is_begun_anew(log, tmp_path):
    log.write({"n": 1})
    until(lambda: (tmp_path / "log").stat().st_size)
    (tmp_path / "log").rename(tmp_path / "old")
    log.write({"n": 2})
    until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").stat().st_size)
    assert lines_of(tmp_path / "log")[0]["n"] == 2


def test_what_is_too_much_is_dropped_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(linelog, "MOST_WAITING", 10)
    read, write = os.pipe()
    log = LineLog("access", "-", MIB)
    log._fd = write
    os.set_blocking(write, True)
    log.start()
    # Nobody reads, so the pipe is full soon; whoever writes lines goes on.
    for number in range(20_000):
        log.write({"n": number, "text": "x" * 200})
    dropped = log.dropped
    assert dropped > 1000
    data = []

    def drain():
        while piece := os.read(read, 65536):
            data.append(piece)

    reader = threading.Thread(target=drain)
    reader.start()
    log.write({"n": "last"})
    log.stop()
    os.close(write)
    reader.join()
    os.close(read)
    found = [json.loads(line) for line in b"".join(data).splitlines()]
    told = [line["dropped"] for line in found if "dropped" in line]
    assert sum(told) == log.dropped >= dropped
    assert len(found) - len(told) == 20_001 - log.dropped


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_plain_file_is_not_moved(tmp_path, kind):
    path = tmp_path / "log"
    if kind == "link":
        path.symlink_to(tmp_path / "real")
    else:
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = LineLog("access", str(path), 100)
    log.start()
    for number in range(100):
        log.write({"n": number})
        if number % 10 == 0:
            until(lambda: log._lines.empty())
    log.stop()
    assert "log.1" not in os.listdir(tmp_path)
    assert path.is_symlink() or stat.S_ISFIFO(path.stat().st_mode)
    data = os.read(reader, 1 << 16) if kind == "pipe" else path.read_bytes()
    assert data.count(b"\n") == 100


def test_the_end_does_not_wait_for_a_pipe_that_nobody_reads(monkeypatch):
    monkeypatch.setattr(linelog, "_LAST_S", 0.2)
    read, write = os.pipe()
    log = LineLog("access", "-", MIB)
    log._fd = write
    log.start()
    for number in range(2000):
        log.write({"n": number, "text": "x" * 200})
    log.stop()
    assert log._thread.is_alive()
    os.close(read)
    until(lambda: not log._thread.is_alive())
    os.close(write)


def test_a_disk_that_takes_nothing_ends_nothing(tmp_path, caplog):
    log = LineLog("audit", "/dev/full", MIB)
    log.start()
    for _ in range(3):
        log.write({"n": 1})
        until(lambda: log._lines.empty())
    until(lambda: log.dropped == 3)
    log.stop()
    assert [record.message for record in caplog.records] == [
        "lines of the audit log are lost: [Errno 28] No space left on device"
    ]


def test_a_path_that_cannot_be_opened(tmp_path):
    with pytest.raises(InvalidSettings, match=r"audit_log: .*: No such file or directory"):
        LineLog("audit", str(tmp_path / "no" / "log"), MIB).start()


@pytest.mark.parametrize(
    "value",
    [
        "\n{}\n",
        "\u2028\x1b[2J\x9b\x7f😀",
        "\ud800",
        'a"b',
        "x" * 100_000,
        ["x" * 1000] * 1000,
        {f"{n}" * 500: "y" * 1000 for n in range(1000)},
        {"a": {"b": ["\ud800"]}},
        2**70,
        None,
    ],
)
def test_no_value_makes_more_than_a_line(value):
    line = line_of({"who": "a", "value": value, "status": 200})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert re.fullmatch(rb"[\x20-\x7e]+\n", line)
    assert len(line) <= linelog.MOST_LINE_BYTES
    found = json.loads(line)
    assert str(found["status"]) == "200"
    assert "a" in found["who"]
