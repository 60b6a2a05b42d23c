"""The views ``messages`` and ``events`` read by Spark: rows a second. There is no peer for this."""

import time
from functools import partial

import numpy as np
from pyspark.sql import SparkSession

import dwell
from bench.lifecycle import BODY, own_ids
from bench.result import Result
from bench.servers import dwell_server
from bench.spark_session import local_spark

_BATCH = 10_000


def run(*, view: str, rows: int, rounds: int) -> Result:
    """Measure reading all rows of a view into Spark, without a sink that costs anything."""
    result = Result("spark_read", {"view": view, "rows": rows, "body_bytes": 200}, "rows/s")
    with dwell_server() as (host, port), local_spark("read") as spark:
        url = f"http://{host}:{port}"
        _fill(url, rows)
        _read(spark, url, view, rows)
        result.in_turn(rounds, {"dwell": partial(_read, spark, url, view, rows)})
    return result


def _fill(url: str, rows: int) -> None:
    due = np.arange(_BATCH) + time.time_ns() // 1_000_000 + 3_600_000
    with dwell.open(url) as queue:
        for start in range(0, rows, _BATCH):
            size = min(_BATCH, rows - start)
            queue.put_many("orders", [BODY] * size, ids=own_ids(start, size), due=due[:size])


def _read(spark: SparkSession, url: str, view: str, rows: int) -> float:
    start = time.perf_counter()
    table = spark.read.format("dwell").options(url=url, view=view).load()
    table.write.format("noop").mode("overwrite").save()
    took_s = time.perf_counter() - start
    return rows / took_s
