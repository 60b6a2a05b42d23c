"""The command line on a folder that a program has open with an admin socket."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys

import pytest

import dwell
from dwell.store.embedded.check import check

_PROGRAM = """
import sys, time, dwell
with dwell.open(sys.argv[1], admin_socket=True) as queue:
    queue.put("orders", b"17", delay="1h", id="a")
    print("open", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def running(folder):
    """Run a program that has a folder open."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, folder], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def program(cli):
    """Run a program that has the folder of the command line open."""
    with running(cli.folder) as process:
        yield process


def test_commands_use_the_program(cli, program):
    assert "orders" in cli.json("stats")[0]["topics"]
    cli.run("put", "orders", "18", "--id", "b")
    assert {row["id"] for row in cli.json("list", "orders")} == {"a", "b"}
    assert cli.out("--quiet", "cancel", "orders", "a") == []
    assert [row["id"] for row in cli.json("take", "orders")] == ["b"]


def test_it_makes_backups(cli, program, tmp_path):
    assert cli.out("backup", str(tmp_path / "copy")) == [f"copied to {tmp_path / 'copy'}"]
    assert check(tmp_path / "copy").ok
    with dwell.open(tmp_path / "copy") as copy:
        assert copy.get("orders", "a").body == b"17"


def test_only_its_user_may_connect(cli, program):
    mode = os.stat(f"{cli.folder}/admin.sock").st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_a_socket_that_a_killed_program_left(cli, program):
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert os.path.exists(f"{cli.folder}/admin.sock")
    # The folder is free, and the next program gets the name.
    assert cli.json("get", "orders", "a")[0]["id"] == "a"
    with dwell.open(cli.folder, admin_socket=True) as queue:
        assert cli.json("get", "orders", "a")[0]["id"] == "a"
        assert queue.stats().topics["orders"].delayed == 1
    assert not os.path.exists(f"{cli.folder}/admin.sock")


def test_a_socket_that_was_left__beside_a_program_with_another_folder(cli, program, tmp_path):
    program.send_signal(signal.SIGKILL)
    program.wait()
    with running(str(tmp_path / "other")), running(cli.folder):
        assert cli.json("get", "orders", "a")[0]["id"] == "a"


def test_a_locked_folder_whose_socket_answers_nobody(cli, tmp_path):
    with dwell.open(cli.folder):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(f"{cli.folder}/admin.sock")
        assert cli.error("stats", code=3).startswith(f"StoreLocked: {cli.folder}: held by process ")
        assert cli.error("backup", str(tmp_path / "copy"), code=3).startswith("StoreLocked: ")


def test_a_long_path(tmp_path, cli):
    cli.folder = str(tmp_path / ("x" * 120) / "a queue %41")
    os.mkdir(os.path.dirname(cli.folder))
    with dwell.open(cli.folder, admin_socket=True) as queue:
        queue.put("orders", b"17", delay="1h", id="a")
        assert cli.json("get", "orders", "a")[0]["id"] == "a"


def test_a_folder_that_is_renamed_while_it_is_open(cli, tmp_path):
    with dwell.open(cli.folder, admin_socket=True) as queue:
        queue.put("orders", b"17", delay="1h", id="a")
        os.rename(cli.folder, tmp_path / "new")
        cli.folder = str(tmp_path / "new")
        assert cli.json("get", "orders", "a")[0]["id"] == "a"
    assert not (tmp_path / "new" / "admin.sock").exists()


async def test_takers_of_the_program_are_not_held_up(cli):
    async with (
        dwell.open(cli.folder, admin_socket=True) as queue,
        dwell.open(f"http+unix://{cli.folder}/admin.sock") as other,
    ):
        await other.put("orders", b"17", id="a")
        (message,) = await queue.take("orders")
        assert await other.ack([message]) == [dwell.Result.ACKED]
        assert queue._takers.spacing.seconds == 0


def test_stores_that_are_no_folder_are_refused():
    for url in ("memory:", "http://localhost:8410"):
        with pytest.raises(dwell.InvalidUrl, match="admin_socket: only a folder"):
            dwell.open(url, admin_socket=True).__enter__()


async def test_a_socket_that_cannot_be_made_leaves_the_folder_free(cli):
    os.makedirs(f"{cli.folder}/admin.sock")
    os.rename(f"{cli.folder}/admin.sock", f"{cli.folder}-socket")
    async with dwell.open(cli.folder):
        pass
    os.rename(f"{cli.folder}-socket", f"{cli.folder}/admin.sock")
    with pytest.raises(OSError):  # noqa: PT011 - its number differs by system
        await dwell.open(cli.folder, admin_socket=True).__aenter__()
    async with dwell.open(cli.folder) as queue:
        assert (await queue.stats()).topics == {}
