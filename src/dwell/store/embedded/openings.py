"""Openings: by whom the events of a store are, so that two histories can be told apart.

Whoever opens a store draws a name for what happens from then on. Where a copy is opened beside its
original, or in its place, both have the events up to the copy under the same names, and those after
it under different ones; so the name of the last event that somebody has read says whether what he
is to read next comes after it. That holds for every kind of copy, as nothing has to know that it is
one.
"""

from collections.abc import Sequence

import msgspec

#: Where more are known, the oldest are forgotten: of events so old nobody knows by whom they are.
_MOST = 1_000


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """One opening of the store: the first event position that is its own, and its random name."""

    position: int
    name: str


def begun(openings: Sequence[Opening], position: int, name: str) -> tuple[Opening, ...]:
    """Return the openings with a new one, whose first event will have a position.

    One that has no events before it is forgotten; so a store that is only started again and again
    has no more of them.
    """
    before = [opening for opening in openings if opening.position < position]
    return (*before, Opening(position, name))[-_MOST:]


def history(openings: Sequence[Opening], position: int, end: int) -> str:
    """Return by whom the event before a position is; empty where that is not known.

    ``end`` is the position of the next event: behind it nothing is known.
    """
    if position > end:
        return ""
    return next((one.name for one in reversed(openings) if one.position < position), "")
