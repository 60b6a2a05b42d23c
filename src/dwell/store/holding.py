"""Holding: the totals under lease for each owner, summed from single leases."""

import heapq
from collections import Counter
from collections.abc import Iterable

from dwell.batch.stats import Holder


def most_held(
    leases: Iterable[tuple[str, str, int, int]], limit: int, prefixes: tuple[str, ...]
) -> list[Holder]:
    """Return the owners that hold most, from owner, topic, count and end of each lease.

    Only topics whose names start with one of ``prefixes`` count.
    """
    counts: Counter[tuple[str, str]] = Counter()
    until: dict[tuple[str, str], int] = {}
    for owner, topic, count, until_ms in leases:
        if not topic.startswith(prefixes):
            continue
        counts[owner, topic] += count
        until[owner, topic] = min(until.get((owner, topic), until_ms), until_ms)
    most = heapq.nsmallest(limit, counts, key=lambda pair: (-counts[pair], pair))
    return [Holder(*pair, counts[pair], until[pair]) for pair in most]
