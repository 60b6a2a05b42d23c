"""A DataFrame with ids into the queue, and the same rows into the Redis queue: rows a second.

``redis`` puts one message a call, 1,000 calls a pipeline, as people write it in foreachPartition;
``redis batch`` puts 1,000 messages with one call of the script. Server, Redis and Spark share the
two cores. Dwell syncs its journal before it answers; this Redis keeps nothing on disk.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

import redis
from pyspark.sql import DataFrame, Row

from bench import redis_queue
from bench.redis_servers import redis_server
from bench.result import Result
from bench.servers import dwell_server
from bench.spark_session import local_spark

_PIPELINE = 1000


def run(*, rows: int, rounds: int) -> Result:
    """Measure all of them in turn."""
    result = Result("spark_write", {"rows": rows, "body_bytes": 200}, "rows/s")
    with (
        local_spark("write") as spark,
        redis_server() as server,
        dwell_server() as (host, dwell_port),
    ):

        def frame(count: int) -> DataFrame:
            return spark.range(0, count, 1, 2).selectExpr(
                "concat('order-', id) id", "repeat('x', 200) body", "'1h' delay"
            )

        systems: dict[str, Callable[[DataFrame], None]] = {
            "dwell": partial(_to_dwell, f"http://{host}:{dwell_port}"),
            "redis": partial(_to_redis, server.port, singly=True),
            "redis batch": partial(_to_redis, server.port, singly=False),
        }
        for write in systems.values():
            # The first job starts Python workers and compiles.
            write(frame(-(-rows // 4)))
        result.in_turn(
            rounds,
            {name: partial(_measured, write, frame(rows), rows) for name, write in systems.items()},
        )
    return result


def _measured(write: Callable[[DataFrame], None], frame: DataFrame, rows: int) -> float:
    start = time.perf_counter()
    write(frame)
    return rows / (time.perf_counter() - start)


def _to_dwell(url: str, frame: DataFrame) -> None:
    # A topic of its own each time, as the ids are the same.
    topic = f"orders-{time.monotonic_ns()}"
    writer = frame.write.format("dwell").mode("append")
    writer.options(url=url, topic=topic).save()


def _to_redis(port: int, frame: DataFrame, *, singly: bool) -> None:
    redis.Redis(port=port).flushall()
    put = _put_singly if singly else _put_together

    def put_partition(rows: Iterable[Row]) -> None:
        client = redis.Redis(port=port)
        queue = redis_queue.load(client)
        left = iter(rows)
        due_ms = time.time_ns() // 1_000_000 + 3_600_000
        while some := list(islice(left, _PIPELINE)):
            put(client, queue, due_ms, some)

    frame.foreachPartition(put_partition)


def _put_singly(
    client: "redis.Redis", queue: redis_queue.RedisQueue, due_ms: int, rows: list[Row]
) -> None:
    pipeline = client.pipeline(transaction=False)
    for row in rows:
        queue.call(pipeline, "put", due_ms, row.id, row.body)
    pipeline.execute()


def _put_together(
    client: "redis.Redis", queue: redis_queue.RedisQueue, due_ms: int, rows: list[Row]
) -> None:
    words = [word for row in rows for word in (row.id, row.body)]
    queue.call(client, "put", due_ms, *words)
