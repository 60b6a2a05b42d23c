"""Memory of the process that holds pending messages: bytes a message (RssAnon).

With ``--store embedded`` that is the process of Dwell; with ``--store redis`` a redis-server that
holds nothing else, for Dwell as for the peer. Both get the same messages, due over the next day;
with ``--ids queue`` each makes its own ids, with ``--ids caller`` both get the same.
"""

import asyncio
import tempfile

import redis

import dwell
from bench import redis_queue
from bench.filled import dues, fill, put_pending
from bench.lifecycle import BODY, own_ids
from bench.process import own_memory
from bench.redis_servers import Server, redis_server
from bench.result import Result

_BATCH = 1000


def run(*, store: str, ids: str, pending: int) -> Result:
    """Fill Dwell and Redis with the same messages."""
    result = Result("memory", {"store": store, "ids": ids, "pending": pending}, "bytes/message")
    if store == "redis":
        with redis_server() as server:
            asyncio.run(_dwell_redis(server.url, pending, ids))
            _weigh(result, "dwell", server, pending)
    else:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            result.add("dwell", fill(f"{folder}/store", pending, ids, "close") / pending)
    with redis_server() as server:
        _redis(server.port, pending, ids)
        _weigh(result, "redis", server, pending)
    result.more["bytes_per_message"] = round(result.median("dwell"), 1)
    return result


def _weigh(result: Result, system: str, server: Server, pending: int) -> None:
    """Keep what a server has to itself, and, for comparison, what it says that it uses."""
    result.add(system, own_memory(server.pid) / pending)
    used = server.ask("INFO", "memory")["used_memory"]
    result.more[f"{system}_used_memory"] = round(used / pending, 1)


async def _dwell_redis(url: str, pending: int, ids: str) -> None:
    async with dwell.open(url) as queue:
        await put_pending(queue, pending, ids)
        found = (await queue.stats()).topics["bench"]
        assert found.delayed + found.ready == pending, found


def _redis(port: int, pending: int, ids: str) -> None:
    client = redis.Redis(port=port, protocol=2)
    queue = redis_queue.load(client)
    for start in range(0, pending, 10 * _BATCH):
        pipeline = client.pipeline(transaction=False)
        for at in range(start, min(start + 10 * _BATCH, pending), _BATCH):
            columns: list[list[object]] = [dues(_BATCH, at).tolist(), [BODY] * _BATCH]
            if ids == "caller":
                columns.insert(1, [*own_ids(at, _BATCH)])
            mixed = [value for row in zip(*columns, strict=True) for value in row]
            queue.call(pipeline, "put_due" if ids == "caller" else "put_new_due", *mixed)
        pipeline.execute()
    assert client.zcard("q:delayed") == pending
