"""A topic becomes ordered while others go on: the keys of what waits there are all known then."""

import asyncio

import pytest

from dwell.queue import Queue
from dwell.testing.faults import FaultyDisk
from tests.store.test_limits import queue_on

MESSAGES = 20
#: Turns of the event loop after which something comes between.
TURNS = range(0, 16, 3)


async def begun(queue: Queue, turns: int) -> "asyncio.Task[object]":
    """Put messages of one key, and let the topic become ordered for so many turns of the loop."""
    ids = [f"{number}" for number in range(MESSAGES)]
    await queue.put_many("t", [b"x"] * MESSAGES, ids=ids, key="k")
    task: asyncio.Task[object] = asyncio.create_task(queue.configure("t", ordered=True))
    for _ in range(turns):
        await asyncio.sleep(0)
    return task


async def is_ordered(queue: Queue) -> bool:
    """Tell whether one message is taken at a time, up to the last."""
    for _ in range(MESSAGES):
        batch = await queue.take("t", MESSAGES)
        if len(batch) != 1:
            return False
        await queue.ack(batch)
    return True


@pytest.mark.parametrize("turns", TURNS)
async def test_two_may_ask_for_it_at_once(turns: int) -> None:
    async with queue_on(FaultyDisk(), keyed_rows=2) as queue:
        first = await begun(queue, turns)
        await queue.configure("t", ordered=True)
        assert await is_ordered(queue)
        await first


@pytest.mark.parametrize("turns", TURNS)
async def test_who_asks_may_be_cancelled_and_ask_again(turns: int) -> None:
    async with queue_on(FaultyDisk(), keyed_rows=2) as queue:
        first = await begun(queue, turns)
        first.cancel()
        await asyncio.wait([first])
        await queue.configure("t", ordered=True)
        assert await is_ordered(queue)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_message_may_be_replaced_meanwhile(turns: int) -> None:
    async with queue_on(FaultyDisk(), keyed_rows=2) as queue:
        first = await begun(queue, turns)
        for number in range(MESSAGES):
            put = queue.put("t", b"y" * 1_000, id=f"{number}", key="k", on_conflict="replace")
            await asyncio.gather(put, asyncio.sleep(0))
        await first
        assert await is_ordered(queue)


@pytest.mark.parametrize("turns", TURNS)
async def test_the_topic_may_be_deleted_and_put_into_again_meanwhile(turns: int) -> None:
    async with queue_on(FaultyDisk(), keyed_rows=1) as queue:
        first = await begun(queue, turns)
        await queue.clear("t")
        await queue.delete_topic("t")
        await queue.put_many("t", [b"x"] * MESSAGES, key="k")
        await first
        # If the topic was deleted after it became ordered, it no longer is.
        assert await is_ordered(queue) == (await queue.settings("t")).ordered
