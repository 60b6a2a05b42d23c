"""A topic of Kafka through the queue into another, on Spark: records a second, in and out again.

All records are due at once, so this is the most that ``dwell pipeline relay`` moves. ``copy`` is
Spark alone, from topic to topic, with nothing held. Broker, server and Spark share the two cores.
"""

import tempfile
import time
import uuid
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

import dwell.spark
from bench.brokers import Kafka, connector_jars, kafka_server
from bench.result import Result
from bench.servers import dwell_server
from bench.spark_session import local_spark
from dwell.spark.pipelines.relay import RelaySettings
from dwell.spark.pipelines.relay import run as relay

_PARTITIONS = 4
_BODY = b"x" * 200
_WARM = 20_000


def run(*, messages: int, rounds: int) -> Result:
    """Measure both in turn."""
    result = Result("spark_kafka", {"messages": messages, "body_bytes": len(_BODY)}, "messages/s")
    with (
        local_spark("kafka", {"spark.jars": connector_jars()}) as spark,
        kafka_server() as kafka,
        dwell_server() as (host, port),
    ):
        dwell.spark.register(spark)
        systems: dict[str, Callable[[int], float]] = {
            "dwell": lambda count: _relayed(spark, kafka, f"http://{host}:{port}", count),
            "copy": lambda count: _copied(spark, kafka, count),
        }
        for move in systems.values():
            # The first job starts Python workers and compiles.
            move(min(messages, _WARM))
        named = {name: (lambda move=move: move(messages)) for name, move in systems.items()}
        result.in_turn(rounds, named)
    return result


def _relayed(spark: SparkSession, kafka: Kafka, url: str, messages: int) -> float:
    came, goes = _filled(kafka, messages), _topic(kafka)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        settings = RelaySettings(
            url=url,
            topic=came,
            format="kafka",
            option=_source(kafka, came),
            id="concat_ws('-', topic, partition, offset)",
            due="timestamp",
            out_format="kafka",
            out_option={"kafka.bootstrap.servers": kafka.hosts, "topic": goes},
            checkpoint=f"{folder}/log",
            max_rows=200_000,
            available_now=True,
        )
        start = time.perf_counter()
        said = relay(spark, settings)
        took_s = time.perf_counter() - start
    assert said.endswith(f"{messages:,} out"), said
    return messages / took_s


def _copied(spark: SparkSession, kafka: Kafka, messages: int) -> float:
    came, goes = _filled(kafka, messages), _topic(kafka)
    rows = spark.readStream.format("kafka").options(**_source(kafka, came)).load()
    writer = rows.select("key", "value").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", kafka.hosts).option("topic", goes)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        start = time.perf_counter()
        query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
        query.awaitTermination()
        return messages / (time.perf_counter() - start)


def _source(kafka: Kafka, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": kafka.hosts,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }


def _topic(kafka: Kafka) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": kafka.hosts, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, _PARTITIONS)]).values():
        made.result(60)
    return name


def _filled(kafka: Kafka, messages: int) -> str:
    topic = _topic(kafka)
    writer = Producer({"bootstrap.servers": kafka.hosts, "log_level": 0, "linger.ms": 20})
    for at in range(messages):
        while True:
            try:
                writer.produce(topic, _BODY, str(at))
                break
            except BufferError:
                writer.poll(0.1)
    assert writer.flush(120) == 0
    return topic
