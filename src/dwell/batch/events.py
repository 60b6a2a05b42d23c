"""What happened to messages, in columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, overload

import msgspec
import numpy as np

from dwell.message import I64, U8, U16, Kind


class Event(msgspec.Struct, frozen=True):
    """One thing that happened to one message. ``position`` counts from 0 and never changes."""

    position: int
    time_ms: int
    kind: Kind
    topic: str
    id: str
    due_ms: int
    attempt: int


class Events(Sequence[Event]):
    """Events in columns: an :class:`Event` is made only for the one that is looked at.

    Columns of length n: ``positions``, ``time_ms``, ``kind`` (codes of Kind), ``due_ms``,
    ``attempt`` (arrays), ``topics``, ``ids`` (sequences).
    """

    __slots__ = ("attempt", "due_ms", "ids", "kind", "positions", "time_ms", "topics")

    def __init__(
        self,
        *,
        positions: I64,
        time_ms: I64,
        kind: U8,
        topics: Sequence[str],
        ids: Sequence[str],
        due_ms: I64,
        attempt: U16,
    ) -> None:
        self.positions = positions
        self.time_ms = time_ms
        self.kind = kind
        self.topics = topics
        self.ids = ids
        self.due_ms = due_ms
        self.attempt = attempt

    @classmethod
    def of(cls, events: Sequence[Event]) -> "Events":
        """Return the columns of some events."""

        def column(name: str, dtype: type[np.generic]) -> Any:
            return np.array([getattr(event, name) for event in events], dtype=dtype)

        return cls(
            positions=column("position", np.int64),
            time_ms=column("time_ms", np.int64),
            kind=column("kind", np.uint8),
            topics=[event.topic for event in events],
            ids=[event.id for event in events],
            due_ms=column("due_ms", np.int64),
            attempt=column("attempt", np.uint16),
        )

    @classmethod
    def joined(cls, parts: "Sequence[Events]") -> "Events":
        """Return the events of all parts, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.of([])
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("positions", "time_ms", "kind", "due_ms", "attempt")
        }
        ids = list(chain.from_iterable(part.ids for part in parts))
        topics = list(chain.from_iterable(part.topics for part in parts))
        return cls(topics=topics, ids=ids, **arrays)

    def __len__(self) -> int:
        return len(self.positions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> "Events": ...
    def __getitem__(self, index: int | slice) -> "Event | Events":
        if isinstance(index, slice):
            return Events(**{name: getattr(self, name)[index] for name in self.__slots__})
        return Event(
            position=int(self.positions[index]),
            time_ms=int(self.time_ms[index]),
            kind=Kind(int(self.kind[index])),
            topic=self.topics[index],
            id=self.ids[index],
            due_ms=int(self.due_ms[index]),
            attempt=int(self.attempt[index]),
        )


@dataclass(slots=True)
class EventPage:
    """Events in order; ``next_position`` asks for those after them.

    ``first_position`` is the oldest that is still kept: asking for less starts there.
    ``end_position`` is that of the next event that will happen.

    ``since`` and ``history`` name the history of the event before the position that was asked for,
    and of the one before ``next_position``: two stores that name one history there have the same
    events up to there. Empty when there is no event before, or when it is not known.
    """

    events: Events
    next_position: int
    first_position: int
    end_position: int
    since: str = ""
    history: str = ""
