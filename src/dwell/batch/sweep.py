"""The request of a sweep, and its result."""

from dataclasses import dataclass

import msgspec

from dwell.batch.batch import Batch
from dwell.message import U64, State, decode_extra


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages a sweep gives: all that are left out, or empty, do not choose.

    ``due_from_ms`` is in, ``due_to_ms`` is out.
    """

    topics: tuple[str, ...] = ()
    states: tuple[State, ...] = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
    due_from_ms: int = 0
    due_to_ms: int = 2**52
    key: str | None = None

    def has(self, topic: str, state: State, due_ms: int, extra: bytes) -> bool:
        """Tell whether a sweep gives a message; ``extra`` is its key and headers."""
        return (
            state in self.states
            and self.due_from_ms <= due_ms < self.due_to_ms
            and (not self.topics or topic in self.topics)
            and (self.key is None or decode_extra(extra).key == self.key)
        )


#: All messages.
EVERY = Wanted()


@dataclass(slots=True)
class Sweep:
    """Some messages of a sweep, in no order; ``next_place`` is None after the last place.

    ``places`` is the current number of places. ``versions`` has the version of each message, as in
    a page; None from a server that does not send them.
    """

    messages: Batch
    next_place: int | None
    places: int
    versions: U64 | None = None
