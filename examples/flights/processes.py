"""The processes beside Spark: the server, which is killed, and the worker."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import dwell
from dwell.errors import ServerUnreachable

_START_S = 120
_STOP_S = 120


class Outage(NamedTuple):
    """When the server was killed, and when it answered again (epoch milliseconds)."""

    down_ms: int
    up_ms: int


@contextlib.contextmanager
def store_of(kind: str, folder: Path) -> Iterator[str]:
    """Return the store that the server is to keep: a folder, or a Redis that loses nothing."""
    if kind == "embedded":
        yield str(folder / "store")
        return
    port = _free_address().rpartition(":")[2]
    words = ["--port", port, "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    safe = ["--appendonly", "yes", "--appendfsync", "always"]
    with (folder / "redis.log").open("ab") as log:
        process = subprocess.Popen(["redis-server", *words, *safe], stdout=log, stderr=log)
    try:
        yield f"redis://127.0.0.1:{port}/0?max_events=10000000"
    finally:
        stop(process)


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "{}:{}".format(*probe.getsockname())


class Server:
    """``dwell serve`` over a store, on a free port that stays its own."""

    def __init__(self, folder: Path, store: str) -> None:
        address = _free_address()
        self.url = f"http://{address}"
        words = ["serve", store, "--http", address, "--beanstalk", "off"]
        self._command = [str(Path(sys.executable).with_name("dwell")), *words]
        self._log = folder / "server.log"

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)

    def kill(self) -> Outage:
        """End it as a power cut would, and start it again."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        down_ms = now_ms()
        self._start()
        return Outage(down_ms, now_ms())

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        end_ms = now_ms() + _START_S * 1000
        while self._process.poll() is None and now_ms() < end_ms:
            with contextlib.suppress(ServerUnreachable), dwell.open(self.url, retries=0):
                return
            time.sleep(0.02)
        stop(self._process)
        raise SystemExit(f"the server did not start:\n{self._log.read_text()}")


@contextlib.contextmanager
def worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the worker for as long as the block runs."""
    process = subprocess.Popen([sys.executable, "-m", "examples.flights.worker", url])
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process politely, and at last with force."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def now_ms() -> int:
    """Return the time (epoch milliseconds)."""
    return time.time_ns() // 1_000_000
