"""Events of messages, in columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import msgspec
import numpy as np

from dwell.batch.schema import arrays_of, joined_columns
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


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Events(Sequence[Event]):
    """Events in columns: an :class:`Event` is made only when it is read.

    A column for each field of an event, in the same order, all of one length.
    """

    positions: I64
    time_ms: I64
    #: Codes of Kind.
    kind: U8
    topics: Sequence[str]
    ids: Sequence[str]
    due_ms: I64
    attempt: U16

    @classmethod
    def of(cls, events: Sequence[Event]) -> "Events":
        """Return the columns of some events."""
        rows = map(msgspec.structs.astuple, events)
        return cls.of_lists([list(column) for column in zip(*rows, strict=True)] or [[]] * _WIDTH)

    @classmethod
    def of_lists(cls, lists: Iterable[list[Any]]) -> "Events":
        """Return columns from lists of values, in the order of the fields."""
        columns: dict[str, Any] = dict(zip(EVENT_COLUMNS, lists, strict=True))
        for name, kind in EVENT_ARRAYS.items():
            columns[name] = np.array(columns[name], kind)
        return cls(**columns)

    @classmethod
    def joined(cls, parts: "Sequence[Events]") -> "Events":
        """Return the events of all parts, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.of([])
        return cls(**joined_columns(parts, EVENT_COLUMNS))

    @property
    def lists(self) -> list[Sequence[Any]]:
        """The columns in the order of the fields, arrays as lists; kinds are codes."""
        columns = (getattr(self, name) for name in EVENT_COLUMNS)
        return [one.tolist() if isinstance(one, np.ndarray) else one for one in columns]

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
        columns = {name: getattr(self, name)[index] for name in EVENT_COLUMNS}
        if isinstance(index, slice):
            return Events(**columns)
        values: list[Any] = [
            int(value) if name in EVENT_ARRAYS else value for name, value in columns.items()
        ]
        event = Event(*values)
        return msgspec.structs.replace(event, kind=Kind(event.kind))


#: The word for each code of an event's kind.
KIND_WORDS = {int(kind): str(kind) for kind in Kind}
#: The columns of events, one for each field; and the array columns, with their types.
EVENT_COLUMNS = tuple(field.name for field in fields(Events))
EVENT_ARRAYS = arrays_of(Events)
_WIDTH = len(EVENT_COLUMNS)


@dataclass(slots=True)
class EventPage:
    """Events in order; ``next_position`` asks for the events after them.

    ``first_position`` is the oldest kept position: asking for less starts there. ``end_position``
    is the position of the next event that will happen.

    ``since`` and ``history`` name the history of two events: the last before the requested
    position, and the last before ``next_position``. Two stores with the same name there have the
    same events up to there. Empty if no event is before, or if the history is not known.
    """

    events: Events
    next_position: int
    first_position: int
    end_position: int
    since: str = ""
    history: str = ""


def goes_on(position: int, known: str, found: str, end: int) -> bool:
    """Tell whether a store that ends at ``end`` has the events read up to a position.

    ``known`` is the earlier history of the event before it, ``found`` its present history; empty
    means unknown.
    """
    return position <= end and (not known or not found or known == found)
