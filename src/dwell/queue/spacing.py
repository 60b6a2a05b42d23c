"""Spacing: how often the waiting takers of a topic may be woken, so that each finds several."""

#: How many wakes of a topic may follow each other at once before they are spaced.
_BURST = 4


class Spacing:
    """A token bucket for each topic; every ``seconds`` there is one token more."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._next_at: dict[str, float] = {}

    def is_early(self, topic: str, now: float) -> bool:
        """Tell whether a topic has no token left."""
        return self._next_at.get(topic, 0.0) > now

    def spend(self, topic: str, now: float) -> float:
        """Take a token, and return the moment from which it counts."""
        counts_at = max(self._next_at.get(topic, 0.0), now - _BURST * self.seconds)
        self._next_at[topic] = counts_at + self.seconds
        return counts_at
