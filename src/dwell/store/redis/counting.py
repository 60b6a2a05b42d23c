"""Counting: the counts of a shard, some topics a call; by due, and by owner."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from dwell.batch.spans import Spans
from dwell.message import I64
from dwell.slices import slices, tuples
from dwell.store.redis.shards import Shards


async def counts_of(
    shards: Shards, shard: int, topic: str = ""
) -> tuple[dict[str, list[int]], Sequence[Any], int]:
    """Return the counts by topic, kinds and totals alternating, and the next event's position.

    The position was read before the first topic was counted. ``topic`` limits the counts to one
    topic.
    """
    counts: dict[str, list[int]] = {}
    where, first = b"0", None
    while True:
        answer = await shards.run(shard, "stats", where, topic)
        found, totals, position, where = answer.values
        first = position if first is None else first
        counts |= {name.decode(): of for name, *of in tuples(found, 5)}
        if where == b"0":
            return counts, totals, first


async def due_of(shards: Shards, topic: str, spans: Spans) -> I64:
    """Return how many delayed messages of a topic fall due in each span."""
    counts, told = spans.none(), (topic, spans.start_ms, spans.span_ms, spans.count)
    for shard in range(shards.count):
        where = b""
        while True:
            answer = await shards.run(shard, "due", *told, where)
            found, where = answer.values
            for place, count in tuples(found, 2):
                counts[place] += count
            if not where:
                break
    return counts


async def oldest_of(shards: Shards, topics: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return since when the first ready message of each topic has been due.

    Also return the topics that need a scan for this.
    """
    oldest: dict[str, int] = {}
    others: dict[str, None] = {}
    for some in slices(topics, shards.limits.topics):
        for shard in range(shards.count):
            answer = await shards.run(shard, "oldest", *some)
            for topic, due_ms in zip(some, answer.values[0], strict=True):
                if due_ms > 0:
                    oldest[topic] = min(due_ms, oldest.get(topic, due_ms))
                elif due_ms < 0:
                    others[topic] = None
    return {topic: due for topic, due in oldest.items() if topic not in others}, list(others)


async def leases_of(shards: Shards) -> AsyncIterator[tuple[str, str, int, int]]:
    """Yield owner, topic, number of messages and end of each lease, or of a block of them."""
    for shard in range(shards.count):
        where = b"0"
        while True:
            answer = await shards.run(shard, "holders", where)
            found, where = answer.values
            for owner, topic, count, until_ms in tuples(found, 4):
                yield owner.decode(), topic.decode(), count, until_ms
            if where == b"0":
                break


async def condition_of(shards: Shards) -> dict[str, int | str]:
    """Return the number of shards, and the response time of the first shard's engine."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    await shards.engine.ask("HGET", shards.engine.keys(0).meta, "position")
    return {"shards": shards.count, "answer_us": round((loop.time() - start) * 1_000_000)}
