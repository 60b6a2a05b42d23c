"""Parts: a range of numbers split into about equal parts, one for each task."""

from itertools import pairwise

from pyspark.sql.datasource import InputPartition


class Places(InputPartition):
    """Numbers from ``start`` to before ``stop``: places of messages, or positions of events.

    ``history`` is the history of the event before ``stop``, if it is known.
    """

    def __init__(self, start: int, stop: int, history: str = "") -> None:
        self.start, self.stop, self.history = start, stop, history


def cut(start: int, stop: int, count: int, size: int) -> list[tuple[int, int]]:
    """Return ``count`` ranges, or if that is 0 as many as have at most ``size`` numbers each.

    There is always one, and none is empty unless the whole range is.
    """
    total = max(stop - start, 0)
    count = max(min(count or -(-total // size), total), 1)
    return list(pairwise(start + total * at // count for at in range(count + 1)))


def places(start: int, stop: int, count: int, size: int, history: str = "") -> list[InputPartition]:
    """Return the same ranges as partitions; the history is known only at the end of the last."""
    ranges = cut(start, stop, count, size)
    return [Places(*ends, history if ends[1] == stop else "") for ends in ranges]
