"""Spacing: how often the waiting takers of a topic may be woken, so that each finds several."""

#: How many wakes of a topic may follow each other at once before they are spaced.
_BURST = 4
#: With more topics than this, topics whose bucket is full again are forgotten.
_MOST_TOPICS = 1_000


class Spacing:
    """A token bucket for each topic; every ``seconds`` there is one token more."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._next_at: dict[str, float] = {}
        self._forget_at = _MOST_TOPICS

    def is_early(self, topic: str, now: float) -> bool:
        """Tell whether a topic has no token left."""
        return self._next_at.get(topic, 0.0) > now

    def spend(self, topic: str, now: float) -> float:
        """Take a token, and return when it became available."""
        full_at = now - _BURST * self.seconds
        counts_at = max(self._next_at.get(topic, 0.0), full_at)
        self._next_at[topic] = counts_at + self.seconds
        if len(self._next_at) > self._forget_at:
            self._next_at = {name: at for name, at in self._next_at.items() if at > full_at}
            self._forget_at = 2 * len(self._next_at) + _MOST_TOPICS
        return counts_at
