"""A large campaign in one job of Spark: rows a second, and the memory of all processes as it goes.

Memory is sampled with each fifth of the rows: what the server has for each pending message, and
what Spark's JVM and its Python workers have together (RssAnon). Those of Spark should be flat, as
no process holds more than some batches. There is no peer for this.
"""

import os
import threading
import time

import dwell
from bench.process import descendants, own_memory
from bench.result import Result
from bench.servers import dwell_process
from bench.spark_session import local_spark

_TOPIC = "campaign"
_PARTS = 5
_PAUSE_S = 0.2


def run(*, rows: int) -> Result:
    """Write so many rows with ids, due over the next day."""
    result = Result("spark_campaign", {"rows": rows, "body_bytes": 200}, "rows/s")
    with local_spark("campaign") as spark, dwell_process() as ((host, port), server):
        url = f"http://{host}:{port}"

        def write(topic: str, count: int) -> None:
            frame = spark.range(count).selectExpr(
                "concat('order-', id) id",
                "repeat('x', 200) body",
                "bigint(unix_millis(now()) + 3600000 + id % 86400000) due",
            )
            frame.write.format("dwell").mode("append").options(url=url, topic=topic).save()

        # The first job starts Python workers and compiles.
        write("warm", max(rows // 50, 1_000))
        before = own_memory(server.pid)
        weights = _Weights(url, server.pid, rows)
        start = time.perf_counter()
        with weights:
            write(_TOPIC, rows)
        result.add("dwell", rows / (time.perf_counter() - start))
    result.more["spark_mb"] = weights.spark_mb
    result.more["server_mb"] = weights.server_mb
    result.more["server_bytes_per_message"] = round(
        (weights.server_mb[-1] * 1e6 - before) / rows, 1
    )
    return result


class _Weights:
    """The memory of the server and of Spark, each time that a fifth more of the rows is there."""

    def __init__(self, url: str, server: int, rows: int) -> None:
        self._url, self._server, self._rows = url, server, rows
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.server_mb: list[int] = []
        self.spark_mb: list[int] = []

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._weigh()

    def _run(self) -> None:
        with dwell.open(self._url) as queue:
            for part in range(1, _PARTS):
                while self._there(queue) < self._rows * part / _PARTS:
                    if self._ended.wait(_PAUSE_S):
                        return
                self._weigh()

    def _there(self, queue: dwell.SyncQueue) -> int:
        counts = queue.stats().topics.get(_TOPIC)
        return 0 if counts is None else counts.delayed

    def _weigh(self) -> None:
        self.server_mb.append(own_memory(self._server) // 1_000_000)
        of_spark = [pid for pid in descendants(os.getpid()) if pid != self._server]
        self.spark_mb.append(sum(map(_memory_of, of_spark)) // 1_000_000)


def _memory_of(pid: int) -> int:
    """Return the memory of a process, 0 if it has ended."""
    try:
        return own_memory(pid)
    except (OSError, AssertionError):
        # One that nobody has waited for yet has a status without memory.
        return 0
