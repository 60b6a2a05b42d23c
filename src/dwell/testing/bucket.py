"""A topic's rate as the model knows it: bounds on how many messages may be taken.

In any span of t seconds at most ``rate * t + max(rate / 10, 1)`` messages are taken. If the rate or
the clock was changed since the last take, a store may use any rate of that span, so there are two
bounds.
"""

from dataclasses import dataclass, field
from math import inf

#: The rounding error of sums of fractions.
_NEARLY = 1e-6


def _burst(rate: float) -> float:
    """Return how many messages may be taken at once after a long time without a take."""
    return max(rate / 10, 1)


@dataclass(slots=True)
class Bucket:
    """The messages that may be taken of one topic, from the moment it first has a rate."""

    rate: float
    now_ms: int
    #: Full: unlimited until the next take.
    most: float = inf
    least: float = field(init=False)
    # The rates since the last take. For the upper bound the time since then counts each step
    # forward of the clock, and for the lower bound only steps beyond the latest time so far.
    highest: float = field(init=False)
    lowest: float = field(init=False)
    latest_ms: int = field(init=False)
    longest_ms: int = 0
    shortest_ms: int = 0

    def __post_init__(self) -> None:
        self.least = _burst(self.rate)
        self.highest = self.lowest = self.rate
        self.latest_ms = self.now_ms

    def change(self, rate: float) -> None:
        """Set another rate, which is not 0."""
        self.rate = rate
        self.highest, self.lowest = max(self.highest, rate), min(self.lowest, rate)

    def tick(self, now_ms: int) -> None:
        """Move to a new time."""
        self.longest_ms += max(now_ms - self.now_ms, 0)
        if now_ms < self.now_ms:
            # Tokens from before the clock went back need not have been noted.
            self.shortest_ms = 0
        self.shortest_ms += max(now_ms - self.latest_ms, 0)
        self.now_ms, self.latest_ms = now_ms, max(self.latest_ms, now_ms)

    def fill(self) -> None:
        """Note that the store was opened, so that its buckets may be full."""
        self.most = inf

    def bounds(self) -> tuple[int, int]:
        """Return how many messages a take may give: the least and the most."""
        least, most = self._filled()
        return max(int(least - _NEARLY), 0), int(most + _NEARLY)

    def spend(self, count: int) -> None:
        """Note that ``count`` messages were taken."""
        least, most = self._filled()
        self.least, self.most = least - count, most - count
        self.highest = self.lowest = self.rate
        self.longest_ms = self.shortest_ms = 0
        self.latest_ms = self.now_ms

    def _filled(self) -> tuple[float, float]:
        least = min(self.least + self.lowest * self.shortest_ms / 1000, _burst(self.lowest))
        most = min(self.most + self.highest * self.longest_ms / 1000, _burst(self.highest))
        return least, most
