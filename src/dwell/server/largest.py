"""Largest: the topics with the largest figures; of very many topics they are found in turns."""

import asyncio
from collections.abc import Mapping
from heapq import nlargest
from itertools import islice
from typing import Any, TypeVar

from dwell.batch.prefixes import Prefixes

N = TypeVar("N", bound=float)

_AT_ONCE = 1000


async def largest(
    figures: Mapping[str, N], most: int, prefixes: tuple[str, ...] = ("",)
) -> tuple[dict[str, N], N]:
    """Return the topics with the largest figures, up to ``most``, and the sum of the others.

    They come in falling order. Figures may change and go during the call.
    """
    covered, names = Prefixes(prefixes), iter(list(figures))
    found: list[tuple[N, str]] = []
    total: Any = 0
    while some := list(islice(names, _AT_ONCE)):
        counted = [
            (figures[name], name) for name in some if covered.cover(name) and name in figures
        ]
        total += sum(figure for figure, _ in counted)
        found = nlargest(most, (*found, *counted))
        await asyncio.sleep(0)
    shown = {name: figure for figure, name in found}
    return shown, total - sum(shown.values())
