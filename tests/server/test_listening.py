"""Connections: counted from the first moment, never so many that the store lacks files."""

import contextlib
import socket
import sys
from pathlib import Path

import pytest

from dwell.server.serve import _FEWEST_CONNECTIONS, _OTHER_FILES
from tests.server.certificates import make_certificate
from tests.server.process import ServerProcess
from tests.waiting import PATIENCE_S, until

#: What leaves each of two ports 40 connections.
_FILES = _OTHER_FILES + 80


def serve_with(files: int, store: Path, *args: str) -> ServerProcess:
    """Serve on both ports in a process that may open so many files."""
    serve = f"{sys.executable} -c 'from dwell.cli import main; main()' serve {store}"
    ports = "--log-format json --http 127.0.0.1:0 --beanstalk 127.0.0.1:0"
    text = f"ulimit -n {files} && exec {serve} {ports} {' '.join(args)}"
    return ServerProcess(command=["sh", "-c", text])


def place(text: str) -> tuple[str, int]:
    host, _, number = text.rpartition(":")
    return host, int(number)


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    with contextlib.suppress(ConnectionError):
        try:
            return sock.recv(1) == b""
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("port", ["http", "beanstalk"])
@pytest.mark.parametrize("has_tls", [False, True])
def test_connections_leave_the_store_its_files(port: str, has_tls: bool, tmp_path: Path) -> None:
    args: tuple[str, ...] = ()
    if has_tls:
        cert, key = make_certificate(tmp_path)
        args = ("--tls-cert", str(cert), "--tls-key", str(key))
    with serve_with(_FILES, tmp_path / "store", *args) as server, contextlib.ExitStack() as stack:
        address = place(server.ready()[port])
        # Over TLS none of them ever says hello.
        many = [socket.create_connection(address, PATIENCE_S) for _ in range(1500)]
        for sock in many:
            stack.callback(sock.close)
        # A handshake is bounded in time; without one a stranger's connection ends for a new one.
        until(lambda: sum(map(is_closed, many)) >= 1460)
        if not has_tls:
            assert server.put("t", "x")[0] == 200
        until(lambda: any("connections are open" in line["message"] for line in server.logs))
        warned = [line for line in server.logs if "connections are open" in line["message"]]
        assert len(warned) < 5
        files = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        assert files < _FILES - _OTHER_FILES // 2
        for sock in many:
            sock.close()
        if not has_tls:
            until(lambda: server.put("t", "x" * 1000)[0] == 200)
        assert server.stop() == 0


def test_a_process_with_too_few_files_does_not_begin(tmp_path: Path) -> None:
    with serve_with(200, tmp_path / "store") as server:
        assert server.wait() == 2
        (line,) = [line for line in server.other if "max_connections" in line]
        least = _OTHER_FILES + 2 * _FEWEST_CONNECTIONS
        assert f"may open 200 files, expected at least {least} (ulimit -n)" in line
    assert not (tmp_path / "store").exists()


def test_a_stranger_keeps_nobody_out_who_shows_a_token(tmp_path: Path) -> None:
    with serve_with(_FILES, tmp_path / "store") as server, contextlib.ExitStack() as stack:
        address = place(server.ready()["http"])
        known = stack.enter_context(socket.create_connection(address, PATIENCE_S))
        ask = b"GET /v1/store HTTP/1.1\r\nhost: localhost\r\n\r\n"
        # It is a stranger's for as long as others are answered.
        assert server.put("t", "x")[0] == 200
        known.sendall(ask)
        assert known.recv(65536).startswith(b"HTTP/1.1 200")
        for _ in range(200):
            stack.enter_context(socket.create_connection(address, PATIENCE_S))
        assert server.put("t", "x")[0] == 200
        known.sendall(ask)
        assert known.recv(65536).startswith(b"HTTP/1.1 200")
