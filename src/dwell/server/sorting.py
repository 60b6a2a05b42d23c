"""Sorting: orders many items, with turns for other tasks in between."""

import asyncio
from collections.abc import Callable, Sequence
from heapq import merge
from typing import Any, TypeVar

T = TypeVar("T")

#: How many items are sorted, and how many are merged, in one turn of the event loop.
_AT_ONCE = 2000


async def in_order(items: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """Return items ordered by a key; yields to other tasks, and the items must not change."""
    runs: list[list[T]] = []
    for at in range(0, len(items), _AT_ONCE):
        runs.append(sorted(items[at : at + _AT_ONCE], key=key))
        await asyncio.sleep(0)
    if len(runs) < 2:
        return runs[0] if runs else []
    found: list[T] = []
    for item in merge(*runs, key=key):
        found.append(item)
        if len(found) % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return found
