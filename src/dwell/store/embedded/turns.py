"""Turns: in which order the ready messages of a fair topic are taken.

A message that becomes ready comes one turn after the last of its key, and not before the turn that
was taken last: so before it there are, of each other key, about as many as of its own.
"""

import numpy as np

from dwell.message import I64

#: Lanes that have no turn to come which are kept.
_SPARE = 1_024


class Turns:
    """The turns of one topic."""

    def __init__(self) -> None:
        self._now = self._taken = 0
        self._last: dict[int, int] = {}
        self._most = _SPARE

    def next(self, lanes: np.ndarray) -> I64:
        """Return the turns of messages of some lanes that have become ready, in their order."""
        order = np.argsort(lanes, kind="stable")
        ordered = lanes[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        counts = np.diff(np.append(starts, len(lanes)))
        names = ordered[starts].tolist()
        first = [max(self._now, self._last.get(name, -1) + 1) for name in names]
        self._last.update(zip(names, (first + counts - 1).tolist(), strict=True))
        rank = np.arange(len(lanes)) - np.repeat(starts, counts)
        turns: I64 = np.empty(len(lanes), dtype=np.int64)
        turns[order] = np.repeat(first, counts) + rank
        if len(self._last) > self._most:
            self._last = {name: last for name, last in self._last.items() if last >= self._now}
            self._most = 2 * len(self._last) + _SPARE
        return turns

    def take(self, turn: int, count: int, left: int) -> None:
        """Note that all turns up to one have come; so many were taken, and are left.

        Ever new keys would come before a second message of a key for ever, as each begins now. So
        when as many were taken as are left, it is later.
        """
        if turn > self._now:
            self._now, self._taken = turn, 0
        else:
            self._taken += count
        if not left:
            self._now = max(self._last.values(), default=self._now) + 1
            self._last = {}
        elif self._taken >= left:
            self._now, self._taken = self._now + 1, 0

    def give_back(self, lanes: np.ndarray) -> None:
        """Note that messages of some lanes, which had turns, are not taken."""
        for name, count in zip(
            *(c.tolist() for c in np.unique(lanes, return_counts=True)), strict=True
        ):
            if name in self._last:
                self._last[name] -= count
