"""Parts: a range of numbers cut into about equal ones, each for one task."""

from itertools import pairwise

from pyspark.sql.datasource import InputPartition


class Places(InputPartition):
    """Numbers from ``start`` to before ``stop``: places of messages, or positions of events.

    ``history`` is whose the event before ``stop`` is, where that is known.
    """

    def __init__(self, start: int, stop: int, history: str = "") -> None:
        self.start, self.stop, self.history = start, stop, history


def cut(start: int, stop: int, count: int, size: int) -> list[tuple[int, int]]:
    """Return ``count`` ranges, or when that is 0 as many as have at most ``size`` numbers each.

    There is always one, and none has nothing in it unless there is nothing at all.
    """
    total = max(stop - start, 0)
    count = max(min(count or -(-total // size), total), 1)
    return list(pairwise(start + total * at // count for at in range(count + 1)))


def places(start: int, stop: int, count: int, size: int, history: str = "") -> list[InputPartition]:
    """Return the same ranges as partitions; only of the last one's end the history is known."""
    ranges = cut(start, stop, count, size)
    return [Places(*ends, history if ends[1] == stop else "") for ends in ranges]
