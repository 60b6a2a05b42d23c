"""Waited: on which topics most takers wait; of very many topics that is found in turns."""

import asyncio
from collections.abc import Mapping
from heapq import nlargest
from itertools import islice
from typing import TypeAlias

from dwell.batch.prefixes import Prefixes

#: How many takers wait on some topics, and on all others together.
Waited: TypeAlias = tuple[dict[str, int], int]

_AT_ONCE = 1000


async def most_waited(
    waiting: Mapping[str, int], most: int, prefixes: tuple[str, ...] = ("",)
) -> Waited:
    """Return the topics with most takers, up to ``most``, and the sum of the others."""
    covered, names = Prefixes(prefixes), iter(list(waiting))
    found, total = list[tuple[int, str]](), 0
    while some := list(islice(names, _AT_ONCE)):
        counted = [(waiting.get(name, 0), name) for name in some if covered.cover(name)]
        total += sum(count for count, _ in counted)
        found = nlargest(most, (*found, *counted))
        await asyncio.sleep(0)
    shown = {name: count for count, name in found if count}
    return shown, total - sum(shown.values())
