"""Looking back: the event log from its newest event on, a page at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np

from dwell.batch.events import EventPage, Events
from dwell.message import MAX_BATCH_MESSAGES

#: How many events are read at once.
PAGE = MAX_BATCH_MESSAGES


async def pages_before(
    read: Callable[[int, int], Awaitable[EventPage]],
    before: int | None = None,
) -> AsyncIterator[tuple[int, Events, bool]]:
    """Yield the events before a position, or all, the newest page first.

    Each page comes with its first position, and whether none is kept before it; ``read`` is
    :meth:`dwell.Queue.events`. Other tasks run between two pages.
    """
    page = await read(0, 1)
    first, end = page.first_position, page.end_position
    before = end if before is None else min(before, end)
    while before > first:
        start = max(before - PAGE, first)
        page = await read(start, before - start)
        first = max(first, page.first_position)
        events = page.events[: int(np.searchsorted(page.events.positions, before))]
        yield start, events, start <= first
        before = start
        await asyncio.sleep(0)
