"""What tests say to a Kafka and read from it, and a relay as a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic

from tests.waiting import PATIENCE_S, until

#: The protocols of consumer groups: the newer one is tried in campaigns where both do the same.
PROTOCOLS = ("classic", pytest.param("consumer", marks=pytest.mark.campaign))

Headers = dict[str, str | bytes | None] | list[tuple[str, bytes | None]] | None


class Topics:
    """Topics of one test: what it writes to ``came``, reads from ``goes``, and the dead letters."""

    def __init__(self, hosts: str, name: str, partitions: int) -> None:
        self.hosts, self.name, self.partitions = hosts, name, partitions
        self.came, self.goes, self.dead = f"{name}-in", f"{name}-out", f"{name}-dead"
        admin = AdminClient({"bootstrap.servers": hosts})
        new = [NewTopic(topic, partitions) for topic in (self.came, self.goes, self.dead)]
        for made in admin.create_topics(new).values():
            made.result(PATIENCE_S)
        # The controller has made them before the broker tells them to others.
        until(lambda: {one.topic for one in new} <= admin.list_topics(timeout=5).topics.keys())
        self._produce()

    def _produce(self) -> None:
        # Without this what is tried again overtakes what was sent before it.
        ordered = {"enable.idempotence": True}
        self.producer = Producer({"bootstrap.servers": self.hosts, "linger.ms": 5, **ordered})

    @property
    def source(self) -> str:
        return f"kafka://{self.hosts}/{self.came}?group={self.name}"

    @property
    def sink(self) -> str:
        return f"kafka://{self.hosts}/{self.goes}"

    def source_in(self, protocol: str) -> str:
        """Return the source for a group by a protocol, which soon notices a member that is gone.

        In the newer protocol the broker decides when it does.
        """
        soon = "&session.timeout.ms=2000&heartbeat.interval.ms=500"
        return f"{self.source}&group.protocol={protocol}{soon if protocol == 'classic' else ''}"

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic that is read."""
        admin = AdminClient({"bootstrap.servers": self.hosts})
        made = admin.create_partitions([NewPartitions(self.came, partitions)])
        made[self.came].result(PATIENCE_S)

        def are_known() -> bool:
            return len(admin.list_topics(self.came, 5).topics[self.came].partitions) == partitions

        until(are_known)
        # An older producer does not know them at once.
        self._produce()

    def say(
        self,
        body: bytes | None,
        headers: Headers = None,
        key: bytes | str | None = None,
        *,
        topic: str | None = None,
        partition: int = -1,
    ) -> None:
        """Send a record; :meth:`flush` says when they all are there."""
        self.producer.produce(topic or self.came, body, key, partition=partition, headers=headers)
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(PATIENCE_S) == 0

    def read(self, topic: str, at_least: int) -> list[Any]:
        """Return all records of a topic, in order by partition, once there are so many."""
        found: list[Any] = []

        def are_there() -> bool:
            found[:] = list(read_all(self.hosts, topic, self.partitions))
            return len(found) >= at_least

        until(are_there, f"{topic} did not get {at_least}", 2.5 * PATIENCE_S)
        return found


def read_all(hosts: str, topic: str, partitions: int) -> Iterator[Any]:
    """Yield what is committed in a topic by now."""
    reader = Consumer(
        {
            "bootstrap.servers": hosts,
            "group.id": str(uuid.uuid4()),
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        reader.assign([TopicPartition(topic, at, OFFSET_BEGINNING) for at in range(partitions)])
        ended = 0
        while ended < partitions:
            for one in reader.consume(10_000, 1.0):
                if one.error() is None:
                    yield one
                else:
                    ended += 1
    finally:
        reader.close()


class RelayProcess:
    """``dwell relay`` as users run it."""

    def __init__(self, store: str | Path, options: Sequence[str], log: Path) -> None:
        program = str(Path(sys.executable).with_name("dwell"))
        self._log = log
        with log.open("ab") as output:
            self._begin = output.tell()
            self.process = subprocess.Popen(
                [program, "--store", str(store), "relay", *options],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _is_told(self, words: str) -> bool:
        return words in self._log.read_bytes()[self._begin :].decode(errors="replace")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, once it listens for that, and return how it ended."""
        if number != signal.SIGKILL:
            until(lambda: self._is_told("relaying from") or self.process.poll() is not None)
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def relaying(store: str | Path, options: Sequence[str], log: Path) -> Iterator[RelayProcess]:
    """Run a relay until the block ends."""
    relay = RelayProcess(store, options, log)
    try:
        yield relay
    finally:
        if relay.process.poll() is None:
            relay.end(signal.SIGKILL)


def numbers(records: Sequence[Any]) -> list[int]:
    """Return the bodies of records, which are numbers."""
    return [json.loads(one.value()) for one in records]
