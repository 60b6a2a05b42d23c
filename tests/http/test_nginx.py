"""nginx before a server, with the configuration of the page on proxies, and as it is by default."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.server.process import ServerProcess
from tests.waiting import PATIENCE_S, until

_PAGE = Path(__file__).parents[2] / "docs/howto/proxies.md"
_NGINX = shutil.which("nginx") or "/usr/sbin/nginx"

pytestmark = pytest.mark.skipif(not Path(_NGINX).exists(), reason="nginx is not installed")

_DEFAULT = (
    "http { server { listen 127.0.0.1:8080; location / { proxy_pass http://127.0.0.1:8410; } } }"
)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def proxied(server: ServerProcess, text: str, folder: Path):
    """Run nginx with a configuration before a server; give its port."""
    port = free_port()
    text = text.replace("127.0.0.1:8410", server.ready()["http"]).replace("8080", str(port))
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = text.replace("http {", f"http {{ access_log off; {places}", 1)
    user = "user root;" if os.getuid() == 0 else ""
    head = f"pid {folder}/pid; error_log {folder}/errors; daemon off; {user} events {{ }} "
    (folder / "nginx.conf").write_text(head + text)
    command = [_NGINX, "-e", f"{folder}/errors", "-p", str(folder), "-c", f"{folder}/nginx.conf"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _is_there(port))
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _is_there(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def asked(
    port: int, path: str, body: object, host: str = "localhost", more: str = ""
) -> socket.socket:
    """Send a request, and return the connection."""
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{more}"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def read_until(sock: socket.socket, word: bytes) -> bytes:
    said, end = b"", time.monotonic() + PATIENCE_S
    while word not in said:
        part = sock.recv(65536)
        assert part, said
        assert time.monotonic() < end, said
        said += part
    return said


@pytest.mark.parametrize("way", ["default", "page"])
def test_events_arrive_at_once(way, tmp_path):
    (text,) = re.findall(r"```nginx\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    with (
        ServerProcess("--http", "127.0.0.1:0", store=tmp_path / "store") as server,
        proxied(server, _DEFAULT if way == "default" else text, tmp_path) as port,
    ):
        assert server.put("t", "x")[0] == 200
        with asked(port, "/v1/push", {"topics": "t"}) as sock:
            # The stream stays open: it is sent at once, or never.
            assert b"event: messages" in read_until(sock, b'"body":"x"')


def test_the_page_lets_large_batches_and_pages_of_the_web_through(tmp_path):
    (text,) = re.findall(r"```nginx\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    with (
        ServerProcess("--http", "127.0.0.1:0", store=tmp_path / "store") as server,
        proxied(server, text, tmp_path) as port,
    ):
        rows = [{"body": "x" * 1_000_000}] * 8
        with asked(port, "/v1/topics/t/messages", rows) as sock:
            assert read_until(sock, b"\r\n").startswith(b"HTTP/1.1 200")
        host = f"localhost:{port}"
        origin = f"Origin: http://{host}\r\n"
        with asked(port, "/v1/take", {"topics": "none"}, host, origin) as sock:
            assert read_until(sock, b"\r\n").startswith(b"HTTP/1.1 200")
