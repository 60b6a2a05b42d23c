"""Openings: names for the origin of events, so that two histories can be told apart.

Each opening of a store draws a name for the events from then on. When a copy is opened in addition
to its original, or in its place, both have the events up to the copy under the same names, and
later events under different names; so the name of the last event that a reader has seen says
whether the next event continues the same history. This holds for every kind of copy, because no
code has to know that it is a copy.
"""

from collections.abc import Sequence

import msgspec

#: The oldest are dropped beyond this number: the origin of such old events is then unknown.
_MOST = 1_000


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """One opening of the store: the first event position that is its own, and its random name."""

    position: int
    name: str


def begun(openings: Sequence[Opening], position: int, name: str) -> tuple[Opening, ...]:
    """Return the openings with a new one, whose first event will have ``position``.

    An opening without events is dropped; so repeated starts do not add openings.
    """
    before = [opening for opening in openings if opening.position < position]
    return (*before, Opening(position, name))[-_MOST:]


def history(openings: Sequence[Opening], position: int, end: int) -> str:
    """Return the origin of the event before a position; empty when it is unknown.

    ``end`` is the position of the next event: the origin is unknown beyond it.
    """
    if position > end:
        return ""
    return next((one.name for one in reversed(openings) if one.position < position), "")
