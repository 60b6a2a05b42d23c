"""Parts: work on many items, with turns for other tasks in between."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

#: How many bytes are worked on in one turn of the event loop: some milliseconds.
TURN_BYTES = 256 * 1024
#: The cost of an item in addition to its bytes.
ITEM_BYTES = 128


async def in_turns(items: Iterable[T], sizes: Iterable[int]) -> AsyncIterator[T]:
    """Yield items, and let other tasks run after many bytes; ``sizes`` are the bytes of each."""
    left_bytes = TURN_BYTES
    for item, size_bytes in zip(items, sizes, strict=False):
        yield item
        left_bytes -= size_bytes + ITEM_BYTES
        if left_bytes < 0:
            await asyncio.sleep(0)
            left_bytes = TURN_BYTES
