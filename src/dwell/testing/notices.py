"""The calls of a store to the queue, compared with the model: wakes and deadlines."""

from collections import Counter

from dwell.store.base import Store
from dwell.testing.model import Model


class Notices:
    """The calls of a store since the last check."""

    def __init__(self, model: Model) -> None:
        self.expect_nothing(model)

    def listen(self, store: Store) -> None:
        """Receive the calls of a store."""
        store.wake = self._on_wake
        store.plan = self._on_plan

    def _on_wake(self, topic: str, count: int) -> None:
        assert count > 0
        self._woken[topic] += count

    def _on_plan(self) -> None:
        self._is_planned = True

    def expect_nothing(self, model: Model) -> None:
        """Note the messages that are ready already; the queue asks for the deadline first."""
        self._woken: Counter[str] = Counter()
        self._takeable = _takeable(model)
        self._is_planned = True
        self._promised_ms: int | None = None

    def expect_plans(self) -> None:
        """Note that the deadline is asked for, which covers earlier plans."""
        self._is_planned = False

    def promise(self, deadline_ms: int | None) -> None:
        """Note the deadline that the store has named, until which the queue sleeps."""
        self._is_planned, self._promised_ms = False, deadline_ms

    def check(self, model: Model) -> None:
        """Check that no taker that waits for a message or a deadline sleeps too long."""
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
    """Return the messages that may be taken, by topic; nothing for a full topic.

    Messages of an ordered topic are represented by their keys, because one message of each may be
    taken: a taker woken for a key gets its first message at that time.
    """
    topics = {topic for topic, _ in model.items if not model.topic(topic).paused}
    return {
        topic: {model.lane(item) or item.put.id for item in model.givable(topic)}
        for topic in topics
        if model.room(topic)
    }
