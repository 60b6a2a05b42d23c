"""A histogram: how many values fell into which bucket, and their sum."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

#: Upper bounds in seconds, for what takes between a tenth of a millisecond and minutes.
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0),
)


class Histogram:
    """Counts of values by upper bounds; the last bucket, above all bounds, has none.

    One thread adds, any may read.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self._bounds = np.array(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def percentile(self, part: float) -> float | None:
        """Return the bound under which this part of the values is; None when there are none.

        Above all bounds it is infinite.
        """
        ends = list(accumulate(self.counts))
        if not ends[-1]:
            return None
        return (*self.bounds, math.inf)[bisect_left(ends, part * ends[-1])]

    def add_many(self, values: np.ndarray) -> None:
        """Count an array of values."""
        if len(values) == 1:
            return self.add(float(values[0]))
        places = np.searchsorted(self._bounds, values)
        for place, count in enumerate(np.bincount(places).tolist()):
            self.counts[place] += count
        self.sum += float(values.sum())
        return None
