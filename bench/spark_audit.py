"""The audit of the events of a server: events into Parquet, tables, books and report; seconds.

Every message is put, taken and acked; one in ten is released once before. There is no peer.
"""

import tempfile
import time
from pathlib import Path

import dwell
from bench.lifecycle import own_ids
from bench.result import Result
from bench.servers import dwell_server
from bench.spark_session import local_spark
from dwell.spark.pipelines.audit import AuditSettings
from dwell.spark.pipelines.audit import run as audit

_BATCH = 10_000


def run(*, events: int) -> Result:
    """Measure one audit from its start to its line; the session is warm."""
    result = Result("spark_audit", {"events": events}, "s")
    with (
        dwell_server() as (host, port),
        local_spark("audit") as spark,
        tempfile.TemporaryDirectory(dir=".") as folder,
    ):
        url = f"http://{host}:{port}"
        made = _live(url, events)
        start = time.perf_counter()
        line = audit(spark, AuditSettings(url=url, out=str(Path(folder).resolve())))
        took_s = time.perf_counter() - start
        result.add("dwell", took_s)
        result.more = {"events_per_s": round(made / took_s), "line": line}
    return result


def _live(url: str, events: int) -> int:
    """Let messages live until there are so many events; return how many there are."""
    made = start = 0
    with dwell.open(url, timeout=120) as queue:
        while made < events:
            queue.put_many("orders", [b"x"] * _BATCH, ids=own_ids(start, _BATCH))
            batch = queue.take("orders", _BATCH)
            again = batch[: _BATCH // 10]
            queue.release(again)
            queue.ack(batch[_BATCH // 10 :])
            queue.ack(queue.take("orders", _BATCH))
            made += 3 * _BATCH + 2 * len(again)
            start += _BATCH
    return made
