"""Places: stores on real servers, each with what of it can be killed and started again."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.redis_servers import UNKEPT, Cluster, Server, redis_cluster, redis_server
from bench.servers import free_port
from tools.survive.clock import SetClock
from tools.survive.crew import ROOT, environment

#: A Redis that has on disk what it answers.
KEPT = {"appendonly": "yes", "appendfsync": "always"}
_START_S = 120.0


@dataclass
class Place:
    """A store: its URL for actors, and by name what kills a part of it and starts it again."""

    store: str
    over: str
    url: str
    failures: dict[str, Callable[[], None]] = field(default_factory=dict)
    clock: SetClock | None = None
    #: Whether a process of its own has to open it for actors, so that only one can.
    is_alone: bool = False


class DwellServer:
    """``dwell serve`` over a folder or a URL, on a port that stays the same when it comes back."""

    def __init__(self, store: str, folder: Path, clock: SetClock | None = None) -> None:
        self._store, self._log = store, folder / "server.log"
        self._environment = environment() | (clock.environment() if clock else {})
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        words = ["serve", self._store, "--http", self.url.removeprefix("http://")]
        program = [sys.executable, "-c", "from dwell.cli import main; main()"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*program, *words, "--beanstalk", "off"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            if self._process.poll() is not None:
                raise RuntimeError(f"the server did not start: {self._log.read_text()[-3000:]}")
            time.sleep(0.01)
        self.kill()
        raise RuntimeError("the server does not listen")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def again(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()


def _again(server: Server) -> None:
    server.kill()
    server.start()


@contextlib.contextmanager
def folder_in_process(folder: Path) -> Iterator[Place]:
    """Yield a folder that the actor itself opens."""
    yield Place("embedded", "in process", str(folder / "store"), is_alone=True)


@contextlib.contextmanager
def folder_over_http(folder: Path, clock: SetClock | None = None) -> Iterator[Place]:
    """Yield a folder that a server has open."""
    server = DwellServer(str(folder / "store"), folder, clock)
    try:
        yield Place("embedded", "HTTP", server.url, {"the server": server.again}, clock)
    finally:
        server.kill()


@contextlib.contextmanager
def redis_in_process(folder: Path, clock: SetClock | None = None) -> Iterator[Place]:
    """Yield a Redis that the actors use themselves."""
    binary = clock.wrapped("redis-server") if clock else "redis-server"
    with redis_server(binary, **KEPT) as server:
        failures = {"Redis": lambda: _again(server)}
        yield Place("Redis", "in process", server.url, failures, clock)


@contextlib.contextmanager
def redis_over_http(folder: Path, clock: SetClock | None = None) -> Iterator[Place]:
    """Yield a Redis that a server of Dwell uses."""
    with redis_in_process(folder, clock) as place:
        server = DwellServer(place.url, folder)
        try:
            failures = {**place.failures, "the server": server.again}
            yield Place("Redis", "HTTP", server.url, failures, clock)
        finally:
            server.kill()


@contextlib.contextmanager
def redis_of_three(folder: Path) -> Iterator[Place]:
    """Yield a cluster of three masters that the actors use themselves, a shard on each."""
    with redis_cluster(**{**UNKEPT, **KEPT}) as cluster:
        turns = _Turns(cluster)
        failures = {"one node of a cluster": turns.next}
        yield Place("Redis cluster", "in process", f"{cluster.url}?shards=3", failures)


class _Turns:
    """Kills the nodes of a cluster in turn, and waits until it is whole again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._number = 0

    def next(self) -> None:
        """Kill the next one, and start it again."""
        node = self._cluster.nodes[self._number % len(self._cluster.nodes)]
        self._number += 1
        node.kill()
        # So long that the others take it for dead.
        time.sleep(2.5)
        node.start()
        self._cluster.wait_ok()
