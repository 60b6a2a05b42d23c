"""The stream of due messages: how many a second are acked, and how late they reach the sink.

``drain``: messages that are due already, to a sink that does nothing. ``steady``: ``rate`` messages
a second fall due for ``seconds``; lateness is when Spark's sink sees them, less the due. The first
seconds, in which Python workers start, are left out. There is no peer for this.
"""

import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

import dwell
from bench.lifecycle import BODY, own_ids
from bench.result import Result, percentile
from bench.servers import dwell_server
from bench.spark_session import local_spark

_BATCH = 10_000
_WARM_S = 10


def run(*, mode: str, messages: int, rate: int, seconds: int, rounds: int) -> Result:
    """Measure draining, or lateness."""
    if mode not in ("drain", "steady"):
        raise SystemExit(f"--mode: got {mode}, expected drain or steady")
    with dwell_server() as (host, port), local_spark("stream") as spark:
        url = f"http://{host}:{port}"
        if mode == "steady":
            params = {"mode": mode, "rate": rate, "seconds": seconds}
            result = Result("spark_stream", params, "ms late, p99")
            _steady(spark, url, rate, seconds, result)
            return result
        result = Result("spark_stream", {"mode": mode, "messages": messages}, "messages/s")
        _drain(spark, url, 20_000)
        result.in_turn(rounds, {"dwell": lambda: _drain(spark, url, messages)})
    return result


def _put(queue: Any, topic: str, due: np.ndarray) -> None:
    for start in range(0, len(due), _BATCH):
        part = due[start : start + _BATCH]
        queue.put_many(topic, [BODY] * len(part), ids=own_ids(start, len(part)), due=part)


def _stream(spark: SparkSession, url: str, topic: str) -> DataFrame:
    return spark.readStream.format("dwell").options(url=url, view="due", topics=topic).load()


def _drain(spark: SparkSession, url: str, messages: int) -> float:
    topic = f"drain-{time.monotonic_ns()}"
    with dwell.open(url) as queue, tempfile.TemporaryDirectory(dir=".") as folder:
        _put(queue, topic, np.full(messages, time.time_ns() // 1_000_000))
        start = time.perf_counter()
        writer = _stream(spark, url, topic).writeStream.format("noop")
        writer.option("checkpointLocation", folder).trigger(
            availableNow=True
        ).start().awaitTermination()
        took_s = time.perf_counter() - start
        left = queue.stats().topics[topic]
        assert not left.ready + left.leased, f"{left} are not acked"
    return messages / took_s


def _steady(spark: SparkSession, url: str, rate: int, seconds: int, result: Result) -> None:
    late_ms: list[float] = []
    start_ms = time.time_ns() // 1_000_000 + 5000
    due = start_ms + np.arange(rate * (seconds + _WARM_S)) * 1000 // rate
    done = threading.Event()

    def sink(batch: DataFrame, number: int) -> None:
        dues = [row[0].timestamp() * 1000 for row in batch.select("due").collect()]
        now_ms = time.time_ns() / 1_000_000
        late_ms.extend(_late(dues, now_ms, start_ms + _WARM_S * 1000))
        if dues and max(dues) >= due[-1]:
            done.set()

    with dwell.open(url) as queue, tempfile.TemporaryDirectory(dir=".") as folder:
        _put(queue, "steady", due)
        writer = _stream(spark, url, "steady").writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", folder).start()
        assert done.wait(seconds + _WARM_S + 60), query.exception()
        query.stop()
    late_ms.sort()
    result.add("dwell", percentile(late_ms, 0.99))
    result.more["p50_ms"] = round(percentile(late_ms, 0.5), 1)
    result.more["p99_ms"] = round(percentile(late_ms, 0.99), 1)
    result.more["max_ms"] = round(late_ms[-1], 1)
    result.more["early"] = sum(late < 0 for late in late_ms)


def _late(dues: Sequence[float], now_ms: float, from_ms: int) -> list[float]:
    return [now_ms - due_ms for due_ms in dues if due_ms >= from_ms]
