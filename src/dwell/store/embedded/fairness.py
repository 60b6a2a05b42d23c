"""Fairness between the keys of a topic in a folder: turns of many messages at once.

The rules are in :mod:`dwell.store.fairness`. Here messages are grouped by lane first, which halves
the time for a thousand messages of a few keys.
"""

import numpy as np

from dwell.message import I64
from dwell.store.embedded.distinct import runs_of
from dwell.store.fairness import FairTurns


class LaneTurns:
    """The turns of one topic."""

    def __init__(self) -> None:
        self._turns: FairTurns[int] = FairTurns()

    def free(self, most: int) -> int:
        """Free at most ``most`` keys, once the turns are no longer used; return how many."""
        return self._turns.free(most)

    def next(self, lanes: np.ndarray) -> I64:
        """Return the turns of messages of some lanes that have become ready, in their order."""
        order = np.argsort(lanes, kind="stable")
        names, counts = _groups(lanes[order])
        firsts = np.array(self._turns.next(names, counts.tolist()), np.int64)
        starts = np.cumsum(counts) - counts
        found: I64 = np.empty(len(lanes), dtype=np.int64)
        found[order] = np.repeat(firsts - starts, counts) + np.arange(len(lanes))
        return found

    def take(self, lanes: np.ndarray, turns: I64) -> None:
        """Note that messages of some lanes were taken in their turns."""
        names, counts = _groups(np.sort(lanes))
        self._turns.take(int(turns.max()), names, counts.tolist())

    def leave(self, lanes: np.ndarray) -> None:
        """Note that messages were taken by id, which advances no turn."""
        names, counts = _groups(np.sort(lanes))
        self._turns.leave(names, counts.tolist())

    def give_back(self, lanes: np.ndarray, turns: I64) -> None:
        """Note that messages of some lanes left without a take, and give their turns back."""
        order = np.lexsort((-turns, lanes))
        names, counts = _groups(lanes[order])
        parts = np.split(turns[order], np.cumsum(counts)[:-1]) if names else []
        self._turns.give_back(names, [part.tolist() for part in parts])


def _groups(ordered: np.ndarray) -> tuple[list[int], I64]:
    """Return the lanes of a sorted array, each once, and how often each occurs."""
    starts, counts = runs_of(ordered)
    return ordered[starts].tolist(), counts
