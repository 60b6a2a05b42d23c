"""Ports that are sockets in the file system: who may connect, what is replaced, what is refused."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time

import aiohttp
import pytest

import dwell
from dwell.errors import InvalidSettings, InvalidUrl
from dwell.server.settings import ServerSettings
from dwell.server.unix import UnixSocket
from tests.server.process import ServerProcess
from tests.waiting import PATIENCE_S


def serving(folder, *args):
    """Serve both ports on sockets in a folder."""
    http, beanstalk = f"unix:{folder}/http.sock", f"unix:{folder}/jobs.sock"
    ports = ("--http", http, "--beanstalk", beanstalk)
    return ServerProcess(*ports, *args, store=folder / "store")


def line_of(path, command):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(str(path))
        sock.sendall(command)
        return sock.recv(100)


async def put_and_take(url):
    async with dwell.open(url, retries=0) as queue:
        await queue.put("t", "x")
        (message,) = await queue.take("t", wait="5s")
        assert await queue.ack(message) is dwell.Result.ACKED


async def test_both_ports_on_sockets(tmp_path):
    http, beanstalk = tmp_path / "http.sock", tmp_path / "jobs.sock"
    with serving(tmp_path) as server:
        said = server.ready()
        assert (said["http"], said["beanstalk"]) == (f"unix:{http}", f"unix:{beanstalk}")
        assert [stat.S_IMODE(os.stat(path).st_mode) for path in (http, beanstalk)] == [0o600] * 2
        await put_and_take(f"http+unix://{http}")
        await put_and_take("http+unix://" + str(http).replace("/", "%2F"))
        assert line_of(beanstalk, b"list-tube-used\r\n") == b"USING default\r\n"
        server.signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
    assert not http.exists()
    assert not beanstalk.exists()


async def test_any_name_is_good_where_no_name_can_lead(tmp_path):
    path = str(tmp_path / "http.sock")
    with serving(tmp_path) as server:
        server.ready()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
            for host in ("localhost", "evil.example", "%2Frun%2Fdwell.sock", ""):
                async with session.get("http://x/v1/stats", headers={"host": host}) as answer:
                    assert answer.status == 200, host
        assert b" 403 " in line_of(path, b"GET /v1/stats HTTP/1.1\r\n\r\n")


def test_what_a_killed_server_left_is_replaced(tmp_path):
    with serving(tmp_path) as server:
        server.ready()
        server.signal(signal.SIGKILL)
        server.process.wait()
    assert (tmp_path / "http.sock").exists()
    with serving(tmp_path, "--socket-mode", "0660") as server:
        server.ready()
        assert stat.S_IMODE(os.stat(tmp_path / "http.sock").st_mode) == 0o660
        assert line_of(tmp_path / "jobs.sock", b"list-tube-used\r\n") == b"USING default\r\n"


def test_a_socket_on_which_another_listens_is_refused(tmp_path):
    with serving(tmp_path) as server:
        server.ready()
        address = f"unix:{tmp_path}/http.sock"
        with ServerProcess("--http", address, store=tmp_path / "other") as second:
            assert second.process.wait(PATIENCE_S) == 3
            second.reader.join()
        told = f"http: cannot listen on {address}: Address already in use"
        assert told in " ".join(map(str, (*second.logs, *second.other)))
        assert line_of(tmp_path / "jobs.sock", b"list-tube-used\r\n") == b"USING default\r\n"


def test_what_is_no_socket_is_left_alone(tmp_path):
    file = tmp_path / "http.sock"
    file.write_text("precious")
    with ServerProcess("--http", f"unix:{file}", store=tmp_path / "store") as server:
        assert server.process.wait(PATIENCE_S) == 3
        server.reader.join()
    assert "File exists" in " ".join(map(str, (*server.logs, *server.other)))
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"http": "unix:"}, "http: got 'unix:', expected unix: and a path of 1 to 107 bytes"),
        ({"beanstalk": "unix:" + "x" * 108}, "beanstalk: got 'unix:xxx"),
        ({"socket_mode": "rw"}, "socket_mode: got 'rw', expected three octal digits"),
        ({"http": "unix:/a", "beanstalk": "unix:/a"}, "beanstalk: got 'unix:/a', expected another"),
    ],
)
def test_settings_that_are_refused(given, told):
    with pytest.raises(InvalidSettings) as caught:
        ServerSettings(**given)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("url", ["http+unix://", "http+unix://a/b", "http+unix:///a%00b"])
def test_addresses_that_are_refused(url):
    with pytest.raises(InvalidUrl, match="url: got"):
        dwell.open(url)


def bound(path, kind=socket.SOCK_STREAM):
    other = socket.socket(socket.AF_UNIX, kind)
    other.bind(str(path))
    return other


def test_a_socket_that_another_has_bound_and_does_not_listen_on_yet_is_left_alone(tmp_path):
    path = tmp_path / "a.sock"
    with bound(path) as other:
        inode = os.stat(path).st_ino
        with pytest.raises(OSError, match="Address already in use"):
            UnixSocket(str(path), 0o600)
        assert os.stat(path).st_ino == inode
        other.listen()
    with contextlib.closing(UnixSocket(str(path), 0o600)) as mine:
        mine.listen()
        # Nobody else gets it, even where he finds no file.
        path.unlink()
        with pytest.raises(OSError, match="Address already in use"):
            UnixSocket(str(path), 0o600)


def test_a_socket_of_another_type_is_left_alone(tmp_path):
    path = tmp_path / "a.sock"
    with bound(path, socket.SOCK_DGRAM):
        with pytest.raises(OSError, match="Address already in use"):
            UnixSocket(str(path), 0o600)
        assert path.exists()


_BEGINS = """
import sys, time
from dwell.server.unix import UnixSocket

while time.time() < float(sys.argv[2]):
    pass
try:
    mine = UnixSocket(sys.argv[1], 0o600)
    mine.listen()
    print("mine", flush=True)
    sys.stdin.read()
except OSError:
    print("not mine", flush=True)
"""


def test_of_two_that_begin_at_once_one_has_the_path(tmp_path):
    path = tmp_path / "a.sock"
    for _ in range(5):
        bound(path).close()
        words = [sys.executable, "-c", _BEGINS, str(path), str(time.time() + 0.5)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        both = [subprocess.Popen(words, **pipes) for _ in range(2)]
        said = sorted(one.stdout.readline() for one in both)
        assert said == ["mine\n", "not mine\n"]
        for one in both:
            one.communicate()
        path.unlink(missing_ok=True)
