"""Memory of the process that holds pending messages: bytes a message (RssAnon)."""

import tempfile

import redis

from bench import redis_queue
from bench.filled import dues, fill, own_memory
from bench.lifecycle import BODY, own_ids
from bench.result import Result
from bench.servers import redis_server

_BATCH = 1000


def run(*, ids: str, pending: int) -> Result:
    """Fill Dwell and Redis with the same messages."""
    result = Result("memory", {"ids": ids, "pending": pending}, "bytes/message")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result.add("dwell", fill(f"{folder}/store", pending, ids, "close") / pending)
    result.add("redis", _redis(pending) / pending)
    result.more["bytes_per_message"] = round(result.median("dwell"), 1)
    return result


def _redis(pending: int) -> int:
    with redis_server() as (port, pid):
        client = redis.Redis(port=port, protocol=2)
        queue = redis_queue.load(client)
        for start in range(0, pending, 10 * _BATCH):
            pipeline = client.pipeline(transaction=False)
            for at in range(start, min(start + 10 * _BATCH, pending), _BATCH):
                mixed: list[object] = [BODY] * (3 * _BATCH)
                mixed[::3] = dues(_BATCH, at).tolist()
                mixed[1::3] = own_ids(at, _BATCH)
                queue.call(pipeline, "put_due", *mixed)
            pipeline.execute()
        return own_memory(pid)
