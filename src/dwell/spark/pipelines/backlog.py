"""Due messages compared with a capacity: a queue that fills and empties, by minute."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dwell.message import I64

MINUTE_MS = 60_000


class Late(NamedTuple):
    """A stretch of time with more due messages than the capacity allows.

    ``most`` is how many messages wait at the worst moment, and ``late_ms`` how long the last of
    them waits.
    """

    start_ms: int
    end_ms: int
    most: int
    late_ms: int


class Backlog(NamedTuple):
    """The waiting messages at the end of each minute, and the stretches with any."""

    waiting: np.ndarray
    minutes_over: int
    stretches: list[Late]


def backlog(start_ms: int, now_ms: int, due: I64, capacity: float) -> Backlog:
    """Return the backlog if ``capacity`` messages a second are processed from now on.

    ``due[n]`` fall due in the minute that begins ``n`` minutes after ``start_ms``. No message is
    processed before it is due, so unused capacity of a quiet minute is lost.
    """
    room = np.full(len(due), capacity * MINUTE_MS / 1000)
    # The first minute is partly over.
    room[:1] *= 1 - (now_ms - start_ms) / MINUTE_MS
    surplus = np.cumsum(due - room)
    waiting = surplus - np.minimum.accumulate(np.minimum(surplus, 0))
    # Sums of parts are not exact: less than a millionth of a message counts as zero.
    waiting[waiting < 1e-6] = 0
    return Backlog(waiting, int((due > room).sum()), list(_stretches(start_ms, waiting, capacity)))


def _stretches(start_ms: int, waiting: np.ndarray, capacity: float) -> Iterator[Late]:
    is_late = np.concatenate([[False], waiting > 0, [False]])
    edges = np.flatnonzero(is_late[1:] != is_late[:-1])
    for first, after in edges.reshape(-1, 2).tolist():
        most = float(waiting[first:after].max())
        # The rest at the end of the last late minute takes a part of the next; the rest at the end
        # of the forecast is processed after it, as if nothing else fell due there.
        left_ms = float(waiting[after - 1]) / capacity * 1000
        end_ms = start_ms + after * MINUTE_MS + int(left_ms)
        late_ms = int(most / capacity * 1000)
        yield Late(start_ms + first * MINUTE_MS, end_ms, int(np.ceil(most)), late_ms)
