"""The event log of the store in memory: the latest events, and how many of each kind there were."""

from collections import Counter

from dwell.batch.events import Event, EventPage, Events
from dwell.message import Kind
from dwell.store.memory.rows import SLACK, Row


class EventLog:
    """The events; ``most`` is how many of the latest can be read."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: list[tuple[int, Kind, str, str, int, int]] = []
        self._dropped = 0
        #: How often each kind has happened since the store was made.
        self.totals: Counter[Kind] = Counter()

    def note(self, kind: Kind, row: Row, now_ms: int) -> None:
        """Note that something has happened to a message."""
        self.totals[kind] += 1
        self._events.append((now_ms, kind, row.topic.name, row.id, row.due_ms, row.attempt))
        # Dropping many at once keeps an append cheap; readers see the exact limit all the same.
        if len(self._events) > 2 * self._most + SLACK:
            surplus = len(self._events) - self._most
            del self._events[:surplus]
            self._dropped += surplus

    def page(self, position: int, limit: int, history: str) -> EventPage:
        """Return events from a position on; all of them have the same history."""
        end = self._dropped + len(self._events)
        first = end - min(len(self._events), self._most)
        start = max(position, first)
        at = start - self._dropped
        found = enumerate(self._events[at : at + limit], start)
        events = Events.of([Event(position, *values) for position, values in found])
        following = start + len(events)
        known = (history if 0 < at <= end else "" for at in (position, following))
        return EventPage(events, following, first, end, *known)
