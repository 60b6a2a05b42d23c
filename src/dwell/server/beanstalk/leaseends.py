"""Lease ends: when the first lease of a connection's jobs ends, without a pass over all jobs."""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

#: A job that a connection has: receipt, topic, lease in milliseconds, and when it ends. A plain
#: tuple, since one is made for every job.
Held: TypeAlias = tuple[bytes, str, int, int]

#: How many entries of jobs that are no longer held are kept, however many jobs are held.
_SPARE = 1000


class LeaseEnds:
    """When the leases of jobs end, by number.

    Jobs are sorted on demand, since most are done before that.
    """

    __slots__ = ("_fresh", "_heap")

    def __init__(self) -> None:
        self._fresh: list[int] = []
        self._heap: list[tuple[int, int]] = []

    def note(self, numbers: Iterable[int], held: Mapping[int, Held]) -> None:
        """Note jobs that are held from now on, or for longer."""
        self._fresh.extend(numbers)
        if len(self._fresh) > 2 * len(held) + _SPARE:
            self._fresh, self._heap = list(held), []

    def first_ms(self, held: Mapping[int, Held], now_ms: int) -> int | None:
        """Return when the next lease of the held jobs ends."""
        heap = self._sorted(held)
        while heap:
            end_ms, number = heap[0]
            job = held.get(number)
            if job is None or job[3] <= now_ms:
                heappop(heap)
            elif job[3] != end_ms:
                # It was touched since.
                heapreplace(heap, (job[3], number))
            else:
                return end_ms
        return None

    def _sorted(self, held: Mapping[int, Held]) -> list[tuple[int, int]]:
        fresh, self._fresh = self._fresh, []
        if len(self._heap) + len(fresh) > 2 * len(held) + _SPARE:
            self._heap = [(job[3], number) for number, job in held.items()]
            heapify(self._heap)
            return self._heap
        for number in fresh:
            job = held.get(number)
            if job is not None:
                heappush(self._heap, (job[3], number))
        return self._heap
