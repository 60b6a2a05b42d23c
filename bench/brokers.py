"""Real brokers for tests and benchmarks, each with a folder and ports of its own."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.redis_servers import steady_port, until

ROOT = Path(__file__).parents[1]
#: Where ``make setup`` puts the jars of the Kafka server.
JARS = ROOT / ".brokers" / "kafka"

#: And those of Spark's connector to it.
CONNECTOR = ROOT / ".brokers" / "spark"

#: What the server has loaded once it answers, as ``make setup`` keeps it.
ARCHIVE = ROOT / ".brokers" / "kafka.jsa"

#: The server itself: the script before it in the path would become another user.
_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"

_START_S = 90.0


@dataclass
class Kafka:
    """One Kafka server, as KRaft has it: broker and controller in one process."""

    folder: Path
    port: int
    config: dict[str, Any] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    cluster: str = field(default_factory=lambda: str(uuid.uuid4()))
    controller: int = field(default_factory=steady_port)

    @property
    def hosts(self) -> str:
        """Return what clients call ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    def start(self, *options: str) -> None:
        """Start it, with more options of Java, and wait until it answers."""
        command = self._java(*options, "kafka.Kafka", str(self.folder / "server.properties"))
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        until(self._answers, "Kafka did not answer", _START_S)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it; what it has written stays."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError((self.folder / "log.txt").read_text()[-2000:])
        with contextlib.suppress(KafkaException):
            AdminClient({"bootstrap.servers": self.hosts, "log_level": 0}).list_topics(timeout=2)
            return True
        return False

    def prepare(self) -> None:
        """Write its settings and make its folder what it wants."""
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller}",
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller}"
            ),
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "group.consumer.min.session.timeout.ms": 1000,
            "group.consumer.session.timeout.ms": 3000,
            "group.consumer.min.heartbeat.interval.ms": 100,
            "group.consumer.heartbeat.interval.ms": 500,
            **self.config,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.folder / "server.properties").write_text(lines)
        made = self._java(
            "kafka.tools.StorageTool",
            *("format", "-t", self.cluster, "-c", str(self.folder / "server.properties")),
        )
        subprocess.run(made, check=True, capture_output=True)

    def _java(self, *words: str) -> Sequence[str]:
        options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        archive = [f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else []
        return ("java", *options, *archive, "-cp", f"{JARS}/*", *words)


def connector_jars() -> str:
    """Return what Spark calls ``spark.jars``."""
    jars = sorted(map(str, CONNECTOR.glob("*.jar")))
    if not jars:
        raise SystemExit(f"{CONNECTOR} is empty; make setup fills it")
    return ",".join(jars)


@contextlib.contextmanager
def kafka_server(**config: Any) -> Iterator[Kafka]:
    """Run one Kafka server; ``config`` is more of its settings, with ``_`` for dots."""
    with tempfile.TemporaryDirectory(prefix="dwell-kafka-") as folder:
        more = {name.replace("_", "."): value for name, value in config.items()}
        kafka = Kafka(Path(folder), steady_port(), more)
        kafka.prepare()
        try:
            kafka.start()
            yield kafka
        finally:
            kafka.kill()


@contextlib.contextmanager
def kafka_beside(first: Kafka) -> Iterator[Kafka]:
    """Run one more broker of a server's cluster, which has no part in control."""
    with tempfile.TemporaryDirectory(prefix="dwell-kafka-") as folder:
        port = steady_port()
        more = {
            **first.config,
            "process.roles": "broker",
            "node.id": 2,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }
        kafka = Kafka(Path(folder), port, more, cluster=first.cluster, controller=first.controller)
        kafka.prepare()
        try:
            kafka.start()
            yield kafka
        finally:
            kafka.kill()


@dataclass
class RabbitMQ:
    """One RabbitMQ server, with a port mapper of its own beside it."""

    folder: Path
    port: int
    config: dict[str, Any] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    _ports: tuple[int, int] = field(default_factory=lambda: (steady_port(), steady_port()))

    @property
    def hosts(self) -> str:
        """Return the beginning of its addresses."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Write its settings."""
        listener = f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
        (self.folder / "rabbitmq.conf").write_text(listener)
        (self.folder / "plugins").write_text("[].\n")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # With input allowed the script becomes the server, so its id is the server's.
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [_RABBITMQ],
                env=os.environ | self._environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        until(self._answers, "RabbitMQ did not answer", _START_S)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it; what it has written stays."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process = None

    @contextlib.contextmanager
    def mapper(self) -> Iterator[None]:
        """Run Erlang's port mapper, which would outlive a server that had started it."""
        command = ["epmd", "-port", str(self._ports[0]), "-address", "127.0.0.1"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def _environment(self) -> dict[str, str]:
        mapper, nodes = map(str, self._ports)
        more = "".join(f" -rabbit {name} {value}" for name, value in self.config.items())
        return {
            "HOME": str(self.folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": mapper,
            "RABBITMQ_ALLOW_INPUT": "yes",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": nodes,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_NODENAME": f"dwell{self.port}@localhost",
            # Schedulers that wait for work leave the cores to others.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+sbwt none +sbwtdcpu none +sbwtdio none{more}",
        }

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError((self.folder / "log.txt").read_text()[-2000:])
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return asyncio.run(self._connects())
        return False

    async def _connects(self) -> bool:
        try:
            connection = await aio_pika.connect(self.hosts, timeout=2)
        except (OSError, TimeoutError, aio_pika.exceptions.AMQPError):
            return False
        await connection.close()
        return True


@contextlib.contextmanager
def rabbitmq_server(**config: Any) -> Iterator[RabbitMQ]:
    """Run one RabbitMQ server; ``config`` are variables of its application ``rabbit``."""
    with tempfile.TemporaryDirectory(prefix="dwell-rabbitmq-") as folder:
        rabbitmq = RabbitMQ(Path(folder), steady_port(), config)
        rabbitmq.prepare()
        with rabbitmq.mapper():
            try:
                rabbitmq.start()
                yield rabbitmq
            finally:
                rabbitmq.kill()
