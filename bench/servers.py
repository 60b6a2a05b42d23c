"""Real servers to measure against, each on a port of its own, ended by its process."""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends; it must accept connections within ten seconds."""
    if shutil.which(command[0]) is None:
        raise SystemExit(f"{command[0]} is not installed; make setup installs it")
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        yield server
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def dwell_server(port_name: str = "http") -> Iterator[tuple[str, int]]:
    """Run ``dwell serve`` over a new store, every answer after fsync; yield its address."""
    with dwell_process(port_name) as (address, _):
        yield address


@contextlib.contextmanager
def dwell_process(
    port_name: str = "http", *, under: Sequence[str] = ()
) -> Iterator[tuple[tuple[str, int], "subprocess.Popen[bytes]"]]:
    """Run the same, with what Python is told first; yield its address and the process."""
    port = free_port()
    ports = {"http": "off", "beanstalk": "off", port_name: f"127.0.0.1:{port}"}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        options = [f"--{name}={address}" for name, address in ports.items()]
        program = str(Path(sys.executable).with_name("dwell"))
        command = [sys.executable, *under, program, "serve", f"{folder}/store", *options]
        with running(command, port) as process:
            yield ("127.0.0.1", port), process


@contextlib.contextmanager
def floor_server() -> Iterator[int]:
    """Run the server that does nothing but HTTP; yield its port."""
    port = free_port()
    with running([sys.executable, "-m", "bench.floor", str(port)], port):
        yield port


@contextlib.contextmanager
def beanstalkd_server(*, fsync: bool) -> Iterator[int]:
    """Run a beanstalkd, with its log synced at each write or all in memory; yield its port."""
    port = free_port()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        options = ["-b", folder, "-f", "0"] if fsync else []
        command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), *options]
        with running(command, port):
            yield port


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(1000):
        if server.poll() is not None:
            raise SystemExit(f"the server ended at once with status {server.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise SystemExit(f"no answer on port {port}")
