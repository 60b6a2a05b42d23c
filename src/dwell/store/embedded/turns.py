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
        self._now = 0
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

    def take(self, turn: int) -> None:
        """Note that all turns up to one have come."""
        self._now = max(self._now, turn)
