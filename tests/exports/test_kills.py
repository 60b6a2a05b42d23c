"""Exports and imports that are killed: nothing passes for whole, and nothing comes twice."""

import json
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import dwell
from dwell.errors import InvalidInput
from tests.exports.conftest import everything
from tests.spark.conftest import ServerProcess
from tests.waiting import until

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(300)]

MESSAGES = 120_000
KILLS = 4
FAR_MS = 4_102_444_800_000
PROGRAM = Path(sys.executable).with_name("dwell")


@pytest.fixture
def server(tmp_path):
    (tmp_path / "server").mkdir()
    server = ServerProcess(tmp_path / "server")
    yield server
    server.stop()


def filled(store):
    """Put messages of two topics, half of them with ids of their own, some of them dead."""
    with dwell.open(store) as queue:
        for first in range(0, MESSAGES, 10_000):
            at = range(first, first + 10_000)
            own = [f"i{n}" for n in at] if first % 20_000 else None
            # Bodies that do not become small.
            bodies = [random.Random(n).randbytes(200) + b"%d" % n for n in at]
            queue.put_many("ab"[first % 30_000 == 0], bodies, ids=own, due=FAR_MS)
        queue.put_many("a", [b"dead"] * 1_000)
        queue.bury(queue.take("a", 1_000), "broken")


def started(*words):
    return subprocess.Popen([PROGRAM, "--quiet", *words])


def came(queue):
    return sum(one.delayed + one.dead for one in queue.stats().topics.values())


def is_over(process, queue, many):
    """Wait until so many messages have come, or the process is over, and tell whether it is."""
    until(lambda: process.poll() is not None or came(queue) >= many)
    return process.poll() is not None


def test_a_killed_export_does_not_pass_for_whole(server, tmp_path):
    filled(server.url)
    for number in range(3):
        folder = tmp_path / f"export{number}"
        process = started("--store", server.url, "export", "--to", str(folder))
        # It has begun to write, and is not at its end.
        until(lambda folder=folder: folder.is_dir() and list(folder.iterdir()))
        time.sleep(random.random() / 20)
        process.kill()
        process.wait()
        assert not (folder / "_manifest.json").exists()
        with dwell.open("memory:") as queue:
            with pytest.raises(InvalidInput, match=r"without a _manifest.json"):
                queue.put_export(folder)
            assert queue.stats().topics == {}
        again = ["--store", server.url, "export", "--to", str(folder)]
        done = subprocess.run([PROGRAM, *again], capture_output=True, text=True, check=False)
        assert (done.returncode, "expected a new folder" in done.stderr) == (2, True)


def test_an_import_that_is_killed_again_and_again_doubles_nothing(server, tmp_path):
    source, folder = str(tmp_path / "source"), str(tmp_path / "export")
    filled(source)
    with dwell.open(source) as queue:
        before = everything(queue, "ab")
        queue.export(folder)
    runs = 0
    with dwell.open(server.url) as queue:
        while True:
            runs += 1
            process = started("--store", server.url, "import", folder)
            many = MESSAGES * (runs - random.random()) / KILLS if runs <= KILLS else 2 * MESSAGES
            if is_over(process, queue, many):
                assert process.returncode == 0
                break
            process.kill()
            process.wait()
        found = everything(queue, "ab")
    assert runs > 2
    assert len(found) == len(before) == MESSAGES + 1_000
    assert sorted(m.body for m in found.values()) == sorted(m.body for m in before.values())


def test_an_interrupted_import_says_what_it_has_put(tmp_path):
    source, folder = str(tmp_path / "source"), str(tmp_path / "export")
    filled(source)
    with dwell.open(source) as queue:
        queue.export(folder)
    # An import may be over before it hears of the interrupt.
    assert any(is_interrupted(tmp_path, folder, number) for number in range(9))


def is_interrupted(tmp_path, folder, number):
    """Import into a new server, interrupt that, and tell whether it was before its end."""
    place = tmp_path / f"server{number}"
    place.mkdir()
    server = ServerProcess(place)
    try:
        with dwell.open(server.url) as queue:
            words = ["--json", "--store", server.url, "import", folder]
            # A run in the background of a shell leaves its programs deaf to interrupts.
            hears = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
            process = subprocess.Popen(
                [PROGRAM, *words], stdout=subprocess.PIPE, text=True, preexec_fn=hears
            )
            is_over(process, queue, 1)
            process.send_signal(signal.SIGINT)
            told = json.loads(process.communicate()[0])
            assert told["created"] == told["read"] == came(queue)
            assert told["is_whole"] == (process.returncode == 0)
            return process.returncode == 130
    finally:
        server.stop()
