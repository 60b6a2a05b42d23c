"""Counts of a store's content, its lease owners, and its inconsistencies."""

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
    """One entry that only part of a store has, and what is missing.

    ``problem`` is ``no body``: an index or a state has a message whose body is gone; ``no state``:
    a body that its state or its index lacks; or ``no message``: an index or a count has a message
    that does not exist. ``id`` is empty if it is unknown, and ``number`` is 0, too, if a count is
    wrong.
    """

    topic: str
    id: str
    number: int
    problem: str
    repaired: bool = False
