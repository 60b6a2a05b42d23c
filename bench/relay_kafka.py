"""Kafka to Kafka by way of a relay that holds each record: records a second, and how late they are.

``copy`` is the loop that people write with the same client: consume, produce, flush, commit. It
holds nothing. Broker, relay and what measures share the two cores. The relay's folder syncs its
journal before an offset is committed.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import Kafka, kafka_server
from bench.process import now_ms
from bench.relayed import Counted, relaying, wait_for
from bench.result import Result, percentile

_PARTITIONS = 4
_BODY_BYTES = 200
_PATIENCE_S = 300.0


def measure(
    result: Result, *, messages: int, rate: int, seconds: int, once: str, rounds: int
) -> None:
    """Measure both in turn, then lateness at a rate."""
    more = ["--exactly-once"] if once == "yes" else []
    with kafka_server() as kafka:
        systems: dict[str, Callable[[], float]] = {
            "dwell": lambda: _relayed(kafka, messages, more),
            "copy": lambda: _copied(kafka, messages),
        }
        _copied(kafka, min(messages, 20_000))
        result.in_turn(rounds, systems)
        result.more |= _lateness(kafka, rate, seconds, more)


# --- throughput -----------------------------------------------------------------------------------


def _relayed(kafka: Kafka, messages: int, more: list[str]) -> float:
    """Return the rate from the first record that was read until all have left."""
    came, goes = _filled(kafka, messages), _topic(kafka)
    with _relay(kafka, came, goes, more) as counted:
        wait_for(lambda: counted("read") > 0)
        start = time.perf_counter()
        wait_for(lambda: counted("sent") >= messages)
        took_s = time.perf_counter() - start
    there = _end_of(kafka, goes)
    assert there >= messages, f"{messages - there} records are lost"
    return messages / took_s


def _copied(kafka: Kafka, messages: int) -> float:
    """Do the same with the client alone."""
    came, goes = _filled(kafka, messages), _topic(kafka)
    options = {"bootstrap.servers": kafka.hosts, "log_level": 0}
    reader = Consumer(
        options | {"group.id": came, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    reader.subscribe([came])
    writer = Producer(options | {"acks": "all", "enable.idempotence": True, "linger.ms": 2})
    done, start = 0, 0.0
    while done < messages:
        found = reader.consume(5_000, 0.02)
        if found and not start:
            start = time.perf_counter()
        for one in found:
            writer.produce(goes, one.value(), one.key(), headers=one.headers())
        if found:
            writer.flush()
            reader.commit(asynchronous=False)
        done += len(found)
    took_s = time.perf_counter() - start
    reader.close()
    return messages / took_s


def _filled(kafka: Kafka, messages: int) -> str:
    topic, due = _topic(kafka), str(int(now_ms()))
    writer = Producer({"bootstrap.servers": kafka.hosts, "log_level": 0, "linger.ms": 20})
    body = b"x" * _BODY_BYTES
    for at in range(messages):
        _say(writer, topic, body, at, due)
    assert writer.flush(_PATIENCE_S) == 0
    return topic


def _say(writer: Producer, topic: str, body: bytes, at: int, due: str) -> None:
    while True:
        try:
            return writer.produce(topic, body, str(at), headers=[("dwell-due-ms", due)])
        except BufferError:
            writer.poll(0.1)


def _topic(kafka: Kafka) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    config = {"message.timestamp.type": "LogAppendTime"}
    admin = AdminClient({"bootstrap.servers": kafka.hosts, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, _PARTITIONS, config=config)]).values():
        made.result(60)
    return name


def _end_of(kafka: Kafka, topic: str) -> int:
    """Return how many records are in a topic."""
    reader = Consumer({"bootstrap.servers": kafka.hosts, "group.id": topic, "log_level": 0})
    parts = [TopicPartition(topic, at) for at in range(_PARTITIONS)]
    ends = [reader.get_watermark_offsets(part, 10)[1] for part in parts]
    reader.close()
    return sum(ends)


def _relay(kafka: Kafka, came: str, goes: str, more: list[str]) -> AbstractContextManager[Counted]:
    source = f"kafka://{kafka.hosts}/{came}?group={came}"
    return relaying(source, f"kafka://{kafka.hosts}/{goes}", *more)


# --- lateness -------------------------------------------------------------------------------------


def _lateness(kafka: Kafka, rate: int, seconds: int, more: list[str]) -> dict[str, Any]:
    """Send at a rate what is due two seconds later; say how late the broker had it."""
    came, goes = _topic(kafka), _topic(kafka)
    total = rate * seconds
    with _relay(kafka, came, goes, more) as counted:
        writer = Producer({"bootstrap.servers": kafka.hosts, "log_level": 0, "linger.ms": 2})
        start = now_ms()
        for at in range(total):
            due = start + at * 1000 / rate + 2_000
            while now_ms() < due - 2_000:
                writer.poll(0.002)
            body = f"{due:.0f}".encode().ljust(_BODY_BYTES)
            _say(writer, came, body, at, f"{due:.0f}")
        assert writer.flush(60) == 0
        wait_for(lambda: counted("sent") >= total)
    late = sorted(_late_ms(kafka, goes, total))
    return {
        "p50_ms": percentile(late, 0.5),
        "p99_ms": percentile(late, 0.99),
        "early": sum(ms < 0 for ms in late),
        "lost": total - len(late),
    }


def _late_ms(kafka: Kafka, topic: str, total: int) -> Iterator[float]:
    reader = Consumer(
        {
            "bootstrap.servers": kafka.hosts,
            "group.id": topic,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(topic, at, OFFSET_BEGINNING) for at in range(_PARTITIONS)])
    left, end = total, time.monotonic() + 30
    while left and time.monotonic() < end:
        for one in reader.consume(10_000, 0.5):
            yield one.timestamp()[1] - int(one.value() or b"0")
            left -= 1
    reader.close()
