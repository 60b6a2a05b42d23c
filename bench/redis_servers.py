"""Real servers of Redis and its kin, for benchmarks and tests: one alone, and a cluster.

Each has a port and a folder of its own, which it keeps while it is killed and started again.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from bench.servers import running

SLOTS = 16_384

#: How long a node may be silent before the others take it for dead.
NODE_TIMEOUT_MS = 2_000


# --- waiting, and ports ---------------------------------------------------------------------------


def until(question: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Wait until a question is answered with what is true, without an error of Redis."""
    end = time.monotonic() + seconds
    while True:
        last: object = None
        try:
            if question():
                return
        except redis.RedisError as error:
            last = error
        assert time.monotonic() < end, f"waited {seconds} s in vain: {what} ({last})"
        time.sleep(0.01)


def _steady_ports() -> Iterator[int]:
    """Yield ports below those that the kernel gives to outgoing connections, each once.

    A client that calls a killed server again and again would otherwise, sooner or later, be given
    the server's own port to call from: it would reach itself, and the server could not come back.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(max(lowest - 12_000, 1024), lowest)
    for port in random.SystemRandom().sample(ports, len(ports)):
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        yield port


_PORTS = _steady_ports()


def steady_port() -> int:
    """Return a port that stays a server's own while it is killed and started again."""
    return next(_PORTS)


# --- one server -----------------------------------------------------------------------------------


class Server:
    """One process; ``kill`` and ``start`` it, or make it hang by ``stop`` and go on by ``cont``."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        config: dict[str, Any],
        *,
        tls: tuple[Path, Path] | None = None,
        mode: Sequence[str] = (),
    ) -> None:
        self.port = next(_PORTS)
        self.folder = folder
        self.password = str(config.get("requirepass", ""))
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._hangs = False
        self._ended = contextlib.ExitStack()
        self._command = [binary, str(folder / "server.conf"), *mode]
        folder.mkdir(exist_ok=True)
        ports: dict[str, object] = {"port": self.port}
        if tls:
            ports = {"port": 0, "tls-port": self.port, "tls-auth-clients": "no"}
            ports |= {"tls-cert-file": tls[0], "tls-key-file": tls[1]}
        given = {name.replace("_", "-"): value for name, value in config.items()}
        own = {"bind": "127.0.0.1", "dir": folder, "logfile": folder / "server.log", **ports}
        lines = [f"{name} {value}" for name, value in (own | given).items()]
        (folder / "server.conf").write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        """The address as Dwell takes it."""
        scheme = "valkey" if "valkey" in Path(self._command[0]).name else "redis"
        user = f":{self.password}@" if self.password else ""
        return f"{scheme}{'s' if self._tls else ''}://{user}127.0.0.1:{self.port}/0"

    @property
    def is_up(self) -> bool:
        """Whether the process runs, and does not hang."""
        return self._process is not None and not self._hangs

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client, which says at once what went wrong, and does not try again."""
        own: dict[str, Any] = {"password": self.password or None, "retry": Retry(NoBackoff(), 0)}
        if self._tls:
            own |= {"ssl": True, "ssl_ca_certs": str(self._tls[0])}
        return redis.Redis("127.0.0.1", self.port, **(own | options))

    def ask(self, *command: object) -> Any:
        """Return the answer to one command, over a connection of its own."""
        with self.client(decode_responses=True, socket_timeout=5) as client:
            return client.execute_command(*command)

    def start(self) -> None:
        """Start the process, and wait until it answers and has read what it keeps."""
        assert self._process is None, "the server is running"
        self._mend()
        try:
            self._process = self._ended.enter_context(running(self._command, self.port))
        except SystemExit as error:
            log = self.folder / "server.log"
            text = log.read_text()[-2000:] if log.exists() else ""
            raise SystemExit(f"{error}\n{text}") from None
        until(lambda: self.ask("PING"), f"no answer on port {self.port}")

    def _mend(self) -> None:
        """Cut off what a crash left of a verb, as ``docs/howto/redis.md`` says; Valkey does it."""
        if "valkey" in self._command[0]:
            return
        for manifest in self.folder.glob("appendonlydir/*.manifest"):
            command = ["redis-check-aof", "--fix", str(manifest)]
            subprocess.run(command, input=b"y\n", check=True, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill the process, hanging or not, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process, self._hangs = None, False
            self._ended.close()

    def stop(self) -> None:
        """Make the process hang: connections stay, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self._hangs = True

    def cont(self) -> None:
        """Let the process go on."""
        os.kill(self.pid, signal.SIGCONT)
        self._hangs = False


@contextlib.contextmanager
def together() -> Iterator[Callable[..., Server]]:
    """Yield what makes a server and starts it; all of them are killed at the end."""
    servers: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="dwell-redis-") as text:

        def make(binary: str, config: dict[str, Any], **options: Any) -> Server:
            servers.append(Server(binary, Path(text, str(len(servers))), config, **options))
            servers[-1].start()
            return servers[-1]

        try:
            yield make
        finally:
            for server in servers:
                server.kill()


#: The config of a server that keeps nothing on disk, and whose replicas need not wait.
UNKEPT = {"save": '""', "appendonly": "no", "repl_diskless_sync_delay": 0}


@contextlib.contextmanager
def redis_server(
    binary: str = "redis-server", *, tls: tuple[Path, Path] | None = None, **config: Any
) -> Iterator[Server]:
    """Run one server; it keeps nothing on disk unless the config says so.

    ``tls`` is a certificate and its key. Dashes in the names of the config are underscores here.
    """
    with together() as make:
        yield make(binary, UNKEPT | config, tls=tls)


# --- a cluster ------------------------------------------------------------------------------------


class Cluster:
    """Nodes that share the slots evenly: the masters first, then a round of replicas for each."""

    def __init__(self, nodes: list[Server], masters: int) -> None:
        self.nodes = nodes
        self.masters = nodes[:masters]
        self.replicas = nodes[masters:]

    @property
    def url(self) -> str:
        """The address of the first node, as Dwell takes it."""
        scheme, place = self.nodes[0].url.removesuffix("/0").split("://")
        return f"{scheme}+cluster://{place}"

    def client(self, **options: Any) -> RedisCluster:
        """Return a new client of all nodes."""
        return RedisCluster("127.0.0.1", self._up()[0].port, **options)

    def owner(self, key: str | bytes) -> Server:
        """Return the node that serves a key, as the first node that is up has it."""
        first = self._up()[0]
        slot = first.ask("CLUSTER", "KEYSLOT", key)
        port = next(master[1] for low, high, master, *_ in _slots(first) if low <= slot <= high)
        return next(node for node in self.nodes if node.port == port)

    def move(self, key: str | bytes, to: Server) -> None:
        """Move the slot of a key, with what is in it, to another master."""
        source = self.owner(key)
        slot = source.ask("CLUSTER", "KEYSLOT", key)
        names = {node: node.ask("CLUSTER", "MYID") for node in (source, to)}
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[to])
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
        for node in (to, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[to])

    def wait_ok(self) -> None:
        """Wait until every node that is up says that the cluster is whole."""
        for node in self._up():
            until(partial(_is_whole, node), f"the cluster of {node.port} is not whole")

    def _up(self) -> list[Server]:
        return [node for node in self.nodes if node.is_up]


def _slots(node: Server) -> list[Any]:
    """Return first slot, last slot, master and replicas of each range, as a node knows them."""
    ranges: list[Any] = node.ask("CLUSTER", "SLOTS")
    return ranges


def _is_whole(node: Server) -> bool:
    return "cluster_state:ok" in node.ask("CLUSTER", "INFO")


@contextlib.contextmanager
def redis_cluster(
    masters: int = 3, replicas: int = 0, *, binary: str = "redis-server", **config: Any
) -> Iterator[Cluster]:
    """Run a cluster with so many masters, and so many replicas for each.

    It takes two seconds: so long a master that starts waits before it lets anybody write.
    """
    own = {"cluster_enabled": "yes", "cluster_node_timeout": NODE_TIMEOUT_MS}
    with together() as make:
        nodes = []
        for _ in range(masters * (1 + replicas)):
            bus = {"cluster_port": next(_PORTS)}
            nodes.append(make(binary, UNKEPT | own | bus | config))
        cluster = Cluster(nodes, masters)
        _join(cluster)
        yield cluster


def _join(cluster: Cluster) -> None:
    """Make nodes that do not know each other into a cluster."""
    masters, nodes = cluster.masters, cluster.nodes
    for number, node in enumerate(masters):
        first, end = (SLOTS * edge // len(masters) for edge in (number, number + 1))
        node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        node.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    for node in nodes:
        for other in nodes:
            if other is not node:
                bus = other.ask("CONFIG", "GET", "cluster-port")["cluster-port"]
                node.ask("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
    for node in nodes:
        what = f"{node.port} does not know the other nodes"
        until(partial(_knows, node, len(nodes)), what)
    for number, replica in enumerate(cluster.replicas):
        master = masters[number % len(masters)]
        replica.ask("CLUSTER", "REPLICATE", master.ask("CLUSTER", "MYID"))
    for replica in cluster.replicas:
        until(partial(follows, replica), f"{replica.port} has no link to its master")
    cluster.wait_ok()


def _knows(node: Server, count: int) -> bool:
    """Return whether a node knows so many nodes by their names, itself among them."""
    lines = str(node.ask("CLUSTER", "NODES"))
    return lines.count(" connected") == count and "handshake" not in lines


def follows(replica: Server) -> bool:
    """Return whether a replica has a link to its master."""
    return bool(replica.ask("INFO", "replication").get("master_link_status") == "up")
