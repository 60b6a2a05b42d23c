"""Counting: what a shard counts, topic by topic, some of them a call."""

from collections.abc import Sequence
from typing import Any

from dwell.slices import tuples
from dwell.store.redis.shards import Shards


async def counts_of(
    shards: Shards, shard: int, topic: str = ""
) -> tuple[dict[str, list[int]], Sequence[Any], int]:
    """Return the counts by topic, the totals by kind in turn, and the position of the next event.

    The position is as it was before the first topic was looked at. ``topic`` is one wanted alone.
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
