"""What a store has to tell the queue, beside the model: whom to wake, and when to look again."""

from collections import Counter

from dwell.store.base import Store
from dwell.testing.model import Model


class Notices:
    """What a store has told since it was last looked at."""

    def __init__(self, model: Model) -> None:
        self.expect_nothing(model)

    def listen(self, store: Store) -> None:
        """Hear what a store tells."""
        store.wake = self._on_wake
        store.plan = self._on_plan

    def _on_wake(self, topic: str, count: int) -> None:
        assert count > 0
        self._woken[topic] += count

    def _on_plan(self) -> None:
        self._is_planned = True

    def expect_nothing(self, model: Model) -> None:
        """Take note of what is ready already; the queue asks for the deadline first of all."""
        self._woken: Counter[str] = Counter()
        self._takeable = _takeable(model)
        self._is_planned = True
        self._promised_ms: int | None = None

    def expect_plans(self) -> None:
        """Say that the deadline is asked for: what came nearer before is known by that."""
        self._is_planned = False

    def promise(self, deadline_ms: int | None) -> None:
        """Say which deadline the store has named, as the queue sleeps until then."""
        self._is_planned, self._promised_ms = False, deadline_ms

    def check(self, model: Model) -> None:
        """Check that nobody who waits for a message or a deadline sleeps on."""
        takeable = _takeable(model)
        new = Counter(
            {
                topic: min(len(ids - self._takeable.get(topic, set())), model.allowed(topic))
                for topic, ids in takeable.items()
            }
        )
        assert new <= self._woken, f"ready are {new}, woken were {self._woken}"
        self._takeable, self._woken = takeable, Counter()
        deadline_ms = model.deadline_ms()
        if deadline_ms is not None and not self._is_planned:
            assert self._promised_ms is not None, "a deadline came, and nobody was told"
            assert self._promised_ms <= deadline_ms, "a deadline came nearer, and nobody was told"


def _takeable(model: Model) -> dict[str, set[str]]:
    """Return what may be taken, by topic; nothing where a topic has no room.

    Messages of an ordered topic are named by their keys, of which one may be taken: who is woken
    for a key finds what is its first by then.
    """
    topics = {topic for topic, _ in model.items if not model.topic(topic).paused}
    return {
        topic: {model.lane(item) or item.put.id for item in model.givable(topic)}
        for topic in topics
        if model.room(topic)
    }
