"""Counts of what a store holds, who holds it, and what does not fit in it."""

from dataclasses import dataclass, field

import msgspec


@dataclass(slots=True)
class TopicStats:
    """How many messages of a topic are in each state, now."""

    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0


@dataclass(slots=True)
class Stats:
    """Counts by topic now, and by event kind since the store was made."""

    topics: dict[str, TopicStats] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)


#: How the names of all topics begin.
ALL_TOPICS = ("",)


class Holder(msgspec.Struct, frozen=True):
    """How many messages of a topic an owner has under lease; ``until_ms`` is when the first ends.

    The owner is empty for takers without a name.
    """

    owner: str
    topic: str
    messages: int
    until_ms: int


class Stale(msgspec.Struct, frozen=True):
    """One thing in a store that only a part of the store knows, and what is missing of it.

    ``problem`` is ``no body``: an index or a state knows a message whose body is gone; ``no
    state``: a body that its state or its index does not know; or ``no message``: an index or a
    count knows a message that is not there. ``id`` is empty where it cannot be told, and ``number``
    is 0, too, where a count is wrong.
    """

    topic: str
    id: str
    number: int
    problem: str
    repaired: bool = False
