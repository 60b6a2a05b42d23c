"""The counts of a worker's calls."""

from collections import Counter

from dwell.histogram import Histogram
from dwell.worker.outcome import Dead, Done, Lost, Outcome

#: The names of outcomes; any other outcome releases the message.
_WORDS = {Done: "done", Dead: "buried", Lost: "lost"}


class Tally:
    """Counts since the start: calls by topic and outcome, and their durations."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.timeouts: Counter[str] = Counter()
        self.seconds = Histogram()

    def add(self, topic: str, outcome: Outcome, seconds: float) -> None:
        """Count one call of a handler."""
        self.calls[topic, _WORDS.get(type(outcome), "released")] += 1
        self.seconds.add(seconds)
