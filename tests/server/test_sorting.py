"""Sorting many items in turns gives what sorting them at once does."""

import asyncio
import random

import pytest

from dwell.batch.stats import Stats, TopicStats
from dwell.server.quotas import Seen
from dwell.server.sorting import in_order


async def turns_of(work):
    """Return what comes of some work, and how many turns others had meanwhile."""
    doing, turns = asyncio.ensure_future(work), 0
    while not doing.done():
        turns += 1
        await asyncio.sleep(0)
    return await doing, turns


@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 30_000])
async def test_items_are_in_order(count):
    items = [random.randrange(1000) for _ in range(count)]
    found, turns = await turns_of(in_order(items, lambda item: -item))
    assert found == sorted(items, reverse=True)
    assert turns >= count // 1000


async def test_a_look_of_very_many_topics_leaves_turns():
    topics = {f"t{number}": TopicStats(ready=number % 3) for number in range(30_000)}
    stats = Stats(topics)
    seen, turns = await turns_of(Seen.of(stats, dict.fromkeys(topics, 10)))
    # Results are stored in topics without messages, too.
    assert seen.under(("",)) == (20_000, 30_000, 300_000)
    # Six passes, of which each leaves a turn for 2,000 topics.
    assert turns > 6 * 30_000 / 2_000 - 5
    assert "t1" in seen
    assert "t0" not in seen
