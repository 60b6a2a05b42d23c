"""The servers behind the peers, each over a folder of its own: killed, started again, weighed."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from bench.brokers import rabbitmq_server
from bench.postgres import postgres_server
from bench.process import descendants
from bench.redis_servers import UNKEPT, redis_server, steady_port
from bench.servers import running


@dataclass
class Engine:
    """One that runs. Without ``pid`` it is a library, and lives and dies with its driver."""

    address: str
    start: Callable[[], object]
    kill: Callable[[], object]
    pid: Callable[[], int | None]
    disk_bytes: Callable[[], int]
    #: Whether anything is on a disk at all.
    keeps: bool = True

    def pids(self) -> list[int]:
        """Return the numbers of its processes."""
        pid = self.pid()
        return [] if pid is None else [pid, *descendants(pid)]


class Program:
    """A server that is told its port and its folder."""

    def __init__(self, command: Sequence[object], port: int) -> None:
        self._command, self._port = list(map(str, command)), port
        self._ended = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self._process = self._ended.enter_context(running(self._command, self._port))

    def kill(self) -> None:
        """Kill it; what it has written stays."""
        if self._process is not None:
            self._process.kill()
            self._ended.close()
            self._process = None

    def pid(self) -> int:
        """Return its number."""
        assert self._process is not None
        return self._process.pid


def size_of(folder: Path) -> int:
    """Return how many bytes of the disk the files of a folder take."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=".") as text:
        yield Path(text).absolute()


@contextlib.contextmanager
def library(prefix: str = "") -> Iterator[Engine]:
    """Give a library a folder; its driver is all that runs."""
    with _folder() as folder:
        yield Engine(
            f"{prefix}{folder}/store",
            start=lambda: None,
            kill=lambda: None,
            pid=lambda: None,
            disk_bytes=partial(size_of, folder),
        )


@contextlib.contextmanager
def program(address: str, *command: object) -> Iterator[Engine]:
    """Run a server; ``{port}`` and ``{folder}`` in its command and address are filled in."""
    with _folder() as folder:
        port = steady_port()
        words = [str(word).format(port=port, folder=folder) for word in command]
        server = Program(words, port)
        server.start()
        try:
            yield Engine(
                address.format(port=port),
                start=server.start,
                kill=server.kill,
                pid=server.pid,
                disk_bytes=partial(size_of, folder),
            )
        finally:
            server.kill()


#: ``dwell serve``, every answer after fdatasync.
dwell = partial(
    program,
    "http://127.0.0.1:{port}",
    *(sys.executable, Path(sys.executable).with_name("dwell"), "serve", "{folder}/store"),
    *("--http=127.0.0.1:{port}", "--beanstalk=off"),
)

beanstalkd = partial(
    program,
    "127.0.0.1:{port}",
    *("beanstalkd", "-l", "127.0.0.1", "-p", "{port}", "-b", "{folder}", "-f", "0"),
)


@contextlib.contextmanager
def redis(*, kept: bool) -> Iterator[Engine]:
    """Run a Redis: with a log that is synced each second, or one that keeps nothing."""
    config: dict[str, Any] = {"appendonly": "yes", "appendfsync": "everysec"} if kept else UNKEPT
    with redis_server(**config) as server:
        yield Engine(
            server.url,
            start=server.start,
            kill=server.kill,
            pid=lambda: server.pid,
            disk_bytes=partial(size_of, server.folder),
            keeps=kept,
        )


@contextlib.contextmanager
def postgres() -> Iterator[Engine]:
    """Run a PostgreSQL as it comes, so that a commit is on the disk."""
    with postgres_server(max_connections=200) as server:

        def disk_bytes() -> int:
            with psycopg.connect(server.url, autocommit=True) as connection:
                row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
                assert row is not None
                return int(row[0])

        def pid() -> int:
            assert server.process is not None
            return server.process.pid

        yield Engine(server.url, server.start, server.kill, pid, disk_bytes)


@contextlib.contextmanager
def rabbitmq() -> Iterator[Engine]:
    """Run a RabbitMQ as it comes."""
    with rabbitmq_server() as server:

        def pid() -> int:
            assert server.process is not None
            return server.process.pid

        size = partial(size_of, server.folder)
        yield Engine(server.hosts, server.start, server.kill, pid, size)
